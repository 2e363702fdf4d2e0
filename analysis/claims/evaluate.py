"""Evaluation of claims: select the runs of a check, estimate its quantity, and answer the claim.

A claim is a statement about platforms, and a check is a part of it that runs can support or refute.
The estimate of a check has a 95% interval. If the data allow no estimate, the finding states the
reason.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from analysis.claims.kinds import Bound, Check, ClaimAnswer, StatedClaim
from analysis.claims.remedies import decide_level, decide_ratios, decide_slope
from analysis.columns import is_configuration_column, is_platform_column, join_columns
from analysis.lazy import np, pd, stats
from analysis.operation_speedup import TYPE as _OPERATION
from analysis.operation_speedup import identity_columns
from analysis.pairing import pair, require_like_sessions
from analysis.regression_terms import encode
from analysis.sides import is_speed
from analysis.store.conditions import Condition, Conditions, filter_rows, format_conditions
from analysis.store.frame import aggregate_replicates, is_ok, profiling_remedy, require_homogeneous
from analysis.versions import sort_versions
from paradnn.core.errors import ConfigError, InsufficientData, ParadnnError
from paradnn.core.words import counted
from paradnn.statistics.contrast import Contrast
from paradnn.statistics.dependence import Component, shared_levels
from paradnn.statistics.effects import combine, side_effects
from paradnn.statistics.estimate import Estimate
from paradnn.statistics.priors import classify_devices, priors_for, scatter_priors
from paradnn.statistics.regression import Regression, regress
from paradnn.statistics.sessions import MeasurementTimes, measurement_times

#: Model columns that are not hyperparameters.
_MODEL_NAMES = ("model.name",)
#: Columns that may separate runs but are not hyperparameters. Weights are adjusted for them.
_SETTINGS = ("device", "environment_id", "precision", "compile", "mode")
_SETTING_PREFIXES = ("optimizer.", "platform.", "framework.", "data.", "software.")
_SHARE_PREFIX = "op_share."
#: The smallest number above 0.
_SMALLEST = math.nextafter(0, 1)
_ABOVE_ZERO = Bound(low=_SMALLEST)
_BELOW_ZERO = Bound(high=-_SMALLEST)
#: Answers in order of precedence: the answer to a claim is the first of these that any measured
#: check has. In a check with several estimates, it is the first that any estimate has.
_ANSWER_ORDER = (ClaimAnswer.REFUTED, ClaimAnswer.UNDECIDED, ClaimAnswer.SUPPORTED)


@dataclass
class Data:
    """The runs with which claims about platforms are evaluated.

    Attributes:
        frame: One row per run.
        read_operations: Function that reads the operation tables of the given runs and returns
            their rows, with the column `run_id`. If it is None or returns no rows, the columns
            `op_share.*` of the frame provide the shares of operations.
        pool: Whether runs of different environments or timing protocols may be used together.
        used: Ids of the runs that were used; the evaluation adds to this set.
        pooled: How runs that were used together differ, one text per set of runs; the evaluation
            adds to this set.
    """

    frame: pd.DataFrame
    read_operations: Callable[[pd.DataFrame], pd.DataFrame] | None = None
    pool: bool = False
    used: set[str] = field(default_factory=set)
    pooled: set[str] = field(default_factory=set)

    @cached_property
    def operations(self) -> pd.DataFrame:
        """The types of operation of profiled runs: a row per type and run.

        The columns are run_id, type and share (of the time). If operation tables were read, their
        other columns are included.
        """
        columns = [name for name in self.frame.columns if str(name).startswith(_SHARE_PREFIX)]
        runs = self.frame.iloc[:0]
        if columns:
            runs = self.frame[self.frame[columns].notna().any(axis=1)]
        if self.read_operations is not None and len(runs):
            table = self.read_operations(runs)
            if len(table):
                return table
        shares = runs.melt("run_id", columns, _OPERATION, "share").dropna(subset="share")
        types = shares.pop(_OPERATION).astype("str").str.removeprefix(_SHARE_PREFIX)
        return shares.assign(type=types)


def require(frame: pd.DataFrame, conditions: Conditions, noun: str = "run") -> pd.DataFrame:
    """Return the rows that satisfy every condition; raise an error if there is no such row.

    Args:
        frame: The rows.
        conditions: Column -> the conditions on its values.
        noun: Noun for a row in error messages, in the singular, such as "run".

    Raises:
        InsufficientData: If no row satisfies all conditions, or a column is missing. The message
            lists the conditions up to the first one that leaves no row.
    """
    rows = frame
    applied = dict[str, tuple[Condition, ...]]()
    for name, group in conditions.items():
        if name not in frame:
            raise InsufficientData(f"no {noun} records {name}")
        rows = filter_rows(rows, group, "condition")
        applied[name] = group
        if rows.empty:
            break
    if rows.empty and applied:
        raise InsufficientData(f"no {noun} satisfies {format_conditions(applied)}")
    if rows.empty:
        raise InsufficientData(f"there are no {noun}s")
    return rows


def side(data: Data, conditions: Conditions, metric: str | None = None) -> pd.DataFrame:
    """Return the runs of one side of a comparison: those that satisfy the conditions.

    The ids of the returned runs are added to `data.used`.

    Args:
        data: All runs.
        conditions: Column -> the conditions on its values.
        metric: Metric that the returned runs must have, with outcome "ok"; None to return runs of
            every outcome.

    Raises:
        InsufficientData: If no run qualifies.
        HeterogeneousError: If the runs have several environments or protocols and `data.pool` is
            false.
    """
    rows = require(data.frame, conditions)
    if metric is not None:
        ok = rows[is_ok(rows)]
        if ok.empty:
            raise InsufficientData("no chosen run has outcome ok")
        rows = ok[ok[metric].notna()] if metric in ok else ok.iloc[:0]
        if rows.empty:
            raise InsufficientData(f"no {metric} was recorded in {counted(len(ok), 'run')}")
    rows = require_homogeneous(rows, pool=data.pool)
    data.used.update(rows["run_id"])
    if rows.attrs.get("pooled"):
        data.pooled.add(rows.attrs["pooled"])
    return rows


def paired_points(
    data: Data,
    where: Conditions,
    a: Conditions,
    b: Conditions,
    metric: str,
    extra: Sequence[str] = (),
) -> pd.DataFrame:
    """Return the points that both sides, A and B, measured, as the table that `pair` returns.

    A point is one configuration to measure. Failed runs form no pair. They are passed to `pair`
    nevertheless, so that it counts the points that both sides tried but only one side measured.

    Args:
        data: All runs.
        where: Conditions on the runs of both sides: column -> the conditions on its values.
        a: Further conditions on the runs of A.
        b: Further conditions on the runs of B.
        metric: Column of the metric to compare.
        extra: Numeric columns to add to the table, such as "parameters". Columns that identify a
            point are in the table anyway.

    Raises:
        InsufficientData: If a side has no runs, or no point was measured on both sides.
    """
    measured = []
    tried = []
    for conditions in ({**where, **a}, {**where, **b}):
        ok = side(data, conditions, metric)
        rows = require(data.frame, conditions)
        measured.append(ok)
        tried.append(pd.concat([ok, rows[~is_ok(rows)]]))
    numeric = measured[1].select_dtypes("number")
    carried = [
        name
        for name in extra
        if name in numeric and not is_configuration_column(name) and not is_platform_column(name)
    ]
    pairs = pair(tried[0], tried[1], metric, carry=carried)
    if pairs.empty:
        raise InsufficientData(
            f"no point was measured on both sides: A has {counted(len(measured[0]), 'run')} "
            f"and B has {len(measured[1]):,}"
        )
    return pairs


def paired_operations(
    data: Data, where: Conditions, a: Conditions, b: Conditions, operations: Conditions, metric: str
) -> pd.DataFrame:
    """Return the operations that were profiled on both sides, A and B, as `pair` returns them.

    Operations are paired if they have the same type and belong to the same configuration.

    Args:
        data: All runs.
        where: Conditions on the runs of both sides: column -> the conditions on its values.
        a: Further conditions on the runs of A.
        b: Further conditions on the runs of B.
        operations: Conditions on the operations of B.
        metric: Column of the operation tables to compare.

    Raises:
        InsufficientData: If a side has no profile, or no operation was profiled on both sides.
    """
    sides = []
    for conditions in (a, b):
        runs = side(data, {**where, **conditions})
        rows = data.operations.merge(runs[identity_columns(runs)], on="run_id")
        if rows.empty:
            raise InsufficientData(
                f"no profile was recorded in {counted(len(runs), 'run')}; {profiling_remedy(runs)}"
            )
        if metric not in rows or rows[metric].isna().all():
            raise InsufficientData(f"the operation tables have no {metric}")
        sides.append(rows)
    sides[1] = require(sides[1], operations, "operation")
    operations_a, operations_b = (rows.rename(columns={"type": _OPERATION}) for rows in sides)
    keys, _ = join_columns(operations_a, operations_b)
    pairs = pair(operations_a, operations_b, metric, on=[*keys, _OPERATION])
    if pairs.empty:
        raise InsufficientData("no operation was profiled on both sides")
    return pairs


@dataclass(frozen=True)
class CheckFinding:
    """Result of a check: the answer, the estimate, and the range that the claim requires.

    A check is a part of a claim that runs can support or refute.

    Attributes:
        check: The check.
        answer: The answer to the check. It is UNDECIDED if the interval includes an end of `bound`,
            and NO_DATA if the data allow no estimate.
        quantity: Name of the estimated quantity, such as "median speedup".
        value: The estimate; NaN if the data allow none.
        low: Lower end of the 95% interval of the estimate; NaN without an estimate.
        high: Upper end of the 95% interval of the estimate; NaN without an estimate.
        needed: `bound` as text.
        points: Number of points (configurations) behind the estimate; 0 without an estimate.
        missing: Reason why there is no estimate or why the answer is UNDECIDED; empty for any other
            answer.
        bound: The range in which the claim requires the quantity to be.
    """

    check: Check
    answer: ClaimAnswer
    quantity: str = ""
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    needed: str = ""
    points: int = 0
    missing: str = ""
    bound: Bound = field(default_factory=Bound)


def evaluate(check: Check, data: Data) -> CheckFinding:
    """Evaluate a check, a part of a claim, with the given runs.

    Args:
        check: The check.
        data: All runs. The ids of the runs that the check uses are added to `data.used`.

    Returns:
        The finding. If the data do not allow an estimate, its answer is NO_DATA, and `missing`
        states the reason.
    """
    try:
        return _EVALUATORS[check.kind](check, data)
    except ParadnnError as problem:
        return CheckFinding(check, ClaimAnswer.NO_DATA, missing=str(problem))


def _finding(
    check: Check,
    quantity: str,
    estimates: Sequence[Estimate],
    points: int,
    bound: Bound | None = None,
    needed: str = "",
    remedy: Callable[[Estimate, Bound], str] | None = None,
) -> CheckFinding:
    """Return the finding that follows from the estimates of a check.

    Args:
        check: The check.
        quantity: Name of the estimated quantity.
        estimates: One estimate, or several that must all lie within the bound. The finding reports
            the least favorable estimate.
        points: Number of points (configurations) behind the estimates.
        bound: The range that the claim requires; None for the range of the check.
        needed: The required range as text; empty for a description of `bound`.
        remedy: Function that returns, as text, which data would decide an undecided check. Its
            arguments are the least favorable estimate and the bound. If it is None, the finding
            states no remedy.
    """
    bound = bound or check.bound
    answers = [bound.answer(estimate.low, estimate.high) for estimate in estimates]
    answer = next(answer for answer in _ANSWER_ORDER if answer in answers)
    worst = estimates[answers.index(answer)]
    missing = ""
    if answer is ClaimAnswer.UNDECIDED:
        missing = "the interval includes an end of the required range"
        if not np.isfinite([worst.low, worst.high]).all():
            verb = "is" if points == 1 else "are"
            missing = f"{counted(points, 'point')} {verb} too few for an interval with two ends"
        elif remedy is not None:
            missing += f": {remedy(worst, bound)}"
    return CheckFinding(
        check=check,
        answer=answer,
        quantity=quantity,
        value=worst.value,
        low=worst.low,
        high=worst.high,
        needed=needed or str(bound),
        points=points,
        missing=missing,
        bound=bound,
    )


def _trend(check: Check, data: Data) -> CheckFinding:
    rows, when = _regression_rows(check, data, [check.of])
    regression = _regress_on(rows, when, [check.of])
    bound = _BELOW_ZERO
    needed = "below 0"
    if check.direction == "rises":
        bound = _ABOVE_ZERO
        needed = "above 0"
    weight = _weight(regression, check.of)
    return _finding(
        check,
        "rank weight",
        [weight],
        regression.rows,
        bound=bound,
        needed=needed,
        remedy=lambda worst, _: decide_slope(rows, check.of, worst, _sides(check, data)),
    )


def _ranking(check: Check, data: Data) -> CheckFinding:
    columns = [check.larger, *check.than]
    rows, when = _regression_rows(check, data, columns)
    signs = np.sign(_regress_on(rows, when, columns).weights["weight"])
    design = _rank_design(rows, columns)
    scores = (design - design.mean()) / design.std()
    estimates = []
    for other in check.than:
        # w1 z1 + w2 z2 = (w1 + w2) / 2 (z1 + z2) + (w1 - w2) / 2 (z1 - z2). The signs make both
        # weights positive, so the weight of (z1 - z2) is half the difference of their absolute
        # values.
        z1 = scores[check.larger] * signs[check.larger]
        z2 = scores[other] * signs[other]
        difference = (z1 - z2).rename("difference")
        rest = scores.drop(columns=[check.larger, other])
        transformed = pd.concat([difference, (z1 + z2).rename("sum"), rest], axis=1)
        regression = _regress_ranks(rows, when, transformed)
        estimates.append(_weight(regression, "difference", 2 / float(difference.std())))
    return _finding(
        check,
        "difference of rank weights",
        estimates,
        regression.rows,
        bound=_ABOVE_ZERO,
        needed="above 0",
        remedy=lambda worst, _: decide_slope(rows, check.larger, worst, _sides(check, data)),
    )


def _sides(check: Check, data: Data) -> list[pd.DataFrame]:
    """Return the ok runs of A and those of B, or all ok runs if the check compares no sides.

    Args:
        check: The check, with conditions and a metric that the runs must have.
        data: All runs.
    """
    if not check.a:
        return [side(data, check.where, check.metric)]
    return [side(data, {**check.where, **each}, check.metric) for each in (check.a, check.b)]


def _compare(check: Check, data: Data) -> CheckFinding:
    pairs = paired_points(data, check.where, check.a, check.b, check.metric)
    contrast = Contrast.of(pairs, "all")
    points = len(contrast.ratios)
    threshold = math.log(check.margin)
    finding = _finding(
        check,
        "share of points",
        [contrast.share(check.margin)],
        points,
        remedy=lambda _, bound: decide_ratios(
            contrast, _sides(check, data), bound, lambda logs: float((logs > threshold).mean())
        ),
    )
    wins = int((contrast.ratios > check.margin).sum())
    tried = points + contrast.missing
    return _with_missing(finding, contrast.missing, wins / tried, (wins + contrast.missing) / tried)


def _with_missing(finding: CheckFinding, missing: int, low: float, high: float) -> CheckFinding:
    """Add to a finding the range that its quantity could have if no point were missing.

    A point is one configuration to measure. It is missing if both sides tried it but only one side
    measured it. The range is added to the name of the quantity; the interval stays as it is.

    Args:
        finding: A finding over the points that both sides measured.
        missing: Number of missing points. If it is 0, the finding is returned unchanged.
        low: Lowest possible value of the quantity over all points.
        high: Highest possible value of the quantity over all points.
    """
    if not missing:
        return finding
    quantity = (
        f"{finding.quantity}, between {low:.3g} and {high:.3g} with the "
        f"{counted(missing, 'point')} that only one side measured,"
    )
    return replace(finding, quantity=quantity)


def _ratio(check: Check, data: Data) -> CheckFinding:
    side_pairs = [(check.a, check.b)]
    if check.successive:
        side_pairs = _successive_versions(check, data)
    if not check.paired:
        return _ratio_of_quantiles(check, data, side_pairs)
    contrasts = []
    for a, b in side_pairs:
        if check.operations:
            rows = paired_operations(data, check.where, a, b, check.operations, check.metric)
        else:
            rows = paired_points(data, check.where, a, b, check.metric)
        contrasts.append(Contrast.of(rows, "all"))
    estimates = [contrast.quantile(check.quantile) for contrast in contrasts]
    quantity = "median speedup" if check.quantile == 0.5 else f"{check.middle()} of speedups"
    points = min(len(contrast.ratios) for contrast in contrasts)
    remedy = None
    if len(contrasts) == 1 and not check.operations and not check.successive:
        remedy = partial(_decide_quantile, check, data, contrasts[0])
    finding = _finding(check, quantity, estimates, points, remedy=remedy)
    if check.operations or len(contrasts) > 1:
        return finding
    (contrast,) = contrasts
    missing = contrast.missing
    lowest = np.append(contrast.ratios, np.zeros(missing))
    highest = np.append(contrast.ratios, np.full(missing, np.inf))
    low = np.quantile(lowest, check.quantile, method="lower")
    high = np.quantile(highest, check.quantile, method="higher")
    return _with_missing(finding, missing, float(low), float(high))


def _decide_quantile(
    check: Check, data: Data, contrast: Contrast, _: Estimate, bound: Bound
) -> str:
    return decide_ratios(
        contrast,
        _sides(check, data),
        bound,
        lambda logs: float(np.quantile(np.exp(logs), check.quantile)),
    )


def _successive_versions(check: Check, data: Data) -> list[tuple[Conditions, Conditions]]:
    """Return conditions that select each version and the version before it.

    Args:
        check: The check, whose attribute `successive` is the column of the version.
        data: All runs.

    Returns:
        Pairs of conditions: those of the newer version, then those of the older version.

    Raises:
        InsufficientData: If the runs record fewer than two versions.
    """
    name = check.successive
    rows = require(data.frame, check.where)
    versions: list[str] = []
    if name in rows:
        versions = sort_versions(set(rows[name].dropna().astype("str")))
    if not versions:
        raise InsufficientData(f"no run records {name}")
    if len(versions) < 2:
        raise InsufficientData(
            f"all runs have {name}={versions[0]}, but successive versions need at least two"
        )
    conditions = [{name: (Condition(name, "=", (version,)),)} for version in versions]
    return [(new, old) for old, new in itertools.pairwise(conditions)]


def _ratio_of_quantiles(
    check: Check, data: Data, side_pairs: Sequence[tuple[Conditions, Conditions]]
) -> CheckFinding:
    """Return the finding on a quantile of the metric on A divided by the same quantile on B.

    The two sides may have measured different configurations.

    Args:
        check: The check, with the metric and the quantile.
        data: All runs.
        side_pairs: Pairs of the conditions of A and of B. Each pair gives an estimate.
    """
    estimates = []
    counts = []
    for a, b in side_pairs:
        runs = [side(data, {**check.where, **conditions}, check.metric) for conditions in (a, b)]
        rows = [aggregate_replicates(each) for each in runs]
        numerator, denominator = (each[check.metric].quantile(check.quantile) for each in rows)
        effects = side_effects(runs[0], runs[1])
        noise = [_process_noise(each, check.metric) for each in runs]
        components = [*noise, *(effect.component for effect in effects)]
        estimates.append(_estimate_around(float(numerator / denominator), components))
        counts.append(min(map(len, rows)))
    return _finding(check, f"ratio of {check.middle()}s", estimates, min(counts))


def _process_noise(runs: pd.DataFrame, metric: str) -> Component:
    """Return the variance of the logarithm of a metric due to differences between processes.

    The result is the variance of a single configuration. This is an upper bound for a quantile over
    configurations, which averages the noise of the configurations near the quantile. The
    variance is 0 for a metric that is not a speed.

    Args:
        runs: The runs.
        metric: The metric whose quantile is estimated.
    """
    if not is_speed(metric):
        return Component(0.0, math.inf)
    prior = scatter_priors(classify_devices(runs)).process.update()
    processes = 1.0
    if "processes" in runs and runs["processes"].notna().any():
        processes = max(float(runs["processes"].median()), 1.0)
    return Component(prior.variance / processes, prior.freedom)


def _estimate_around(value: float, parts: Sequence[Component]) -> Estimate:
    """Return an estimate: a given number with its 95% interval.

    Args:
        value: The number. If it is zero, negative or NaN, it has no logarithm and is returned
            without uncertainty.
        parts: Independent parts of the variance of the logarithm of the number.
    """
    nonzero = [part for part in parts if part.variance > 0]
    if not nonzero or not value > 0:
        return Estimate(value, value, value)
    factor = math.exp(float(combine(nonzero).half_width))
    return Estimate(value, value / factor, value * factor)


def _threshold(check: Check, data: Data) -> CheckFinding:
    runs = side(data, check.where, check.metric)
    rows = aggregate_replicates(runs)
    value = float(rows[check.metric].quantile(check.quantile))
    parts = [_process_noise(runs, check.metric)]
    if is_speed(check.metric):
        parts += [effect.component for effect in side_effects(runs, runs.iloc[:0])]
    return _finding(
        check,
        check.middle(),
        [_estimate_around(value, parts)],
        len(rows),
        remedy=lambda worst, bound: decide_level(runs, worst, bound),
    )


def _share(check: Check, data: Data) -> CheckFinding:
    runs = side(data, check.where)
    profiled = data.operations[data.operations["run_id"].isin(runs["run_id"])]
    if profiled.empty:
        raise InsufficientData(
            f"no profile was recorded in {counted(len(runs), 'run')}; {profiling_remedy(runs)}"
        )
    missing = [name for name in check.operations if name not in profiled]
    if missing:
        raise InsufficientData(f"the operation tables do not record {', '.join(missing)}")
    conditions = [condition for group in check.operations.values() for condition in group]
    matching = filter_rows(profiled, conditions, "operations")
    shares = matching.groupby("run_id")["share"].sum()
    # A run without such an operation spent no time in it.
    shares = shares.reindex(profiled["run_id"].unique(), fill_value=0.0)
    points = runs.set_index("run_id")["point_id"].reindex(shares.index)
    shares = shares.groupby(points.to_numpy()).median()
    value = float(shares.quantile(check.quantile))
    prior = scatter_priors(classify_devices(runs)).process.update()
    estimate = _estimate_around(value, [prior])
    estimate = estimate._replace(high=min(estimate.high, max(value, 1.0)))
    quantity = "median share" if check.quantile == 0.5 else f"{check.middle()} of shares"
    return _finding(check, quantity, [estimate], len(shares))


def _outcome(check: Check, data: Data) -> CheckFinding:
    tried_a = side(data, {**check.where, **check.a})
    tried_b = side(data, {**check.where, **check.b})
    keys, _ = join_columns(tried_a, tried_b)
    ended_a = tried_a[tried_a["outcome"].isin(check.a_outcome)]
    ended_b = tried_b[tried_b["outcome"].isin(check.b_outcome)]
    if ended_b.empty:
        raise InsufficientData(
            f"no point with {format_conditions(check.b)} has the outcome {' or '.join(check.b_outcome)}"
        )
    points_b = set(_point_keys(ended_b, keys))
    points_a = _point_keys(tried_a, keys)
    both = points_b & set(points_a)
    if not both:
        raise InsufficientData(
            f"{counted(len(points_b), 'point')} ended as {'|'.join(check.b_outcome)} with "
            f"{format_conditions(check.b)}, but none was tried with {format_conditions(check.a)}"
        )
    points = tried_a.assign(_key=points_a).drop_duplicates("_key")
    points = points[points["_key"].isin(both)]
    hits = points["_key"].isin(set(_point_keys(ended_a, keys)))
    # An outcome, such as out of memory, does not scatter, so the share is exact.
    share = float(hits.mean())
    return _finding(check, "share of points", [Estimate(share, share, share)], len(both))


def _scaling(check: Check, data: Data) -> CheckFinding:
    from analysis.analyses.scaling import fit_scaling

    rows = side(data, check.where, check.metric)
    families = fit_scaling(rows, check.metric, check.by, pool=data.pool).families
    estimates = [Estimate(*family.fraction) for family in families]
    points = sum(family.points for family in families)
    return _finding(check, "non-parallel fraction", estimates, points)


def _layers(check: Check, data: Data) -> CheckFinding:
    from analysis.analyses.overhead import layer_seconds, phase_seconds, phase_share

    timed, spent = phase_seconds(side(data, check.where))
    drivers = layer_seconds(timed, spent.fillna(0.0))
    if drivers.empty:
        raise InsufficientData("no chosen run records the session and phases of its driver")
    unknown = [name for name in check.layers if name not in drivers]
    if unknown:
        known = ", ".join(map(str, drivers))
        raise ConfigError("layers", ", ".join(unknown), "no such layer", f"choose from {known}")
    share = phase_share(drivers.reset_index(drop=True), check.layers)
    return _finding(check, "share of the wall time", [share], len(drivers))


_EVALUATORS: dict[str, Callable[[Check, Data], CheckFinding]] = {
    "trend": _trend,
    "ranking": _ranking,
    "compare": _compare,
    "ratio": _ratio,
    "threshold": _threshold,
    "share": _share,
    "outcome": _outcome,
    "scaling": _scaling,
    "layers": _layers,
}


def _point_keys(rows: pd.DataFrame, keys: list[str]) -> pd.Series[Any]:
    """Return the identity of the configuration of each run, as a tuple of texts.

    Args:
        rows: The runs.
        keys: Columns that identify a configuration. Their values are the entries of the tuple;
            missing values become empty texts.
    """
    texts = rows[keys].astype("string").fillna("").itertuples(index=False, name=None)
    return pd.Series(list(texts), index=rows.index, dtype="object")


def _regression_rows(
    check: Check, data: Data, columns: Sequence[str]
) -> tuple[pd.DataFrame, MeasurementTimes | None]:
    """Return the points of a regression and the times at which they were measured.

    A point is one measured configuration.

    Args:
        check: The check. If it has sides, the response of the regression is the speedup of A over
            B; otherwise it is the metric.
        data: All runs.
        columns: Columns in which every point must have a value.

    Returns:
        The points, with the additional column `response`, and their measurement times. The times
        are None for speedups, in which effects of time cancel if both sides were measured together.

    Raises:
        InsufficientData: If no run has the metric or one of the columns.
    """
    when = None
    if check.a:
        rows = paired_points(data, check.where, check.a, check.b, check.metric, columns)
        require_like_sessions(rows, "all")
        rows = rows.assign(response=rows["speedup"])
    else:
        runs = side(data, check.where, check.metric)
        rows = aggregate_replicates(runs)
        rows = rows.assign(response=rows[check.metric])
    for name in columns:
        if name not in rows or rows[name].isna().all():
            raise InsufficientData(f"no run records {name}")
    rows = rows[rows[list(columns)].notna().all(axis=1)]
    if not check.a:
        when = measurement_times(runs, rows["point_id"])
    rows.attrs["priors"] = priors_for(*_sides(check, data))
    return rows, when


def _regress_on(
    rows: pd.DataFrame, when: MeasurementTimes | None, columns: Sequence[str]
) -> Regression:
    """Regress the ranks of the response on the ranks of hyperparameters and settings.

    Args:
        rows: The points (measured configurations), with the column `response`.
        when: Times at which the points were measured; None for speedups.
        columns: Columns whose weights the check needs.

    Raises:
        InsufficientData: If one of the columns has no weight because it contains text, is constant,
            or is collinear with other columns.
    """
    design = _rank_design(rows, columns)
    texts = [name for name in columns if name not in design]
    if texts:
        raise InsufficientData(f"{texts[0]} is a column of text, not of numbers")
    regression = _regress_ranks(rows, when, design)
    for name in columns:
        if name in regression.collinear:
            others = ", ".join(regression.collinear[name])
            raise InsufficientData(
                f"{name} is collinear with {others} in these {counted(regression.rows, 'point')}"
            )
        if name not in regression.weights.index:
            raise InsufficientData(
                f"{name} does not vary in these {counted(regression.rows, 'point')}"
            )
    return regression


def _regress_ranks(
    rows: pd.DataFrame, when: MeasurementTimes | None, design: pd.DataFrame
) -> Regression:
    """Regress the ranks of the response on given terms, as the analysis `sensitivity` does.

    Args:
        rows: The points (measured configurations), with the column `response`.
        when: Times at which the points were measured; None for speedups.
        design: The terms of the regression: a row per point, a column per term.
    """
    values = rows["response"].to_numpy(dtype="float64")
    levels = shared_levels(rows)
    return regress(
        design,
        values,
        stats.rankdata,
        levels=levels,
        by_value=True,
        when=when,
        priors=rows.attrs["priors"],
    )


def _weight(regression: Regression, term: str, factor: float = 1.0) -> Estimate:
    """Return the weight of a term of a regression, with its interval.

    Args:
        regression: The regression.
        term: Name of the term.
        factor: Number by which the weight and its interval are multiplied.
    """
    row = regression.weights.loc[[term], ["weight", "low", "high"]].to_numpy(dtype="float64")
    value, low, high = (factor * row[0]).tolist()
    return Estimate(value, low, high)


def _rank_design(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return the terms of a regression as ranks: a row per point, a column per term.

    The terms are the given columns, and the hyperparameters and settings that vary. With ranks, a
    weight does not change under monotone transformations of a term or the response (Iman and
    Conover, Technometrics 21, 1979).

    If a given column is no hyperparameter, such as `parameters`, then `batch_size` is the only
    hyperparameter among the terms. The reason is that such a column depends on all others.

    Args:
        rows: The points (measured configurations).
        columns: Columns whose weights the check needs.
    """
    names = [str(name) for name in rows]
    others = [name for name in names if name == "batch_size" or name.startswith("model.")]
    if not set(columns) <= set(others):
        others = ["batch_size"]
    settings = [name for name in names if name in _SETTINGS or name.startswith(_SETTING_PREFIXES)]

    def is_term(name: str) -> bool:
        if name in columns:
            return True
        if name not in rows or name in _MODEL_NAMES:
            return False
        return bool(rows[name].notna().all()) and rows[name].nunique() > 1

    terms = [name for name in dict.fromkeys([*columns, *others, *settings]) if is_term(name)]
    return encode(rows, terms)[0].reset_index(drop=True).rank()


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim about platforms with the findings of its checks.

    The claim is refuted if any check is refuted. It is supported if there are checks with data and
    all of them are supported. It has no answer if no check has data. In all other cases, it is
    undecided.
    """

    claim: StatedClaim
    findings: tuple[CheckFinding, ...]

    @property
    def answer(self) -> ClaimAnswer:
        """The answer to the claim, from the checks that have data."""
        answers = {finding.answer for finding in self.findings if finding.points}
        for answer in _ANSWER_ORDER:
            if answer in answers:
                return answer
        return ClaimAnswer.NO_DATA

    @property
    def title(self) -> str:
        """The claim as text, with its id and the evidence for it in the ParaDnn paper."""
        title = f"{self.claim.id}. {self.claim.says.rstrip('.')}"
        if self.claim.proof:
            title += f" ({self.claim.proof})"
        return title

    @property
    def extent(self) -> str:
        """Remark on the number of checks with data; empty if all or none have data."""
        total = len(self.findings)
        if 0 < self.measured < total:
            return f", as far as measured: {self.measured} of {counted(total, 'check')}"
        return ""

    @property
    def measured(self) -> int:
        """Number of checks for which the runs have data."""
        return sum(finding.points > 0 for finding in self.findings)


def judge(claims: Sequence[StatedClaim], data: Data) -> tuple[ClaimVerdict, ...]:
    """Evaluate every check of every claim.

    Args:
        claims: The claims.
        data: All runs.

    Returns:
        One verdict per claim, in the same order.
    """
    return tuple(
        ClaimVerdict(claim, tuple(evaluate(check, data) for check in claim.checks))
        for claim in claims
    )


def table(verdicts: Sequence[ClaimVerdict]) -> pd.DataFrame:
    """Return the answers to claims as a table with a row per check.

    A row has the answers to the claim and to the check, the estimate with its interval, and the
    reason if data are missing.

    Args:
        verdicts: The claims with the findings of their checks.
    """
    columns = [
        "claim",
        "claim_answer",
        "check",
        "answer",
        "quantity",
        "value",
        "low",
        "high",
        "needed",
        "points",
        "missing",
    ]
    rows = [
        {
            "claim": verdict.claim.id,
            "claim_answer": verdict.answer.value,
            "check": str(finding.check),
            "answer": finding.answer.value,
            "quantity": finding.quantity,
            "value": finding.value,
            "low": finding.low,
            "high": finding.high,
            "needed": finding.needed,
            "points": finding.points,
            "missing": finding.missing,
        }
        for verdict in verdicts
        for finding in verdict.findings
    ]
    return pd.DataFrame(rows, columns=columns)


def summary(verdicts: Sequence[ClaimVerdict]) -> str:
    """Return a sentence that counts the claims by answer.

    For a single claim, the sentence states its answer.

    Args:
        verdicts: The claims with their findings.
    """
    if not verdicts:
        return "No claim has data in these runs."
    if len(verdicts) == 1:
        [verdict] = verdicts
        verb = "has" if verdict.answer is ClaimAnswer.NO_DATA else "is"
        return f"Claim {verdict.claim.id} {verb} {verdict.answer}{verdict.extent}."
    counts = []
    for answer in ClaimAnswer:
        count = sum(verdict.answer is answer for verdict in verdicts)
        counts.append(f"{count} {answer}")
    return f"{counted(len(verdicts), 'claim')}: {', '.join(counts)}."


def sentences(verdict: ClaimVerdict) -> list[str]:
    """Return sentences on a claim: one per check with data, and one per reason for missing data.

    Args:
        verdict: The claim with its findings.
    """
    lines = [_describe(finding) for finding in verdict.findings if finding.points]
    missing = Counter(finding.missing for finding in verdict.findings if not finding.points)
    for reason, count in missing.items():
        lines.append(f"{ClaimAnswer.NO_DATA}: {reason} ({counted(count, 'check')})")
    return lines


def _describe(finding: CheckFinding) -> str:
    value, low, high = (
        f"{number:.3g}" if np.isfinite(number) else "unknown"
        for number in (finding.value, finding.low, finding.high)
    )
    interval = f"(95% interval {low} to {high})"
    if low == high == "unknown":
        interval = "(no interval)"
    text = (
        f"{finding.answer}: {finding.check}: {finding.quantity} {value} {interval} over "
        f"{counted(finding.points, 'point')}, {finding.needed} is needed"
    )
    if finding.missing:
        text += f"; {finding.missing}"
    return text
