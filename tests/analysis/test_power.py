"""What is called the same, and what points that ran on one side alone leave open."""

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.compare import CompareOptions, compare_points
from analysis.analyses.compare import compare as command
from analysis.statistics.contrast import Contrast, Verdict, equivalent
from analysis.statistics.pairing import Sampling
from tests.analysis.test_compare import planted


def test_equal_means_are_called_the_same_only_within_the_margin() -> None:
    """At the margin itself one in twenty; well within it nearly always."""
    random = np.random.default_rng(0)
    for true, low, high in ((np.log(1.05), 0.03, 0.07), (0.0, 0.95, 1.0)):
        logs = random.normal(0, 0.02, (2, 4000, 12))
        error = np.sqrt(logs.var(axis=2, ddof=1).sum(axis=0) / 12)
        difference = true + logs[0].mean(axis=1) - logs[1].mean(axis=1)
        assert low <= np.mean(equivalent(difference, difference, error, np.full(4000, 22.0), 0.05) <= 0.05) <= high


def ask(a: pd.DataFrame, b: pd.DataFrame, **options: object) -> str:
    return command(pd.concat([a, b], ignore_index=True), CompareOptions(a="device=A", b="device=B", **options)).text()  # type: ignore[arg-type]


def test_the_same_within_a_margin() -> None:
    sides = planted(1.0, 20, 8, seed=4, noise=0.01)
    found = compare_points(*sides)
    assert found.families["verdict"].iloc[0] == Verdict.SAME
    assert found.families["same"].iloc[0] >= 18
    assert "fc: the same within 5%: geometric mean" in ask(*sides)
    assert compare_points(*sides, margin=0.001).families["verdict"].iloc[0] == Verdict.NOT_SHOWN


def test_bounds_as_by_hand() -> None:
    def of(ratios: list[float], missing: tuple[int, int] = (0, 0)) -> dict[str, float]:
        pairs = pd.DataFrame({"speedup": ratios, "family": "fc", "comparable": True})
        return Contrast(pairs, Sampling(missing=missing)).bounds()

    found = of([0.5, 2.0, 4.0], (1, 1))
    assert (found["share_least"], found["share_most"]) == (2 / 5, 4 / 5)
    assert (found["median_least"], found["median_most"]) == (0.5, 4.0)
    assert [found["mean_least"], found["mean_most"]] == pytest.approx([(4 * 0.25) ** 0.2, (4 * 16) ** 0.2])
    assert of([2.0])["share_least"] == 1


def test_out_of_memory_on_one_side_is_bounded() -> None:
    """Half of the points are faster on B, where most of those are out of memory: 27% was all that was said."""
    random = np.random.default_rng(1)
    ratio = np.exp(random.normal(0, 0.3, 200))
    a, b = planted(ratio, 200, 1, seed=5, noise=0)
    lost = (a["examples_per_second"] < b["examples_per_second"]) & (random.random(200) < 0.63)
    b["outcome"] = np.where(lost, "oom_device", "ok")
    row = compare_points(a, b).families.iloc[0]
    assert row["missing_a"] == lost.sum()
    assert row["missing_b"] == 0
    assert row["share_least"] <= (ratio > 1).mean() <= row["share_most"]
    assert row["share"] > 0.65
    # What the missing points could have moved is in the intervals.
    assert row["share_low"] < row["share_least"] < row["share_most"] < row["share_high"]
    assert row["geometric_mean_low"] < row["mean_least"] < 1 < row["geometric_mean_high"]
    points = len(ratio) - lost.sum()
    assert f"over {points} points that both ran; {lost.sum()} on A alone ran, with which A is ahead in" in ask(a, b)
