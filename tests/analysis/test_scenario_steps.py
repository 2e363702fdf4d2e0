"""Frames with scenario runs and closed-loop runs, in analyses of steps and of queries."""

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.columns import scenario_runs_as_steps
from tests.analysis.planted import grid, runs

POINTS = grid(layers=(4, 8))
RATES = (50.0, 100.0, 200.0)


def closed_loop_runs(device: str = "Test CPU") -> pd.DataFrame:
    """Return one closed-loop run per point, with different speeds."""
    speed = 1e6 / POINTS["model.nodes"].to_numpy(dtype=float) * np.arange(1, len(POINTS) + 1)
    return runs(
        POINTS, mode="inference", scenario="closed", device=device, examples_per_second=speed
    )


def mixed_runs(device: str = "Test CPU") -> pd.DataFrame:
    """Return the closed-loop runs, and server runs of all points with batch size 64 at three rates.

    Steps of the server runs are as fast as those of the closed loop.
    """
    frame = closed_loop_runs(device)
    batch_64 = frame[frame["batch_size"] == 64]
    served = [
        batch_64.assign(
            **{"scenario": "server", "server.rate": rate, "latency_p99_ms": rate / 10}
        ).assign(point_id=batch_64["point_id"] + f"-{rate}", run_id=batch_64["run_id"] + f"-{rate}")
        for rate in RATES
    ]
    return pd.concat([frame, *served], ignore_index=True)


@pytest.mark.parametrize(
    "column", ["scenario", "server.rate", "latency_p99_ms", "peak_queries_per_second"]
)
def test_scenario_runs_stay_separate_in_analyses_of_queries(column: str) -> None:
    frame = mixed_runs()
    result, count = scenario_runs_as_steps(frame, ["batch_size", column])

    assert count == 0
    pd.testing.assert_frame_equal(result, frame)


def test_scenario_runs_do_not_change_analyses_of_throughput() -> None:
    rates = {"metric": "examples_per_second"}
    for analyse, options in (
        (analysis.sensitivity, analysis.SensitivityOptions(**rates)),
        (analysis.boxplot, analysis.BoxplotOptions(by=("family",), **rates)),
        (analysis.heatmap, analysis.HeatmapOptions(x="batch_size", y="nodes")),
    ):
        closed_loop, mixed = (
            analyse(frame, options) for frame in (closed_loop_runs(), mixed_runs())
        )
        pd.testing.assert_frame_equal(closed_loop.table, mixed.table)
        assert "24 runs of scenarios count for the steps that they time" in mixed.text()
        assert "scenarios" not in closed_loop.text()
    compare_options = analysis.CompareOptions(a="device=A", b="device=B")
    for make_runs in (closed_loop_runs, mixed_runs):
        sides = pd.concat([make_runs("A"), make_runs("B")], ignore_index=True)
        assert analysis.compare(sides, compare_options).families["points"].tolist() == [len(POINTS)]
