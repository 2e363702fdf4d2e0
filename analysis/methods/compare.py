"""Two sides against each other, cell by cell and family by family: platforms, environments, versions or sweeps.

Every ratio comes with its interval and its source; a test is made only where the replicates can carry one, and over
all tests the share of false discoveries is held. Each family gets one verdict, which may be that nothing is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from analysis.methods.pairing import pair
from analysis.methods.speedup import MINIMUM_POINTS, geometric_mean, wilson
from analysis.store.frame import families

__all__ = ["FALSE_DISCOVERIES", "REPLICATES", "Comparison", "Verdict", "adjust", "compare"]

#: Replicates on each side that a test needs: with two, a t of one degree of freedom finds next to nothing, and a
#: single outlier cannot be recognised.
REPLICATES = 3

#: The share of false ones among the differences found that is put up with.
FALSE_DISCOVERIES = 0.05


class Verdict(StrEnum):
    """What is said of a family, and of a cell that was tested; tables hold the values."""

    A_BETTER = "A better"
    B_BETTER = "B better"
    NOT_SHOWN = "no difference shown"
    NOT_ENOUGH = "not enough data"
    UNTESTED = "not tested"


@dataclass(frozen=True)
class Comparison:
    """The result.

    `cells`: a row for each paired point, with the columns of `pairing.pair` (p_value only where tested) and `tested`,
    `p_adjusted` (Benjamini-Hochberg over all tested cells) and `verdict`, any but NOT_ENOUGH. `families`: a row for
    each family that either side measured, with points, tested, `a_better` and `b_better` (cells found by the tests),
    `wins` (points with speedup above 1) and `share` with its Wilson interval, geometric mean with its interval over
    points, minimum and maximum, `verdict` (any but UNTESTED), and `basis`, what it rests on.
    """

    metric: str
    cells: pd.DataFrame
    families: pd.DataFrame
    rate: float


def compare(
    a: pd.DataFrame,
    b: pd.DataFrame,
    metric: str = "examples_per_second",
    on: Sequence[str] | None = None,
    rate: float = FALSE_DISCOVERIES,
) -> Comparison:
    """Pair two sides, test each cell, and give every family a verdict.

    A cell is tested (Welch's t on logarithms, see `pairing.pair`) where both sides have REPLICATES; it counts as
    different where its adjusted p is at most `rate`. A family's verdict rests on its MINIMUM_POINTS or more points:
    A or B where the bootstrap interval of the geometric mean lies on one side of 1, else no difference shown. Where it
    has fewer points it rests on the tests, if all its cells are tested: A or B where all cells say so, else no
    difference shown. Anything less is not enough data.
    """
    cells = pair(a, b, metric, on)
    attrs = cells.attrs
    tested = (cells["a_count"] >= REPLICATES) & (cells["b_count"] >= REPLICATES) & cells["p_value"].notna()
    cells["p_value"] = cells["p_value"].where(tested)
    cells["tested"] = tested
    cells["p_adjusted"] = adjust(cells["p_value"].to_numpy())
    better = np.where(cells["speedup"] > 1, Verdict.A_BETTER, Verdict.B_BETTER)
    cells["verdict"] = np.where(
        ~tested, Verdict.UNTESTED, np.where(cells["p_adjusted"] <= rate, better, Verdict.NOT_SHOWN)
    )
    cells.attrs = attrs
    known = families(pd.DataFrame({"family": [*_measured(a), *_measured(b)]}))
    rows = [{"family": family, **_verdict(cells[cells["family"] == family])} for family in known]
    return Comparison(metric, cells, pd.DataFrame(rows), rate)


def adjust(p_values: np.ndarray) -> np.ndarray:
    """p values adjusted for the rate of false discoveries, NaN where there is none.

    The i-th smallest of m becomes the smallest of p_j m / j over j >= i, at most 1 (Benjamini and Hochberg, J. Royal
    Statistical Society B 57, 1995). Holds for tests that are independent or positively dependent, as cells of one
    sweep are whose sides share a machine.
    """
    from scipy import stats

    adjusted = np.full(len(p_values), np.nan)
    known = ~np.isnan(p_values)
    if known.any():
        adjusted[known] = stats.false_discovery_control(p_values[known], method="bh")
    return adjusted


def _measured(frame: pd.DataFrame) -> list[str]:
    return list(frame["family"].dropna().unique())


def _verdict(cells: pd.DataFrame) -> dict[str, Any]:
    """The row of one family."""
    ratio = cells["speedup"].to_numpy(dtype="float64")
    mean, low, high = geometric_mean(ratio)
    wins = int((ratio > 1).sum())
    share_low, share_high = wilson(wins, len(ratio))
    verdict, basis = _decide(cells, low, high)
    return {
        "points": len(ratio),
        "tested": int(cells["tested"].sum()),
        "a_better": int((cells["verdict"] == Verdict.A_BETTER).sum()),
        "b_better": int((cells["verdict"] == Verdict.B_BETTER).sum()),
        "wins": wins,
        "share": wins / len(ratio) if len(ratio) else np.nan,
        "share_low": share_low,
        "share_high": share_high,
        "geometric_mean": mean,
        "geometric_mean_low": low,
        "geometric_mean_high": high,
        "minimum": ratio.min() if len(ratio) else np.nan,
        "maximum": ratio.max() if len(ratio) else np.nan,
        "verdict": verdict.value,
        "basis": basis,
    }


def _decide(cells: pd.DataFrame, low: float, high: float) -> tuple[Verdict, str]:
    """(verdict, what it rests on) of a family's cells and the interval of their geometric mean."""
    count = len(cells)
    if count >= MINIMUM_POINTS:
        return (Verdict.A_BETTER if low > 1 else Verdict.B_BETTER if high < 1 else Verdict.NOT_SHOWN), "points"
    if count and cells["tested"].all():
        verdicts = set(cells["verdict"])
        return (Verdict(verdicts.pop()) if len(verdicts) == 1 else Verdict.NOT_SHOWN), "tests"
    return Verdict.NOT_ENOUGH, "nothing"
