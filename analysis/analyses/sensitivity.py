"""`sensitivity`: what a metric depends on, as standardised regression weights with intervals.

The paper (section 4.1, Figures 2 d-f, 8 a, 9 a, 10) fits metric = w0 x layers + w1 x nodes + ... with everything on one
scale and reads the signed weights as sensitivities. Here each weight comes with an interval that allows for unequal
scatter, a variance inflation factor, and the error of the fit on points that it has not seen. One fit for each family
and device; columns that cannot have a weight (constant, or a combination of others) are named instead of weighed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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
    settings,
)
from analysis.format import is_share, percent_interval, short
from analysis.labels import label, term_label
from analysis.lazy import drawing, np, pd, stats
from analysis.options import option, unit_option
from analysis.prediction import Completed, PredictedOptions, completed_of, told_of
from analysis.registry import Shown, analysis
from analysis.result import Headline, Paragraph, Result, pooled_within
from analysis.statistics.dependence import levels_of
from analysis.statistics.regression import Lacking, Regression, regress, standardise
from analysis.statistics.shares import Shares, variance_shares
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from paradnn.core.words import counted
from paradnn.errors import ConfigError, NotEnoughData
from paradnn.forecast.estimate import LEVEL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CROWDED = 10  # the VIF from which a weight is said to be hard to separate from others
_RATE = 0.05  # of fits without any effect in which some term may be said to matter
_POOR = 0.5  # the R2 below which a straight line is said to describe little
_ERRORS = {"HC3": ", with robust errors (HC3)", "HC1": ", with robust errors (HC1)", "cluster": " and their runs"}

_MOST = 12  # terms of a panel; the weakest beyond it are left to the table


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

    @property
    def log_terms(self) -> bool:
        """Whether hyperparameters become logarithms."""
        return self.log_scale in ("hyperparameters", "both")

    @property
    def log_metric(self) -> bool:
        """Whether the metric becomes one."""
        return self.log_scale in ("metric", "both")


@dataclass(frozen=True)
class Fit(GroupKey):
    """The regression of one family on one device. `columns` maps terms to the columns they are made of, `constant`
    every column without variation to its value; `logarithms` are the terms that are logarithms where the metric is one
    too. `head` and `notes` say in words what it is over and what it leaves out, `sample` what intervals are over.
    `shares` are those of the variance, where they were asked for, or why there are none."""

    regression: Regression
    columns: Mapping[str, str]
    constant: Mapping[str, str]
    logarithms: tuple[str, ...]
    head: str
    notes: tuple[str, ...]
    sample: str
    shares: Shares | Lacking | None = None

    @property
    def weights(self) -> pd.DataFrame:
        """`Regression.weights`, the largest first, with `p_adjusted` for the number of terms in the fit; whether a term
        is `shown` to matter: its interval holds no zero, nor would one that is widened for that number; and `doubling`,
        what doubling the hyperparameter multiplies the metric by, NaN where not both are logarithms."""
        found = self.regression.weights.sort_values("weight", key=lambda column: -column.abs(), kind="stable")
        found = found.assign(p_adjusted=adjusted(found["p"]))
        clear = (found["low"] > 0) | (found["high"] < 0)
        doubling = (2 ** found["slope"]).where(found.index.isin(self.logarithms))
        return found.assign(shown=clear & ~(found["p_adjusted"] > _RATE), doubling=doubling)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SensitivityResult(Result):
    """The fit of every family on every device; `lacking` says why others have none."""

    metric: str
    options: SensitivityOptions
    fits: tuple[Fit, ...]
    lacking: tuple[Lacking, ...]
    metric_unit: str = ""

    @property
    def table(self) -> pd.DataFrame:
        """A row for each weight, the most important of each fit first."""
        parts = []
        for fit in self.fits:
            found = fit.regression
            part = fit.weights.drop(columns=["shown", "doubling"]).join(found.unseen)
            if isinstance(fit.shares, Shares):
                shares = fit.shares.table.add_prefix("share_").rename(columns={"share_share": "share"})
                part = part.join(shares.reindex(part.index.map(fit.columns)).set_axis(part.index))
            part = part.rename_axis("term").reset_index()
            for place, (name, value) in enumerate((("family", fit.family), ("device", fit.device))):
                part.insert(place, name, value)
            part.insert(2, "metric", self.metric)
            parts.append(part.assign(points=found.clusters, r2=found.r2, r2_held_out=found.r2_held_out))
        return pd.concat(parts, ignore_index=True)

    @property
    def _response(self) -> str:
        return "log " * self.options.log_metric

    def strongest(self) -> pd.Series | None:
        """The largest weight that differs from zero, of the fit over the most points that has one: a row of
        `Fit.weights` with family, term and points."""
        shown = [(fit, fit.weights[lambda table: table["shown"]]) for fit in self.fits]
        named = [(fit, table.reset_index().iloc[0]) for fit, table in shown if len(table)]
        if not named:
            return None
        fit, row = max(named, key=lambda one: (one[0].regression.clusters, abs(one[1]["weight"])))
        found: pd.Series = pd.concat([pd.Series({"family": fit.family, "points": fit.regression.clusters}), row])
        return found

    def headline(self) -> Headline | None:
        row = self.strongest()
        if row is None:
            return None
        doubling = f"; doubling it multiplies it by {row['doubling']:.2f}" if pd.notna(row["doubling"]) else ""
        words = (
            f"{label(self.metric)} of {row['family']} depends most on {label(row['term'])}, weight "
            f"{row['weight']:+.2f} (95% CI {row['low']:+.2f} to {row['high']:+.2f}) over "
            f"{counted(row['points'], 'point')}{doubling}."
        )
        return Headline("What it depends on", words)

    def _paragraphs(self) -> Iterator[Paragraph | str]:
        for fit in self.fits:
            yield Paragraph(fit.head, tuple(self._describe(fit)))
        yield from (f"{lacking}: no fit." for lacking in self.lacking)
        over = "; ".join(dict.fromkeys(fit.sample + _ERRORS.get(fit.regression.covariance, "") for fit in self.fits))
        yield (
            f"A weight is the change of {self._response}{self.metric}, in its standard deviations, for one standard "
            f"deviation of the hyperparameter; {LEVEL:.0%} intervals over {over}."
        )

    def _describe(self, fit: Fit) -> Iterator[str]:
        weights, found = fit.weights, fit.regression
        shown = [_weight(str(term), row) for term, row in weights[weights["shown"]].iterrows()]
        if shown:
            yield f"It depends on {'; '.join(shown)}."
        if others := list(weights.index[~weights["shown"]]):
            yield f"Not distinguished from no effect, with {len(weights)} terms tried: {', '.join(others)}."
        poor = found.r2_held_out < _POOR and not (self.options.log_metric or self.options.interactions)
        yield (
            f"R² {found.r2:.2f}; on held-out points {found.r2_held_out:.2f}, typically off by "
            f"{self._error(found.rmse_held_out)} ({found.folds} folds)."
            + " A straight line describes less than half of it: try --log-scale both, or --interactions."
            * poor
        )
        if len(found.unseen):
            listed = "; ".join(
                f"{term} {self._error(row['rmse_inner'])} between others, {self._error(row['rmse_outer'])} beyond them"
                for term, row in found.unseen.iterrows()
            )
            yield f"On a value that the fit never saw it is off by: {listed}."
        yield from _of_variance(fit.shares)
        yield from fit.notes
        if found.covariance == "HC1":
            yield "One point alone determines a weight, so errors are HC1, not HC3."

    def _error(self, rmse: float) -> str:
        """A root mean square error in words; of logarithms a factor."""
        if self.options.log_metric:
            return f"a factor of {math.exp(rmse):.2f}"
        share = is_share(self.metric, self.metric_unit)
        return f"{short(100 * rmse)} percentage points" if share else short(rmse, self.metric_unit)

    def _figure(self) -> Figure:
        """The weights, or where there are any, the shares: hollow what a hyperparameter explains alone, and the lowest
        row what is left. A term that one device's runs hold constant or cannot separate from others says so in place of
        a mark."""
        fits = [fit for fit in self.fits if isinstance(fit.shares, Shares)]
        what = f"{self._response}{label(self.metric)}"
        if fits:
            return _draw(fits, _shares_drawn, f"share of the variance of {what} (%, {LEVEL:.0%} intervals)")
        scale = ", logarithms of the hyperparameters" * self.options.log_terms
        x = f"what {what} depends on: standardised weights ({LEVEL:.0%} intervals{scale})"
        return _draw(self.fits, _weights_drawn, x)


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
    """The weights of every family on every device, over its ok runs; see `regress` for the formulas.

    ConfigError for a column or metric that is not there, NotEnoughData where no group can be fitted, SchemaError for
    heterogeneous runs of a group.
    """
    pooled = pooled_within(frame, ["family", "device"], pool=True) if options.pool else ""
    if not options.predicted:
        return replace(_fitted(frame, options), pooled=pooled)
    for flag, given in (("--keep-replicates", options.keep_replicates), ("--shares", options.shares)):
        if given:
            raise ConfigError(flag, "true", "is about measured runs alone", "leave out --predicted, or this")
    completed = completed_of(frame, options.metric, options)
    return replace(_over_draws(completed, options), pooled=pooled, predicted=told_of([completed]))


def _fitted(frame: pd.DataFrame, options: SensitivityOptions) -> SensitivityResult:
    metric = find_metric(frame, options.metric) if options.metric else choose_metric(frame)
    chosen = _chosen(frame, options)
    fits, lacking, used = [], [], []
    for group in groups(frame):
        try:
            fit, run_ids = _fit(group, metric, chosen, options)
        except NotEnoughData as problem:
            lacking.append(Lacking(group.name, str(problem)))
            continue
        fits.append(fit)
        used += run_ids
    if not fits:
        remedy = "measure more points, or choose fewer hyperparameters with --on"
        raise NotEnoughData(f"not enough data to explain {metric}", lacking, remedy)
    return SensitivityResult(
        metric=metric,
        options=options,
        fits=tuple(fits),
        lacking=tuple(lacking),
        metric_unit=frame.attrs.get("units", {}).get(metric, ""),
        sources=tuple(used),
    )


def _chosen(frame: pd.DataFrame, options: SensitivityOptions) -> list[str] | None:
    """The columns that --on names; None for all that vary."""
    if options.on is None:
        return None
    return list(dict.fromkeys(find_column(frame, name, "--on") for name in options.on))


class _Points(NamedTuple):
    """The ok runs with the metric, their points that have every column, and the columns that vary among these."""

    measured: pd.DataFrame
    rows: pd.DataFrame
    varying: list[str]
    constant: dict[str, str]
    incomplete: int


def _points(group: Group, metric: str, chosen: list[str] | None, options: SensitivityOptions) -> _Points:
    measured = group.rows[is_ok(group.rows) & group.rows[metric].notna()]
    if measured.empty:
        raise NotEnoughData(f"no measured run has {metric}")
    measured = require_homogeneous(measured, pool=options.pool)
    names = [name for name in chosen or hyperparameters(measured) if measured[name].notna().any()]
    rows = measured if options.keep_replicates else aggregate_replicates(measured)
    complete = rows[names].notna().all(axis=1)
    incomplete, rows = int((~complete).sum()), rows[complete]
    if rows.empty:
        raise NotEnoughData(f"no measured run has all of {', '.join(map(label, names))}; choose some with --on")
    constant = {name: str(rows[name].iloc[0]) for name in names if rows[name].nunique() == 1}
    return _Points(measured, rows, [name for name in names if name not in constant], constant, incomplete)


def _fit(group: Group, metric: str, chosen: list[str] | None, options: SensitivityOptions) -> tuple[Fit, list[str]]:
    """The fit of one group and the ids of the runs it rests on."""
    measured, rows, varying, constant, incomplete = _points(group, metric, chosen, options)
    design, baselines = encode(rows, varying, options.log_terms)
    values = _values(rows[metric].to_numpy(dtype="float64"), metric, options)
    levels = levels_of(rows, options.unit, options.keep_replicates)
    fitted = regress(
        design,
        values,
        rows["point_id"].to_numpy(dtype=object) if options.keep_replicates else None,
        levels=None if options.unit == "point" else levels,
        interactions=options.interactions,
        unseen=True,
    )
    constant |= {name: f"{value:g} in total" for name, value in fitted.constant.items()}
    ok = is_ok(group.rows)
    left_out = group.rows.loc[~ok, "outcome"].fillna("unfinished").value_counts()
    named = {*varying, *constant}
    others = [name for name in hyperparameters(rows) if name not in named and rows[name].nunique() > 1]
    others += [name for name in settings(rows) if name not in named]
    shares: Shares | Lacking | None = None
    if options.shares:
        numbers = {name: _number(rows[name]) for name in varying}
        columns = {name: rows[name].astype("str") if number is None else number for name, number in numbers.items()}
        try:
            shares = variance_shares(pd.DataFrame(columns), values, levels)
        except NotEnoughData as problem:
            shares = Lacking(group.name, str(problem))
    head = f"{group.name}: {metric} over {fitted.clusters:,} points"
    if fitted.rows != fitted.clusters:
        head += f" in {fitted.rows:,} runs"
    if len(left_out):
        listed = ", ".join(f"{count} {outcome}" for outcome, count in left_out.items())
        head += f"; runs without a measurement are left out ({listed}), so this covers only models that ran"
    fit = Fit(
        family=group.family,
        device=group.device,
        regression=fitted,
        columns=design.attrs["columns"],
        constant=constant,
        logarithms=tuple(name for name in varying if options.log_scale == "both" and _takes_logarithm(rows[name])),
        head=f"{head}.",
        notes=tuple(_notes(fitted, constant, baselines, others, incomplete, int(ok.sum()) - len(measured))),
        sample=levels.words,
        shares=shares,
    )
    return fit, list(measured["run_id"])


def _notes(
    fitted: Regression,
    constant: Mapping[str, str],
    baselines: Mapping[str, str],
    others: Sequence[str],
    incomplete: int,
    lacking: int,
) -> Iterator[str]:
    """What a fit leaves out, and what its weights are against."""
    if constant:
        named = ", ".join(f"{name} = {value}" for name, value in constant.items())
        yield f"Constant in these runs, so without a weight: {named}."
    for name, terms in fitted.collinear.items():
        yield f"{name} has no weight of its own: over these points it is a combination of {', '.join(terms)}."
    crowded = fitted.weights["vif"][lambda vif: vif >= _CROWDED]
    if len(crowded):
        listed = ", ".join(f"{name} ({vif:.0f})" for name, vif in crowded.items())
        yield f"Hard to separate, their columns nearly agree (VIF): {listed}."
    yield from (f"{name} is against {value}." for name, value in baselines.items())
    if others:
        yield f"These vary too but have no term: {', '.join(others)}; fix them with --where, or add them to --on."
    if incomplete:
        yield f"{incomplete} points lack a hyperparameter of the fit and are left out."
    if lacking:
        yield f"{lacking} measured runs lack the metric."


def _weight(term: str, row: pd.Series) -> str:
    """Such as "model.nodes +0.47 (+0.41 to +0.52)", with the effect of a doubling where both sides are logarithms."""
    digits = 2 if abs(row["weight"]) >= 0.1 else 3
    value, low, high = (f"{row[name]:+.{digits}f}" for name in ("weight", "low", "high"))
    doubling = f", doubling it multiplies by {row['doubling']:.2f}" if pd.notna(row["doubling"]) else ""
    return f"{term} {value} ({low} to {high}){doubling}"


def _of_variance(shares: Shares | Lacking | None) -> Iterator[str]:
    """The shares of the variance, and what is left."""
    if isinstance(shares, Lacking):
        yield f"No shares of the variance: {shares.problem}."
    if not isinstance(shares, Shares):
        return
    rows = [
        f"{name} {percent_interval((row['share'], row['low'], row['high']))}, alone {100 * row['alone']:.3g}%"
        for name, row in shares.table.iterrows()
    ]
    yield f"Of its variance is due to {'; '.join(rows)}."
    yield (
        f"Together they explain {percent_interval(shares.together)}, products of each two included; the rest, "
        f"{100 * (1 - shares.together.value):.3g}%, is scatter and what three or more do together."
    )
    if shares.ranges:
        cut = ", ".join(f"{name} ({count})" for name, count in shares.ranges.items())
        yield f"For shares, values were cut into ranges: {cut}."


def adjusted(p_values: pd.Series) -> pd.Series:
    """p of n terms such that with no effect at all any of them falls below 0.05 in at most 5% of fits (Holm,
    Scandinavian J. Statistics 6, 1979). That of statsmodels collects garbage at each call, a tenth of a second."""
    ordered = p_values.sort_values(kind="stable")
    return (ordered * np.arange(len(ordered), 0, -1)).cummax().clip(upper=1)


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
        number = _number(frame[name])
        if number is None:
            words = frame[name].astype("object")
            counts = words.value_counts().sort_index().sort_values(ascending=False, kind="stable")
            if counts.empty:
                continue
            base = "float32" if "float32" in counts else str(counts.index[0])
            baselines |= {name: base} if len(counts) > 1 else {}
            for value in [value for value in counts.index if value != base] or [base]:
                terms[f"{name}={value}"] = words.eq(value).astype("float64").mask(words.isna())
                columns[f"{name}={value}"] = name
            continue
        if log and _takes_logarithm(frame[name]):
            number = _logarithms(number, name, "leave it out with --on, or those runs with --where")
        terms[name], columns[name] = number, name
    design = pd.DataFrame(terms, index=frame.index)
    design.attrs["columns"] = columns
    return design, baselines


def _values(values: np.ndarray, metric: str, options: SensitivityOptions) -> np.ndarray:
    """A metric's values, or their natural logarithms."""
    if not options.log_metric:
        return values
    logs: np.ndarray = _logarithms(values, metric, "leave those runs out with --where")
    return logs


def _logarithms(values: Any, name: str, remedy: str) -> Any:
    """ConfigError where a value has none."""
    if (values <= 0).any():
        raise ConfigError("--log-scale", name, f"holds {values.min():g}, which has no logarithm", remedy)
    return np.log(values)


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


def _over_draws(completed: Completed, options: SensitivityOptions) -> SensitivityResult:
    """The answer over every point of the spaces: weights are means over draws, intervals their quantiles.

    About these very points nothing else is uncertain: a space that is complete has no sampling error. What else a fit
    says (its error on held-out points, variance inflation) is that of the first draw.
    """
    alone = replace(options, unit="point", keep_replicates=False, metric=completed.metric)
    drawn = {luck: completed.drawn(int(np.argmax(completed.luck == luck))) for luck in np.unique(completed.luck)}
    first = drawn[completed.luck[0]]
    found = _fitted(first, alone)
    chosen = _chosen(first, options)
    parts: dict[str, list[pd.DataFrame]] = {fit.name: [] for fit in found.fits}
    for luck, frame in drawn.items():
        for group in groups(frame):
            if group.name in parts:
                points = _points(group, completed.metric, chosen, alone)
                parts[group.name].append(_drawn_weights(points, completed, luck, alone))
    fits = []
    for fit in found.fits:
        old, draws = fit.regression, pd.concat(parts[fit.name], axis=1)
        weights, slopes = (draws.loc[[name]].droplevel(0).reindex(old.weights.index) for name in ("weight", "slope"))
        middle, tail = weights.mean(axis=1), (1 - LEVEL) / 2
        columns = {
            "weight": middle,
            "low": weights.quantile(tail, axis=1),
            "high": weights.quantile(1 - tail, axis=1),
            "p": 2 * stats.norm.sf(middle.abs() / weights.std(axis=1).clip(lower=1e-300)),
            "vif": old.weights["vif"],
            "slope": slopes.mean(axis=1),
        }
        r2 = float(draws.loc[["r2"]].to_numpy().mean())
        regression = replace(old, weights=pd.DataFrame(columns), r2=r2, covariance="draws")
        space = next(space for space in completed.spaces if space.name == fit.name)
        sample = f"all {old.rows:,} points that run, of which {space.measured:,} were measured"
        fits.append(replace(fit, regression=regression, sample=sample))
    return replace(found, fits=tuple(fits), options=options, sources=completed.measured(found.sources))


def _drawn_weights(points: _Points, completed: Completed, luck: float, options: SensitivityOptions) -> pd.DataFrame:
    """The weight and slope of every term in each draw of one memory frontier, and what share such a fit explains."""
    y = _values(completed.values(points.rows)[:, completed.luck == luck], completed.metric, options)
    scores, per, *_ = standardise(encode(points.rows, points.varying, options.log_terms)[0], options.interactions)
    spread, centred = y.std(axis=0, ddof=1), (scores - scores.mean()).to_numpy()
    z = (y - y.mean(axis=0)) / spread
    found = np.linalg.lstsq(centred, z, rcond=None)[0]
    explained = 1 - ((z - centred @ found) ** 2).sum(axis=0) / (z**2).sum(axis=0)
    rows = {"weight": found, "slope": found * spread / per.to_numpy()[:, None]}
    parts = {name: pd.DataFrame(row, index=scores.columns) for name, row in rows.items()}
    return pd.concat({**parts, "r2": pd.DataFrame(explained[None], index=["all"])})


def _weights_drawn(fits: Sequence[Fit]) -> Iterator[tuple[Fit, pd.DataFrame]]:
    """Rows in order of the greatest weight that any device gives them, at most so many as are legible."""
    greatest = pd.concat([fit.regression.weights["weight"].abs() for fit in fits]).groupby(level=0).max()
    columns = {term: column for fit in fits for term, column in fit.columns.items()}
    for fit in fits:
        marks: list[tuple[object, ...]] = []
        for term in greatest.sort_values(ascending=False, kind="stable").index[:_MOST]:
            ends, words, column = (math.nan,) * 3, "", columns.get(term, term)
            if term in fit.regression.weights.index:
                ends = tuple(fit.regression.weights.loc[term, ["weight", "low", "high"]])
            elif column in fit.constant:
                words = f"constant: {fit.constant[column]}"
            else:
                words = "not separable from others" if term in fit.regression.collinear else "not in this fit"
            marks.append((term_label(term), *ends, math.nan, words))
        yield fit, pd.DataFrame(marks, columns=["row", "value", "low", "high", "alone", "words"])


def _shares_drawn(fits: Sequence[Fit]) -> Iterator[tuple[Fit, pd.DataFrame]]:
    """Rows in order of the largest share on any device, and what is left."""
    known = [(fit, fit.shares) for fit in fits if isinstance(fit.shares, Shares)]
    largest = pd.concat([shares.table["share"] for _, shares in known]).groupby(level=0, sort=False).max()
    for fit, shares in known:
        table = shares.table.reindex(largest.sort_values(ascending=False, kind="stable").index)
        value, low, high = (1 - end for end in shares.together)
        table.loc["(not explained)"] = pd.Series({"share": value, "low": high, "high": low})
        table = 100 * table.rename(columns={"share": "value"})
        yield fit, table.assign(row=table.index.str.replace("model.", ""), words="")


def _draw(fits: Sequence[Fit], drawn: Callable[[Sequence[Fit]], Iterator[tuple[Fit, pd.DataFrame]]], x: str) -> Figure:
    """A panel for each family, a row for each term, a mark with its interval for each device; zero is no effect."""
    families = [[fit for fit in fits if fit.family == name] for name in dict.fromkeys(fit.family for fit in fits)]
    tables = [list(drawn(own)) for own in families]
    devices = sorted({fit.device for fit in fits})
    every = pd.concat([table for own in tables for _, table in own])
    low, high = min(0.0, every["low"].min()), max(0.0, every[["high", "alone"]].max().max())
    height = max(len(own[0][1]) * max(1.0, 0.6 * len(own)) for own in tables)
    figure, panels = drawing.panels(len(tables), 5.5, 0.34 * height + 1.5, across=2)
    for axes, own in zip(panels, tables, strict=True):
        family, rows = own[0][0].family, {row: row for row in own[0][1]["row"]}
        groups = {fit.device: table.set_index("row") for fit, table in own}
        looks = {name: drawing.look(*((name, devices) if len(devices) > 1 else (family,))) for name in groups}
        axes.axvline(0, color="#666666", linewidth=0.8)
        drawing.forest(axes, rows, groups, looks)
        for place, (device, table) in enumerate(groups.items()):
            offset = (place - (len(groups) - 1) / 2) * 0.7 / len(groups)  # as in a forest
            how = {"color": looks[device]["color"], "fontsize": "small", "va": "center"}
            for number, words in enumerate(table["words"]):
                axes.text(0, number + offset, f" {words}" if words else "", **how)
            axes.plot(table["alone"], np.arange(len(table)) + offset, "o", mfc="white", color=how["color"], zorder=4)
        axes.set_xlim(low - 0.06 * (high - low), high + 0.06 * (high - low))
        title = own[0][0].name if len(own) == 1 else family
        if drawn is _weights_drawn:
            title += f"\nR² {', '.join(f'{fit.regression.r2:.2f}' for fit, _ in own)}"
        drawing.finish(axes, title, x)
        axes.grid(axis="y", visible=False)
    handles = [drawing.handle(name, **drawing.look(name, devices)) for name in devices if len(devices) > 1]
    if every["alone"].notna().any():
        handles.append(drawing.handle("explained alone", marker="o", markerfacecolor="white", color="#444444"))
    drawing.legend(figure, handles)
    return figure
