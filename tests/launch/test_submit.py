"""Tasks of a sweep: chunks, their common parent, what becomes of those that are lost. No cluster is needed."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from hydra_plugins import paradnn_launchers
from paradnn.config.point import Settings, Tracking, read_point
from paradnn.errors import ConfigError
from paradnn.launch import slurm
from paradnn.launch.submit import Submitter
from paradnn.store.claims import Entry, enter_task, owner_tag
from paradnn.store.runs import EXPIRES, OWNER
from paradnn.sweep import scheduler as placement
from paradnn.sweep.space import Plan
from paradnn.sweep.tasks import Launched, Sweep, SweepInfo
from tests.conftest import ROOT, TINY, Store, run

AXES = ["model.nodes=8,9,10", "sweep.chunk=2", *[entry for entry in TINY if "nodes" not in entry]]


@pytest.mark.framework
def test_tasks_of_a_chunk_each_share_one_parent(store: Store) -> None:
    done = run(["paradnn.train", "-m", *AXES], store)
    assert done.returncode == 0, done.stderr
    points, [parent] = store.runs(), store.runs("sweep")
    assert sorted(point["task"] for point in points) == ["0", "0", "1"]
    assert {point["mlflow.parentRunId"] for point in points} == {parent["run_id"]}
    assert {point["sweep_id"] for point in points} == {parent["sweep_id"]}
    assert parent["status"] == "FINISHED"
    assert "A sweep of 3 points, finished" in parent["mlflow.note.content"]
    assert store.values("latest_metrics", parent["run_id"]) == {"points": 3, "points.ok": 3}
    again = run(["paradnn.train", "-m", *AXES], store)
    assert again.returncode == 0
    assert "3 skipped, the store holds their outcome already (3 ok)" in again.stdout
    assert len(store.runs("sweep")) == 1, "a sweep in which nothing was measured has no parent"


@pytest.mark.framework
def test_offline_tasks_leave_one_parent_to_be_logged(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    done = run(["paradnn.train", "-m", *AXES, "tracking=offline", f"tracking.folder={folder}"], store)
    assert done.returncode == 0, done.stderr
    assert len(list(folder.glob("point-*.json"))) == 3
    assert len(list(folder.iterdir())) == 4, "three points and the sweep"
    assert run(["paradnn.sync", str(folder)], store).returncode == 0
    [parent] = store.runs("sweep")
    assert {point["mlflow.parentRunId"] for point in store.runs()} == {parent["run_id"]}
    assert "A sweep of 3 points, finished" in parent["mlflow.note.content"]


def sweep_of(store: Store, count: int) -> Sweep:
    plan = Plan(
        [{"model": {"name": "fc"}, "batch_size": 1}], [(0, {"batch_size": size}) for size in range(1, 1 + count)]
    )
    settings = Settings(tracking=Tracking(uri=store.uri))
    points = tuple(read_point(config) for config in plan.configs())
    return Sweep(SweepInfo("20260101-1", "fc", "python -m paradnn.train -m batch_size=1,2"), plan, points, settings, ())


def test_tasks_that_a_launcher_lost_are_told_with_the_command(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    def launch(tasks: Sequence[Sequence[str]]) -> Sequence[Any]:
        assert len(tasks) == 2
        raise RuntimeError("Job 12_1 has not produced any output\nand more")

    assert Submitter(sweep_of(store, 7), "slurm", 1).run(launch) == 1
    said = capsys.readouterr().err
    assert "slurm: RuntimeError: Job 12_1 has not produced any output\n" in said
    assert "7 of 7 points have no outcome; the same command measures them:\n  python -m paradnn.train -m" in said
    [parent] = store.runs("sweep")
    assert parent["status"] == "FAILED"
    assert "7 not measured" in parent["mlflow.note.content"]


def test_a_task_that_cannot_measure_says_why_to_the_one_who_waits(store: Store) -> None:
    done = run(["paradnn.train", "-m", "software.python=/nowhere/python", *AXES], store)
    assert done.returncode == 1
    assert "task 0 on its host: software.python=/nowhere/python: does not run" in done.stderr
    assert "3 of 3 points have no outcome" in done.stderr


@pytest.fixture
def elsewhere() -> Any:
    """An owner as another host writes it: no process of ours."""

    def owner(task: str | None, restarts: int, begun: float) -> str:
        enter_task(task, restarts)
        found = json.loads(owner_tag()) | {"host": "far", "boot": "other/pid:[1]"}
        enter_task(None)
        return json.dumps(found | ({"begun": begun} if task else {}))

    yield owner
    enter_task(None)


def test_a_requeued_task_takes_what_its_earlier_attempt_held_on_another_host(elsewhere: Any) -> None:
    later = {EXPIRES: str(time.time() + 1000)}
    now = time.time()
    claims = {
        "earlier": elsewhere("sweep/3", 0, now - 50),
        "earlier, by a clock that is ahead": elsewhere("sweep/3", 0, now + 50),
        "later": elsewhere("sweep/3", 2, now - 50),
        "another task": elsewhere("sweep/4", 0, now - 50),
        "no task": elsewhere(None, 0, now),
    }
    entries = {name: Entry("run", "RUNNING", {OWNER: owner, **later}) for name, owner in claims.items()}
    assert not any(entry.is_abandoned() for entry in entries.values())
    enter_task("sweep/3", 1)
    assert [name for name, entry in entries.items() if entry.is_abandoned()] == [
        "earlier",
        "earlier, by a clock that is ahead",
    ]
    # A scheduler without a count of restarts: the one that began first is the dead one.
    enter_task("sweep/3", 0)
    assert entries["earlier"].is_abandoned()
    assert not entries["earlier, by a clock that is ahead"].is_abandoned()
    assert not Entry("run", "RUNNING", {OWNER: owner_tag(), **later}).is_abandoned()
    assert Entry("run", "RUNNING", {OWNER: claims["another task"], EXPIRES: "1"}).is_abandoned()
    earlier = {"owner": claims["another task"], "claim_expires": "1"}
    assert Entry("run", "RUNNING", earlier).is_abandoned(), "tags of an earlier version"


def test_where_a_task_runs_and_how_long_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    born = placement.process_start()
    assert abs(born - psutil.Process().create_time()) < 2
    launched = Launched("slurm", "parent", 4, born - 30)
    times = placement.waiting_times(launched, born + 2)
    assert times == {"queue_seconds": pytest.approx(30, abs=0.1), "task_start_seconds": pytest.approx(2, abs=0.1)}
    # A process that measured another task before.
    assert placement.waiting_times(Launched("ray", "parent", 4, born + 5), born + 9)["queue_seconds"] == pytest.approx(
        4
    )
    for name, value in {"JOB_ID": "18", "ARRAY_JOB_ID": "17", "ARRAY_TASK_ID": "1", "RESTART_COUNT": "2"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    tags = placement.task_tags(SweepInfo("s", "n", "c", launched))
    assert tags == {"job_id": "17_1", "node": "n7", "restarts": "2", "launcher": "slurm", "task": "4", "sweep_id": "s"}
    assert placement.waiting_times(launched) == {}


def test_squeue_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's place is taken by a script that says what Slurm 22.05 says."""
    script = tmp_path / "squeue"
    script.write_text("#!/bin/sh\necho '17_0|RUNNING'; echo '17_1|PENDING'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert slurm.queue_states({"17"}) == {"17_0": "RUNNING", "17_1": "PENDING"}
    script.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n")
    assert slurm.queue_states({"17"}) == {}
    script.write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    assert slurm.queue_states({"17"}) is None


@pytest.mark.parametrize("launcher", [getattr(paradnn_launchers, name) for name in paradnn_launchers.__all__])
def test_a_launcher_that_is_not_installed_is_named_with_its_remedy(launcher: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, launcher._module, None)
    preset, extra = launcher._preset, launcher._extra
    wanted = rf"^hydra/launcher={preset}: .* is not installed; run .*'paradnn\[{extra}\]'$"
    with pytest.raises(ConfigError, match=wanted):
        launcher().setup(hydra_context=None, task_function=None, config=None)


def test_every_preset_names_a_launcher_of_ours() -> None:
    presets = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "conf/hydra/launcher").glob("*.yaml")}
    assert set(presets) == {"slurm", "ray_cluster", "processes"}
    for name, preset in presets.items():
        module, _, launcher = preset["_target_"].rpartition(".")
        assert module == paradnn_launchers.__name__
        assert getattr(paradnn_launchers, launcher)._preset == name
