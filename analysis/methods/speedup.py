"""How much faster A is than B, over which points, and what that depends on (paper, Figures 8 to 10).

Starts from `pairing.pair`, so that every ratio is of one point on both sides. Out come the share of points where A
wins, the geometric mean and the quartiles of the speedup for each family, and a regression of its logarithm on the
hyperparameters, which shows where A pays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.methods.columns import find_column, hyperparameters
from analysis.methods.pairing import CONFIDENCE, pair
from analysis.methods.regression import Lacking, NotEnoughData, Regression, regress
from analysis.methods.sensitivity import encode
from analysis.store.frame import families

__all__ = ["MINIMUM_POINTS", "Speedup", "SpeedupFit", "geometric_mean", "speedup", "summarise", "wilson"]

#: Points that an interval of a mean needs: resampled means lie between the least and the greatest of the points, and
#: those of five enclose the true centre of a symmetric scatter with 1 - 2 / 2^5 = 94% at most.
MINIMUM_POINTS = 6

_DRAWS = 10_000
_CHUNK = 5_000_000  # numbers drawn at once


@dataclass(frozen=True)
class SpeedupFit:
    """What the speedup of a family depends on. `logarithms` names the hyperparameters taken as log2; with
    `log_response` a slope is in doublings of the speedup, per doubling of such a hyperparameter."""

    family: str
    regression: Regression
    logarithms: tuple[str, ...]
    baselines: Mapping[str, str]
    log_response: bool


@dataclass(frozen=True)
class Speedup:
    """The result: `pairs` as `pairing.pair` gives them, `summary` as `summarise` does, a fit for each family that
    allows one, and in `lacking` why the others have none."""

    pairs: pd.DataFrame
    summary: pd.DataFrame
    fits: tuple[SpeedupFit, ...]
    lacking: tuple[Lacking, ...]


def speedup(
    a: pd.DataFrame,
    b: pd.DataFrame,
    metric: str = "examples_per_second",
    on: Sequence[str] | None = None,
    carry: Sequence[str] = ("parameters",),
    terms: Sequence[str] | None = None,
    linear: bool = False,
) -> Speedup:
    """The speedup of A over B point by point, and its regression on hyperparameters for each family.

    log2(speedup) is regressed on the hyperparameters of the pairs (or `terms`), numbers above zero as log2; with
    `linear` the speedup itself on the hyperparameters as they are, as the paper does (section 5.1). Weights are
    standardised, see `regression.regress`. Raises ConfigError as `pair` does, and for terms that no pair has.
    """
    pairs = pair(a, b, metric, on, carry)
    fits, lacking = [], []
    for family in families(pairs):
        rows = pairs[pairs["family"] == family]
        try:
            fits.append(_fit(family, rows, terms, linear))
        except NotEnoughData as problem:
            lacking.append(Lacking(family, str(problem)))
    return Speedup(pairs, summarise(pairs), tuple(fits), tuple(lacking))


def summarise(pairs: pd.DataFrame) -> pd.DataFrame:
    """One row for each family, and one for "all" where there are several.

    Columns: points; `wins`, those with a speedup above 1; `share` = wins / points with its Wilson interval `share_low`,
    `share_high`; `geometric_mean` with `geometric_mean_low`, `_high` (see `geometric_mean`); minimum, q25, median, q75,
    maximum; and of the `with_interval` points whose own interval is known, `clear_wins` above 1 and `clear_losses`
    below 1 as a whole. The intervals of share and mean are over points: they say how far points like these would
    agree, not how exactly these were measured.
    """
    groups = [(family, pairs[pairs["family"] == family]) for family in families(pairs)]
    if len(groups) > 1:
        groups.append(("all", pairs))
    return pd.DataFrame([{"family": name, **_summary(rows)} for name, rows in groups])


def _summary(rows: pd.DataFrame) -> dict[str, float]:
    ratio = rows["speedup"].to_numpy(dtype="float64")
    wins = int((ratio > 1).sum())
    low, high = wilson(wins, len(ratio))
    mean, mean_low, mean_high = geometric_mean(ratio)
    quantiles = np.quantile(ratio, [0, 0.25, 0.5, 0.75, 1])
    return {
        "points": len(ratio),
        "wins": wins,
        "share": wins / len(ratio),
        "share_low": low,
        "share_high": high,
        "geometric_mean": mean,
        "geometric_mean_low": mean_low,
        "geometric_mean_high": mean_high,
        **dict(zip(("minimum", "q25", "median", "q75", "maximum"), quantiles.tolist(), strict=True)),
        "with_interval": int(rows["speedup_low"].notna().sum()),
        "clear_wins": int((rows["speedup_low"] > 1).sum()),
        "clear_losses": int((rows["speedup_high"] < 1).sum()),
    }


def wilson(wins: int, total: int, level: float = CONFIDENCE) -> tuple[float, float]:
    """The score interval of a share (Wilson, J. American Statistical Association 22, 1927); NaN for no points."""
    if total == 0:
        return float("nan"), float("nan")
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(wins, total, alpha=1 - level, method="wilson")
    return float(low), float(high)


def geometric_mean(
    ratios: np.ndarray, level: float = CONFIDENCE, draws: int = _DRAWS, seed: int = 0
) -> tuple[float, float, float]:
    """(geometric mean, low, high) of n ratios above zero; the interval is by bootstrap over the points.

    The expanded percentile interval (Hesterberg, American Statistician 69, 2015): quantiles of the resampled means at
    Phi(-sqrt(n / (n - 1)) t), t of n - 1 degrees of freedom, so that few points are not taken for many. It treats the
    points as drawn from those one cares about. NaN ends below MINIMUM_POINTS. The same seed gives the same interval.
    """
    from scipy import stats

    logs = np.log(np.asarray(ratios, dtype="float64"))
    count = len(logs)
    if count < MINIMUM_POINTS:
        return (float(np.exp(logs.mean())) if count else float("nan"), float("nan"), float("nan"))
    random = np.random.default_rng(seed)
    means = np.empty(draws)
    step = max(1, _CHUNK // count)
    for start in range(0, draws, step):
        chosen = random.integers(count, size=(min(step, draws - start), count))
        means[start : start + step] = logs[chosen].mean(axis=1)
    tail = stats.norm.cdf(-np.sqrt(count / (count - 1)) * stats.t.ppf((1 + level) / 2, count - 1))
    low, high = np.exp(np.quantile(means, [tail, 1 - tail]))
    return float(np.exp(logs.mean())), float(low), float(high)


def _fit(family: str, rows: pd.DataFrame, terms: Sequence[str] | None, linear: bool) -> SpeedupFit:
    chosen = hyperparameters(rows) if terms is None else [find_column(rows, name, "--terms") for name in terms]
    names = [name for name in chosen if rows[name].notna().all() and rows[name].nunique() > 1]
    design, baselines = encode(rows, names)
    logarithms = [] if linear else [name for name in design if name in names and (design[name] > 0).all()]
    design[logarithms] = np.log2(design[logarithms])
    ratio = rows["speedup"].to_numpy(dtype="float64")
    found = regress(design, ratio if linear else np.log2(ratio))
    return SpeedupFit(family, found, tuple(logarithms), baselines, not linear)
