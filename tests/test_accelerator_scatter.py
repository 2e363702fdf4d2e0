"""The scatter between published trainings, on planted results of MLPerf Training."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.accelerator_scatter import called_different, equal_systems, read_results


def plant(
    folder: Path, submitter: str, medians: list[float], kind: str = "NVIDIA H100-SXM5-80GB"
) -> None:
    """Write trainings of one model on a system with eight accelerators.

    Args:
        folder: Folder of the results.
        submitter: Name of the submitter.
        medians: Median throughput of each training.
        kind: Name of the accelerator.
    """
    results = folder / submitter / "results" / "box" / "resnet"
    results.mkdir(parents=True)
    for number, median in enumerate(medians):
        lines = ["a line of another program"]
        for throughput in (0.5 * median, median, 1.1 * median):
            event = {"key": "tracked_stats", "value": {"throughput": throughput}}
            lines.append(f":::MLLOG {json.dumps(event)}")
        lines.append(':::MLLOG {"key": "eval_accuracy", "value": 0.7}')
        (results / f"result_{number}.txt").write_text("\n".join(lines))
    description = {
        "number_of_nodes": "1",
        "accelerators_per_node": "8",
        "accelerator_model_name": kind,
    }
    systems = folder / submitter / "systems"
    systems.mkdir()
    (systems / "box.json").write_text(json.dumps(description))


def test_the_throughput_of_a_training_is_the_median_of_its_log(tmp_path: Path) -> None:
    plant(tmp_path, "A", [100.0, 101.0, 102.0, 103.0])
    plant(tmp_path, "B", [100.0, 101.0, 102.0])  # too few processes

    trainings = read_results(tmp_path)

    assert [system.submitter for system in trainings] == ["A"]
    (values,) = trainings.values()
    assert [math.exp(value) for value in values] == pytest.approx([100.0, 101.0, 102.0, 103.0])


def test_equal_systems_have_the_same_accelerator_in_any_spelling(tmp_path: Path) -> None:
    plant(tmp_path, "A", [100.0] * 4)
    plant(tmp_path, "B", [110.0] * 4, kind="H100-SXM5-80GB")
    plant(tmp_path, "C", [150.0] * 4, kind="NVIDIA H200-SXM-141GB")
    plant(tmp_path, "D", [120.0] * 4)
    (tmp_path / "D" / "systems" / "box.json").write_text("not JSON")

    (values,) = equal_systems(tmp_path, read_results(tmp_path))

    assert [math.exp(value) for value in values] == pytest.approx([100.0, 110.0])


def test_pairs_with_differences_above_the_limit_are_counted_within_groups() -> None:
    different, pairs = called_different([[0.0, 0.05, 0.2], [1.0, 1.01]], limit=0.1)

    assert (different, pairs) == (2, 4)
