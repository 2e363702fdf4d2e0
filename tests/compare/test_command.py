"""`python -m paradnn.compare`: real comparisons of tiny points, and their records."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paradnn.session.workers import WorkerPool
from paradnn.statistics.paired_rounds import estimate
from paradnn.store.metrics import METRICS
from tests.conftest import TINY, Store, ctrl_c_after_records, run

FEW = ["--most", "5", "--within", "0.5"]
#: Overrides of a tiny point, without the option that a comparison sets.
POINT = [entry for entry in TINY if "processes" not in entry]
AXES = [entry for entry in POINT if not entry.startswith("batch_size")]


@dataclass(frozen=True)
class FinishedComparison:
    """A comparison of compile=graph and compile=eager on two points, with five rounds.

    Attributes:
        store: Store of its runs.
        done: Exit code, output and errors of the command.
        sides_at_the_end: Sides whose workers were alive when the command ended.
    """

    store: Store
    done: subprocess.CompletedProcess[str]
    sides_at_the_end: set[int | None]

    @property
    def parent(self) -> dict[str, str]:
        """The run of the comparison."""
        [parent] = self.store.runs("sweep")
        return parent

    def table(self, name: str) -> dict[str, Any]:
        """Return a table of the parent run."""
        content: dict[str, Any] = json.loads(
            (self.store.files(self.parent["run_id"]) / name).read_text()
        )
        return content

    def ratios(self) -> dict[tuple[object, str], float]:
        """Return the ratio of each batch size and round, from the recorded blocks of its runs."""
        steps: dict[tuple[object, str], dict[object, np.ndarray]] = {}
        for point in self.store.runs():
            params = self.store.values("params", point["run_id"])
            blocks = json.loads((self.store.files(point["run_id"]) / "blocks.json").read_text())
            [process] = blocks["processes"]
            sides = steps.setdefault((params["batch_size"], point["replicate"]), {})
            seconds = np.array(process["blocks"]) / process["steps_per_block"]
            sides[params["compile"]] = seconds
        return {
            key: float(np.exp(stats.trim_mean(np.log(sides["eager"] / sides["graph"]), 0.2)))
            for key, sides in steps.items()
        }


@pytest.fixture(scope="module")
def comparison(
    tmp_path_factory: pytest.TempPathFactory, empty_database: Path, pool: WorkerPool
) -> FinishedComparison:
    store = Store(tmp_path_factory.mktemp("comparison"))
    shutil.copy(empty_database, store.folder / "mlflow.db")
    axes = [*AXES, "batch_size=4,8"]
    done = run(
        ["paradnn.compare.__main__", *FEW, "compile=graph", "compile=eager", "--", *axes], store
    )
    sides = {key.side for key, worker in pool._workers.items() if worker._process.poll() is None}
    return FinishedComparison(store=store, done=done, sides_at_the_end=sides)


@pytest.mark.framework
def test_every_point_is_measured_on_both_sides_in_every_round(
    comparison: FinishedComparison,
) -> None:
    points = comparison.store.runs()
    recorded_sides = {
        (point["side"], comparison.store.values("params", point["run_id"])["compile"])
        for point in points
    }

    assert len(points) == 20, comparison.done.stderr
    assert recorded_sides == {("compile=graph", "graph"), ("compile=eager", "eager")}
    assert sorted(int(point["replicate"]) for point in points) == sorted(4 * [1, 2, 3, 4, 5])
    assert all(point["contended"] in ("true", "false") for point in points)


@pytest.mark.framework
def test_workers_of_both_sides_survive_all_rounds(comparison: FinishedComparison) -> None:
    assert comparison.sides_at_the_end >= {0, 1}


@pytest.mark.framework
def test_every_run_names_its_comparison(comparison: FinishedComparison) -> None:
    points = comparison.store.runs()

    assert {point["mlflow.parentRunId"] for point in points} == {comparison.parent["run_id"]}
    assert {point["comparison"] for point in points} == {comparison.parent["sweep_id"]}
    assert comparison.parent["status"] == "FINISHED"
    assert comparison.parent["mlflow.runName"] == "compile=graph or compile=eager, 2 points"


@pytest.mark.framework
def test_the_answer_has_a_line_per_point_and_is_recorded(comparison: FinishedComparison) -> None:
    lines = comparison.done.stdout.splitlines()[:3]

    assert {line.partition(":")[0] for line in lines[:2]} == {
        f"fc 1x8 b{size} float32 cpu" for size in (4, 8)
    }
    assert lines[2].startswith("Geometric mean of these 2 points only: ")
    assert all(line in comparison.parent["mlflow.note.content"] for line in lines)


@pytest.mark.framework
def test_the_recorded_ratio_follows_from_the_blocks(comparison: FinishedComparison) -> None:
    ratios = comparison.ratios()
    by_round = [
        np.mean([np.log(ratio) for (_, number), ratio in ratios.items() if number == str(round_)])
        for round_ in range(1, 6)
    ]
    metrics = comparison.store.values("latest_metrics", comparison.parent["run_id"])

    assert metrics["speed_ratio"] == pytest.approx(estimate(by_round).ratio)
    assert metrics["comparison_rounds"] == 5


@pytest.mark.framework
def test_the_ratio_of_each_round_is_recorded(comparison: FinishedComparison) -> None:
    rounds = comparison.table("rounds.json")
    ratios = comparison.ratios()

    assert sorted(values[-1] for values in rounds["data"]) == pytest.approx(sorted(ratios.values()))


@pytest.mark.framework
def test_a_comparison_records_all_declared_metrics(comparison: FinishedComparison) -> None:
    metrics = comparison.store.values("latest_metrics", comparison.parent["run_id"])
    declared = {name for name in METRICS if name.startswith(("speed_ratio", "comparison_"))}

    assert {name for name in metrics if not name.startswith("points")} == declared


@pytest.mark.framework
def test_the_exit_code_reports_whether_all_points_are_decided(
    comparison: FinishedComparison,
) -> None:
    verdicts = comparison.table("verdicts.json")
    is_decided = all(values[1] in ("faster", "slower", "equal") for values in verdicts["data"])

    assert comparison.done.returncode == (0 if is_decided else 1)


#: Program that keeps a core busy.
SPIN = "import os, time; until = time.time() + 400\nwhile time.time() < until: pass"


@pytest.mark.framework
def test_runs_of_a_comparison_record_other_work_on_the_machine(store: Store) -> None:
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", SPIN]))
            stack.callback(process.kill)
        run(["paradnn.compare.__main__", *FEW, "compile=graph", "compile=eager", *POINT], store)
    points = store.runs()

    assert len(points) == 10
    assert {point["contended"] for point in points} == {"true"}
    assert all("other processes took" in point["contended_reason"] for point in points)


@pytest.mark.framework
def test_an_unavailable_side_leaves_the_verdict_undecided(store: Store) -> None:
    done = run(["paradnn.compare.__main__", *FEW, "platform=cpu", "platform=tpu", *POINT], store)
    assert done.returncode == 1
    assert done.stdout.startswith("undecided: platform=tpu is unavailable: ")
    assert sorted(point["outcome"] for point in store.runs()) == ["ok", "unavailable"]


@pytest.mark.framework
def test_an_interrupted_comparison_is_recorded(store: Store, tmp_path: Path) -> None:
    """The third recorded point is the first one of the second round."""
    options = ["--json", str(tmp_path / "answer.json"), "--within", "0.0001", "--most", "400"]

    with ctrl_c_after_records(3):
        sides = ["compile=graph", "compile=xla"]
        done = run(["paradnn.compare.__main__", *options, *sides, *POINT], store)

    out = done.stdout
    errors = done.stderr

    assert done.returncode == 130, errors
    assert sorted(point["status"] for point in store.runs()) == ["FINISHED"] * 3 + ["KILLED"]
    assert "undecided: " in out

    answer = json.loads((tmp_path / "answer.json").read_text())
    assert (answer["interrupted"], answer["verdict"], answer["rounds"]) == (True, "undecided", 1)
    assert "interrupted; completed rounds are recorded" in errors

    [parent] = store.runs("sweep")
    assert parent["status"] == "KILLED"
    assert "undecided: " in parent["mlflow.note.content"]
