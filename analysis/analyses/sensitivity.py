"""`sensitivity`: what a metric depends on, as standardised regression weights with intervals.

What performance depends on: standardised linear regression of a metric on the hyperparameters.

The paper (section 4.1, Figures 2 d-f, 8 a, 9 a, 10) fits metric = w0 x layers + w1 x nodes + ... with everything on one
scale and reads the signed weights as sensitivities. Here each weight comes with an interval that allows for unequal
scatter, a variance inflation factor, and the error of the fit on points that it has not seen. One fit for each family
and device; columns that cannot have a weight (constant, or a combination of others) are named instead of weighed.

Conclusions over a whole space, drawn by completing it again and again: weights, cells of maps, comparisons.

Each draw of `prediction.Completed` fills in what was not measured, as one measurement of everything might have turned
out. A conclusion is reached from each, and its interval is over these. Where a conclusion is about these very points
(weights and cells), nothing else is uncertain: a space that is complete has no sampling error. Where it is about points
like these (comparisons, claims) what its own method says of that is added, by the rules of multiple imputation.

Regression weights with their intervals: what the metric depends on, family by family (the paper's Figure 2 d-f).

Shares of the variance with their intervals: which hyperparameters a metric is due to, family by family.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

from analysis.columns import (
    Group,
    GroupKey,
    blocks_of,
    choose_metric,
    find_column,
    find_metric,
    groups,
    hyperparameters,
    narrowed,
)
from analysis.columns import settings as varying_settings
from analysis.format import is_share, percent_interval, short
from analysis.labels import label, term_label
from analysis.lazy import drawing, np, pd, stats
from analysis.options import option, unit_option
from analysis.prediction import Completed, PredictedOptions, completed_of, told_of
from analysis.registry import Shown, analysis
from analysis.result import Headline, Paragraph, Result, pooled_within
from analysis.statistics.dependence import Levels, Unit, levels_of
from analysis.statistics.regression import Lacking, Regression, regress, standardise
from analysis.statistics.shares import Shares, variance_shares
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from paradnn.core.words import counted
from paradnn.errors import ConfigError, NotEnoughData
from paradnn.forecast.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
        names="columns",
    )
    on: tuple[str, ...] | None = option(
        None,
        "hyperparameters to explain it with, such as nodes,batch_size (default: all that vary)",
        metavar="A,B",
        names="columns",
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

    def headline(self) -> Headline | None:
        strongest = self.strongest()
        if strongest is None:
            return None
        value, low, high = strongest.weight
        doubling = f"; doubling it multiplies it by {strongest.doubling:.2f}" if strongest.doubling is not None else ""
        words = (
            f"{label(self.sensitivity.metric)} of {strongest.family} depends most on {label(strongest.term)}, weight "
            f"{value:+.2f} (95% CI {low:+.2f} to {high:+.2f}) over {counted(strongest.points, 'point')}{doubling}."
        )
        return Headline("What it depends on", words)

    def _figure(self) -> Figure:
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


def _shown(rows: pd.DataFrame) -> Iterator[Shown]:
    yield Shown(SensitivityOptions(log_scale="both"), families=narrowed(rows))


@analysis(
    SensitivityOptions,
    summary="what a metric depends on: regression weights with intervals",
    description="Fit a metric on the hyperparameters by least squares, everything standardised, one fit for each\n"
    "model family on each device. A weight of +0.5: one standard deviation more of the hyperparameter\n"
    "brings half a standard deviation more of the metric. Constant and collinear columns are named.",
    example="python -m analysis sensitivity --family fc --log-scale both --figure weights.png",
    section="system",
    order=50,
    title="What performance depends on",
    reading=(
        "Standardised weights of a regression on logarithms. Further from zero matters more; an interval"
        " that holds zero shows no effect."
    ),
    shown=_shown,
)
def sensitivity(frame: pd.DataFrame, options: SensitivityOptions) -> SensitivityResult:
    """The weights of every family on every device.

    ConfigError for a column or metric that is not there, NotEnoughData where no group can be fitted, SchemaError for
    heterogeneous runs of a group.
    """
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
        fits = fit_weights(frame, options.metric, options.on, settings)
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


#: Columns of `Shares.table` -> what they are called in the table of weights.
_SHARE_COLUMNS = {"share": "share", "low": "share_low", "high": "share_high", "alone": "share_alone"}


@dataclass(frozen=True)
class Settings:
    """How to fit.

    `log_hyperparameters` and `log_metric` take natural logarithms of either side, `interactions` adds all products of
    two terms, `keep_replicates` leaves a point's runs apart, `pool` pools heterogeneous runs, `unit` is what is taken
    as a sample, `shares` adds the shares of the variance.
    """

    log_hyperparameters: bool = False
    log_metric: bool = False
    interactions: bool = False
    keep_replicates: bool = False
    pool: bool = False
    unit: Unit = "crossed"
    shares: bool = False
    level: float = 0.95


@dataclass(frozen=True)
class Fit(GroupKey):
    """The regression of one family on one device, and what it leaves out.

    `constant` maps every column without variation to its value in words, `baselines` a column of words to the value its
    indicators are against, `left_out` outcomes to runs. `without_metric` and `incomplete` count ok runs that lack the
    metric, and points that lack a hyperparameter. `unfitted` names what varies but has no term, `logarithms` the terms
    that are logarithms of a hyperparameter, `columns` maps terms to the columns they are made of. `sample` says what
    intervals are over. `shares` are those of the variance, where they were asked for, or why there are none.
    """

    regression: Regression
    constant: Mapping[str, str]
    baselines: Mapping[str, str]
    left_out: Mapping[str, int]
    without_metric: int
    incomplete: int
    unfitted: tuple[str, ...]
    logarithms: tuple[str, ...]
    columns: Mapping[str, str]
    sample: str
    shares: Shares | Lacking | None = None


@dataclass(frozen=True)
class Sensitivity:
    """All fits of a frame; `lacking` says in words why other groups have none; `run_ids` are the runs used."""

    metric: str
    unit: str
    settings: Settings
    fits: tuple[Fit, ...]
    lacking: tuple[Lacking, ...]
    run_ids: tuple[str, ...]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each weight, the most important of each fit first."""
        parts = []
        for fit in self.fits:
            found = fit.regression
            weights = found.weights.assign(p_adjusted=adjusted(found.weights["p"].to_numpy()))
            part = weights.sort_values("weight", key=lambda column: -column.abs(), kind="stable")
            part = part.join(found.unseen)
            if isinstance(fit.shares, Shares):
                shares = fit.shares.table.rename(columns=_SHARE_COLUMNS)
                part = part.assign(of=part.index.map(fit.columns)).join(shares, on="of").drop(columns="of")
            part = part.rename_axis("term").reset_index()
            part.insert(0, "family", fit.family)
            part.insert(1, "device", fit.device)
            part.insert(2, "metric", self.metric)
            parts.append(part.assign(points=found.clusters, r2=found.r2, r2_held_out=found.r2_held_out))
        return pd.concat(parts, ignore_index=True)


def fit_weights(
    frame: pd.DataFrame, metric: str | None = None, on: Sequence[str] | None = None, settings: Settings | None = None
) -> Sensitivity:
    """Fit each family on each device by itself; see `regress` for the formulas. Only ok runs are fitted.

    `metric` defaults to what `choose_metric` finds, `on` to all hyperparameters that vary:
    numbers as they are, `model.blocks` as the total of its list, words as 0/1 indicators. Replicates of a point
    become their median unless they are kept. ConfigError when no group can be fitted, naming why; SchemaError when
    runs of a group are heterogeneous.
    """
    settings = settings or Settings()
    metric = find_metric(frame, metric) if metric else choose_metric(frame)
    chosen = choose_columns(frame, on)
    fits: list[Fit] = []
    lacking: list[Lacking] = []
    used: list[str] = []
    for group in groups(frame):
        try:
            fit, run_ids = _fit(group, metric, chosen, settings)
        except NotEnoughData as problem:
            lacking.append(Lacking(group.name, str(problem)))
            continue
        fits.append(fit)
        used += run_ids
    if not fits:
        raise NotEnoughData(
            f"not enough data to explain {metric}",
            lacking,
            "measure more points, or choose fewer hyperparameters with --on",
        )
    unit = frame.attrs.get("units", {}).get(metric, "")
    return Sensitivity(metric, unit, settings, tuple(fits), tuple(lacking), tuple(used))


def choose_columns(frame: pd.DataFrame, on: Sequence[str] | None) -> list[str] | None:
    """The columns that `on` names; None for all that vary."""
    return None if on is None else list(dict.fromkeys(find_column(frame, name, "--on") for name in on))


def adjusted(p_values: np.ndarray) -> np.ndarray:
    """p of n terms such that with no effect at all any of them falls below 0.05 in at most 5% of fits (Holm,
    Scandinavian J. Statistics 6, 1979): the i-th smallest becomes the largest of (n - j) p_j over j <= i, from 0."""
    order = np.argsort(p_values, kind="stable")
    count = len(order)
    found = np.empty(count)
    found[order] = np.minimum(np.maximum.accumulate((count - np.arange(count)) * np.asarray(p_values)[order]), 1)
    return found


def encode(frame: pd.DataFrame, names: Sequence[str], log: bool = False) -> tuple[pd.DataFrame, dict[str, str]]:
    """Hyperparameters as numbers: (rows x terms, column -> the value its indicators are against).

    `attrs["columns"]` of the terms maps each to the column it is made of.

    Numbers stay (their natural logarithms with `log`), truth values are 0/1, lists of blocks become their total, and a
    column of words becomes an indicator `column=value` for each value but one: float32, else the commonest.
    ConfigError for a logarithm of what is not positive.
    """
    terms: dict[str, pd.Series] = {}
    columns: dict[str, str] = {}
    baselines: dict[str, str] = {}
    for name in names:
        column = frame[name]
        number = _number(column)
        if number is None:
            words = column.astype("object")
            counts = words.value_counts().sort_index().sort_values(ascending=False, kind="stable")
            base = "float32" if "float32" in counts else str(counts.index[0])
            baselines |= {name: base} if len(counts) > 1 else {}
            others = [value for value in counts.index if value != base] or [base]
            indicators = {f"{name}={value}": words.eq(value).astype("float64") for value in others}
            terms |= {term: indicator.mask(words.isna()) for term, indicator in indicators.items()}
            columns |= dict.fromkeys(indicators, name)
            continue
        if log and _takes_logarithm(column):
            if (number <= 0).any():
                raise ConfigError(
                    "--log-scale",
                    name,
                    f"holds {number.min():g}, which has no logarithm",
                    "leave it out with --on, or those runs with --where",
                )
            number = np.log(number)
        terms[name] = number
        columns[name] = name
    design = pd.DataFrame(terms, index=frame.index)
    design.attrs["columns"] = columns
    return design, baselines


@dataclass(frozen=True)
class Prepared:
    """What a fit is made of: its `rows`, the `design` on their `varying` columns, and what that leaves out."""

    measured: pd.DataFrame
    rows: pd.DataFrame
    design: pd.DataFrame
    varying: tuple[str, ...]
    constant: Mapping[str, str]
    baselines: Mapping[str, str]
    incomplete: int


def prepare(group: Group, metric: str, chosen: list[str] | None, settings: Settings) -> Prepared:
    """The rows and terms of one group; NotEnoughData without a run that has the metric."""
    ok = is_ok(group.rows)
    measured = group.rows[ok & group.rows[metric].notna()]
    if measured.empty:
        raise NotEnoughData(f"no measured run has {metric}")
    measured = require_homogeneous(measured, pool=settings.pool)
    names = [name for name in chosen or hyperparameters(measured) if measured[name].notna().any()]
    rows = measured if settings.keep_replicates else aggregate_replicates(measured)
    complete = rows[names].notna().all(axis=1) if names else pd.Series(True, index=rows.index)
    rows = rows[complete]
    if rows.empty:
        raise NotEnoughData(f"no measured run has all of {', '.join(map(label, names))}; choose some with --on")
    constant = {name: str(rows[name].iloc[0]) for name in names if rows[name].nunique() == 1}
    varying = tuple(name for name in names if name not in constant)
    design, baselines = encode(rows, varying, settings.log_hyperparameters)
    return Prepared(measured, rows, design, varying, constant, baselines, int((~complete).sum()))


def _fit(group: Group, metric: str, chosen: list[str] | None, settings: Settings) -> tuple[Fit, list[str]]:
    """The fit of one group and the ids of the runs it rests on."""
    found = prepare(group, metric, chosen, settings)
    rows, ok = found.rows, is_ok(group.rows)
    values = response(rows[metric].to_numpy(dtype="float64"), metric, settings.log_metric)
    clusters = rows["point_id"].to_numpy(dtype=object) if settings.keep_replicates else None
    levels = levels_of(rows, settings.unit, settings.keep_replicates)
    fitted = regress(
        found.design,
        values,
        clusters,
        levels=None if settings.unit == "point" else levels,
        interactions=settings.interactions,
        unseen=True,
        level=settings.level,
    )
    totals = {name: f"{value:g} in total" for name, value in fitted.constant.items()}
    left_out = group.rows.loc[~ok, "outcome"].fillna("unfinished").value_counts()
    named = (*found.varying, *found.constant)
    others = [name for name in hyperparameters(rows) if name not in named and rows[name].nunique() > 1]
    others += [name for name in varying_settings(rows) if name not in named]
    fit = Fit(
        group.family,
        group.device,
        fitted,
        {**found.constant, **totals},
        found.baselines,
        {str(outcome): int(count) for outcome, count in left_out.items()},
        int(ok.sum()) - len(found.measured),
        found.incomplete,
        tuple(others),
        tuple(name for name in found.varying if settings.log_hyperparameters and _takes_logarithm(rows[name])),
        found.design.attrs["columns"],
        levels.words,
        _shares_of(rows, found.varying, values, levels, settings, group.name) if settings.shares else None,
    )
    return fit, list(found.measured["run_id"])


def _shares_of(
    rows: pd.DataFrame, names: Sequence[str], values: np.ndarray, levels: Levels, settings: Settings, of: str
) -> Shares | Lacking:
    numbers = {name: _number(rows[name]) for name in names}
    columns = {name: rows[name].astype("str") if number is None else number for name, number in numbers.items()}
    try:
        return variance_shares(pd.DataFrame(columns), values, levels, settings.level)
    except NotEnoughData as problem:
        return Lacking(of, str(problem))


def response(values: np.ndarray, metric: str, log: bool) -> np.ndarray:
    """A metric's values, or their natural logarithms; ConfigError where one has none."""
    if log and (values <= 0).any():
        raise ConfigError(
            "--log-scale",
            metric,
            f"holds {values.min():g}, which has no logarithm",
            "leave those runs out with --where",
        )
    return np.log(values) if log else values


def _takes_logarithm(column: pd.Series) -> bool:
    """Whether a column becomes a logarithm on a log scale: numbers and totals of lists do, words and truth do not."""
    return not pd.api.types.is_bool_dtype(column) and _number(column) is not None


def _number(column: pd.Series) -> pd.Series | None:
    """A column as float64; None if it holds words."""
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return column.astype("Float64").astype("float64")
    totals = {value: blocks_of(value) for value in column.dropna().unique()}
    if totals and all(totals.values()):
        return column.map({value: float(sum(counts or ())) for value, counts in totals.items()}).astype("float64")
    return None


def predicted_sensitivity(completed: Completed, on: Sequence[str] | None, settings: Settings) -> Sensitivity:
    """`sensitivity` over every point of the spaces: weights are means over draws, intervals their quantiles.

    What else a fit says (its error on held-out points, variance inflation) is that of the first draw.
    """
    alone = replace(settings, unit="point", keep_replicates=False)
    drawn = {luck: completed.drawn(int(np.argmax(completed.luck == luck))) for luck in np.unique(completed.luck)}
    first = drawn[completed.luck[0]]
    found = fit_weights(first, completed.metric, on, alone)
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


_COLUMNS = 2  # panels side by side
_MOST = 12  # terms of a panel; the weakest beyond it are left to the table
_LETTERS = 58  # of a line of a panel's title
_STEP = 0.22  # vertical distance of two devices' marks, in rows


def draw_sensitivity(result: Sensitivity) -> Figure:
    """A panel for each family, a row for each term, a mark with its interval for each device; zero is no effect.

    Rows are in order of the greatest weight that any device gives them. A term that one device's runs hold constant or
    cannot separate from others says so in place of a mark.
    """
    fits: dict[str, list[Fit]] = {}
    for fit in result.fits:
        fits.setdefault(fit.family, []).append(fit)
    devices = sorted({fit.device for fit in result.fits})
    terms = {family: _terms(found) for family, found in fits.items()}
    across = min(_COLUMNS, len(fits))
    down = -(-len(fits) // across)
    rows = max(len(names) * max(1.0, 0.6 * len(fits[family])) for family, names in terms.items())
    figure, panels = drawing.figure(4.5 * across + 2.5, down * (0.34 * rows + 1.5) + 0.3, down, across)
    every = list(panels.flat) if len(fits) > 1 else [panels]
    reach = [_reach(found) for found in fits.values()]
    for number, (axes, (family, found)) in enumerate(zip(every, fits.items(), strict=False)):
        _panel(axes, family, found, terms[family], devices)
        axes.set_xlim(min(low for low, _ in reach), max(high for _, high in reach))
        last = number + across >= len(fits)
        drawing.finish(axes, _title(family, found), x="standardised weight" if last else "")
        axes.grid(axis="y", visible=False)
    for axes in every[len(fits) :]:
        axes.set_visible(False)
    what = f"{'log ' if result.settings.log_metric else ''}{label(result.metric)}"
    scale = ", logarithms of the hyperparameters" if result.settings.log_hyperparameters else ""
    heading = f"What {what} depends on ({result.fits[0].regression.level:.0%} intervals{scale})"
    figure.suptitle(fill(heading, _LETTERS * across), x=0.01, ha="left", fontsize=10)
    if len(devices) > 1:
        handles = [_handle(every[0], device, devices) for device in devices]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(devices)), frameon=False)
    return figure


def _panel(axes: Axes, family: str, fits: Sequence[Fit], terms: Sequence[str], devices: Sequence[str]) -> None:
    axes.axvline(0, color="#666666", linewidth=0.8)
    columns = {term: column for fit in fits for term, column in fit.columns.items()}
    for place, fit in enumerate(fits):
        offset = ((len(fits) - 1) / 2 - place) * _STEP
        look = _look(family, fit, devices)
        weights = fit.regression.weights
        known = [term for term in terms if term in weights.index]
        height = [len(terms) - 1 - terms.index(term) + offset for term in known]
        found = weights.loc[known]
        error = [found["weight"] - found["low"], found["high"] - found["weight"]]
        axes.errorbar(
            found["weight"],
            height,
            xerr=error,
            fmt=look["marker"],
            color=look["color"],
            markersize=6,
            linewidth=1.6,
            capsize=3,
        )
        for term in terms:
            words = _lacking(fit, term, columns.get(term, term))
            if words:
                axes.annotate(
                    words,
                    (0, len(terms) - 1 - terms.index(term) + offset),
                    (4, 0),
                    va="center",
                    textcoords="offset points",
                    fontsize=7.5,
                    color=look["color"],
                )
    axes.set_yticks(range(len(terms)), [term_label(term) for term in reversed(terms)])
    axes.set_ylim(-0.6, len(terms) - 0.4)


def _terms(fits: Sequence[Fit]) -> list[str]:
    """All terms of a family's fits, the greatest weight first, and at most so many as are legible."""
    weights = pd.concat([fit.regression.weights["weight"].abs() for fit in fits])
    order = weights.groupby(level=0).max().sort_values(ascending=False, kind="stable")
    return list(order.index[:_MOST])


def _reach(fits: Sequence[Fit]) -> tuple[float, float]:
    """The ends of a horizontal axis that shows all intervals, and zero."""
    low = min(0.0, *(fit.regression.weights["low"].min() for fit in fits))
    high = max(0.0, *(fit.regression.weights["high"].max() for fit in fits))
    margin = 0.06 * (high - low)
    return low - margin, high + margin


def _lacking(fit: Fit, term: str, column: str) -> str:
    if term in fit.regression.weights.index:
        return ""
    if column in fit.constant:
        return f"constant: {fit.constant[column]}"
    return "not separable from others" if term in fit.regression.collinear else "not in this fit"


def _title(family: str, fits: Sequence[Fit]) -> str:
    found = [fit.regression for fit in fits]
    if len(found) == 1:
        where = fits[0].device
        return f"{family} on {where}: {found[0].clusters:,} points, R² {found[0].r2:.2f}"
    return fill(f"{family}: R² {', '.join(f'{fit.regression.r2:.2f} ({fit.device})' for fit in fits)}", _LETTERS)


def _look(family: str, fit: Fit, devices: Sequence[str]) -> Mapping[str, Any]:
    """A device's colour and marker; those of the family where there is one device."""
    name, among = (fit.device, devices) if len(devices) > 1 else (family, ())
    return {"color": drawing.colour_of(name, among), "marker": drawing.marker_of(name, among)}


def _handle(axes: Axes, device: str, devices: Sequence[str]) -> Any:
    colour, marker = drawing.colour_of(device, devices), drawing.marker_of(device, devices)
    return axes.plot([], [], linestyle="-", label=device, color=colour, marker=marker)[0]


_SHARES_BESIDE = 2  # panels side by side
_SHARE_STEP = 0.24  # vertical distance of two devices' marks, in rows


def draw_shares(result: Sensitivity) -> Figure:
    """A panel for each family, a row for each hyperparameter: a mark with its interval for its share on each device, a
    hollow one for what it explains alone. The lowest row is what is left."""
    fits: dict[str, list[tuple[Fit, Shares]]] = {}
    for fit in result.fits:
        if isinstance(fit.shares, Shares):
            fits.setdefault(fit.family, []).append((fit, fit.shares))
    devices = sorted({fit.device for found in fits.values() for fit, _ in found})
    across = min(_SHARES_BESIDE, len(fits))
    down = -(-len(fits) // across)
    rows = max(len(_names(found)) for found in fits.values()) + 1
    figure, panels = drawing.figure(4.5 * across + 1.5, down * (0.4 * rows + 1.2) + 0.4, down, across)
    every: Sequence[Axes] = list(np.atleast_1d(panels).flat)
    for number, (axes, (family, found)) in enumerate(zip(every, fits.items(), strict=False)):
        _share_panel(axes, found, devices)
        title = f"{family} on {found[0][0].device}" if len(devices) == 1 else family
        drawing.finish(axes, title, "share of the variance (%)" if number + across >= len(fits) else "")
        axes.grid(axis="y", visible=False)
    for axes in every[len(fits) :]:
        axes.set_visible(False)
    what = f"{'log ' if result.settings.log_metric else ''}{label(result.metric)}"
    level = f"{result.fits[0].regression.level:.0%}"
    figure.suptitle(f"What the variance of {what} is due to ({level} intervals)", x=0.01, ha="left", fontsize=10)
    handles = [every[0].plot([], [], "o", color=drawing.colour_of(name, devices), label=name)[0] for name in devices]
    handles = handles if len(devices) > 1 else []
    handles.append(every[0].plot([], [], "o", markerfacecolor="none", color="#444444", label="explained alone")[0])
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False)
    return figure


def _names(found: Sequence[tuple[Fit, Shares]]) -> list[str]:
    """All hyperparameters of a family, the largest share on any device first."""
    largest: dict[str, float] = {}
    for _, shares in found:
        for name, share in shares.table["share"].items():
            largest[str(name)] = max(largest.get(str(name), 0.0), float(share))
    return sorted(largest, key=lambda name: -largest[name])


def _share_panel(axes: Axes, found: Sequence[tuple[Fit, Shares]], devices: Sequence[str]) -> None:
    names = [*_names(found), "(not explained)"]
    for place, (fit, shares) in enumerate(found):
        colour = drawing.colour_of(fit.device, devices)
        offset = ((len(found) - 1) / 2 - place) * _SHARE_STEP
        table, rest = shares.table, 1 - np.array(shares.together)
        height = [len(names) - 1 - names.index(str(name)) + offset for name in table.index]
        value = 100 * np.append(table["share"], rest[0])
        low, high = 100 * np.append(table["low"], rest[2]), 100 * np.append(table["high"], rest[1])
        error = np.maximum([value - low, high - value], 0.0)
        axes.errorbar(value, [*height, offset], xerr=error, fmt="o", color=colour, linewidth=1.6, capsize=3)
        axes.plot(100 * table["alone"], height, "o", markerfacecolor="white", color=colour, markersize=5, zorder=4)
    axes.set_yticks(range(len(names)), [name.replace("model.", "") for name in reversed(names)])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
