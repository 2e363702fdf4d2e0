"""`sensitivity`: what a metric depends on, as standardised regression weights with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from analysis.format import is_share, percent_interval, short
from analysis.options import option, unit_option
from analysis.result import Paragraph, Result, pooled_within
from analysis.summaries.gate import gated
from analysis.summaries.predicted import PredictedOptions, completed_of, told_of
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.sensitivity import Fit, Sensitivity
    from paradnn.forecast.estimate import Estimate

__all__ = ["SensitivityOptions", "SensitivityResult", "Weight", "sensitivity"]

_CROWDED = 10  # the VIF from which a weight is said to be hard to separate from others
_RATE = 0.05  # of fits without any effect in which some term may be said to matter
_POOR = 0.5  # the R2 below which a straight line is said to describe little


@dataclass(frozen=True, kw_only=True)
class SensitivityOptions(PredictedOptions):
    """What is explained with what, and on which scale."""

    command = "sensitivity"

    metric: str | None = option(
        None,
        "what to explain (default: flops_utilization, else flops_per_second, else examples_per_second)",
        metavar="M",
    )
    on: tuple[str, ...] | None = option(
        None, "hyperparameters to explain it with, such as nodes,batch_size (default: all that vary)", metavar="A,B"
    )
    log_scale: Literal["none", "hyperparameters", "metric", "both"] = option(
        "none", "take logarithms of either side (default: none)"
    )
    interactions: bool = option(False, "also weigh the product of each two hyperparameters")
    keep_replicates: bool = option(
        False, "keep the runs of a point apart, which share it in intervals (default: their median)"
    )
    shares: bool = option(
        False, "also each hyperparameter's share of the metric's variance, interactions included; --figure draws these"
    )
    unit: Literal["crossed", "model", "point"] = unit_option()


@dataclass(frozen=True)
class Weight:
    """The weight of a term in a family's fit over so many points; `doubling` is what doubling the hyperparameter
    multiplies the metric by, None where not both are logarithms; `p_adjusted` is p of no effect, adjusted for the
    number of terms in the fit."""

    family: str
    term: str
    weight: Estimate
    points: int
    doubling: float | None
    p_adjusted: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SensitivityResult(Result):
    """The weights of every family on every device."""

    sensitivity: Sensitivity

    @property
    def table(self) -> pd.DataFrame:
        return self.sensitivity.table

    def weights(self, fit: Fit) -> list[Weight]:
        """The weights of a fit, the largest first."""
        from analysis.methods.sensitivity import adjusted
        from paradnn.forecast.estimate import Estimate

        found = fit.regression.weights
        found = found.assign(p_adjusted=adjusted(found["p"].to_numpy()))
        rows = found.sort_values("weight", key=lambda column: -column.abs(), kind="stable")
        logarithms = fit.logarithms if self.sensitivity.settings.log_metric else ()
        return [
            Weight(
                fit.family,
                str(term),
                Estimate(row["weight"], row["low"], row["high"]),
                fit.regression.clusters,
                2 ** row["slope"] if term in logarithms else None,
                row["p_adjusted"],
            )
            for term, row in rows.iterrows()
        ]

    def strongest(self) -> Weight | None:
        """The largest weight that differs from zero, of the fit over the most points that has one."""
        shown = [weight for fit in self.sensitivity.fits for weight in self.weights(fit) if _is_shown(weight)]
        return max(shown, key=lambda one: (one.points, abs(one.weight.value)), default=None)

    def _figure(self) -> Figure:
        from analysis.figures.sensitivity import draw_sensitivity
        from analysis.figures.shares import draw_shares
        from analysis.methods.shares import Shares

        if any(isinstance(fit.shares, Shares) for fit in self.sensitivity.fits):
            return draw_shares(self.sensitivity)
        return draw_sensitivity(self.sensitivity)

    def _paragraphs(self) -> Iterator[Paragraph]:
        for fit in self.sensitivity.fits:
            points = f"{self.sensitivity.metric} over {fit.regression.clusters:,} points"
            yield Paragraph(f"{fit.name}: {points}{_of_runs(fit)}.", tuple(self._describe(fit)))
        for lacking in self.sensitivity.lacking:
            yield Paragraph(f"{lacking}: no fit.")
        yield Paragraph(_reading(self.sensitivity))

    def _describe(self, fit: Fit) -> Iterator[str]:
        weights = self.weights(fit)
        shown = [_weight(weight) for weight in weights if _is_shown(weight)]
        if shown:
            yield f"It depends on {'; '.join(shown)}."
        if len(shown) < len(weights):
            terms = [weight.term for weight in weights if not _is_shown(weight)]
            yield f"Not distinguished from no effect, with {len(weights)} terms tried: {', '.join(terms)}."
        yield _quality(fit, self.sensitivity)
        yield from _unseen(fit, self.sensitivity)
        yield from _shares(fit)
        yield from _caveats(fit)


@gated
def sensitivity(frame: pd.DataFrame, options: SensitivityOptions | None = None) -> SensitivityResult:
    """The weights of every family on every device.

    ConfigError for a column or metric that is not there, NotEnoughData where no group can be fitted, SchemaError for
    heterogeneous runs of a group.
    """
    from analysis.methods.conclusions import predicted_sensitivity
    from analysis.methods.sensitivity import Settings
    from analysis.methods.sensitivity import sensitivity as analyse

    options = options or SensitivityOptions()
    settings = Settings(
        log_hyperparameters=options.log_scale in ("hyperparameters", "both"),
        log_metric=options.log_scale in ("metric", "both"),
        interactions=options.interactions,
        keep_replicates=options.keep_replicates,
        pool=options.pool,
        unit=options.unit,
        shares=options.shares,
    )
    pooled = pooled_within(frame, ["family", "device"], pool=True) if options.pool else ""
    if not options.predicted:
        fits = analyse(frame, options.metric, options.on, settings)
        return SensitivityResult(sensitivity=fits, sources=fits.run_ids, pooled=pooled)
    for flag, given in (("--keep-replicates", options.keep_replicates), ("--shares", options.shares)):
        if given:
            raise ConfigError(flag, "true", "is about measured runs alone", "leave out --predicted, or this")
    completed = completed_of(frame, options.metric, options)
    fits = predicted_sensitivity(completed, options.on, settings)
    return SensitivityResult(sensitivity=fits, sources=fits.run_ids, pooled=pooled, predicted=told_of([completed]))


def _is_shown(weight: Weight) -> bool:
    """Whether a term matters, however many were tried: its interval holds no zero, nor would one that is widened for
    the number of terms."""
    return (weight.weight.low > 0 or weight.weight.high < 0) and not weight.p_adjusted > _RATE


def _weight(weight: Weight) -> str:
    """Such as "model.nodes +0.47 (+0.41 to +0.52)", with the effect of a doubling where both sides are logarithms."""
    digits = 2 if abs(weight.weight.value) >= 0.1 else 3
    value, low, high = (f"{number:+.{digits}f}" for number in weight.weight)
    doubling = "" if weight.doubling is None else f", doubling it multiplies by {weight.doubling:.2f}"
    return f"{weight.term} {value} ({low} to {high}){doubling}"


def _quality(fit: Fit, of: Sensitivity) -> str:
    result = fit.regression
    error = _error(result.rmse_held_out, of)
    text = (
        f"R² {result.r2:.2f}; on held-out points {result.r2_held_out:.2f}, typically off by {error} "
        f"({result.folds} folds)."
    )
    if result.r2_held_out < _POOR and not (of.settings.log_metric or of.settings.interactions):
        text += " A straight line describes less than half of it: try --log-scale both, or --interactions."
    return text


def _error(rmse: float, of: Sensitivity) -> str:
    """A root mean square error in words; of logarithms a factor."""
    if of.settings.log_metric:
        return f"a factor of {math.exp(rmse):.2f}"
    share = is_share(of.metric, of.unit)
    return f"{short(100 * rmse)} percentage points" if share else short(rmse, of.unit)


def _unseen(fit: Fit, of: Sensitivity) -> Iterator[str]:
    """The error on values of a hyperparameter that a fit never saw."""
    found = fit.regression.unseen
    if len(found):
        listed = "; ".join(
            f"{term} {_error(row['rmse_inner'], of)} between others, {_error(row['rmse_outer'], of)} beyond them"
            for term, row in found.iterrows()
        )
        yield f"On a value that the fit never saw it is off by: {listed}."


def _shares(fit: Fit) -> Iterator[str]:
    """The shares of the variance, and what is left."""
    from analysis.methods.shares import Shares

    if fit.shares is None:
        return
    if not isinstance(fit.shares, Shares):
        yield f"No shares of the variance: {fit.shares.problem}."
        return
    rows = [
        f"{name} {percent_interval((row['share'], row['low'], row['high']))}, alone {100 * row['alone']:.3g}%"
        for name, row in fit.shares.table.iterrows()
    ]
    together = fit.shares.together
    yield f"Of its variance is due to {'; '.join(rows)}."
    yield (
        f"Together they explain {percent_interval(together)}, products of each two included; the rest, "
        f"{100 * (1 - together.value):.3g}%, is scatter and what three or more do together."
    )
    if fit.shares.ranges:
        cut = ", ".join(f"{name} ({count})" for name, count in fit.shares.ranges.items())
        yield f"For shares, values were cut into ranges: {cut}."


def _caveats(fit: Fit) -> Iterator[str]:
    result = fit.regression
    if fit.constant:
        named = ", ".join(f"{name} = {value}" for name, value in fit.constant.items())
        yield f"Constant in these runs, so without a weight: {named}."
    for name, terms in result.collinear.items():
        yield f"{name} has no weight of its own: over these points it is a combination of {', '.join(terms)}."
    crowded = result.weights.index[result.weights["vif"] >= _CROWDED]
    if len(crowded):
        listed = ", ".join(f"{name} ({result.weights.loc[name, 'vif']:.0f})" for name in crowded)
        yield f"Hard to separate, their columns nearly agree (VIF): {listed}."
    for name, value in fit.baselines.items():
        yield f"{name} is against {value}."
    if fit.unfitted:
        yield f"These vary too but have no term: {', '.join(fit.unfitted)}; fix them with --where, or add them to --on."
    if fit.incomplete:
        yield f"{fit.incomplete} points lack a hyperparameter of the fit and are left out."
    if fit.without_metric:
        yield f"{fit.without_metric} measured runs lack the metric."
    if result.covariance == "HC1":
        yield "One point alone determines a weight, so errors are HC1, not HC3."


def _of_runs(fit: Fit) -> str:
    result = fit.regression
    runs = f" in {result.rows:,} runs" if result.rows != result.clusters else ""
    if not fit.left_out:
        return runs
    listed = ", ".join(f"{count} {outcome}" for outcome, count in fit.left_out.items())
    return f"{runs}; runs without a measurement are left out ({listed}), so this covers only models that ran"


def _reading(of: Sensitivity) -> str:
    over = "; ".join(dict.fromkeys(_sample(fit) for fit in of.fits))
    level = of.fits[0].regression.level
    what = f"{'log ' if of.settings.log_metric else ''}{of.metric}"
    return (
        f"A weight is the change of {what}, in its standard deviations, for one standard deviation of the "
        f"hyperparameter; {level:.0%} intervals over {over}."
    )


def _sample(fit: Fit) -> str:
    """What a fit's intervals are over."""
    errors = {"HC3": ", with robust errors (HC3)", "HC1": ", with robust errors (HC1)", "cluster": " and their runs"}
    return f"{fit.sample}{errors.get(fit.regression.covariance, '')}"
