"""Sweeps whose drivers are started by a Hydra launcher, with real launchers on this host."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from paradnn.config import scheduler
from paradnn.config.scheduler import DriverStart, job_tags, shared_sweep, start_seconds
from paradnn.core.errors import ConfigError
from paradnn.session.launch import DriverTask
from paradnn.store.leases import Owner
from tests.conftest import ROOT, TINY, Store, environment, process
from tests.processes import PATIENCE, children_of, started, wait_for, with_default_signal_handlers

REST = [entry for entry in TINY if "nodes" not in entry]


def sweep_of(store: Store, launcher: str, *overrides: str) -> list[str]:
    return [
        "paradnn.train",
        "-m",
        *REST,
        f"hydra/launcher={launcher}",
        "sweep.drivers=2",
        f"hydra.sweep.dir={store.folder}/jobs",
        f"tracking.folder={store.folder}/files",
        *overrides,
    ]


def points_measured_once(store: Store, count: int) -> list[dict[str, str]]:
    """Return the points of the only sweep; check that it finished and measured each point once."""
    [parent] = store.runs("sweep")
    assert parent["status"] == "FINISHED"
    points = [run for run in store.runs() if "outcome" in run]
    measured = Counter(run["point_id"] for run in points)
    assert sorted(measured.values()) == [1] * count
    assert {run["mlflow.parentRunId"] for run in points} == {parent["run_id"]}
    assert {run["sweep_id"] for run in points} == {parent["sweep_id"]}
    return points


@pytest.mark.framework
@pytest.mark.slow
def test_joblib_drivers_share_one_sweep(store: Store) -> None:
    completed = process(sweep_of(store, "joblib", "model.nodes=8,9,10,11"), store)

    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "4 points" in completed.stdout
    assert "4 ok" in completed.stdout
    points = points_measured_once(store, 4)
    assert {run["driver"] for run in points} <= {"0", "1"}
    assert {run["launcher"] for run in points} == {"joblib"}
    metrics = store.values("latest_metrics", points[0]["run_id"])
    assert {"queue_seconds", "launcher_seconds", "task_start_seconds"} <= set(metrics)
    shown = process(["paradnn.watch", "--once", "--sweep", points[0]["sweep_id"]], store).stdout
    assert "4 of 4 points" in shown


@pytest.mark.framework
@pytest.mark.slow
def test_the_points_of_a_killed_submitit_driver_are_measured(store: Store) -> None:
    """Kill one of two drivers; the other measures its points despite the launcher's error."""
    axes = sweep_of(store, "submitit_local", "model.nodes=range(8,14)", "measure.min_seconds=0.5")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", *axes]
    with started(command, cwd=ROOT, env=environment(store), text=True, **pipes) as launcher_process:
        assert wait_for(lambda: {"0", "1"} <= set(drivers_at_work(store)))
        lease = drivers_at_work(store)["0"]
        psutil.Process(lease["owner"]["pid"]).kill()
        out, errors = launcher_process.communicate(timeout=PATIENCE)
        assert launcher_process.returncode == 0, out + errors
    points_measured_once(store, 6)
    assert [run["status"] for run in store.runs()].count("RUNNING") == 0


@pytest.mark.framework
@pytest.mark.slow
def test_a_lost_point_is_measured_before_points_that_were_never_begun(store: Store) -> None:
    sweep = ["paradnn.train", "-m", *REST, "sweep.order=given", "model.nodes=8,9,10"]
    variables = {"PARADNN_SWEEP": "lost", "PARADNN_DRIVER": "0"}
    process(sweep, store, **variables)
    # Emulate a driver that was killed in the last point, before it began the second one.
    _, pending, lost = store.runs()
    store.change(f"DELETE FROM tags WHERE key = 'outcome' AND run_uuid = '{lost['run_id']}'")
    store.change(f"UPDATE runs SET status = 'KILLED' WHERE run_uuid = '{lost['run_id']}'")
    store.change(f"DELETE FROM tags WHERE run_uuid = '{pending['run_id']}'")

    completed = process(sweep, store, **variables)

    assert completed.returncode == 0, completed.stderr
    order = [run["point_id"] for run in store.runs() if "outcome" in run]
    assert order[1:] == [lost["point_id"], pending["point_id"]]


def drivers_at_work(store: Store) -> dict[str, dict]:
    """Return the leases of drivers that have claimed a point, by driver number."""
    prefix = "mlflow.paradnn.driver."
    rows = store.query("SELECT key, value FROM tags WHERE key LIKE ?", f"{prefix}_")
    claims = {run["driver"] for run in store.runs()}
    leases = {key.removeprefix(prefix): json.loads(value) for key, value in rows}
    return {number: lease for number, lease in leases.items() if number in claims}


@pytest.mark.framework
@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, id="interrupted"),
        pytest.param(signal.SIGKILL, id="killed"),
    ],
)
def test_drivers_end_with_the_process_that_launched_them(
    number: signal.Signals, store: Store
) -> None:
    axes = sweep_of(store, "joblib", "model.nodes=range(8,14)", "measure.min_seconds=1000")
    command = with_default_signal_handlers([sys.executable, "-m", *axes])
    discarded_output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with started(command, cwd=ROOT, env=environment(store), **discarded_output) as launcher_process:
        assert wait_for(lambda: drivers_at_work(store))
        descendants = [psutil.Process(pid) for pid in children_of(launcher_process.pid)]
        launcher_process.send_signal(number)
        launcher_process.wait(PATIENCE)
        assert wait_for(lambda: not any(child.is_running() for child in descendants))
    # The last driver closes the sweep after its launching process has ended.
    assert [run["status"] for run in store.runs("sweep")] == ["KILLED"]
    assert {run["status"] for run in store.runs()} == {"KILLED"}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        pytest.param(
            {"PARADNN_SWEEP": "a b"},
            "PARADNN_SWEEP=a b: is not a valid id of a sweep; use at most 100 letters",
            id="invalid id",
        ),
        pytest.param(
            {"PARADNN_SWEEP": "a"},
            "PARADNN_SWEEP=a: is set, but the number of the driver is unknown; set PARADNN_DRIVER",
            id="no number",
        ),
        pytest.param(
            {"PARADNN_SWEEP": "a", "PARADNN_DRIVER": "-1"},
            "PARADNN_DRIVER=-1: is not a driver number; set it to 0 for the first driver",
            id="negative number",
        ),
    ],
)
def test_invalid_variables_of_a_shared_sweep_are_rejected(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as error:
        shared_sweep()
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("variables", "tags"),
    [
        pytest.param({}, {}, id="no scheduler"),
        pytest.param(
            {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"},
            {"job_id": "7", "node": "n1"},
            id="job of Slurm",
        ),
        pytest.param(
            {"SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"},
            {"job_id": "7_1", "node": "unknown"},
            id="array job of Slurm",
        ),
        pytest.param(
            {"PARADNN_JOB_ID": "paradnn-x", "PARADNN_NODE": "worker-3"},
            {"job_id": "paradnn-x", "node": "worker-3"},
            id="Kubernetes",
        ),
    ],
)
def test_job_tags_name_the_job_and_its_node(
    variables: dict[str, str], tags: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert job_tags() == tags


def test_the_start_of_a_driver_is_split_into_queue_and_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = scheduler.process_start()
    start = DriverStart(launched=begin - 60, started=begin - 5, called=begin - 1, pids=[])
    monkeypatch.setenv("PARADNN_START", start.text)
    monkeypatch.setattr(scheduler, "_has_begun_session", False)
    metrics = start_seconds()
    assert metrics["queue_seconds"] == pytest.approx(55)
    assert metrics["launcher_seconds"] == pytest.approx(5, abs=0.1)
    assert start_seconds() == {}


def test_a_driver_task_reports_the_error_of_its_driver(tmp_path: Path) -> None:
    task = DriverTask(
        arguments=("-m", "batch_size=nonsense"),
        folder=str(ROOT),
        logs=str(tmp_path / "logs"),
        variables={"PARADNN_SWEEP": "a"},
        launched=0.0,
        launcher=Owner.current(),
        job_id="",
        name="joblib",
    )
    result = task.run(3)
    assert (result.number, result.code) == (3, 2)
    assert result.error.startswith("batch_size=nonsense: ")
    assert (tmp_path / "logs" / "driver-3.log").read_text().count("error: ") == 1
