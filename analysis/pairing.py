"""Pairing of the same points on two sides, the basis of every comparison of A and B.

A point is one configuration to measure. The join columns are those whose values identify it. `pair`
returns a row for each point that both sides measured, so a ratio never compares different models.
`point_id` cannot identify the points: it covers the platform, which differs between the
sides. `paradnn.statistics.contrast` computes statistics and verdicts for all points together.

The result has these columns:

- family and the other join columns;
- the columns of `carry`, as medians over a point's runs;
- `a`, `b`: the medians, in the unit of the metric;
- `speedup`, above 1 if A is better, with its 95% interval `speedup_low`, `speedup_high` and the
  source of the interval, `interval_source`;
- `a_count`, `b_count`: the number of replicates;
- `a_spread`, `b_spread`: sample standard deviation / mean of the replicates;
- `a_units`, `b_units`: the number of independent measurements. These are sessions if the point has
  several, otherwise replicates, otherwise the processes of the only run;
- `log_error`, `degrees` and two-sided `p_value` of the log ratio. p includes the chance that all
  runs of A took one of two levels and all runs of B the other (`rarer_level`);
- `point`: number of the point, by which `paradnn.statistics.contrast.Contrast` finds its evidence.

The interval of a ratio is the 95% interval of the point's mean log ratio. It covers the scatter of
processes, and the effects of sessions, hosts and order if they do not cancel
(`paradnn.statistics.effects`). It is widened if necessary to include the ratio of the medians. The
value of `interval_source` states where the scatter of processes comes from:

- "replicates": both sides have at least two;
- "processes": a side has one run of several processes, and the spread between these is used;
- "prior": a side has a single process, so the scatter is estimated from the other points, or taken
  from the prior (`paradnn.statistics.priors`).

The result has these attrs:

- `metric`;
- `evidence`: the variances, effects and lost replicates behind the ratios, for `Contrast`;
- `unpaired_a`, `unpaired_b`: number of points of this side that the other side lacks;
- `alone`: for each side, "a" or "b", the families that only this side measured;
- `unusable_a`, `unusable_b`: number of ok runs without a positive value;
- `differ`: (values of A, values of B) by column, for the columns in which the sides differ and
  which are therefore not join columns;
- `disjoint`: (values of A, values of B) by column, for join columns in which the sides share no
  value;
- `mixed`: number of omitted points by column. The runs of such a point differ in the column on one
  side, and the other side does not determine which of them to compare (`_match`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from analysis.columns import (
    distinct_values,
    format_values,
    is_configuration_column,
    is_platform_column,
    join_columns,
    named_join_columns,
)
from analysis.lazy import np, pd, stats
from analysis.store.frame import families, is_ok, sort_by_family
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.core.metric import interval_names
from paradnn.core.words import counted
from paradnn.statistics.contrast import Evidence
from paradnn.statistics.dependence import MINIMUM_POINTS, Component
from paradnn.statistics.effects import (
    Effect,
    Schedule,
    combine,
    interaction_effect,
    learn_session_variance,
    selection_bias,
    unit_effects,
)
from paradnn.statistics.estimate import LEVEL
from paradnn.statistics.priors import ScatterPriors, classify_devices, scatter_priors
from paradnn.statistics.sessions import (
    BY_CHANCE,
    family_slope,
    find_speed_steps,
    leveled_component,
)
from paradnn.statistics.variances import moderate_variances, rarer_level
from paradnn.store.metrics import metric as registered

#: Largest `Schedule.session_weight` at which the sides count as measured in shared sessions.
_SHARED_WEIGHT = 0.05

#: Columns of the result of `pair` that are not configuration, join or carried columns.
RESULT_COLUMNS = (
    "a",
    "b",
    "speedup",
    "speedup_low",
    "speedup_high",
    "a_count",
    "b_count",
    "a_units",
    "b_units",
    "a_spread",
    "b_spread",
    "interval_source",
    "log_error",
    "degrees",
    "p_value",
    "point",
)

#: Columns of a run with a median over its steps, and the ends of its 95% interval.
_RATE = ("examples_per_second", "examples_per_second_low", "examples_per_second_high")
_STEP = ("step_time_ms", "step_time_low_ms", "step_time_high_ms")
_RATES = ("examples_per_second", "flops_per_second", "flops_utilization", "flops_utilization_spec")
#: Metric -> the same metric at the machine's reference speed.
LEVELED = {
    "examples_per_second": "examples_per_second_at_reference",
    "step_time_ms": "step_time_at_reference_ms",
}
#: Plausible ranges of recorded values about the machine's speed. No machine is a thousand times
#: as fast or slow as its reference.
_PLAUSIBLE_RANGES = {
    "reference_slope": (0, 1),
    "reference_speed": (1e-3, 1e3),
    "reference_own": (-math.log(1e3), math.log(1e3)),
}
#: For each metric, the columns whose interval it inherits, and the sign of the exponent: 1 if the
#: metric is proportional to the column, -1 if it is inversely proportional. The first columns with
#: an interval are used.
_INTERVAL_COLUMNS = {
    "step_time_ms": ((_STEP, 1), (_RATE, -1)),
    **dict.fromkeys(_RATES, ((_RATE, 1), (_STEP, -1))),
    **{name: (((name, *interval_names(name)), 1),) for name in LEVELED.values()},
}


def pair(
    a: pd.DataFrame,
    b: pd.DataFrame,
    metric: str = "examples_per_second",
    on: Sequence[str] | None = None,
    carry: Sequence[str] = (),
) -> pd.DataFrame:
    """Return one row for each point that both sides, A and B, of a comparison measured.

    A point is one configuration to measure. Only runs with outcome "ok" and a positive value of the
    metric are used. The values of the join columns identify a point. Runs of a side with equal
    values in all of them are replicates of one point, and the row has their median. Rows are sorted
    by family and join columns. The docstring of the module lists the columns and `attrs` of the
    result.

    Args:
        a: Runs of A, one row each. If `a.attrs["priors"]` is set, it replaces the default prior
            distributions of the measurement scatter.
        b: Runs of B, one row each.
        metric: A registered metric for which the better direction (higher or lower) is known.
        on: Join columns; None to choose them with `join_columns`.
        carry: Numeric columns whose medians are added to the result.

    Raises:
        ConfigError: If the metric has no better direction, a side lacks the metric, or the sides
            share runs. Also if the runs of a point on one side are not replicates, and either `on`
            is given or no other points remain.
    """
    sign = 1.0 if direction(metric) == "higher" else -1.0
    _require_sides(a, b, metric)
    metric = leveled(a, b, metric)
    finished = [_finished(side) for side in (a, b)]
    if metric in LEVELED.values():
        finished = [
            _scale_by_family_slope(side, pd.concat(finished), metric, sign) for side in finished
        ]
    usable = [side[_positive(side[metric])] for side in finished]
    families_a, families_b = (families(side) for side in usable)
    alone = {
        "a": tuple(name for name in families_a if name not in families_b),
        "b": tuple(name for name in families_b if name not in families_a),
    }
    # Families that only one side measured must not influence the choice of join columns.
    kept = [side[~side["family"].isin([*alone["a"], *alone["b"]])] for side in usable]
    if not all(map(len, kept)):
        kept = usable
    kept_a, kept_b = kept
    matched = _match(kept_a, kept_b, on)
    missing, losses = _missing(a, b, metric, matched.keys)
    priors = a.attrs.get("priors") or scatter_priors(classify_devices(a, b))
    measured = _measure(matched, metric, losses, priors)
    scale = np.ones(len(matched.runs))
    scale[measured.rows] = np.exp(-measured.shift)
    matched = replace(matched, runs=_scaled(matched.runs, metric, scale))
    sides = [_by_point(matched, measured, metric, number) for number in (0, 1)]
    evidence = _evidence(matched, measured, sides, losses, missing, metric)
    points = matched.points.assign(**{name: _carried(name, matched) for name in carry})
    result = pd.concat([points, _ratios(sides[0], sides[1], sign, evidence)], axis=1)
    result = sort_by_family(result, matched.keys)
    result.attrs = {
        "metric": metric,
        "evidence": evidence,
        "differ": matched.differ,
        "disjoint": _disjoint(matched, kept_a, kept_b),
        "mixed": matched.mixed,
        "alone": alone,
    }
    for number, (key, side) in enumerate(zip("ab", kept, strict=True)):
        unpaired = len(np.setdiff1d(matched.point[matched.side == number], matched.both))
        result.attrs[f"unpaired_{key}"] = unpaired + _count_dropped_points(usable[number], side)
        result.attrs[f"unusable_{key}"] = len(finished[number]) - len(usable[number])
    return result


def require_like_sessions(pairs: pd.DataFrame, family: str) -> None:
    """Require that the ratios of a model family differ only because its points differ.

    A point is one configuration to measure; its ratio is A over B. The conditions of a session
    (runs measured in one go) shift all of its runs together. If each side has a single session,
    they multiply all ratios by the same factor. If a side has several sessions that the other side
    does not share, each session may contain different points. The factor may then differ between
    points.

    Args:
        pairs: The points of both sides, as `pair` returns them.
        family: Name of the family; "all" for all points.

    Raises:
        InsufficientData: If a side has several sessions that the other side does not share.
    """
    evidence = pairs.attrs["evidence"]
    rows = np.ones(len(evidence.family), dtype=bool)
    if family != "all":
        rows = evidence.family == family
    schedule = evidence.schedule.select(rows)
    sessions = [len(np.unique(schedule.session[schedule.side == number])) for number in (0, 1)]
    is_leveled = family in evidence.leveled
    if schedule.session_weight > _SHARED_WEIGHT and max(sessions) > 1 and not is_leveled:
        raise InsufficientData(
            "the two sides were measured in different sessions, and the difference may be one of "
            "sessions; measure both sides in the same sessions"
        )


def direction(metric: str) -> str:
    """Return whether "higher" or "lower" values of a metric are better.

    Args:
        metric: Name of a registered metric.

    Raises:
        ConfigError: If the metric is not registered, or neither direction is better.
    """
    try:
        better = registered(metric).better
    except KeyError:
        raise ConfigError(
            "metric",
            metric,
            "is not a registered metric",
            "choose a metric from python -m paradnn list metrics",
        ) from None
    if better is None:
        raise ConfigError(
            "metric",
            metric,
            "cannot be ranked: neither high nor low values are better",
            "choose a different metric, such as examples_per_second",
        )
    return better


def leveled(a: pd.DataFrame, b: pd.DataFrame, metric: str) -> str:
    """Return the name of the metric to compare, with a correction for machine speed if possible.

    The corrected metric is the value at the machine's reference speed. It does not include changes
    of the machine's speed between runs. It is used if all ok runs of both sides have it, record
    plausible machine speeds, and belong to one environment. Different environments would have
    different reference speeds.

    Args:
        a: Runs of A, one row each.
        b: Runs of B, one row each.
        metric: Name of the metric without correction.

    Returns:
        Name of the corrected metric; `metric` itself if the correction is impossible.
    """
    name = LEVELED.get(metric, "")
    ok = [_finished(side) for side in (a, b)]
    environments = {
        environment
        for side in ok
        for environment in side.get("environment_id", pd.Series(dtype="object")).unique()
    }
    is_usable = len(environments) == 1 and all(
        name in side and len(side) and _positive(side[name]).all() for side in ok
    )
    is_usable = is_usable and all(
        side[column].between(*ends).all()
        for side in ok
        for column, ends in _PLAUSIBLE_RANGES.items()
    )
    if not is_usable:
        return metric
    return name


def _finished(side: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with outcome ok, or all runs if the frame has no outcomes."""
    if "outcome" not in side:
        return side
    return side[is_ok(side).to_numpy()]


def _scale_by_family_slope(
    side: pd.DataFrame, runs: pd.DataFrame, metric: str, sign: float
) -> pd.DataFrame:
    """Correct values to the reference speed with one slope per family, instead of one per run.

    A run times a reference kernel between its steps, which shows how fast the machine is. The slope
    relates the logarithm of the step time to the logarithm of the kernel's time. The recorded
    values use a slope for each run, which is estimated from few measurements. The slope of a model
    family is estimated from all runs of the family.

    The reference speed is defined by the shortest time of the reference kernel in all runs. A later
    measurement of the machine's peak rates may have found a shorter time than a run recorded.

    Args:
        side: Runs of one side of the comparison.
        runs: Runs of both sides.
        metric: A metric at the reference speed.
        sign: 1 if higher values of the metric are better, -1 if lower values are.

    Returns:
        The runs of the side, with corrected values, intervals and reference speeds.
    """
    slope = side["family"].map(
        {name: family_slope(rows)[0] for name, rows in runs.groupby("family")}
    )
    speed = side["reference_speed"].astype("float64")
    better = pd.Series(0.0, side.index)
    kernels: Iterable[Any] = ()
    if "reference_kernel" in side:
        kernels = side["reference_kernel"].dropna().unique()
    for kernel in kernels:
        name = f"best_reference_{kernel}_ms"
        best = side[name].astype("float64")
        better = better.mask(side["reference_kernel"].eq(kernel), np.log(best / runs[name].min()))
    slow = -np.log(speed) - side["reference_own"].astype("float64")
    factor = np.exp(
        sign * (slope * (slow + better) - side["reference_slope"].astype("float64") * slow)
    )
    return _scaled(side, metric, factor).assign(reference_speed=speed * np.exp(-better))


def _scaled(runs: pd.DataFrame, metric: str, factor: pd.Series | np.ndarray) -> pd.DataFrame:
    """Return runs with the metric and the ends of its interval multiplied by a factor.

    Args:
        runs: n runs.
        metric: Column of the metric.
        factor: (n,) factor of each run.
    """
    return runs.assign(
        **{name: runs[name] * factor for name in (metric, *interval_names(metric)) if name in runs}
    )


def _require_sides(a: pd.DataFrame, b: pd.DataFrame, metric: str) -> None:
    """Require that both sides of a comparison, A and B, have the metric and share no run.

    Raises:
        ConfigError: If a side lacks the metric, or a run is on both sides.
    """
    for name, side in (("A", a), ("B", b)):
        if metric not in side:
            raise ConfigError(
                "metric",
                metric,
                f"is not recorded in the runs of {name}",
                "choose a metric that both sides have",
            )
    shared = set(a.get("run_id", ())) & set(b.get("run_id", ()))
    if shared:
        raise ConfigError(
            "conditions",
            "A and B",
            f"contain the same {counted(len(shared), 'run')}",
            "choose conditions that do not overlap",
        )


def _positive(column: pd.Series) -> np.ndarray[Any, Any]:
    values = column.to_numpy(dtype="float64", na_value=np.nan)
    positive: np.ndarray[Any, Any] = np.isfinite(values) & (values > 0)
    return positive


def _disjoint(matched: _Match, a: pd.DataFrame, b: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Return the join columns in which the two sides, A and B, share no value.

    Args:
        matched: The matched runs, with the join columns.
        a: Runs of A.
        b: Runs of B.

    Returns:
        Column -> the values of A and the values of B, as text.
    """
    if len(a) and len(b):
        keys = [name for name in matched.keys if name not in matched.further]
    else:
        keys = []
    values = {name: (distinct_values(a[name]), distinct_values(b[name])) for name in keys}
    return {
        name: (format_values(of_a), format_values(of_b))
        for name, (of_a, of_b) in values.items()
        if of_a | of_b and not of_a & of_b
    }


def _count_dropped_points(rows: pd.DataFrame, kept: pd.DataFrame) -> int:
    """Return how many configurations belong to the dropped model families.

    Args:
        rows: Runs of a side, before families were dropped.
        kept: Runs of the same side that were kept.
    """
    names = [
        name
        for name in map(str, rows.columns)
        if name in ("family", "device") or is_configuration_column(name) or is_platform_column(name)
    ]
    is_kept = rows["family"].isin(kept["family"].unique())
    return len(rows.loc[~is_kept, names].drop_duplicates())


@dataclass(frozen=True)
class _Match:
    """Runs of both sides of a comparison, matched by point (configuration to measure).

    Attributes:
        keys: The join columns, whose values identify a point; those in `further` come last.
        runs: The n runs of both sides, first those of A.
        side: (n,) side of each run: 0 for A, 1 for B.
        point: (n,) number of the point of each run.
        both: Numbers of the points that both sides measured.
        points: The values of the join columns of these points, a row each.
        further: Join columns that were added because runs of the same point differed in them.
        differ: Column in which the sides differ, so that it is no join column -> the values of A
            and the values of B, as text.
        mixed: Column -> number of points that were omitted because of it. The runs of such a point
            have several values in the column on one side, and the other side does not show which
            value to compare.
    """

    keys: list[str]
    runs: pd.DataFrame
    side: np.ndarray[Any, Any]
    point: np.ndarray[Any, Any]
    both: np.ndarray[Any, Any]
    points: pd.DataFrame
    further: tuple[str, ...] = ()
    differ: dict[str, tuple[str, str]] = field(default_factory=dict)
    mixed: dict[str, int] = field(default_factory=dict)


class _Loss(NamedTuple):
    """Numbers of lost and of kept replicates of a model family, on both sides of a comparison.

    Attributes:
        lost: Number of failed or absent replicates of A, and of B.
        kept: Number of the other replicates of A, and of B.
    """

    lost: tuple[int, int]
    kept: tuple[int, int]


_Losses = dict[str, _Loss]
#: A side (0 or 1), a column of the configuration or the platform, and the numbers of the points
#: whose runs on that side differ in the column.
_Mixed = tuple[int, str, "np.ndarray[Any, Any]"]


def _match(a: pd.DataFrame, b: pd.DataFrame, on: Sequence[str] | None = None) -> _Match:
    """Match runs of A with runs of B that measured the same point.

    The values of the join columns identify a point. On one side, runs with equal values in them may
    differ in a further column, so that they are not replicates. If both sides share a value in this
    column, or both have runs without a value in it, the column becomes a join column too.
    Otherwise, these points are omitted.

    Args:
        a: Runs of A.
        b: Runs of B.
        on: Join columns; None to choose them with `join_columns`. No columns are added to given
            ones.

    Raises:
        ConfigError: If points would be omitted although `on` is given, or if all points would be.
    """
    keys, differ = join_columns(a, b) if on is None else named_join_columns(on, a, b)
    further: tuple[str, ...] = ()
    matched = _by_keys(a, b, keys)
    mixed = list(_find_mixed_points(matched))
    shared_columns = {*a} & {*b}
    while on is None:
        name = next(_separating_columns(matched, mixed, shared_columns), None)
        if name is None:
            break
        further = (*further, name)
        matched = _by_keys(a, b, [*keys, *further])
        mixed = list(_find_mixed_points(matched))
    counts = Counter[str]()
    if mixed:
        excluded_points = np.unique(np.concatenate([points for _, _, points in mixed]))
        if on is not None or len(excluded_points) == len(matched.both):
            side, column, _ = mixed[0]
            values = format_values(
                distinct_values(
                    matched.runs.loc[
                        (matched.side == side) & np.isin(matched.point, matched.both), column
                    ]
                )
            )
            name = "AB"[side]
            problem = (
                f"the runs of a point in {name} have different values, and the runs of "
                f"{'BA'[side]} do not show which value to compare"
            )
            raise ConfigError(
                f"{column} of {name}",
                values,
                problem,
                f"choose runs of {name} with one value of {column}",
            )
        for _, name, points in mixed:
            counts[name] += len(points)
        matched = _by_keys(a, b, matched.keys, excluded_points)
    differ = {name: values for name, values in differ.items() if name not in further}
    return replace(matched, differ=differ, further=further, mixed=dict(counts))


def _by_keys(
    a: pd.DataFrame,
    b: pd.DataFrame,
    keys: list[str],
    excluded_points: Sequence[int] | np.ndarray = (),
) -> _Match:
    rows = _stacked(a, b, keys)
    side = np.repeat([0, 1], [len(a), len(b)])
    point = rows.groupby(keys, sort=False, dropna=False).ngroup().to_numpy()
    both = np.setdiff1d(np.intersect1d(point[side == 0], point[side == 1]), excluded_points)
    points = rows.iloc[np.unique(point, return_index=True)[1][both]].reset_index(drop=True)
    return _Match(keys, pd.concat([a, b], ignore_index=True), side, point, both, points)


def _stacked(a: pd.DataFrame, b: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the values of the join columns for all runs, first those of A.

    If a column is numeric on only one side, its values become text on both sides, so that they can
    be compared.

    Args:
        a: Runs of A.
        b: Runs of B.
        keys: The join columns, which identify a configuration.
    """
    columns = {}
    for name in keys:
        parts = [a[name], b[name]]
        if len({pd.api.types.is_numeric_dtype(part) for part in parts}) > 1:
            parts = [part.astype("string").astype("object") for part in parts]
        columns[name] = pd.concat(parts, ignore_index=True)
    return pd.DataFrame(columns)


def _find_mixed_points(matched: _Match) -> Iterator[_Mixed]:
    """Yield the columns in which runs of the same point differ on one side.

    A point is one configuration to measure, identified by the join columns.

    Yields:
        The side (0 for A, 1 for B), the column, and the numbers of the points whose runs differ.
    """
    names = [
        name
        for name in map(str, matched.runs)
        if name not in matched.keys and (is_configuration_column(name) or is_platform_column(name))
    ]
    for side in (0, 1):
        on_side = (matched.side == side) & np.isin(matched.point, matched.both)
        frame = matched.runs[on_side]
        points = matched.point[on_side]
        for name in names:
            if frame[name].nunique(dropna=False) > 1:
                counts = frame[name].groupby(points).nunique(dropna=False)
                if (counts > 1).any():
                    yield side, name, counts.index[counts > 1].to_numpy()


def _separating_columns(
    matched: _Match, mixed: Iterable[_Mixed], shared: set[str]
) -> Iterator[str]:
    """Yield the columns that can become join columns, to separate runs of the same point.

    A point is one configuration to measure. It is mixed if its runs on one side differ in a further
    column. This column qualifies if both sides have runs of the mixed points with the same value in
    it. It also qualifies if both sides have runs of these points without a value in it.

    Args:
        matched: The matched runs.
        mixed: The columns in which runs of a point differ on one side, and the mixed points.
        shared: Columns that both sides have.
    """
    for _, name, points in mixed:
        if name not in shared:
            continue
        values = matched.runs.loc[np.isin(matched.point, points), name]
        side = matched.side[values.index]
        of_a = values[side == 0]
        of_b = values[side == 1]
        lack_values = of_a.isna().any() and of_b.isna().any()
        if lack_values or distinct_values(of_a) & distinct_values(of_b):
            yield name


@dataclass(frozen=True)
class _Measured:
    """The n runs from which the ratios of A to B are computed, first those of A.

    Attributes:
        rows: (n,) positions of the runs in `_Match.runs`.
        schedule: When and where the runs were measured.
        family: (n,) model families of the runs.
        logs: (n,) logarithms of the metric, corrected to the mean speed of the machine in the
            session.
        shift: (n,) effect of steps in the machine's speed, already subtracted from `logs`.
        rest: (n,) `logs` without the effects of sessions.
        inflation: (n,) factor that corrects the variance of `logs`, which the search for steps
            makes too small.
        drifts: (n,) whether the machine's speed drifts in addition to the detected steps.
        priors: Prior distributions of the measurement scatter.
    """

    rows: np.ndarray[Any, Any]
    schedule: Schedule
    family: np.ndarray[Any, Any]
    logs: np.ndarray[Any, Any]
    shift: np.ndarray[Any, Any]
    rest: np.ndarray[Any, Any]
    inflation: np.ndarray[Any, Any]
    drifts: np.ndarray[Any, Any]
    priors: ScatterPriors


def _measure(matched: _Match, metric: str, losses: _Losses, priors: ScatterPriors) -> _Measured:
    """Choose the runs for the ratios, and correct their values for steps in the machine's speed.

    A point is one configuration to measure. A run is used if its session (series of runs in one go)
    also contains a run of the same point on the opposite side. If this holds for no run of a point,
    all runs of the point are used.

    Args:
        matched: The matched runs.
        metric: The compared metric.
        losses: Families that lost more replicates on one side. Their values are not corrected.
        priors: Prior distributions of the measurement scatter.
    """
    paired = np.flatnonzero(np.isin(matched.point, matched.both))
    runs = matched.runs.iloc[paired]
    is_a = matched.side[paired] == 0
    point = matched.point[paired]
    schedule = Schedule.of(runs[is_a], runs[~is_a], point)
    counterpart = schedule.has_counterpart
    used = counterpart | ~np.isin(point, point[counterpart])
    rows = paired[used]
    schedule = schedule.select(used)
    counterpart = counterpart[used]
    family = matched.runs["family"].fillna("").astype(str).to_numpy()[rows]
    logs = np.log(matched.runs[metric].to_numpy(dtype="float64")[rows])
    shift = np.zeros(len(rows))
    inflation = np.ones(len(rows))
    drifts = np.zeros(len(rows), dtype=bool)
    cells = 2 * schedule.point + schedule.side
    if np.isfinite(schedule.hours).all():
        groups = pd.Series(rows).groupby([family, schedule.session]).indices
        for places in groups.values():
            members = np.asarray(places)
            is_shared = counterpart[members].any()
            is_lossy = family[members[0]] in losses
            if not is_shared or is_lossy or not schedule.select(members).is_mixed:
                continue
            steps = find_speed_steps(logs[members], cells[members], schedule.hours[members])
            shift[members] = steps.shift
            inflation[members] = steps.variance_inflation
            drifts[members] = steps.drifts
    logs = logs - shift
    rest = logs
    if len(logs) and schedule.session.max() > 0:
        rest = logs - unit_effects(logs, cells, schedule.session)
    return _Measured(rows, schedule, family, logs, shift, rest, inflation, drifts, priors)


def _evidence(
    matched: _Match,
    measured: _Measured,
    sides: Sequence[pd.DataFrame],
    losses: _Losses,
    missing: dict[str, tuple[int, int]],
    metric: str,
) -> Evidence:
    """Return the variances, effects and lost replicates from which intervals are computed.

    Args:
        matched: The matched runs.
        measured: The runs that are used for the ratios.
        sides: Results of `_by_point` for A and for B.
        losses: Family that lost more replicates on one side -> lost and kept replicates.
        missing: Family -> number of configurations that only A measured, and number that only B
            measured.
        metric: The compared metric.
    """
    schedule = measured.schedule
    interaction: dict[str, Effect] = {}
    leveled: dict[str, Component] = {}
    speed_change: dict[str, float] = {}
    for name in dict.fromkeys(measured.family):
        in_family = measured.family == name
        part = schedule.select(in_family)
        shared = interaction_effect(measured.logs[in_family], part, measured.priors)
        if shared is not None:
            interaction[name] = shared
        speed_change[name] = math.expm1(float(np.ptp(measured.shift[in_family])))
        if metric in LEVELED.values() and part.session_weight > _SHARED_WEIGHT:
            runs = matched.runs.iloc[measured.rows[in_family]]
            leveled[name] = leveled_component(runs, part.side == 0)
    family = matched.points["family"].fillna("").astype(str).to_numpy()
    selection = {}
    for name, loss in losses.items():
        in_family = family == name
        scatter = [side["scatter"].to_numpy()[in_family] for side in sides]
        typical = math.sqrt(float(np.mean(np.concatenate(scatter)))) if in_family.any() else 0.0
        selection[name] = selection_bias(loss.lost, loss.kept) * typical
    return Evidence(
        schedule=schedule,
        family=measured.family,
        session=learn_session_variance(measured.logs, schedule, measured.priors),
        priors=measured.priors,
        point=matched.both,
        variance=np.array([side["error"].to_numpy() for side in sides]),
        mean_variance=np.array(
            [(side["pooled_error"] * side["inefficiency"]).to_numpy() for side in sides]
        ),
        freedom=np.array([side["degrees"].to_numpy() for side in sides]),
        data_freedom=np.array([side["data_degrees"].to_numpy() for side in sides]),
        interaction=interaction,
        leveled=leveled,
        selection=selection,
        lost={name: loss.lost for name, loss in losses.items()},
        missing=missing,
        speed_change=speed_change,
    )


def _by_point(matched: _Match, measured: _Measured, metric: str, number: int) -> pd.DataFrame:
    """Return a row per paired point, with the values of one side that `_ratios` needs.

    A point is one configuration to measure; it is paired if both sides measured it. The most
    important columns are:

    - `value`: the median of the runs, or for several sessions the geometric mean of the median of
      each session.
    - `scatter`: the variance of the logarithm of one measurement.
    - `error`: the variance of the mean logarithm due to differences between processes. It has
      `degrees` of freedom, and `data_degrees` without the prior.
    - `pooled_error`: the same variance, computed from the mean scatter of the model family.

    Args:
        matched: The matched runs.
        measured: The runs that are used for the ratios.
        metric: The compared metric.
        number: The side: 0 for A, 1 for B.
    """
    on_side = measured.schedule.side == number
    frame = matched.runs.iloc[measured.rows[on_side]].reset_index(drop=True)
    points = measured.schedule.point[on_side]
    runs = _run_values(frame, metric).assign(
        log=measured.logs[on_side],
        inflation=measured.inflation[on_side],
        drifts=measured.drifts[on_side],
    )
    grouped = runs.groupby(points)
    # Runs of a point in several sessions are reduced to a mean per session.
    session = measured.schedule.session[on_side]
    sessions = pd.Series(session).groupby(points).transform("nunique").to_numpy()
    run = np.arange(len(frame))
    unit = np.where(sessions > 1, -1 - session, run)
    keys = [pd.Series(points, name="point"), pd.Series(unit, name="unit")]
    rests = pd.Series(measured.rest[on_side]).groupby(keys).mean()
    units = rests.groupby("point")
    of_sessions = np.log(runs["value"]).groupby([points, session]).median().groupby(level=0)
    is_repeated = of_sessions.size() > 1
    summary = pd.DataFrame(
        {
            # The variance over sessions applies to their mean. The median of a few sessions differs
            # from the mean if the machine changed between them.
            "value": np.exp(of_sessions.mean()).where(is_repeated, grouped["value"].median()),
            "count": grouped["value"].size(),
            "spread": grouped["value"].std() / grouped["value"].mean(),
            "below": grouped["below"].median(),
            "above": grouped["above"].median(),
            "processes": grouped["processes"].min(),
            "inflation": grouped["inflation"].mean(),
            "drifts": grouped["drifts"].any(),
            "log_mean": grouped["log"].mean(),
            "units": units.size(),
            "sessions": pd.Series(sessions).groupby(points).first(),
            "variance": units.var(),
        }
    ).reindex(matched.both)
    scatter = _scatter_of_units(matched, summary, measured)
    rarer, span = _rarer_levels(matched, summary, rests)
    count = scatter["count"]
    return summary.assign(
        by_process=scatter["by_process"],
        scatter=scatter["variance"],
        error=scatter["variance"] / count,
        pooled_error=scatter["pooled"] / count,
        inefficiency=_median_inefficiency(
            (summary["count"] / summary["sessions"]).to_numpy(), rarer
        ),
        degrees=scatter["degrees"],
        data_degrees=scatter["data_degrees"],
        units=count.astype("int64"),
        rarer=rarer,
        span=span,
    ).reset_index(drop=True)


def _run_values(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a row per run with its value, its interval and its number of processes.

    Args:
        frame: The runs.
        metric: Column of the values.

    Returns:
        Columns: `value`, `below` and `above` (distances of the logarithm of the value from those of
        the ends of its interval; NaN without an interval), and `processes` (at least 1).
    """
    below, above = _interval_distances(frame, metric)
    processes = np.ones(len(frame))
    if "processes" in frame:
        processes = np.maximum(frame["processes"].to_numpy(dtype="float64", na_value=1.0), 1.0)
    return pd.DataFrame(
        {
            "value": frame[metric].astype("float64"),
            "below": below,
            "above": above,
            "processes": processes,
        }
    )


def _rarer_levels(matched: _Match, summary: pd.DataFrame, rests: pd.Series) -> np.ndarray[Any, Any]:
    """Estimate how often the runs of each point take the rarer of two levels (see `rarer_level`).

    A point is one configuration to measure. All points of a model family share the estimate. It is
    0 for a family with several sessions, since session effects look like levels.

    Args:
        matched: The matched runs.
        summary: A row for each of p points.
        rests: Logarithms of the measurements without session effects, sorted by point.

    Returns:
        An array (2, p): the probability that a run takes the rarer level, and the largest distance
        between the logarithms of two runs of a point.
    """
    sizes = rests.groupby("point").size()
    ends = sizes.cumsum().to_numpy()
    # Without points, `np.split` still returns one empty part.
    runs = dict(zip(sizes.index, np.split(rests.to_numpy(), ends[:-1]), strict=False))
    family = matched.points["family"].fillna("").astype(str).to_numpy()
    levels = np.zeros((2, len(summary)))
    for name in dict.fromkeys(family):
        rows = family == name
        if (summary["sessions"].to_numpy()[rows] > 1).any():
            continue
        rarer, span = rarer_level([runs[point] for point in matched.both[rows]])
        levels[0, rows] = rarer
        levels[1, rows] = span
    return levels


def _scatter_of_units(
    matched: _Match, summary: pd.DataFrame, measured: _Measured
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the posterior variance of the logarithm of one measurement, for each point on a side.

    A point is one configuration to measure. A measurement is the mean of a session if the point has
    several sessions, else a run. If a point has a single run of several processes, it is a process.

    The prior of process scatter is updated with the mean variance of the model family, and the
    result applies to the points of the family. If at least `MINIMUM_POINTS` points of the family
    have a positive sample variance, these variances define the prior instead
    (`moderate_variances`).

    Args:
        matched: The matched runs.
        summary: A row for each of p points.
        measured: The runs that are used for the ratios.

    Returns:
        Arrays (p,) by name:

        - `variance`: the posterior variance.
        - `pooled`: the mean variance of the family, for sums over all of its points. Shrunk
          variances would bias these sums.
        - `degrees`: degrees of freedom of the variance.
        - `data_degrees`: degrees of freedom without the prior.
        - `count`: number of measurements.
        - `by_process`: whether the measurements are processes.
    """
    prior = measured.priors.process
    processes = summary["processes"].to_numpy()
    half_width = ((summary["below"] + summary["above"]) / 2).to_numpy()
    variance, freedom, count, by_process = _sample_scatter(summary, half_width, measured)
    has_data = (freedom > 0) & np.isfinite(variance)
    freedom = np.where(has_data, freedom, 0.0)
    # A measurement that is a mean over several processes scatters less.
    per_unit = np.where(by_process, 1.0, processes)
    within = np.where(processes < 2, np.nan_to_num(half_width) / 1.96, 0.0) ** 2
    result = {
        "variance": np.zeros(len(count)),
        "pooled": np.zeros(len(count)),
        "degrees": np.zeros(len(count)),
        "data_degrees": freedom,
        "count": count,
        "by_process": by_process,
    }
    family = matched.points["family"].fillna("").astype(str).to_numpy()
    for name in dict.fromkeys(family):
        in_family = family == name
        known = in_family & has_data
        scale = per_unit[known] * variance[known]
        data_freedom = float(freedom[known].sum())
        mean = 0.0
        if data_freedom:
            mean = float(np.average(scale, weights=freedom[known]))
        posterior = prior.update(mean, data_freedom)
        variances = posterior.variance / per_unit[in_family]
        degrees = np.full(in_family.sum(), posterior.freedom)
        if (variance[known] > 0).sum() >= MINIMUM_POINTS:
            axes = [
                pd.factorize(matched.points.loc[known, key])[0]
                for key in matched.keys
                if is_configuration_column(key)
            ]
            moderated = moderate_variances(variance[known], freedom[known], axes)
            drifts = bool(summary["drifts"].to_numpy()[in_family].any())
            floor = _drift_floor(variance[known], freedom[known]) if drifts else 0.0
            variances[known[in_family]] = np.maximum(moderated.variance, floor)
            degrees[known[in_family]] = moderated.freedom
        is_single = in_family & ~has_data
        added = np.where(is_single, within, 0.0)[in_family]
        result["variance"][in_family] = variances + added
        result["pooled"][in_family] = posterior.variance / per_unit[in_family] + added
        result["degrees"][in_family] = degrees
    return result


def _sample_scatter(
    summary: pd.DataFrame, half_width: np.ndarray[Any, Any], measured: _Measured
) -> tuple[np.ndarray[Any, Any], ...]:
    """Return the sample variance of the logarithm of one measurement of each point.

    A point is one configuration to measure. No prior contributes to this variance (see
    `_scatter_of_units` for the posterior variance).

    Args:
        summary: A row for each of p points.
        half_width: (p,) half the width of the recorded interval of each point, in logarithms.
        measured: The runs that are used for the ratios.

    Returns:
        Four arrays (p,): the variance, its degrees of freedom, the number of measurements, and
        whether the measurements are processes of the only run of the point.
    """
    units = summary["units"].to_numpy(dtype="float64")
    processes = summary["processes"].to_numpy()
    # The recorded interval of a run of several processes is Student's interval over the processes.
    by_process = (units == 1) & (processes >= 2) & np.isfinite(half_width)
    count = np.where(by_process, processes, units)
    freedom = count - 1
    quantile = stats.t.ppf((1 + LEVEL) / 2, np.maximum(freedom, 1))
    variance = np.where(
        by_process, (half_width / quantile) ** 2 * count, summary["variance"].to_numpy()
    )
    variance = variance * summary["inflation"].to_numpy()
    # Effects of sessions were fitted to the runs of all points and took degrees of freedom.
    effects = len(np.unique(measured.schedule.session)) - 1
    sessions = summary["sessions"].to_numpy()
    over_sessions = (sessions > 1) & ~by_process
    all_freedom = float(freedom[over_sessions].sum())
    if all_freedom > 0:
        kept = max(1 - effects / 2 / all_freedom, 0.0)
        if kept == 0:
            variance = np.where(over_sessions, np.nan, variance)
        else:
            variance = np.where(over_sessions, variance / kept, variance)
        freedom = np.where(over_sessions, freedom * kept, freedom)
    return variance, freedom, count, by_process


def _drift_floor(variance: np.ndarray[Any, Any], freedom: np.ndarray[Any, Any]) -> float:
    """Return the lower limit of the variances of points on a drifting machine: their mean.

    A point is one configuration to measure. Drift scatters the runs of all points. The few runs of
    one point may agree only because they were measured within a short time.

    Args:
        variance: Sample variance of each point.
        freedom: Degrees of freedom of each variance.
    """
    return float(np.average(variance, weights=freedom))


def _median_inefficiency(
    count: np.ndarray[Any, Any], rarer: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return the variance of the median of measurements divided by the variance of their mean.

    For normal values the ratio is 1.35 for three measurements and approaches pi / 2 for many
    (Hodges, Annals of Mathematical Statistics 38, 1967). If measurements take one of two levels,
    so does the median.

    Args:
        count: (p,) number of measurements.
        rarer: (p,) chance that a measurement takes the rarer of two levels; 0 for one level.
    """
    normal = np.pi / 2 * count / (count + np.pi / 2 - 1)
    chance = np.clip(rarer, 1e-9, 0.5)
    of_median = stats.binom.sf(count // 2, count, chance)
    two_levels = of_median * (1 - of_median) * count / (chance * (1 - chance))
    return np.where(count < 3, 1.0, np.maximum(normal, two_levels))


def _interval_distances(frame: pd.DataFrame, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the distances of the values of runs from the ends of their intervals, in logarithms.

    Args:
        frame: n runs.
        metric: Column of the values.

    Returns:
        Two arrays (n,): log(value / low end) and log(high end / value). They are NaN for a run
        without an interval.
    """
    distances = np.full((2, len(frame)), np.nan)
    for names, sign in _INTERVAL_COLUMNS.get(metric, ()):
        if set(names) <= set(frame.columns):
            with np.errstate(divide="ignore", invalid="ignore"):
                center, bottom, top = (
                    np.log(frame[name].to_numpy(dtype="float64")) for name in names
                )
            new = np.array([np.maximum(center - bottom, 0), np.maximum(top - center, 0)])[::sign]
            new = np.where(np.isfinite(new), new, np.nan)
            distances = np.where(np.isfinite(distances), distances, new)
    return distances[0], distances[1]


def _ratios(a: pd.DataFrame, b: pd.DataFrame, sign: float, evidence: Evidence) -> pd.DataFrame:
    """Return a row per paired point with the ratio of A to B and its interval.

    A point is one configuration to measure; it is paired if both sides measured it. The columns are
    RESULT_COLUMNS.

    Args:
        a: Values of A, as `_by_point` returns them.
        b: Values of B, as `_by_point` returns them.
        sign: 1 if higher values of the metric are better, -1 if lower values are.
        evidence: The variances and effects from which the intervals are computed.
    """
    if sign > 0:
        speedup = a["value"] / b["value"]
    else:
        speedup = b["value"] / a["value"]
    difference = sign * (a["log_mean"] - b["log_mean"]).to_numpy()
    error = np.zeros(len(a))
    degrees = np.ones(len(a))
    bias = np.zeros(len(a))
    if len(a):
        total = _point_component(evidence)
        error = np.sqrt(total.variance)
        degrees = total.freedom
        bias = _point_bias(evidence)
    distance = np.maximum(np.abs(difference) - bias, 0.0)
    p_value = 2 * stats.t.sf(distance / error, degrees)
    levels = [
        np.array([side["rarer"], 1 - side["rarer"]]) ** side["units"].to_numpy() for side in (a, b)
    ]
    near = np.abs(difference) <= np.maximum(a["span"], b["span"])
    p_value = np.minimum(p_value + near * (levels[0] * levels[1][::-1]).sum(axis=0), 1)
    reach = stats.t.ppf((1 + LEVEL) / 2, degrees) * error + bias
    single = (a["units"] < 2) | (b["units"] < 2)
    between = np.where(a["by_process"] | b["by_process"], "processes", "replicates")
    columns: dict[str, Any] = {
        "a": a["value"],
        "b": b["value"],
        "speedup": speedup,
        "speedup_low": np.minimum(np.exp(difference - reach), speedup),
        "speedup_high": np.maximum(np.exp(difference + reach), speedup),
    }
    for name in ("count", "units", "spread"):
        for key, side in (("a", a), ("b", b)):
            columns[f"{key}_{name}"] = side[name]
    columns["interval_source"] = pd.Series(np.where(single, "prior", between), dtype="str")
    columns |= {
        "log_error": error,
        "degrees": degrees,
        "p_value": p_value,
        "point": evidence.point,
    }
    table = pd.DataFrame(columns)[list(RESULT_COLUMNS)]
    return table.astype(dict.fromkeys(("a_count", "b_count", "a_units", "b_units"), "int64"))


def _point_component(evidence: Evidence) -> Component:
    """Return the variance (p,) of the log ratio of each point, with its degrees of freedom.

    Args:
        evidence: The variances and effects of the comparison.
    """
    sides = [
        Component(variance, freedom)
        for variance, freedom in zip(evidence.variance, evidence.freedom, strict=True)
    ]
    weights = evidence.schedule.point_weights().reindex(evidence.point).to_numpy()
    of_point = pd.Series(evidence.family).groupby(evidence.schedule.point).first()
    family = of_point.reindex(evidence.point).to_numpy()
    weights = np.where(pd.Series(family).isin(evidence.leveled), 0.0, weights)
    parts = [*sides, Component(weights * evidence.session.variance, evidence.session.freedom)]
    effects = [
        effect
        for effect in evidence.schedule.effects(evidence.session, evidence.priors)
        if effect.name != "sessions"
    ]
    parts.extend(effect.component for effect in effects)
    for known in (evidence.interaction, evidence.leveled):
        if known:
            variances = [getattr(known.get(name), "variance", 0.0) for name in family]
            freedoms = [getattr(known.get(name), "freedom", np.inf) for name in family]
            parts.append(Component(np.array(variances, float), np.array(freedoms, float)))
    return combine(parts)


def _point_bias(evidence: Evidence) -> np.ndarray[Any, Any]:
    """Return the largest bias (p,) in the logarithm of each ratio that lost replicates may cause.

    Args:
        evidence: The variances and effects of the comparison.
    """
    family = pd.Series(evidence.family).groupby(evidence.schedule.point).first()
    biases: np.ndarray[Any, Any] = (
        family.map(evidence.selection).fillna(0.0).reindex(evidence.point).to_numpy(dtype="float64")
    )
    return biases


def _missing(
    a: pd.DataFrame, b: pd.DataFrame, metric: str, on: list[str]
) -> tuple[dict[str, tuple[int, int]], _Losses]:
    """Count the configurations that only one side measured, and the replicates that a side lost.

    A replicate is lost if it failed, or if its number is absent although a higher number is
    present. If one side of a model family lost more replicates than the opposite side (Fisher's
    exact test), the lost replicates may have been its slowest.

    Args:
        a: Runs of A.
        b: Runs of B.
        metric: The compared metric.
        on: The join columns, which identify a configuration.

    Returns:
        Two mappings:

        - Family -> number of configurations that both sides tried but only A measured, and number
          that only B measured.
        - Family -> lost and kept replicates, for the families in which one side lost more
          replicates than the other.
    """
    if not all(name in side for name in (*on, "outcome") for side in (a, b)):
        return {}, {}
    tried = [side[side["outcome"].notna()] for side in (a, b)]
    points = _count_replicates(tried, metric, on)
    wide = points["kept"].gt(0).unstack().reindex(columns=["a", "b"]).dropna().astype(bool)
    only = pd.DataFrame({"a": wide["a"] & ~wide["b"], "b": wide["b"] & ~wide["a"]})
    sums = only.groupby("family").sum()
    measured: Any = points[points["kept"] > 0].groupby(["family", "side"]).sum().unstack()
    columns = list(itertools.product(("kept", "lost"), "ab"))
    lost = {}
    for name, row in measured.reindex(columns=columns).dropna().iterrows():
        counts = row.to_numpy(dtype="int64").reshape(2, 2)
        if stats.fisher_exact(counts).pvalue < BY_CHANCE:
            lost[str(name)] = _Loss(
                lost=(int(counts[1, 0]), int(counts[1, 1])),
                kept=(int(counts[0, 0]), int(counts[0, 1])),
            )
    return {str(name): (int(row["a"]), int(row["b"])) for name, row in sums.iterrows()}, lost


def _count_replicates(
    tried: Sequence[pd.DataFrame], metric: str, on: Sequence[str]
) -> pd.DataFrame:
    """Count the kept and the lost replicates of each configuration on each side.

    Args:
        tried: The runs of A and of B that have an outcome.
        metric: The compared metric.
        on: The join columns, which identify a configuration.

    Returns:
        Columns `kept` and `lost`, indexed by family, number of the configuration, and side ("a" or
        "b").
    """
    rows = _stacked(tried[0], tried[1], on)
    numbers = [side.get("replicate", pd.Series(-1, side.index)) for side in tried]
    runs = pd.DataFrame(
        {
            "family": pd.concat([side["family"] for side in tried]).fillna("").to_numpy(),
            "code": rows.groupby(list(on), sort=False, dropna=False).ngroup().to_numpy(),
            "side": np.repeat(["a", "b"], [len(side) for side in tried]),
            "kept": np.concatenate(
                [is_ok(side).to_numpy() & _positive(side[metric]) for side in tried]
            ),
            "number": pd.concat(numbers).fillna(-1).to_numpy().astype("int64"),
        }
    )
    points = runs.groupby(["family", "code", "side"]).agg({"kept": "sum", "number": "max"})
    points["lost"] = (points.pop("number") + 1 - points["kept"]).clip(lower=0)
    return points


def _carried(name: str, matched: _Match) -> np.ndarray[Any, Any]:
    """Return the median of a column for each paired point, over the runs of both sides together.

    Args:
        name: The column. The medians are NaN if the runs lack it.
        matched: The matched runs.
    """
    values = matched.runs.get(name, pd.Series(np.nan, matched.runs.index)).astype("float64")
    medians: np.ndarray[Any, Any] = (
        values.groupby(matched.point).median().reindex(matched.both).to_numpy()
    )
    return medians
