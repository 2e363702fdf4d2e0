"""`python -m paradnn.plan` as a user runs it, against a store filled by a real sweep."""

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
    """Store with two of the three planned points measured, and one kept as files."""
    store = Store(tmp_path_factory.mktemp("swept"))
    shutil.copy(empty_database, store.folder / "mlflow.db")
    done = run(["paradnn.train", *SWEEP, "batch_size=2,4"], store)
    assert done.returncode == 0, done.stderr
    done = run(
        [
            "paradnn.train",
            *SWEEP,
            "batch_size=2",
            "tracking=offline",
            f"tracking.folder={store.folder}/files",
        ]
    )
    assert done.returncode == 0, done.stderr
    return store


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def planned(store: Store, tmp_path: Path, *arguments: str) -> tuple[str, list[dict[str, str]]]:
    """Return the plan's output and its rows."""
    out = tmp_path / "points.csv"
    done = run(["paradnn.plan", *SWEEP, *arguments, f"plan.out={out}"], store)
    assert done.returncode == 0, done.stderr
    return done.stdout, rows(out)


def statuses(points: list[dict[str, str]]) -> Counter[str]:
    return Counter(point["status"] for point in points)


def test_a_plan_reports_the_progress_and_changes_nothing(swept: Store, tmp_path: Path) -> None:
    before = hashlib.sha256((swept.folder / "mlflow.db").read_bytes()).hexdigest()
    text, points = planned(swept, tmp_path, BATCHES, "plan.hosts=1,3")
    assert statuses(points) == {"done": 2, "missing": 1}
    assert [point["batch_size"] for point in points if point["status"] == "missing"] == ["8"]
    assert "On one host: " in text
    assert "95%" in text
    assert {line.split()[0] for line in text.splitlines() if line[:1].isdigit()} == {"1", "3"}
    assert hashlib.sha256((swept.folder / "mlflow.db").read_bytes()).hexdigest() == before


def test_costs_and_expected_times_are_in_the_rows(swept: Store, tmp_path: Path) -> None:
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


def test_resume_rules_and_limits_are_the_sessions(swept: Store, tmp_path: Path) -> None:
    assert statuses(planned(swept, tmp_path, "batch_size=2,4", "measure.profile=true")[1]) == {
        "missing": 2
    }
    small = planned(swept, tmp_path, "batch_size=2,16", "measure.memory_limit=1KiB")[1]
    assert statuses(small) == {"done": 1, "oom_predicted": 1}
    assert [point["outcome"] for point in small if point["status"] == "oom_predicted"] == [
        "oom_predicted"
    ]
    twice = planned(swept, tmp_path, "batch_size=32,32")[1]
    assert statuses(twice) == {"missing": 1, "repeated": 1}
    late = planned(swept, tmp_path, "batch_size=32", "measure.timeout=0.01")[1]
    assert [point["outcome"] for point in late] == ["timeout"]


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    place = tmp_path / "here"
    done = run(["paradnn.plan", *SWEEP, BATCHES, f"tracking.uri=sqlite:///{place}/mlflow.db"])
    assert done.returncode == 0, done.stderr
    assert "only the cost model is used" in done.stdout
    assert not (place / "mlflow.db").exists()
    done = run(
        ["paradnn.plan", *SWEEP, BATCHES, "tracking=offline", f"tracking.folder={place}/files"]
    )
    assert done.returncode == 0, done.stderr
    assert not (place / "files").exists()


def test_offline_results_are_those_that_are_done(swept: Store) -> None:
    done = run(
        [
            "paradnn.plan",
            *SWEEP,
            BATCHES,
            "tracking=offline",
            f"tracking.folder={swept.folder}/files",
        ]
    )
    assert done.returncode == 0, done.stderr
    assert "done         1 (1 ok)" in done.stdout


def test_a_software_stack_is_not_made_for_a_plan(tmp_path: Path, swept: Store) -> None:
    stacks = "software=current,tensorflow-2.16"
    done = run(
        ["paradnn.plan", *SWEEP, BATCHES, stacks], swept, XDG_CACHE_HOME=str(tmp_path / "cache")
    )
    assert done.returncode == 0, done.stderr
    assert "The software stack tensorflow-2.16 is not installed yet" in done.stdout
    assert "done         2" in done.stdout
    assert "to measure   4" in done.stdout
    assert not (tmp_path / "cache").exists()
