"""Conclusions over a whole space, drawn by completing it again and again: weights, cells of maps, comparisons.

Each draw of `prediction.Completed` fills in what was not measured, as one measurement of everything might have turned
out. A conclusion is reached from each, and its interval is over these. Where a conclusion is about these very points
(weights and cells), nothing else is uncertain: a space that is complete has no sampling error. Where it is about points
like these (comparisons, claims) what its own method says of that is added, by the rules of multiple imputation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.methods.columns import groups
from analysis.methods.compare import Comparison, Verdict, compare, verdict_of
from analysis.methods.heatmap import HeatMap, HeatMaps, heat_maps
from analysis.methods.prediction import Completed
from analysis.methods.quantiles import Estimate
from analysis.methods.regression import Regression, standardise
from analysis.methods.sensitivity import Fit, Prepared, Sensitivity, Settings, choose_columns, prepare, response
from analysis.methods.sensitivity import sensitivity as measured_sensitivity
from analysis.store.frame import is_ok

__all__ = ["IMPUTATIONS", "combined", "predicted_comparison", "predicted_maps", "predicted_sensitivity"]

#: Completed spaces that a comparison or a claim is reached from.
IMPUTATIONS = 12
#: A 90% interval reaches so far of a 95% one.
_NARROW = 1.645 / 1.96


def combined(estimates: Sequence[Estimate], level: float = 0.95) -> Estimate:
    """One estimate from those of m completed spaces, each with an interval of its own.

    Variances within and between them add up, the latter with a factor 1 + 1/m (Rubin, Multiple Imputation for
    Nonresponse in Surveys, 1987), for either end by itself, since an interval need not be symmetric:
    low = mean - sqrt(mean (value - low)^2 + t^2 (1 + 1/m) B), t of m - 1 degrees of freedom. What has no end in any
    of them has none.
    """
    value, low, high = np.array(estimates, dtype="float64").T
    count, middle = len(value), float(value.mean())
    between = float(value.var(ddof=1)) * (1 + 1 / count) if count > 1 else 0.0
    # Where imputations agree but for rounding, t of few degrees of freedom adds nothing.
    added = float(stats.t.ppf((1 + level) / 2, max(count - 1, 1))) ** 2 * between
    reach = [np.sqrt(np.mean((value - end) ** 2) + added) for end in (low, high)]
    return Estimate(middle, float(middle - reach[0]), float(middle + reach[1]))


def predicted_sensitivity(completed: Completed, on: Sequence[str] | None, settings: Settings) -> Sensitivity:
    """`sensitivity` over every point of the spaces: weights are means over draws, intervals their quantiles.

    What else a fit says (its error on held-out points, variance inflation) is that of the first draw.
    """
    alone = replace(settings, unit="point", keep_replicates=False)
    first = completed.drawn(0)
    found = measured_sensitivity(first, completed.metric, on, alone)
    chosen = choose_columns(first, on)
    prepared = {group.name: prepare(group, completed.metric, chosen, alone) for group in groups(first)}
    fits = tuple(_over_draws(fit, prepared[fit.name], completed, alone) for fit in found.fits)
    return replace(found, fits=fits, settings=settings, run_ids=completed.measured(found.run_ids))


def _over_draws(fit: Fit, prepared: Prepared, completed: Completed, settings: Settings) -> Fit:
    values = completed.values(prepared.rows)
    y = response(values, completed.metric, settings.log_metric)
    design = prepared.design
    terms, scores, per, *_ = standardise(
        design.to_numpy(dtype="float64"), [str(name) for name in design], design.attrs["columns"], settings.interactions
    )
    weights = _weights(terms, scores, per, y, settings.level)
    old: Regression = fit.regression
    kept = old.weights.loc[terms, ["vif"]]
    regression = replace(old, weights=weights.join(kept), r2=_explained(scores, y), covariance="draws")
    measured = int((~prepared.rows["predicted"]).sum())
    return replace(
        fit, regression=regression, sample=f"all {len(values):,} points, of which {measured:,} were measured"
    )


def _weights(terms: Sequence[str], scores: np.ndarray, per: np.ndarray, y: np.ndarray, level: float) -> pd.DataFrame:
    """The columns of `Regression.weights` from responses (n, draws)."""
    spread = y.std(axis=0, ddof=1)
    found = np.linalg.lstsq(scores - scores.mean(axis=0), (y - y.mean(axis=0)) / spread, rcond=None)[0]
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2], axis=1)
    error = found.std(axis=1, ddof=1)
    away = np.abs(found.mean(axis=1)) / np.maximum(error, 1e-300)
    columns = {
        "weight": found.mean(axis=1),
        "low": low,
        "high": high,
        "p": 2 * stats.norm.sf(away),
        "slope": (found * spread).mean(axis=1) / per,
    }
    return pd.DataFrame(columns, index=pd.Index(terms, name="term"))


def _explained(scores: np.ndarray, y: np.ndarray) -> float:
    centred, design = y - y.mean(axis=0), scores - scores.mean(axis=0)
    left = centred - design @ np.linalg.lstsq(design, centred, rcond=None)[0]
    return float(np.mean(1 - (left**2).sum(axis=0) / (centred**2).sum(axis=0)))


def predicted_maps(completed: Completed, x: str, y: str, *, bins: int | None = None, pool: bool = False) -> HeatMaps:
    """`heat_maps` of every point of the spaces: a cell is the median over its points, `low` and `high` the ends of
    that median's 95% interval over draws; `measured` counts those of its `points` that were measured."""
    found = heat_maps(completed.drawn(), x, y, completed.metric, bins=bins, pool=pool)
    maps = tuple(replace(each, cells=_cells_over_draws(each, completed)) for each in found.maps)
    return replace(found, maps=maps, run_ids=completed.measured(found.run_ids))


def _cells_over_draws(each: HeatMap, completed: Completed) -> pd.DataFrame:
    points = each.points[is_ok(each.points)]
    values = completed.values(points)
    cells = each.cells.set_index(["i", "j"])
    cells["measured"] = 0
    for place, rows in points.groupby(["i", "j"]).indices.items():
        middle = np.median(values[rows], axis=0)
        cells.loc[place, ["value", "low", "high"]] = np.quantile(middle, [0.5, 0.025, 0.975])
        cells.loc[place, "measured"] = int((~points["predicted"].to_numpy()[rows]).sum())
    return cells.reset_index()[[*each.cells.columns, "measured"]]


def predicted_comparison(a: Completed, b: Completed, **how: Any) -> Comparison:
    """`compare` of every point that lies in the spaces of both sides.

    Single ratios that were predicted on a side have the interval of that, source "prediction", and no test.
    """
    found = [compare(a.drawn(number), b.drawn(number), a.metric, **how) for number in range(IMPUTATIONS)]
    whole = compare(a.drawn(), b.drawn(), a.metric, **how)
    families = [_family(row, [one.families for one in found], whole) for row in whole.families.to_dict("records")]
    return replace(whole, cells=_ratios(whole.cells, found), families=pd.DataFrame(families))


def _family(row: dict[Any, Any], drawn: Sequence[pd.DataFrame], whole: Comparison) -> dict[Any, Any]:
    """The verdict of a family from those of completed spaces."""
    rows = pd.concat([one[one["family"] == row["family"]] for one in drawn])
    if not row["points"]:
        return row
    means = np.log(rows[["geometric_mean", "geometric_mean_low", "geometric_mean_high"]].to_numpy(dtype="float64"))
    mean = np.exp(combined([Estimate(*each) for each in means]))
    share = combined([Estimate(*each) for each in rows[["share", "share_low", "share_high"]].to_numpy()])
    found = row | dict(zip(("geometric_mean", "geometric_mean_low", "geometric_mean_high"), mean, strict=True))
    found |= {"share": share.value, "share_low": max(share.low, 0.0), "share_high": min(share.high, 1.0)}
    found |= {name: float(rows[name].mean()) for name in ("share_least", "share_most", "minimum", "maximum")}
    found["wins"] = round(float(rows["wins"].mean()))
    if row["basis"] == "points":
        found["verdict"] = verdict_of(
            (mean[1], mean[2]), tuple(mean[0] * (mean[1:] / mean[0]) ** _NARROW), whole.margin
        )
    return found


def _ratios(cells: pd.DataFrame, drawn: Sequence[Comparison]) -> pd.DataFrame:
    """Cells with intervals over draws where these differ."""
    if not len(cells):
        return cells
    logs = np.log(np.column_stack([one.cells["speedup"].to_numpy(dtype="float64") for one in drawn]))
    spread = logs.std(axis=1, ddof=1)
    reach = stats.t.ppf(0.975, IMPUTATIONS - 1) * np.sqrt(1 + 1 / IMPUTATIONS) * spread
    predicted, middle = spread > 1e-9, logs.mean(axis=1)
    found = cells.copy()
    found.loc[predicted, "speedup"] = np.exp(middle)[predicted]
    found.loc[predicted, "speedup_low"] = np.exp(middle - reach)[predicted]
    found.loc[predicted, "speedup_high"] = np.exp(middle + reach)[predicted]
    found.loc[predicted, "interval_source"] = "prediction"
    found.loc[predicted & found["comparable"].to_numpy(dtype=bool), "verdict"] = Verdict.UNTESTED
    return found
