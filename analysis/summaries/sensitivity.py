"""`sensitivity`: what a metric depends on, as standardised regression weights with intervals."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from analysis.format import is_share, short
from analysis.summaries.command import Command, argument
from analysis.summaries.pooling import alike_within, sentence
from analysis.summaries.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.sensitivity import Fit, Sensitivity

__all__ = ["COMMANDS"]

_CROWDED = 10  # the VIF from which a weight is said to be hard to tell from others
_POOR = 0.5  # the R2 below which a straight line is said to describe little


def sensitivity(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    """The weights of every family on every device, and what they mean in words."""
    from analysis.methods.sensitivity import Settings
    from analysis.methods.sensitivity import sensitivity as analyse

    settings = Settings(
        log_hyperparameters=args.log_scale in ("hyperparameters", "both"),
        log_metric=args.log_scale in ("metric", "both"),
        interactions=args.interactions,
        keep_replicates=args.keep_replicates,
        pool=args.pool,
    )
    names = None if args.on is None else [part.strip() for part in args.on.split(",") if part.strip()]
    found = analyse(frame, args.metric, names, settings)

    def draw() -> Figure:
        from analysis.figures.sensitivity import draw_sensitivity

        return draw_sensitivity(found)

    parts = [_describe(fit, found) for fit in found.fits]
    parts += [f"{reason}: no fit." for reason in found.lacking]
    parts.append(_reading(found))
    pooled = alike_within(frame, ["family", "device"], pool=True) if args.pool else ""
    parts += sentence(pooled)
    return Result(found.table, "\n".join(filter(None, parts)), draw, found.run_ids, pooled)


def _describe(fit: Fit, found: Sensitivity) -> str:
    """One fit in sentences."""
    result = fit.regression
    weights = result.weights.sort_values("weight", key=lambda column: -column.abs(), kind="stable")
    telling = (weights["low"] > 0) | (weights["high"] < 0)
    said = [_weight(term, row, found) for term, row in weights[telling].iterrows()]
    lines = [f"{fit.name}: {found.metric} over {result.clusters:,} points{_of_runs(fit)}."]
    if said:
        lines.append(f"It depends on {'; '.join(said)}.")
    if not telling.all():
        lines.append(f"Not told from no effect: {', '.join(weights.index[~telling])}.")
    lines.append(f"{_quality(fit, found)}")
    lines += _caveats(fit)
    return "\n  ".join(lines)


def _weight(term: object, row: pd.Series, found: Sensitivity) -> str:
    """Such as "model.nodes +0.47 (0.41 to 0.52)", with the effect of a doubling where both sides are logarithms."""
    digits = 2 if abs(row["weight"]) >= 0.1 else 3
    weight, low, high = (f"{row[name]:+.{digits}f}" for name in ("weight", "low", "high"))
    text = f"{term} {weight} ({low} to {high})"
    logs = found.settings.log_metric and found.settings.log_hyperparameters
    if logs and "=" not in str(term) and " x " not in str(term):
        text += f", doubling it multiplies by {2 ** row['slope']:.2f}"
    return text


def _quality(fit: Fit, found: Sensitivity) -> str:
    result = fit.regression
    share = is_share(found.metric, found.unit)
    error = short(result.rmse_held_out, found.unit, share)
    if found.settings.log_metric:
        error = f"a factor of {math.exp(result.rmse_held_out):.2f}"
    elif share:
        error = error.replace("%", " percentage points")
    text = (
        f"R² {result.r2:.2f}; on held-out points {result.r2_held_out:.2f}, typically off by {error} "
        f"({result.folds} folds)."
    )
    if result.r2_held_out < _POOR and not (found.settings.log_metric or found.settings.interactions):
        text += " A straight line describes less than half of it: try --log-scale both, or --interactions."
    return text


def _caveats(fit: Fit) -> Iterable[str]:
    result = fit.regression
    if fit.constant:
        named = ", ".join(f"{name} = {value}" for name, value in fit.constant.items())
        yield f"Constant in these runs, so without a weight: {named}."
    for name, terms in result.collinear.items():
        yield f"{name} has no weight of its own: over these points it is a combination of {', '.join(terms)}."
    crowded = result.weights.index[result.weights["vif"] >= _CROWDED]
    if len(crowded):
        listed = ", ".join(f"{name} ({result.weights.loc[name, 'vif']:.0f})" for name in crowded)
        yield f"Hard to tell apart, their columns nearly agree (VIF): {listed}."
    for name, value in fit.baselines.items():
        yield f"{name} is against {value}."
    if fit.unfitted:
        yield f"These vary too but have no term: {', '.join(fit.unfitted)}; fix them with --where, or add them to --on."
    if fit.incomplete:
        yield f"{fit.incomplete} points lack a hyperparameter of the fit and are left out."
    if fit.without_metric:
        yield f"{fit.without_metric} measured runs lack the metric."
    if result.covariance == "HC1":
        yield "One point alone settles a weight, so errors are HC1, not HC3."


def _of_runs(fit: Fit) -> str:
    result = fit.regression
    runs = f" in {result.rows:,} runs" if result.rows != result.clusters else ""
    if not fit.left_out:
        return runs
    listed = ", ".join(f"{count} {outcome}" for outcome, count in fit.left_out.items())
    return f"{runs}; runs without a measurement are left out ({listed}), so this speaks of models that ran"


def _reading(found: Sensitivity) -> str:
    clustered = any(fit.regression.covariance == "cluster" for fit in found.fits)
    errors = "clustered by point" if clustered else "HC3"
    level = found.fits[0].regression.level
    what = f"{'log ' if found.settings.log_metric else ''}{found.metric}"
    return (
        f"A weight is the change of {what}, in its standard deviations, for one standard deviation of the "
        f"hyperparameter; {level:.0%} intervals, robust errors ({errors})."
    )


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="sensitivity",
        summary="what a metric depends on: regression weights with intervals",
        description="Fit a metric on the hyperparameters by least squares, everything standardised, one fit for each\n"
        "model family on each device. A weight of +0.5: one standard deviation more of the hyperparameter\n"
        "brings half a standard deviation more of the metric. Constant and collinear columns are named.",
        example="python -m analysis sensitivity --family fc --log-scale both --png weights.png",
        analyse=sensitivity,
        draws=True,
        arguments=(
            argument(
                "--metric",
                metavar="M",
                help="what to explain (default: flops_utilization, else flops_per_second, else examples_per_second)",
            ),
            argument(
                "--on",
                metavar="A,B",
                help="hyperparameters to explain it with, such as nodes,batch_size (default: all that vary)",
            ),
            argument(
                "--log-scale",
                choices=("none", "hyperparameters", "metric", "both"),
                default="none",
                help="take logarithms of either side (default: none)",
            ),
            argument("--interactions", action="store_true", help="also weigh the product of each two hyperparameters"),
            argument(
                "--keep-replicates",
                action="store_true",
                help="keep the runs of a point apart, errors clustered by point (default: their median)",
            ),
        ),
    ),
)
