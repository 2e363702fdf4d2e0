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
from analysis.methods.pairing import RESULT_COLUMNS
from analysis.methods.prediction import Completed
from analysis.methods.regression import Regression, standardise
from analysis.methods.sensitivity import Fit, Prepared, Sensitivity, Settings, choose_columns, prepare, response
from analysis.methods.sensitivity import sensitivity as measured_sensitivity
from analysis.store.frame import is_ok
from paradnn.forecast.estimate import Estimate

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
    drawn = {luck: completed.drawn(int(np.argmax(completed.luck == luck))) for luck in np.unique(completed.luck)}
    first = drawn[completed.luck[0]]
    found = measured_sensitivity(first, completed.metric, on, alone)
    chosen = choose_columns(first, on)
    parts: dict[str, list[pd.DataFrame]] = {}
    explained: dict[str, list[float]] = {}
    for luck, frame in drawn.items():
        for group in (group for group in groups(frame) if group.name in {fit.name for fit in found.fits}):
            weights, r2 = _weights(prepare(group, completed.metric, chosen, alone), completed, luck, alone)
            parts.setdefault(group.name, []).append(weights)
            explained.setdefault(group.name, []).append(r2)
    fits = tuple(_over_draws(fit, parts[fit.name], explained[fit.name], completed) for fit in found.fits)
    return replace(found, fits=fits, settings=settings, run_ids=completed.measured(found.run_ids))


def _weights(prepared: Prepared, completed: Completed, luck: float, settings: Settings) -> tuple[pd.DataFrame, float]:
    """(weight and slope of every term in each draw of one memory frontier, the mean share that a fit explains)."""
    y = response(completed.values(prepared.rows)[:, completed.luck == luck], completed.metric, settings.log_metric)
    design = prepared.design
    names = [str(name) for name in design]
    terms, scores, per, *_ = standardise(
        design.to_numpy(dtype="float64"), names, design.attrs["columns"], settings.interactions
    )
    spread, centred = y.std(axis=0, ddof=1), scores - scores.mean(axis=0)
    z = (y - y.mean(axis=0)) / spread
    found = np.linalg.lstsq(centred, z, rcond=None)[0]
    left = ((z - centred @ found) ** 2).sum(axis=0) / (z**2).sum(axis=0)
    index = pd.MultiIndex.from_product([["weight", "slope"], terms])
    return pd.DataFrame(np.vstack([found, found * spread / per[:, None]]), index=index), float(np.mean(1 - left))


def _over_draws(fit: Fit, parts: Sequence[pd.DataFrame], explained: Sequence[float], completed: Completed) -> Fit:
    old: Regression = fit.regression
    drawn = pd.concat(parts, axis=1)
    weights, slopes = (pd.DataFrame(drawn.loc[name]).reindex(old.weights.index) for name in ("weight", "slope"))
    tail = (1 - old.level) / 2
    away = weights.mean(axis=1).abs() / weights.std(axis=1).clip(lower=1e-300)
    columns = {
        "weight": weights.mean(axis=1),
        "low": weights.quantile(tail, axis=1),
        "high": weights.quantile(1 - tail, axis=1),
        "p": 2 * stats.norm.sf(away),
        "vif": old.weights["vif"],
        "slope": slopes.mean(axis=1),
    }
    regression = replace(old, weights=pd.DataFrame(columns), r2=float(np.mean(explained)), covariance="draws")
    space = next(space for space in completed.spaces if space.name == fit.name)
    sample = f"all {old.rows:,} points that run, of which {space.measured:,} were measured"
    return replace(fit, regression=regression, sample=sample)


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
    keys = [name for name in cells if name not in (*RESULT_COLUMNS, "comparable", "tested", "p_adjusted", "verdict")]
    every = pd.concat([one.cells[[*keys, "speedup"]] for one in drawn])
    logs = np.log(every.pop("speedup")).groupby([every[name] for name in keys], dropna=False).agg(["mean", "std"])
    joined = cells[keys].merge(logs.reset_index(), on=keys, how="left")
    middle, spread = joined["mean"].to_numpy(), joined["std"].to_numpy()
    reach = stats.t.ppf(0.975, IMPUTATIONS - 1) * np.sqrt(1 + 1 / IMPUTATIONS) * spread
    predicted = spread > 1e-9
    found = cells.copy()
    for name, log in (("speedup", middle), ("speedup_low", middle - reach), ("speedup_high", middle + reach)):
        found.loc[predicted, name] = np.exp(log)[predicted]
    found.loc[predicted, "interval_source"] = "prediction"
    found.loc[predicted & found["comparable"].to_numpy(dtype=bool), "verdict"] = Verdict.UNTESTED
    return found
