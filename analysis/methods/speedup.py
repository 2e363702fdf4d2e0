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
from analysis.methods.dependence import MINIMUM_POINTS, Unit, crossed_share, geometric_mean, levels_of
from analysis.methods.pairing import Missing, pair, sampling
from analysis.methods.ratios import Source
from analysis.methods.regression import Lacking, Regression, regress
from analysis.methods.sensitivity import encode
from analysis.store.frame import families
from paradnn.errors import NotEnoughData

__all__ = ["MINIMUM_POINTS", "Bounds", "Speedup", "SpeedupFit", "bounds", "speedup", "summarise"]


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
    unit: Unit = "crossed",
) -> Speedup:
    """The speedup of A over B point by point, and its regression on hyperparameters for each family.

    log2(speedup) is regressed on the hyperparameters of the pairs (or `terms`), numbers above zero as log2; with
    `linear` the speedup itself on the hyperparameters as they are, as the paper does (section 5.1). Weights are
    standardised, see `regression.regress`; their errors allow for the models and batch sizes that points share
    (`unit`). Raises ConfigError as `pair` does, and for terms that no pair has.
    """
    pairs = pair(a, b, metric, on, carry)
    fits, lacking = [], []
    for family in families(pairs):
        rows = pairs[pairs["family"] == family]
        try:
            fits.append(_fit(family, rows, terms, linear, unit))
        except NotEnoughData as problem:
            lacking.append(Lacking(family, str(problem)))
    return Speedup(pairs, summarise(pairs, unit), tuple(fits), tuple(lacking))


@dataclass(frozen=True)
class Bounds:
    """Where share of wins, median and geometric mean lie whatever the points would have given that ran on one side
    alone: of the share and the median for certain, of the mean were they as extreme as the most extreme ratio."""

    share: tuple[float, float]
    median: tuple[float, float]
    mean: tuple[float, float]


def bounds(ratios: np.ndarray, missing: Missing) -> Bounds:
    """Worst-case bounds (Manski, American Economic Review 80, 1990) of n ratios with points `missing` on one side."""
    count = missing.a + missing.b
    ends: list[tuple[float, float, float]] = []
    for extreme, observed in ((0.0, ratios.min()), (np.inf, ratios.max())):
        whole = np.sort(np.concatenate([ratios, np.full(count, extreme)]))
        # The middle of an even number lies between two, one of which may be unknown.
        place = (len(whole) - 1) // 2 if extreme == 0 else len(whole) // 2
        logs = np.log(np.concatenate([ratios, np.full(count, observed)]))
        ends.append((float((whole > 1).mean()), float(whole[place]), float(np.exp(logs.mean()))))
    share, median, mean = zip(*ends, strict=True)
    return Bounds((share[0], share[1]), (median[0], median[1]), (mean[0], mean[1]))


def summarise(pairs: pd.DataFrame, unit: Unit = "crossed") -> pd.DataFrame:
    """One row for each family, and one for "all" where there are several.

    Columns: points; `wins`, those with a speedup above 1; `share` = wins / points with its interval `share_low`,
    `share_high`; `geometric_mean` with `geometric_mean_low`, `_high`, both over models and batch sizes as `sample` says
    (`analysis.methods.dependence`); minimum, q25, median, q75, maximum; `missing_a` and `missing_b`, points that both
    sides tried and one alone measured, and the `bounds` that this leaves: share_least, share_most, median_least,
    median_most, mean_least, mean_most. Of the `with_interval` points whose own interval holds more than one process,
    and whose sides' sessions allow a verdict, `clear_wins` above 1 and `clear_losses` below 1 as a whole. The intervals
    of share and mean say how far points like these would agree, not how exactly these were measured.
    """
    groups = [(family, pairs[pairs["family"] == family]) for family in families(pairs)]
    if len(groups) > 1:
        groups.append(("all", pairs))
    rows = [{"family": name, **_summary(group, sampling(pairs, name).missing, unit)} for name, group in groups]
    return pd.DataFrame(rows)


def _summary(rows: pd.DataFrame, missing: Missing, unit: Unit) -> dict[str, float | str]:
    ratio = rows["speedup"].to_numpy(dtype="float64")
    levels = levels_of(rows, unit)
    share, mean = crossed_share(ratio > 1, levels), geometric_mean(ratio, levels)
    quantiles = np.quantile(ratio, [0, 0.25, 0.5, 0.75, 1])
    told = rows[rows["comparable"] & rows["interval_source"].isin([Source.REPLICATES, Source.PROCESSES])]
    within = bounds(ratio, missing)
    return {
        "points": len(ratio),
        "wins": int((ratio > 1).sum()),
        "share": share.value,
        "share_low": share.low,
        "share_high": share.high,
        "geometric_mean": mean.value,
        "geometric_mean_low": mean.low,
        "geometric_mean_high": mean.high,
        "sample": levels.words,
        **dict(zip(("minimum", "q25", "median", "q75", "maximum"), quantiles.tolist(), strict=True)),
        "missing_a": missing.a,
        "missing_b": missing.b,
        **dict(zip(("share_least", "share_most"), within.share, strict=True)),
        **dict(zip(("median_least", "median_most"), within.median, strict=True)),
        **dict(zip(("mean_least", "mean_most"), within.mean, strict=True)),
        "with_interval": len(told),
        "clear_wins": int((told["speedup_low"] > 1).sum()),
        "clear_losses": int((told["speedup_high"] < 1).sum()),
    }


def _fit(family: str, rows: pd.DataFrame, terms: Sequence[str] | None, linear: bool, unit: Unit) -> SpeedupFit:
    chosen = hyperparameters(rows) if terms is None else [find_column(rows, name, "--terms") for name in terms]
    names = [name for name in chosen if rows[name].notna().all() and rows[name].nunique() > 1]
    design, baselines = encode(rows, names)
    logarithms = [] if linear else [name for name in design if name in names and (design[name] > 0).all()]
    design[logarithms] = np.log2(design[logarithms])
    ratio = rows["speedup"].to_numpy(dtype="float64")
    found = regress(design, ratio if linear else np.log2(ratio), levels=levels_of(rows, unit))
    return SpeedupFit(family, found, tuple(logarithms), baselines, not linear)
