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

from analysis.methods.dependence import (
    MINIMUM_POINTS,
    Component,
    Levels,
    Unit,
    crossed_mean,
    crossed_share,
    crossed_variance,
    levels_of,
    satterthwaite,
)
from analysis.methods.pairing import Sampling, pair
from analysis.methods.power import detectable, detectable_mean, equivalent, replicates_for, spread_of
from analysis.methods.speedup import bounds
from analysis.store.frame import families

__all__ = ["FALSE_DISCOVERIES", "REPLICATES", "Comparison", "Verdict", "adjust", "compare", "verdict_of"]

#: Replicates on each side that a test needs: with two, a t of one degree of freedom finds next to nothing, and a
#: single outlier cannot be recognised.
REPLICATES = 3

#: Differences up to this are called the same, where that is shown.
MARGIN = 0.05

#: The share of false ones among the differences found that is put up with.
FALSE_DISCOVERIES = 0.05


class Verdict(StrEnum):
    """What is said of a family, and of a cell that was tested; tables hold the values."""

    A_BETTER = "A better"
    B_BETTER = "B better"
    SAME = "the same within the margin"
    NOT_SHOWN = "no difference shown"
    WITHHELD = "no verdict"
    NOT_ENOUGH = "not enough data"
    UNTESTED = "not tested"


@dataclass(frozen=True)
class Comparison:
    """The result.

    `cells`: a row for each paired point, with the columns of `pairing.pair` (p_value only where tested) and `tested`,
    `p_adjusted` (Benjamini-Hochberg over all tested cells) and `verdict`, any but NOT_ENOUGH. `families`: a row for
    each family that either side measured, with points, tested, `a_better`, `b_better` and `same` (cells found by the
    tests), `wins` (points with speedup above 1) and `share` with its interval, geometric mean with its interval over
    the `sample`, minimum and maximum, `share_least` and `share_most` (`speedup.bounds`), `verdict` (any but UNTESTED),
    `basis`, what it rests on; and what could have been found: `detectable`, the smallest difference of the mean (0.05
    is 5%), `spread`, the typical standard deviation of a cell's measurements, `cell_detectable`, the smallest
    difference of one cell, and `replicates_needed` for a difference of `margin` in one cell (NaN for over a thousand or
    unknown).
    """

    metric: str
    cells: pd.DataFrame
    families: pd.DataFrame
    rate: float
    margin: float = MARGIN


def compare(
    a: pd.DataFrame,
    b: pd.DataFrame,
    metric: str = "examples_per_second",
    on: Sequence[str] | None = None,
    rate: float = FALSE_DISCOVERIES,
    margin: float = MARGIN,
    unit: Unit = "crossed",
) -> Comparison:
    """Compare A with B point by point and give each family a verdict.

    Nothing is tested, and no verdict given, where the sessions of the sides do not allow it
    (`analysis.methods.sessions`). A cell is tested (Welch's t on logarithms, see `pairing.pair`) where both sides have
    REPLICATES independent measurements; it counts as different where its adjusted p is at most `rate`, as the same
    where that of the two one-sided tests against `margin` is. A family's verdict rests on its MINIMUM_POINTS or more
    points: A or B where the interval of the geometric mean, over models, batch sizes and sessions, lies on one side of
    1, the same where the 90% interval lies within the margin, else no difference shown. Where it has fewer points it
    rests on the tests, if all its cells are tested and agree. Anything less is not enough data.
    """
    cells = pair(a, b, metric, on)
    # pandas copies attrs with every slice.
    attrs, cells.attrs = cells.attrs, {}
    enough = (cells["a_units"] >= REPLICATES) & (cells["b_units"] >= REPLICATES)
    tested = cells["comparable"] & enough & cells["p_value"].notna()
    cells["p_value"] = cells["p_value"].where(tested)
    cells["tested"] = tested
    cells["p_adjusted"] = adjust(cells["p_value"].to_numpy())
    cells["verdict"] = _verdicts(cells, rate, margin)
    known = families(pd.DataFrame({"family": [*_measured(a), *_measured(b)]}))
    tests = int(tested.sum())
    rows = []
    sampled: dict[str, Sampling] = attrs["sampling"]
    for family in known:
        chosen = cells[cells["family"] == family]
        found = _verdict(chosen, sampled.get(family, Sampling()), margin, unit)
        rows.append({"family": family, **found, **_power(chosen, rate, margin, tests)})
    cells.attrs = attrs
    return Comparison(metric, cells, pd.DataFrame(rows), rate, margin)


def _verdicts(cells: pd.DataFrame, rate: float, margin: float) -> np.ndarray:
    """The verdict of each cell."""
    tested = cells["tested"].to_numpy()
    logs = np.log(cells["speedup"].to_numpy(dtype="float64"))
    same = equivalent(logs, cells["log_error"].to_numpy(), cells["degrees"].to_numpy(), margin)
    same = adjust(np.where(tested, same, np.nan)) <= rate
    found: np.ndarray = np.select(
        [~cells["comparable"].to_numpy(dtype=bool), ~tested, cells["p_adjusted"] <= rate, same],
        [Verdict.WITHHELD, Verdict.UNTESTED, np.where(logs > 0, Verdict.A_BETTER, Verdict.B_BETTER), Verdict.SAME],
        Verdict.NOT_SHOWN,
    )
    return found


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


def _verdict(cells: pd.DataFrame, sampled: Sampling, margin: float, unit: Unit) -> dict[str, Any]:
    """The row of one family, without its power."""
    ratio = cells["speedup"].to_numpy(dtype="float64")
    levels, logs, between = levels_of(cells, unit), np.log(ratio), sampled.between
    share = crossed_share(ratio > 1, levels)
    mean, low, high = np.exp(crossed_mean(logs, levels, more=between))
    narrow = np.exp(crossed_mean(logs, levels, level=0.9, more=between)[1:])
    least, most = bounds(ratio, sampled.missing).share if len(ratio) else (np.nan, np.nan)
    verdict, basis = _decide(cells, (low, high), tuple(narrow), margin)
    error, freedom = _error_of_mean(logs, levels, between)
    return {
        "points": len(ratio),
        "tested": int(cells["tested"].sum()),
        "a_better": int((cells["verdict"] == Verdict.A_BETTER).sum()),
        "b_better": int((cells["verdict"] == Verdict.B_BETTER).sum()),
        "same": int((cells["verdict"] == Verdict.SAME).sum()),
        "wins": int((ratio > 1).sum()),
        "share": share.value,
        "share_low": share.low,
        "share_high": share.high,
        "share_least": least,
        "share_most": most,
        "missing_a": sampled.missing.a,
        "missing_b": sampled.missing.b,
        "geometric_mean": mean,
        "geometric_mean_low": low,
        "geometric_mean_high": high,
        "sample": levels.words,
        "minimum": ratio.min() if len(ratio) else np.nan,
        "maximum": ratio.max() if len(ratio) else np.nan,
        "verdict": verdict.value,
        "basis": basis,
        "detectable": detectable_mean(error, freedom) if len(ratio) >= MINIMUM_POINTS else np.nan,
    }


def _error_of_mean(logs: np.ndarray, levels: Levels, between: tuple[Component, ...]) -> tuple[float, float]:
    """Standard error of the mean log ratio, and its degrees of freedom."""
    if len(logs) < MINIMUM_POINTS:
        return np.nan, np.nan
    parts = [crossed_variance(logs, levels), *between]
    return float(np.sqrt(sum(part.variance for part in parts))), satterthwaite(parts)


def _power(cells: pd.DataFrame, rate: float, margin: float, tests: int) -> dict[str, float]:
    """What the tests of single cells could have found, from the typical scatter of a cell's measurements."""
    units = cells[["a_units", "b_units"]].min(axis=1)
    known = cells["log_error"].notna() & (units >= 2)
    if not known.any():
        return {"spread": np.nan, "cell_detectable": np.nan, "replicates_needed": np.nan}
    spread = spread_of(cells)
    needed = replicates_for(margin, spread, rate, max(tests, 1), least=REPLICATES)
    return {
        "spread": spread,
        "cell_detectable": detectable(spread, int(units[known].median()), rate, max(tests, 1)),
        "replicates_needed": float(needed) if needed is not None else np.nan,
    }


def _decide(
    cells: pd.DataFrame, interval: tuple[float, float], narrow: tuple[float, ...], margin: float
) -> tuple[Verdict, str]:
    """(verdict, what it rests on) of a family's cells, and the 95% and 90% intervals of their geometric mean."""
    count = len(cells)
    if count and not cells["comparable"].all():
        return Verdict.WITHHELD, "sessions"
    if count >= MINIMUM_POINTS:
        return verdict_of(interval, narrow, margin), "points"
    if count and cells["tested"].all():
        verdicts = set(cells["verdict"])
        return (Verdict(verdicts.pop()) if len(verdicts) == 1 else Verdict.NOT_SHOWN), "tests"
    return Verdict.NOT_ENOUGH, "nothing"


def verdict_of(interval: tuple[float, float], narrow: tuple[float, ...], margin: float) -> Verdict:
    """The verdict of the 95% and the 90% interval of a geometric mean of speedups."""
    low, high = interval
    if low > 1 or high < 1:
        return Verdict.A_BETTER if low > 1 else Verdict.B_BETTER
    inside = narrow[0] >= 1 / (1 + margin) and narrow[1] <= 1 + margin
    return Verdict.SAME if inside else Verdict.NOT_SHOWN
