"""`python -m paradnn.plan` as a user runs it, with a store that a real sweep has filled."""

import csv
import hashlib
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import TINY, Store, run

BATCHES = "batch_size=2,4,8"
SWEEP = ["-m", *[entry for entry in TINY if not entry.startswith("batch_size")]]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Store:
    """Return a store with two of the three planned points, and a folder with one of them."""
    store = Store(tmp_path_factory.mktemp("swept"))
    shutil.copy(empty_database, store.folder / "mlflow.db")
    completed = run(["paradnn.train", *SWEEP, "batch_size=2,4"], store)
    assert completed.returncode == 0, completed.stderr
    completed = run(
        [
            "paradnn.train",
            *SWEEP,
            "batch_size=2",
            "tracking=offline",
            f"tracking.folder={store.folder}/files",
        ]
    )
    assert completed.returncode == 0, completed.stderr
    return store


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def planned(store: Store, tmp_path: Path, *arguments: str) -> tuple[str, list[dict[str, str]]]:
    """Run a plan; return its output and the rows of its file."""
    out = tmp_path / "points.csv"
    completed = run(["paradnn.plan", *SWEEP, *arguments, f"plan.out={out}"], store)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout, rows(out)


def statuses(points: list[dict[str, str]]) -> Counter[str]:
    return Counter(point["status"] for point in points)


def test_a_plan_reports_the_progress_and_does_not_change_the_store(
    swept: Store, tmp_path: Path
) -> None:
    before = hashlib.sha256((swept.folder / "mlflow.db").read_bytes()).hexdigest()
    text, points = planned(swept, tmp_path, BATCHES, "plan.hosts=1,3")
    assert statuses(points) == {"done": 2, "missing": 1}
    assert [point["batch_size"] for point in points if point["status"] == "missing"] == ["8"]
    assert "On one host: " in text
    assert "95%" in text
    assert {line.split()[0] for line in text.splitlines() if line[:1].isdigit()} == {"1", "3"}
    assert hashlib.sha256((swept.folder / "mlflow.db").read_bytes()).hexdigest() == before


def test_rows_have_costs_and_expected_times(swept: Store, tmp_path: Path) -> None:
    _, points = planned(swept, tmp_path, BATCHES, "resume=false")
    assert statuses(points) == {"missing": 3}
    stored = {
        swept.values("params", one["run_id"])["batch_size"]: one["run_id"] for one in swept.runs()
    }
    for point in points:
        assert (
            0
            < float(point["low_seconds"])
            <= float(point["expected_seconds"])
            <= float(point["high_seconds"])
        )
        assert point["family"] == point["model.name"] == "fc"
        if point["batch_size"] in stored:
            metrics = swept.values("latest_metrics", stored[point["batch_size"]])
            for name in (
                "parameters",
                "flops_per_step",
                "bytes_per_step",
                "memory_lower_bound_bytes",
            ):
                assert float(point[name]) == metrics[name]
            params = swept.values("params", stored[point["batch_size"]])
            assert {key: point[key] for key in params} == params


def test_a_plan_measures_points_without_a_requested_profile(swept: Store, tmp_path: Path) -> None:
    _, points = planned(swept, tmp_path, "batch_size=2,4", "measure.profile=true")

    assert statuses(points) == {"missing": 2}


def test_a_plan_predicts_which_points_exceed_the_memory_limit(swept: Store, tmp_path: Path) -> None:
    _, points = planned(swept, tmp_path, "batch_size=2,16", "measure.memory_limit=1KiB")

    assert statuses(points) == {"done": 1, "oom_predicted": 1}
    assert [point["outcome"] for point in points if point["status"] == "oom_predicted"] == [
        "oom_predicted"
    ]


def test_a_plan_reports_repeated_points(swept: Store, tmp_path: Path) -> None:
    _, points = planned(swept, tmp_path, "batch_size=32,32")

    assert statuses(points) == {"missing": 1, "repeated": 1}


def test_a_plan_predicts_which_points_exceed_the_time_limit(swept: Store, tmp_path: Path) -> None:
    _, points = planned(swept, tmp_path, "batch_size=32", "measure.timeout=0.01")

    assert [point["outcome"] for point in points] == ["timeout"]


def test_a_plan_does_not_create_a_missing_store(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    completed = run(["paradnn.plan", *SWEEP, BATCHES, f"tracking.uri=sqlite:///{folder}/mlflow.db"])
    assert completed.returncode == 0, completed.stderr
    assert "only the cost model is used" in completed.stdout
    assert not (folder / "mlflow.db").exists()
    completed = run(
        ["paradnn.plan", *SWEEP, BATCHES, "tracking=offline", f"tracking.folder={folder}/files"]
    )
    assert completed.returncode == 0, completed.stderr
    assert not (folder / "files").exists()


def test_an_offline_plan_counts_the_results_of_its_folder(swept: Store) -> None:
    completed = run(
        [
            "paradnn.plan",
            *SWEEP,
            BATCHES,
            "tracking=offline",
            f"tracking.folder={swept.folder}/files",
        ]
    )
    assert completed.returncode == 0, completed.stderr
    assert "done         1 (1 ok)" in completed.stdout


def test_a_plan_installs_no_software_stack(tmp_path: Path, swept: Store) -> None:
    stacks = "software=current,tensorflow-2.16"
    completed = run(
        ["paradnn.plan", *SWEEP, BATCHES, stacks], swept, XDG_CACHE_HOME=str(tmp_path / "cache")
    )
    assert completed.returncode == 0, completed.stderr
    assert "The software stack tensorflow-2.16 is not installed yet" in completed.stdout
    assert "done         2" in completed.stdout
    assert "to measure   4" in completed.stdout
    assert not (tmp_path / "cache").exists()
