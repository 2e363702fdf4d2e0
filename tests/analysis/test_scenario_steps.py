"""Runs of scenarios among closed ones: what they count for where steps are analysed, and where queries are."""

import numpy as np
import pandas as pd
import pytest

from analysis import (
    BoxplotOptions,
    CompareOptions,
    HeatmapOptions,
    SensitivityOptions,
    boxplot,
    compare,
    heatmap,
    sensitivity,
)
from analysis.columns import as_steps
from tests.analysis.planted import grid, runs

POINTS = grid(layers=(4, 8))
RATES = (50.0, 100.0, 200.0)


def closed(device: str = "Test CPU") -> pd.DataFrame:
    speed = 1e6 / POINTS["model.nodes"].to_numpy(dtype=float) * np.arange(1, len(POINTS) + 1)
    return runs(POINTS, mode="inference", scenario="closed", device=device, examples_per_second=speed)


def with_servers(device: str = "Test CPU") -> pd.DataFrame:
    """The same, and every model at a batch of 64 under three rates, its steps as fast as they were closed."""
    frame = closed(device)
    some = frame[frame["batch_size"] == 64]
    served = [
        some.assign(
            **{
                "scenario": "server",
                "server.rate": rate,
                "latency_p99_ms": rate / 10,
                "point_id": some["point_id"] + f"-{rate}",
                "run_id": some["run_id"] + f"-{rate}",
            }
        )
        for rate in RATES
    ]
    return pd.concat([frame, *served], ignore_index=True)


@pytest.mark.parametrize("word", ["scenario", "server.rate", "latency_p99_ms", "peak_queries_per_second"])
def test_they_stay_apart_where_queries_are_asked_for(word: str) -> None:
    frame = with_servers()
    same, count = as_steps(frame, ["batch_size", word])
    assert count == 0
    pd.testing.assert_frame_equal(same, frame)


def test_analyses_of_throughput_say_what_they_say_without_them() -> None:
    plain, more = closed(), with_servers()
    found = [sensitivity(frame, SensitivityOptions(metric="examples_per_second")).table for frame in (plain, more)]
    pd.testing.assert_frame_equal(*found)
    boxes = [
        boxplot(frame, BoxplotOptions(by=("family",), metric="examples_per_second")).table for frame in (plain, more)
    ]
    pd.testing.assert_frame_equal(*boxes)
    maps = [heatmap(frame, HeatmapOptions(x="batch_size", y="nodes")) for frame in (plain, more)]
    pd.testing.assert_frame_equal(maps[0].table, maps[1].table)
    assert "24 runs of scenarios count for the steps that they time" in maps[1].text()
    assert "scenarios" not in maps[0].text()
    sides = [pd.concat([make("A"), make("B")], ignore_index=True) for make in (closed, with_servers)]
    counts = [compare(frame, CompareOptions(a="device=A", b="device=B")).families["points"] for frame in sides]
    assert counts[0].tolist() == counts[1].tolist() == [len(POINTS)]
