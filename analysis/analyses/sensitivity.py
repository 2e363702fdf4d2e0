"""`sensitivity`: estimate how strongly a metric depends on each hyperparameter.

The paper (section 4.1, Figures 2 d-f, 8 a, 9 a, 10) fits metric = w0 x layers + w1 x nodes + ... to
standardized variables and reads the signed weights as sensitivities. A weight of +0.5 means that
the metric grows by half a standard deviation if the hyperparameter grows by one standard deviation.

Here each weight has a verdict and an interval. The interval allows for unequal error variances
(heteroscedasticity), and for values of a hyperparameter that scatter around the regression line. If
the values of a hyperparameter were measured in different sessions or at different times, the
interval also allows for session effects and for drift (`paradnn.statistics.priors`). Each family on
each device has a separate fit. Constant and collinear columns have no weight; the output lists
them.

--to hardware explains elasticities instead of a metric: the elasticities of the throughput with
respect to the arithmetic rate, the memory bandwidth and the overhead of an operation. The
elasticity with respect to a rate is the share of the time that this rate limits (see `whatif`).

--interactions shows whether the effect of one hyperparameter depends on the value of another.
--shares divides the variance among the hyperparameters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from analysis.columns import (
    FamilyGroup,
    GroupKey,
    analyze_groups,
    choose_metric,
    families_of_examples_if_mixed,
    family_groups,
    find_column,
    find_metric,
    format_values,
    hyperparameters,
    settings,
)
from analysis.format import format_number, format_with_interval
from analysis.interactions import Interactions, describe_interactions, fit_interactions
from analysis.labels import label, term_label
from analysis.lazy import drawing, np, pd, stats
from analysis.options import Options, column_option, metric_option, option, unit_option
from analysis.point_work import fit_work, limits_of_points, measured_work
from analysis.registry import SectionSpec, analysis
from analysis.regression_terms import (
    doublings,
    encode,
    format_doubling,
    format_weight,
    logarithms,
    takes_logarithm,
)
from analysis.result import AnalysisAnswer, Highlight, Paragraph, Result, pooled_within
from analysis.roofs import find_roofs
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous, units
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.core.words import counted
from paradnn.platform.specifications import find_hardware
from paradnn.statistics.decision import adjust_p_values
from paradnn.statistics.dependence import (
    Component,
    Levels,
    Unit,
    crossed_quantile,
    shared_levels,
    sum_components,
)
from paradnn.statistics.estimate import LEVEL
from paradnn.statistics.priors import ScatterPriors, priors_for
from paradnn.statistics.regression import Regression, independent_columns, regress
from paradnn.statistics.sessions import MeasurementTimes, measurement_times
from paradnn.statistics.variance_shares import Share, variance_shares

#: Elasticities of the throughput, in the order of compute, memory and overhead.
_ELASTICITIES = ("peak_elasticity", "bandwidth_elasticity", "overhead_elasticity")
#: An elasticity gets no regression unless it exceeds this value at some point of a family.
_MIN_ELASTICITY = 0.01
#: Probability that a fit reports a dependence although the metric depends on no term.
_FALSE_POSITIVE_RATE = 0.05
#: R² on held-out points below which a message recommends logarithms.
_POOR_R2 = 0.5
#: Maximum number of terms in a panel of the figure. The table has the weaker terms, too.
_MAX_DRAWN_TERMS = 12
#: Minimum number of values to recommend for a hyperparameter with too few values to show a slope.
_RECOMMENDED_VALUES = 5


@dataclass(frozen=True, kw_only=True)
class SensitivityOptions(Options):
    """Options of the command `sensitivity`: the metric, the hyperparameters, and the scale."""

    metric: str | None = metric_option("metric to explain")
    on: tuple[str, ...] | None = column_option(
        None,
        "hyperparameters to explain it with, such as nodes,batch_size (default: all that vary)",
        "A,B",
    )
    log_scale: Literal["none", "both"] = option("none", "take logarithms of both sides")
    unit: Literal["crossed", "model", "point"] = unit_option()
    interactions: bool = option(
        False,
        "test each pair of hyperparameters for an interaction (with --log-scale both: "
        "whether their joint effect differs from the product of the single effects)",
    )
    to: Literal["hyperparameters", "hardware"] = option(
        "hyperparameters",
        "hardware: replace the metric with the elasticities of the throughput with respect to "
        "peak, bandwidth and overhead",
    )
    shares: bool = option(
        False, "share of the variance that each hyperparameter explains, as Shapley values"
    )


@dataclass(frozen=True)
class Fit(GroupKey):
    """Regression of a metric on hyperparameters, for one family on one device.

    Attributes:
        regression: The fitted regression.
        weights: The weights of the regression, a row per term, the largest absolute weight first.
            Further columns are `p_adjusted`, `verdict`, and those of the function `doublings`.
            `p_adjusted` is the p-value adjusted for the number of terms. The columns of `doublings`
            state the factor per doubling of a hyperparameter. They are NaN if the term is an
            indicator of a text value, or the metric is not positive. `verdict` is "depends",
            "values differ" (the metric differs between values, but no slope is shown), "not shown",
            "undecided (sessions)" or "undecided (order)". A verdict is undecided if the interval
            includes 0 only because the interval allows for session effects or for drift.
        constant: Values of hyperparameters without variation, by hyperparameter.
        paragraph: The findings as text.
        sample: The sampled units as text, such as "23 models and 9 batch sizes".
        sources: Ids of the runs.
        interactions: The regression with products of pairs of terms; None if not requested.
        shares: Share of variance that each hyperparameter explains; empty if not requested.
    """

    regression: Regression
    weights: pd.DataFrame
    constant: Mapping[str, str]
    paragraph: Paragraph
    sample: str
    sources: tuple[str, ...]
    interactions: Interactions | None = None
    shares: Mapping[str, Share] = field(default_factory=dict)

    def strongest(self) -> tuple[str, list[str]] | None:
        """Return the term with the largest weight, and the terms whose weight may be as large.

        Returns:
            The name of the strongest term, and the names of its rivals: the terms whose absolute
            weight may be as large, given the uncertainty. None if no dependence on any term is
            shown.
        """
        terms = self.weights.index[self.weights["verdict"] == "depends"]
        if not len(terms):
            return None
        strongest = str(terms[0])
        others = self.weights.drop(strongest)
        rivals = [str(name) for name in others.index if self._is_rival(strongest, name)]
        return strongest, rivals

    def _is_rival(self, strongest: str, other: str) -> bool:
        """Return whether a term may have the same absolute weight as the strongest term, or more.

        Args:
            strongest: Name of the term with the largest absolute weight.
            other: Name of the term that is compared with it.
        """
        a = self.weights.loc[strongest]
        b = self.weights.loc[other]
        if b["verdict"].startswith("undecided"):
            return True
        correlations = self.regression.correlation.to_numpy()
        terms = self.regression.correlation.index
        correlation = correlations[terms.get_loc(strongest), terms.get_loc(other)]
        correlation *= np.sign(a["weight"] * b["weight"])
        variance = a["error"] ** 2 + b["error"] ** 2 - 2 * correlation * a["error"] * b["error"]
        freedom = sum_components(
            [Component(row["error"] ** 2, row["freedom"]) for row in (a, b)]
        ).freedom
        half_width = Component(max(variance, 0.0), freedom).half_width
        return bool(abs(a["weight"]) - abs(b["weight"]) <= half_width)


@analysis(
    SensitivityOptions,
    summary="sensitivity of a metric to each hyperparameter: regression weights with intervals",
    example="python -m analysis sensitivity --family fc --log-scale both --figure weights.png",
    section="system",
    order=50,
    title="What performance depends on",
    reading=(
        "Standardized weights of a regression on logarithms. The further from zero, the stronger "
        "the effect; an interval that contains zero shows no effect."
    ),
    list_sections=lambda rows: [
        SectionSpec(
            SensitivityOptions(log_scale="both"), families=families_of_examples_if_mixed(rows)
        )
    ],
)
def sensitivity(frame: pd.DataFrame, options: SensitivityOptions) -> Result:
    """Fit a regression of a metric on hyperparameters for every family on every device.

    Only runs with outcome ok are used. `paradnn.statistics.regression.regress` documents the
    formulas.

    Args:
        frame: Runs, one per row.
        options: The metric, the hyperparameters (None for all that vary), the scale, and further
            requested results.

    Returns:
        The result. Its table has a row per family, device and term of the regression.

    Raises:
        ConfigError: If the runs lack a column or the metric.
        InsufficientData: If no group can be fitted.
        SchemaError: If the runs of a family on a device differ in their environment or timing
            protocol, and the option `pool` is not set.
    """
    if options.to == "hardware":
        return _hardware(frame, options)
    pooled = ""
    if options.pool:
        pooled = pooled_within(frame, ["family", "device"], pool=True)
    if options.metric:
        metric = find_metric(frame, options.metric)
    else:
        metric = choose_metric(frame)
    columns = [find_column(frame, name, "--on") for name in options.on or ()]
    fits, omitted = analyze_groups(
        frame,
        lambda group: _fit(group, metric, columns, options),
        f"not enough data to explain {metric}",
        "choose fewer hyperparameters with --on, or measure more points, about 10 seconds each: "
        "python -m paradnn.train -m model=fc model.nodes=128,512,2048 batch_size=64,512 "
        "measure=quick",
    )
    log = options.log_scale == "both"
    prefix = "log " if log else ""
    samples = "; ".join(dict.fromkeys(fit.sample for fit in fits))
    explanation = (
        f"A weight is the change of {prefix}{metric}, in its standard deviations, for one standard "
        f"deviation of the hyperparameter. The {LEVEL:.0%} intervals generalize over {samples}, "
        "and over the values of each hyperparameter."
    )
    headline = _headline(fits, metric)
    return Result(
        numbers=pd.concat([_rows(fit, metric) for fit in fits], ignore_index=True),
        sentences=[
            *(fit.paragraph for fit in fits),
            *(f"{group}: no fit." for group in omitted),
            explanation,
        ],
        picture=lambda: _draw(fits, f"{prefix}{label(metric)}", log=log),
        answer=_answer(fits, metric, headline),
        stands_out=headline,
        sources=tuple(run for fit in fits for run in fit.sources),
        pooled=pooled,
        metrics=(metric,),
    )


def _hardware(frame: pd.DataFrame, options: SensitivityOptions) -> Result:
    """Compute the elasticities of each run, and fit a regression to each elasticity.

    An elasticity is the relative change of the throughput per relative change of a hardware rate,
    such as the memory bandwidth.

    Args:
        frame: Runs, one per row.
        options: The options of the command.

    Raises:
        ConfigError: If --metric is given.
        InsufficientData: If no group can be fitted.
    """
    if options.metric:
        remedy = "omit it, or omit --to hardware"
        problem = "cannot be combined with --to hardware"
        raise ConfigError("--metric", options.metric, problem, remedy)
    pooled = pooled_within(frame, ["family", "device"], pool=True) if options.pool else ""
    rows = _with_elasticities(frame, options.store)
    columns = [find_column(rows, name, "--on") for name in options.on or ()]
    fits: dict[str, list[Fit]] = {}
    unexplained = []
    for name in _ELASTICITIES:

        def fit_group(group: FamilyGroup, name: str = name) -> Fit:
            if not group.rows[name].gt(_MIN_ELASTICITY).any():
                raise InsufficientData(
                    f"{label(name)} does not exceed {_MIN_ELASTICITY:.0%} at any point"
                )
            return _fit(group, name, columns, options)

        try:
            fits[name], reasons = analyze_groups(
                rows,
                fit_group,
                f"not enough data to explain {name}",
                "measure more points, or choose fewer hyperparameters with --on",
            )
        except InsufficientData as problem:
            reasons = [problem]
        unexplained += [f"{reason}." for reason in reasons]
    if not fits:
        raise InsufficientData(
            "no elasticity has enough points for a fit",
            remedy="measure more points of one family",
        )
    every = [fit for found in fits.values() for fit in found]
    drawn = [
        replace(fit, device=f"{label(name)} on {fit.device}")
        for name, found in fits.items()
        for fit in found
    ]
    medians = _median_elasticities(rows, options.unit)
    return Result(
        numbers=pd.concat(
            [_rows(fit, name) for name, found in fits.items() for fit in found],
            ignore_index=True,
        ),
        answer=_hardware_answer(medians),
        sentences=[*medians["text"], *(fit.paragraph for fit in every), *unexplained],
        picture=lambda: _draw(drawn, "the elasticity", log=options.log_scale == "both"),
        sources=tuple(dict.fromkeys(run for fit in every for run in fit.sources)),
        pooled=pooled,
    )


def _with_elasticities(frame: pd.DataFrame, store: Sequence[str]) -> pd.DataFrame:
    """Return the runs with additional columns for the elasticities of the throughput.

    The elasticities are NaN for runs without a measured time that the fitted model explains.

    Args:
        frame: One row per run.
        store: Addresses of the stores of the runs; empty for the default store.
    """
    every = measured_work(frame, store)
    measured, groups, _ = fit_work(every, find_roofs(every.points, find_hardware))
    limits = limits_of_points(measured, groups)[["compute", "memory", "overhead"]]
    limits = limits.set_axis(list(_ELASTICITIES), axis=1).assign(run_id=measured.points["run_id"])
    return frame.merge(limits, on="run_id", how="left")


def _median_elasticities(rows: pd.DataFrame, unit: Unit) -> pd.DataFrame:
    """Return a row per family and device with the median elasticities over its runs.

    Args:
        rows: The runs, with their elasticities.
        unit: Sampling unit of the confidence intervals: "crossed" (models and batch sizes),
            "model" (models, at fixed batch sizes) or "point" (single configurations).

    Returns:
        Columns: `group`, `runs` (number of runs), `largest` (name of the elasticity with the
            largest median), `estimate` (this median with its interval), `sample` (the sampled
            units, as text) and `text` (sentences with all three medians).
    """
    measured = rows[rows[_ELASTICITIES[0]].notna()]
    found = []
    for group in family_groups(measured):
        levels = shared_levels(group.rows, unit)
        medians = {name: crossed_quantile(group.rows[name], levels) for name in _ELASTICITIES}
        largest = max(_ELASTICITIES, key=lambda name: medians[name].value)
        parts = [
            f"{label(name)} {format_with_interval(medians[name], '{:.2f}'.format)}"
            for name in _ELASTICITIES
        ]
        text = (
            f"{group.name}, {counted(len(group.rows), 'run')}: median {', '.join(parts)}. An "
            "elasticity of 0.5 means that a 1% higher rate gives a 0.5% higher throughput."
        )
        found.append(
            {
                "group": group.name,
                "runs": len(group.rows),
                "largest": largest,
                "estimate": medians[largest],
                "sample": levels.description,
                "text": text,
            }
        )
    return pd.DataFrame(found)


def _hardware_answer(medians: pd.DataFrame) -> AnalysisAnswer:
    """State on which hardware rate the throughput of the largest group depends most.

    The largest group is the family and device with the most runs.

    Args:
        medians: The table that `_median_elasticities` returns.
    """
    row = medians.sort_values("runs", ascending=False, kind="stable").iloc[0]
    value = format_with_interval(row["estimate"], "{:.2f}".format)
    name = label(row["largest"]).removesuffix(" elasticity")
    return AnalysisAnswer(
        sentence=(
            f"Throughput of {row['group']} depends most on {name}: its elasticity is {value} in "
            f"the median of {counted(int(row['runs']), 'run')}."
        ),
        points=int(medians["runs"].sum()),
        basis=row["sample"],
    )


def _rows(fit: Fit, metric: str) -> pd.DataFrame:
    """Return the weights of a fit as rows of the result table.

    There is a row per term, the largest absolute weight first, and then a row per interaction.

    Args:
        fit: The regression of one family on one device.
        metric: Name of the metric, for the column `metric`.
    """
    rows = _weight_rows(fit.weights, fit.regression)
    if fit.shares:
        shares = [fit.shares[_hyperparameter(term)] for term in rows["term"]]
        rows["share"] = [share.value for share in shares]
        rows["share_low"] = [share.low for share in shares]
        rows["share_high"] = [share.high for share in shares]
    if fit.interactions is not None:
        products = _weight_rows(fit.interactions.weights, fit.interactions.regression)
        kinds = ["single"] * len(rows) + ["interaction"] * len(products)
        rows = pd.concat([rows, products], ignore_index=True).assign(kind=kinds)
    rows.insert(0, "family", fit.family)
    rows.insert(1, "device", fit.device)
    rows.insert(2, "metric", metric)
    return rows


def _weight_rows(weights: pd.DataFrame, regression: Regression) -> pd.DataFrame:
    rows = weights.drop(columns=["p_given", "limit"], errors="ignore")
    rows = rows.rename_axis("term").reset_index()
    return rows.assign(points=regression.rows, r2=regression.r2, r2_held_out=regression.r2_held_out)


def _answer(fits: Sequence[Fit], metric: str, headline: Highlight | None) -> AnalysisAnswer:
    """State on which hyperparameter the metric depends most, or that no dependence is shown.

    Args:
        fits: The fits of all families and devices.
        metric: Name of the metric.
        headline: The result of `_headline`; None if no fit shows a dependence.
    """
    points = sum(fit.regression.rows for fit in fits)
    if headline is None:
        fit = max(fits, key=lambda fit: fit.regression.rows)
        row = fit.weights.iloc[0]
        sentence = (
            f"No dependence of {label(metric)} of {fit.family} is shown: {label(str(row.name))} "
            f"has the largest weight, {row['weight']:+.2f} (95% CI {row['low']:+.2f} to "
            f"{row['high']:+.2f}) over {counted(fit.regression.rows, 'point')}."
        )
        return AnalysisAnswer(sentence=sentence, points=points, basis=fit.sample)
    sentence = f"{headline.words[0].upper()}{headline.words[1:]}"
    samples = dict.fromkeys(fit.sample for fit in fits)
    return AnalysisAnswer(sentence=sentence, points=points, basis="; ".join(samples))


def _headline(fits: Sequence[Fit], metric: str) -> Highlight | None:
    """Describe the term with the largest weight, in the fit with the most points.

    Only fits that show a dependence are considered. Returns None if no fit shows one.

    Args:
        fits: The fits of all families and devices.
        metric: Name of the metric.
    """
    candidates = [fit for fit in fits if fit.strongest() is not None]
    if not candidates:
        return None
    fit = max(candidates, key=lambda candidate: candidate.regression.rows)
    strongest = fit.strongest()
    assert strongest is not None
    term, rivals = strongest
    row = fit.weights.T[term]
    most = "" if rivals else "most "
    sentence = f"{label(metric)} of {fit.family} depends {most}on {label(term)}"
    if pd.notna(row["doubling"]):
        sentence += f": {format_doubling(row)}, weight {row['weight']:+.2f}"
    else:
        sentence += (
            f", weight {row['weight']:+.2f} (95% CI {row['low']:+.2f} to {row['high']:+.2f})"
        )
    sentence += f", over {counted(fit.regression.rows, 'point')}"
    if rivals:
        sentence += f"; the weight of {' or '.join(map(label, rivals))} may be as large"
    sentence += "."
    return Highlight("What it depends on", sentence)


def _fit(
    group: FamilyGroup, metric: str, columns: Sequence[str], options: SensitivityOptions
) -> Fit:
    """Fit a regression to the points of one family on one device.

    Args:
        group: The runs of the family on the device.
        metric: Column of the metric to explain.
        columns: Hyperparameters that explain the metric; empty for all hyperparameters of the runs.
        options: The options of the analysis.

    Raises:
        InsufficientData: If too few points have the metric and all hyperparameters.
        HeterogeneousError: If the runs differ in their environment or timing protocol, and the
            option `pool` is not set.
    """
    complete = _complete_points(group, metric, columns, pool=options.pool)
    measured, points, rows, names = complete
    inputs = _fit_inputs(complete, metric, options)
    regression, tested = _regress(inputs)
    weights = _with_verdicts(tested)
    constant = inputs.constant | {
        name: f"{value:g} in total" for name, value in regression.constant.items()
    }
    interactions = None
    if options.interactions:
        interactions = fit_interactions(
            inputs.design,
            inputs.values,
            owners={term: _hyperparameter(term) for term in map(str, inputs.design)},
            logarithmic=inputs.numeric if inputs.is_log else [],
            is_log=inputs.is_log,
            levels=inputs.shared_levels,
            when=inputs.when,
            priors=inputs.priors,
        )
    shares: Mapping[str, Share] = {}
    if options.shares:
        shares = _shares(inputs, interactions)
    findings = [
        *_describe_weights(weights, inputs.design.nunique()),
        _describe_accuracy(regression, units([metric]).get(metric, ""), log=inputs.is_log),
        *(describe_interactions(interactions, regression.r2_held_out) if interactions else ()),
        *_describe_shares(shares),
        *_describe_omissions(
            regression,
            constant=constant,
            bases=inputs.bases,
            unexplained=_unexplained(rows, names),
            incomplete_points=len(points) - len(rows),
            runs_without_metric=int(is_ok(group.rows).sum()) - len(measured),
        ),
    ]
    return Fit(
        family=group.family,
        device=group.device,
        regression=regression,
        weights=weights,
        constant=constant,
        paragraph=Paragraph(_describe_scope(group, metric, regression), tuple(findings)),
        sample=inputs.levels.description,
        sources=tuple(measured["run_id"]),
        interactions=interactions,
        shares=shares,
    )


class _CompletePoints(NamedTuple):
    """Runs of a fit, and the points (configurations) to which replicates of runs are reduced.

    Attributes:
        measured: A row per run that ended with outcome "ok" and has the metric.
        points: A row per point that these runs measured: the replicates of a point share one row.
        rows: The subset of `points` in which no hyperparameter is missing. The fit uses these rows.
        names: Columns of the hyperparameters.
    """

    measured: pd.DataFrame
    points: pd.DataFrame
    rows: pd.DataFrame
    names: list[str]


def _complete_points(
    group: FamilyGroup, metric: str, columns: Sequence[str], *, pool: bool
) -> _CompletePoints:
    """Select the points of a group that have the metric and all hyperparameters.

    Args:
        group: The runs of one family on one device.
        metric: Column of the metric.
        columns: Columns of the hyperparameters; empty for all hyperparameters that the runs have.
        pool: Whether to pool runs of different environments or protocols.

    Raises:
        InsufficientData: If no run has the metric, or no point has all hyperparameters.
        HeterogeneousError: If the runs differ in their environment or timing protocol, and `pool`
            is false.
    """
    measured = group.rows[is_ok(group.rows) & group.rows[metric].notna()]
    if measured.empty:
        raise InsufficientData(f"no measured run has {metric}")
    measured = require_homogeneous(measured, pool=pool)
    names = [
        name
        for name in dict.fromkeys(columns or hyperparameters(measured))
        if measured[name].notna().any()
    ]
    points = aggregate_replicates(measured)
    rows = points[points[names].notna().all(axis=1)]
    if rows.empty:
        raise InsufficientData(
            f"no measured run has all of {format_values(set(map(label, names)), 12)}; "
            "choose fewer hyperparameters with --on"
        )
    return _CompletePoints(measured, points, rows, names)


class _FitInputs(NamedTuple):
    """Data and settings of the fits of one family on one device.

    Attributes:
        design: The terms of the regression: a row per point, a column per term.
        values: The metric of each point.
        is_log: Whether to fit logarithms of the values. The terms of `numeric` hyperparameters are
            then logarithms, too.
        numeric: Names of the numeric hyperparameters, which can be replaced by their logarithms.
        levels: Which points share a level, such as a model or a batch size.
        unit: Sampling unit of the confidence intervals: "crossed" (models and batch sizes),
            "model" (models, at fixed batch sizes) or "point" (single configurations).
        when: Times at which the points were measured; None if unknown.
        priors: Priors of the scatter between processes and sessions.
        constant: Values of constant hyperparameters, by hyperparameter.
        bases: Base value of each text hyperparameter. It has no term; every other value has one.
    """

    design: pd.DataFrame
    values: np.ndarray
    is_log: bool
    numeric: list[str]
    levels: Levels
    unit: Unit
    when: MeasurementTimes | None
    priors: ScatterPriors
    constant: dict[str, str]
    bases: Mapping[str, str]

    @property
    def shared_levels(self) -> Levels | None:
        """Which points share a model or batch size; None if the points count as independent."""
        return None if self.unit == "point" else self.levels


def _fit_inputs(complete: _CompletePoints, metric: str, options: SensitivityOptions) -> _FitInputs:
    rows = complete.rows
    is_log = options.log_scale == "both"
    constant = {
        name: str(rows[name].iloc[0]) for name in complete.names if rows[name].nunique() == 1
    }
    varying = [name for name in complete.names if name not in constant]
    design, bases = encode(rows, varying, log=is_log)
    values = rows[metric].to_numpy(dtype="float64")
    if is_log:
        # Called for its error: it rejects values without a logarithm.
        logarithms(values, metric, "exclude those runs with --where")
    return _FitInputs(
        design=design,
        values=values,
        is_log=is_log,
        numeric=[name for name in varying if takes_logarithm(rows[name])],
        levels=shared_levels(rows, options.unit),
        unit=options.unit,
        when=measurement_times(complete.measured, rows["point_id"]),
        priors=priors_for(complete.measured),
        constant=constant,
        bases=bases,
    )


def _hyperparameter(term: str) -> str:
    """Return the hyperparameter of a term, such as "precision" for "precision=bfloat16"."""
    return term.partition("=")[0]


def _shares(inputs: _FitInputs, interactions: Interactions | None) -> Mapping[str, Share]:
    """Return the share of the variance of the metric that each hyperparameter explains.

    Args:
        inputs: Data and settings of the fit.
        interactions: The fitted interactions, whose products are terms as well; None for single
            terms only.
    """
    columns = inputs.design
    owners = {str(term): frozenset([_hyperparameter(str(term))]) for term in columns}
    if interactions is not None:
        columns = interactions.columns
        owners |= {
            name: frozenset(map(_hyperparameter, pair)) for name, pair in interactions.pairs.items()
        }
    columns = independent_columns(columns.loc[:, columns.nunique() > 1].astype("float64"))[0]
    return variance_shares(
        columns.to_numpy(),
        [owners[str(name)] for name in columns],
        np.log(inputs.values) if inputs.is_log else inputs.values,
        inputs.shared_levels,
    )


def _describe_shares(shares: Mapping[str, Share]) -> Iterator[str]:
    """Yield a sentence with the shares of the variance, the largest first.

    Args:
        shares: Share of the variance that each hyperparameter explains. Yields nothing if empty.
    """
    if not shares:
        return
    ordered = sorted(shares.items(), key=lambda item: -item[1].value)
    texts = [
        f"{name} {share.value:.0%} ({max(share.low, 0):.0%} to {min(share.high, 1):.0%})"
        for name, share in ordered
    ]
    total = sum(share.value for share in shares.values())
    yield f"Shares of the variance: {', '.join(texts)}; together {total:.0%}."


def _unexplained(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the hyperparameters and settings that vary but have no term in the regression.

    Args:
        rows: The points of the regression, one per row.
        names: The hyperparameters of the regression.
    """
    others = [
        name for name in hyperparameters(rows) if name not in names and rows[name].nunique() > 1
    ]
    return others + [name for name in settings(rows) if name not in names]


def _regress(inputs: _FitInputs) -> tuple[Regression, pd.DataFrame]:
    """Fit the metric to the terms, and test for each term whether the metric depends on it.

    If all values of the metric are positive, the test uses a regression on log scales, even if the
    fit does not. On log scales, a constant factor per doubling is a straight line.

    Args:
        inputs: Data and settings of the fit.

    Returns:
        The regression; and a table with its weights and the additional columns `p` (p-value of the
        test), `excludes_zero` (whether the interval of the tested slope excludes zero) and those of
        `doublings`.
    """
    design = inputs.design
    values = inputs.values
    options: dict[str, Any] = {
        "by_value": inputs.unit == "crossed",
        "when": inputs.when,
        "priors": inputs.priors,
        "levels": inputs.shared_levels,
    }
    if inputs.is_log:
        regression = regress(design, values, np.log, **options)
        return regression, _with_test(regression, regression.weights, inputs.numeric)
    regression = regress(design, values, **options)
    if not (values > 0).all():
        return regression, _with_test(regression, regression.weights, [])
    is_positive = (design > 0).all()
    log_design = design.apply(
        lambda column: np.log(column) if is_positive[str(column.name)] else column
    )
    tested = regress(log_design, values, np.log, **options).weights
    doubled = [name for name in inputs.numeric if is_positive.get(name, False)]
    return regression, _with_test(regression, tested, doubled)


def _with_test(
    regression: Regression, tested: pd.DataFrame, logarithmic: Collection[str]
) -> pd.DataFrame:
    """Return the weights of a regression, with the results of the test of each term.

    Args:
        regression: The regression whose weights are reported.
        tested: The weights of the regression that tests the terms.
        logarithmic: Names of the terms that are logarithms in the testing regression.

    Returns:
        The table of weights that `_regress` describes.
    """
    tested = tested.join(doublings(tested, logarithmic)).reindex(regression.weights.index)
    weights = regression.weights.assign(
        p=tested["p"].fillna(1.0), excludes_zero=tested["low"] * tested["high"] > 0
    )
    for offset, name in enumerate(("doubling", "doubling_low", "doubling_high")):
        weights.insert(3 + offset, name, tested[name])
    return weights


def _with_verdicts(weights: pd.DataFrame) -> pd.DataFrame:
    """Return the table `Fit.weights`, which has a verdict on each term.

    Args:
        weights: The table of weights that `_regress` returns.
    """
    weights = weights.sort_values("weight", key=lambda column: -column.abs(), kind="stable")
    p_slope = adjust_p_values(weights["p"].to_numpy())
    p_values_differ = adjust_p_values(weights["p_given"].to_numpy())
    excludes_zero = weights["excludes_zero"].to_numpy()
    weights["p_adjusted"] = p_slope
    weights["verdict"] = np.select(
        [
            (p_slope <= _FALSE_POSITIVE_RATE) & excludes_zero,
            weights["limit"] == "sessions",
            weights["limit"] == "order",
            p_values_differ <= _FALSE_POSITIVE_RATE,
        ],
        ["depends", "undecided (sessions)", "undecided (order)", "values differ"],
        "not shown",
    )
    return weights.drop(columns=["p_given", "limit", "excludes_zero"])


def _describe_scope(group: FamilyGroup, metric: str, regression: Regression) -> str:
    """Name the group of runs, the metric and the number of points, and count the failed runs.

    Args:
        group: The runs of one family on one device.
        metric: Name of the metric.
        regression: The regression, with the number of points.
    """
    text = f"{group.name}: {metric} over {counted(regression.rows, 'point')}"
    outcomes = group.rows.loc[~is_ok(group.rows), "outcome"].fillna("unfinished")
    failures = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.value_counts().items())
    if failures:
        text += (
            f"; runs without a measurement are omitted ({failures}), "
            "so the result covers only models that ran"
        )
    return f"{text}."


def _describe_weights(weights: pd.DataFrame, value_counts: pd.Series) -> Iterator[str]:
    """Yield a sentence for each verdict, on the terms that have it.

    Args:
        weights: The table `Fit.weights`.
        value_counts: Number of distinct values of each term.
    """
    by_verdict = {
        verdict: list(rows.index) for verdict, rows in weights.groupby("verdict", sort=False)
    }
    terms = by_verdict.get("depends")
    if terms:
        texts = [format_weight(term, weights.loc[term]) for term in terms]
        yield f"The metric depends on {'; '.join(texts)}."
    differing = by_verdict.get("values differ", [])
    too_few = [
        term
        for term in differing
        if value_counts[term] < _RECOMMENDED_VALUES or _has_too_few_values(weights.loc[term])
    ]
    if too_few:
        texts = [f"{term} ({counted(int(value_counts[term]), 'value')})" for term in too_few]
        wanted = max(_RECOMMENDED_VALUES, 1 + max(int(value_counts[term]) for term in too_few))
        yield (
            f"The metric differs between the values of {', '.join(texts)}, but so few values "
            f"cannot show a slope: measure at least {wanted} values of each."
        )
    irregular = [term for term in differing if term not in too_few]
    if irregular:
        yield (
            f"The metric differs between the values of {', '.join(irregular)}, "
            "but their scatter hides any slope."
        )
    terms = by_verdict.get("not shown")
    if terms:
        yield (f"No effect shown, with {counted(len(weights), 'term')} tested: {', '.join(terms)}.")
    terms = by_verdict.get("undecided (sessions)")
    if terms:
        yield (
            f"Undecided: {', '.join(terms)}. Different values were measured in different sessions, "
            "and the interval allows for differences between sessions; measure all values in one "
            "session, or repeat some values in each session (replicate=0,1)."
        )
    terms = by_verdict.get("undecided (order)")
    if terms:
        yield (
            f"Undecided: {', '.join(terms)}. The values were measured in order, and the interval "
            "allows for a drift of the machine; measure them in random order "
            "(sweep.order=random)."
        )


def _has_too_few_values(weight: pd.Series) -> bool:
    """Return whether a term might show a slope if it had more values.

    This is so if the weight is significant by the quantile of the normal distribution, but not by
    the quantile of Student's t. A term with few values leaves few degrees of freedom for the
    latter.

    Args:
        weight: Row of the term in the table `Fit.weights`.
    """
    ratio = abs(weight["weight"]) / weight["error"]
    normal_quantile = stats.norm.ppf((1 + LEVEL) / 2)
    t_quantile = stats.t.ppf((1 + LEVEL) / 2, weight["freedom"])
    return bool(normal_quantile < ratio <= t_quantile)


def _describe_accuracy(regression: Regression, unit: str, *, log: bool) -> str:
    """State how well the terms predict the metric.

    Args:
        regression: The fitted regression, with its errors on held-out points.
        unit: Unit of the metric, for the typical error.
        log: Whether the regression uses logarithms. The typical error is then a factor.
    """
    if log:
        error = f"a factor of {math.exp(regression.rmse_held_out):.2f}"
    else:
        error = format_number(regression.rmse_held_out, unit)
    text = (
        f"R² {regression.r2:.2f}; on held-out points {regression.r2_held_out:.2f}, "
        f"typically off by {error}."
    )
    if regression.r2_held_out < _POOR_R2 and not log:
        text += " The linear fit explains less than half of the variance: try --log-scale both."
    return text


def _describe_omissions(
    regression: Regression,
    *,
    constant: Mapping[str, str],
    bases: Mapping[str, str],
    unexplained: Sequence[str],
    incomplete_points: int,
    runs_without_metric: int,
) -> Iterator[str]:
    """Yield sentences about the columns, points and runs that a fit omits.

    Args:
        regression: The fitted regression, with its collinear columns.
        constant: Values of columns without variation, by column.
        bases: Base value of each text hyperparameter, with which the other values are compared.
        unexplained: Columns that vary but have no term.
        incomplete_points: Number of points that were omitted because they lack a hyperparameter.
        runs_without_metric: Number of runs with outcome "ok" that were omitted because they lack
            the metric.
    """
    if constant:
        values = ", ".join(f"{name} = {value}" for name, value in constant.items())
        yield f"Constant in these runs, so without a weight: {values}."
    for name, terms in regression.collinear.items():
        yield (
            f"{name} has no separate weight: over these points it is a combination of "
            f"{', '.join(terms)}."
        )
    for name, base in bases.items():
        yield f"{name} is compared with {base}."
    if unexplained:
        yield (
            f"These columns also vary but have no term: {', '.join(unexplained)}; "
            "hold them constant with --where, or add them to --on."
        )
    if incomplete_points or runs_without_metric:
        yield (
            f"Omitted: {counted(incomplete_points, 'point')} without a hyperparameter of the fit, "
            f"{counted(runs_without_metric, 'run')} without the metric."
        )


def _draw(fits: Sequence[Fit], metric_label: str, *, log: bool) -> drawing.Figure:
    """Draw the weight of each term with its interval, in a panel per family.

    A panel has a row per term, with a mark for each device. A weight of zero means no effect. A
    term without a weight on a device is constant there, or cannot be separated from other terms. A
    text then replaces the mark.

    Args:
        fits: The fits of all families and devices.
        metric_label: The metric, for the titles.
        log: Whether the regressions use logarithms.
    """
    families = [
        [fit for fit in fits if fit.family == name]
        for name in dict.fromkeys(fit.family for fit in fits)
    ]
    devices = sorted({fit.device for fit in fits})
    term_orders = [_drawn_terms(family_fits) for family_fits in families]
    rows_per_panel = [
        len(order) * max(1.0, 0.6 * len(family_fits))
        for order, family_fits in zip(term_orders, families, strict=True)
    ]
    height = 0.34 * max(rows_per_panel) + 1.5
    figure, panels = drawing.panels(len(families), 5.5, height, across=2)
    x_label = f"standardized weight, {LEVEL:.0%} interval"
    if log:
        x_label += " (log scales)"
    for axes, family_fits, order in zip(panels, families, term_orders, strict=True):
        _draw_panel(axes, family_fits, order, devices)
        title = family_fits[0].family
        if len(family_fits) == 1:
            title = family_fits[0].name
        r2 = ", ".join(f"{fit.regression.r2:.2f}" for fit in family_fits)
        drawing.finish(axes, f"{title}: {metric_label}\nR² {r2}", x_label, grid="x")
    handles = []
    if len(devices) > 1:
        handles = [drawing.handle(name, **drawing.look(name, devices)) for name in devices]
    drawing.legend(figure, handles)
    return figure


def _all_weights(fit: Fit) -> pd.DataFrame:
    """Return the weights of single terms, followed by the weights of interactions if fitted.

    Args:
        fit: The regression of one family on one device.
    """
    if fit.interactions is None:
        return fit.weights
    return pd.concat([fit.weights, fit.interactions.weights])


def _drawn_terms(fits: Sequence[Fit]) -> list[str]:
    """Return the terms that a panel shows: at most 12, with the largest weights on any device.

    Args:
        fits: The fits of one family, one per device.
    """
    weights = pd.concat([_all_weights(fit)["weight"].abs() for fit in fits]).groupby(level=0).max()
    return list(weights.sort_values(ascending=False, kind="stable").index[:_MAX_DRAWN_TERMS])


def _draw_panel(
    axes: drawing.Axes, fits: Sequence[Fit], order: Sequence[str], devices: Sequence[str]
) -> None:
    """Draw the weights of one family.

    Args:
        axes: Axes of the panel.
        fits: The fits of the family, one per device.
        order: The terms, from top to bottom.
        devices: Devices of all panels, which determine the colors.
    """
    styles = {}
    for fit in fits:
        if len(devices) > 1:
            styles[fit.device] = drawing.look(fit.device, devices)
        else:
            styles[fit.device] = drawing.look(fit.family)
    rows = {term: " x ".join(map(term_label, term.split(" x "))) for term in order}
    groups = {
        fit.device: _all_weights(fit).reindex(list(order)).rename(columns={"weight": "value"})
        for fit in fits
    }
    axes.axvline(0, color="#666666", linewidth=0.8)
    drawing.forest(axes, rows, groups, styles)
    for position, fit in enumerate(fits):
        offset = (position - (len(fits) - 1) / 2) * 0.7 / len(fits)  # the offset that `forest` uses
        for number, term in enumerate(order):
            if term in _all_weights(fit).index:
                continue
            constant = fit.constant.get(term.partition("=")[0])
            reason = "not separable from others" if constant is None else f"constant: {constant}"
            axes.text(
                0,
                number + offset,
                f" {reason}",
                color=styles[fit.device]["color"],
                fontsize="small",
                va="center",
            )
