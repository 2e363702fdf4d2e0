"""Scenario runs among closed-loop runs.

Covers their role in analyses of steps and in analyses of queries.
"""

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.columns import scenario_runs_as_steps
from tests.analysis.planted import grid, runs

POINTS = grid(layers=(4, 8))
RATES = (50.0, 100.0, 200.0)


def closed(device: str = "Test CPU") -> pd.DataFrame:
    speed = 1e6 / POINTS["model.nodes"].to_numpy(dtype=float) * np.arange(1, len(POINTS) + 1)
    return runs(
        POINTS, mode="inference", scenario="closed", device=device, examples_per_second=speed
    )


def with_servers(device: str = "Test CPU") -> pd.DataFrame:
    """Return the closed-loop runs, and every model at a batch of 64 under three arrival rates.

    The scenarios' steps are as fast as in closed loop.
    """
    frame = closed(device)
    some = frame[frame["batch_size"] == 64]
    served = [
        some.assign(
            **{"scenario": "server", "server.rate": rate, "latency_p99_ms": rate / 10}
        ).assign(point_id=some["point_id"] + f"-{rate}", run_id=some["run_id"] + f"-{rate}")
        for rate in RATES
    ]
    return pd.concat([frame, *served], ignore_index=True)


@pytest.mark.parametrize(
    "word", ["scenario", "server.rate", "latency_p99_ms", "peak_queries_per_second"]
)
def test_scenarios_stay_apart_if_queries_are_requested(word: str) -> None:
    frame = with_servers()
    same, count = scenario_runs_as_steps(frame, ["batch_size", word])
    assert count == 0
    pd.testing.assert_frame_equal(same, frame)


def test_scenarios_do_not_change_analyses_of_throughput() -> None:
    rates = {"metric": "examples_per_second"}
    for one, options in (
        (analysis.sensitivity, analysis.SensitivityOptions(**rates)),
        (analysis.boxplot, analysis.BoxplotOptions(by=("family",), **rates)),
        (analysis.heatmap, analysis.HeatmapOptions(x="batch_size", y="nodes")),
    ):
        plain, more = (one(frame, options) for frame in (closed(), with_servers()))
        pd.testing.assert_frame_equal(plain.table, more.table)
        assert "24 runs of scenarios count for the steps that they time" in more.text()
        assert "scenarios" not in plain.text()
    asked = analysis.CompareOptions(a="device=A", b="device=B")
    for make in (closed, with_servers):
        sides = pd.concat([make("A"), make("B")], ignore_index=True)
        assert analysis.compare(sides, asked).families["points"].tolist() == [len(POINTS)]
