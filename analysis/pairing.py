"""Pairing of the same points on two sides, the basis of every comparison of A and B.

`pair` returns a row for each point that both sides measured, so a ratio never compares different
models. `point_id` cannot identify the points: it covers the platform, which differs between the
sides. Statements about all points together, and verdicts, are in `paradnn.statistics.contrast`.

The result has these columns:

- family and the other join columns;
- the columns of `carry`, as medians over a point's runs;
- `a`, `b`: the medians, in the unit of the metric;
- `speedup`, above 1 if A is better, with its 95% interval `speedup_low`, `speedup_high` and the
  source of the interval, `interval_source`;
- `a_count`, `b_count`: the number of replicates;
- `a_spread`, `b_spread`: sample standard deviation / mean of the replicates;
- `a_units`, `b_units`: the number of independent measurements. These are sessions if each side has
  several separate ones, otherwise replicates, otherwise the processes of the only run;
- `log_error`, `degrees` and two-sided `p_value` of the log ratio, if the interval is from
  independent measurements. p includes the chance that all runs of A took one of two levels and all
  runs of B the other (`rarer_level`);
- `comparable`: whether the sides' sessions allow a verdict on this point
  (`paradnn.statistics.sessions`).

The values of `interval_source` are:

- "replicates": both sides have at least two. It is Welch's t interval of the difference of mean
  logarithms (Welch, Biometrika 34, 1947). It is widened if necessary to include the ratio of the
  medians.
- "processes": the same if a side has one run of several processes, from the spread between these.
- "within process": the recorded 95% intervals of the two medians. They are combined on the log
  scale by the method of variance estimates recovery (Zou and Donner, Statistics in Medicine 27,
  2008). The interval excludes the spread between processes, so it is too narrow for what a
  repetition would show.
- "none": no data for an interval; both ends are NaN.

The result has these attrs:

- `metric`;
- `sampling`: family -> its `Sampling`;
- `unpaired_a`, `unpaired_b`: number of points that the other side lacks;
- `alone`: "a" and "b" -> families of this side only;
- `unusable_a`, `unusable_b`: number of ok runs without a positive value;
- `differ`: column -> (values of A, of B) for columns that set the sides apart and are not joined
  on;
- `disjoint`: the same for join columns without a common value;
- `mixed`: column -> number of points that are omitted since nothing separates their runs
  (`_match`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.columns import (
    distinct_values,
    format_values,
    is_configuration_column,
    is_platform_column,
    join_columns,
    named_join_columns,
)
from analysis.lazy import np, pd, stats
from analysis.store.frame import families, is_ok
from paradnn.core.errors import ConfigError, NotEnoughData
from paradnn.core.metric import interval_names
from paradnn.statistics.estimate import LEVEL
from paradnn.statistics.sessions import (
    BY_CHANCE,
    Design,
    Sampling,
    SessionOverlap,
    arrange,
    arrange_at_one_speed,
    assign_sessions,
    family_slope,
    find_speed_steps,
    get_sampling,
)
from paradnn.statistics.variances import moderate_variances, rarer_level
from paradnn.store.metrics import metric as registered

#: Columns with the numbers of a pair.
RESULT_COLUMNS = (
    *(
        "a",
        "b",
        "speedup",
        "speedup_low",
        "speedup_high",
        "a_count",
        "b_count",
        "a_units",
        "b_units",
    ),
    *("a_spread", "b_spread", "interval_source", "log_error", "degrees", "p_value", "comparable"),
)

#: Medians within one process, each with its 95% interval. `_WITHIN` states for each metric which of
#: them it is proportional to (1) or inverse to (-1).
_RATE, _STEP = (
    tuple(name.format(end) for end in ("", "_low", "_high"))
    for name in ("examples_per_second{}", "step_time{}_ms")
)
_RATES = ("examples_per_second", "flops_per_second", "flops_utilization", "flops_utilization_spec")
#: Metric -> the same metric at the machine's reference speed.
LEVELLED = {
    "examples_per_second": "examples_per_second_at_reference",
    "step_time_ms": "step_time_at_reference_ms",
}
#: Plausible ranges of what a run recorded about the machine's speed. No machine is a thousand times
#: as fast or slow as its reference.
_CAN_BE = {
    "reference_slope": (0, 1),
    "reference_speed": (1e-3, 1e3),
    "reference_own": (-math.log(1e3), math.log(1e3)),
}
_WITHIN = {
    "step_time_ms": ((_STEP, 1), (_RATE, -1)),
    **dict.fromkeys(_RATES, ((_RATE, 1), (_STEP, -1))),
    **{name: (((name, *interval_names(name)), 1),) for name in LEVELLED.values()},
}


def pair(
    a: pd.DataFrame,
    b: pd.DataFrame,
    metric: str = "examples_per_second",
    on: Sequence[str] | None = None,
    carry: Sequence[str] = (),
) -> pd.DataFrame:
    """Return one row for each point that both sides measured, sorted by family and join columns.

    Only runs with outcome ok and a positive `metric` count. Runs of a side that agree in the join
    columns are replicates of one point and are reduced to their median. The module's docstring
    lists the columns and `attrs`.

    Args:
        a: Runs of A.
        b: Runs of B.
        metric: A registered metric that has a better direction.
        on: Join columns; None for those of `join_columns`.
        carry: Columns of numbers whose medians are added.

    Raises:
        ConfigError: If the metric has no better direction, or a side lacks it; if the sides share
            runs; or if the runs of every point would be replicates although they differ in a column
            that describes a point.
    """
    sign = 1.0 if direction(metric) == "higher" else -1.0
    _require_sides(a, b, metric)
    metric = levelled(a, b, metric)
    finished = [side[is_ok(side).to_numpy()] if "outcome" in side else side for side in (a, b)]
    if metric in LEVELLED.values():
        finished = [_by_family_slope(side, pd.concat(finished), metric, sign) for side in finished]
    usable = [side[_positive(side[metric])] for side in finished]
    of = [families(side) for side in usable]
    alone = {
        key: tuple(name for name in of[n] if name not in of[1 - n]) for n, key in enumerate("ab")
    }
    # A family of one side only must neither set the sides apart nor join points.
    kept = [side[~side["family"].isin([*alone["a"], *alone["b"]])] for side in usable]
    one, two = kept if all(map(len, kept)) else usable
    found = _match(one, two, on)
    missing, lost = _missing(a, b, metric, found.keys)
    sampled, units, used, moved = _sampled(found, metric, lost)
    found = replace(found, runs=_scaled(found.runs, metric, np.exp(-moved)))
    sides = [
        _by_point(found, used & (found.side == number), metric, units, sampled) for number in (0, 1)
    ]
    points = found.points.assign(**{name: _carried(name, found) for name in carry})
    result = pd.concat([points, _ratios(sides[0], sides[1], sign)], axis=1)
    samplings = [sampled[family] for family in result["family"].fillna("")]
    result["comparable"] = [
        one.design.comparable and number not in one.outside
        for one, number in zip(samplings, found.both, strict=True)
    ]
    order = {name: place for place, name in enumerate(families(result))}
    result = result.sort_values(
        found.keys,
        key=lambda column: column.map(order) if column.name == "family" else column,
        ignore_index=True,
    )
    result.attrs = {
        "metric": metric,
        "sampling": {
            family: replace(sampled.get(family, Sampling()), missing=missing.get(family, (0, 0)))
            for family in {*sampled, *missing}
        },
        "differ": found.differ,
        "disjoint": _disjoint(found, one, two),
        "mixed": found.mixed,
        "alone": alone,
    }
    for number, (key, side) in enumerate(zip("ab", (one, two), strict=True)):
        unpaired = len(np.setdiff1d(found.point[found.side == number], found.both))
        result.attrs[f"unpaired_{key}"] = unpaired + _left_out(usable[number], side)
        result.attrs[f"unusable_{key}"] = len(finished[number]) - len(usable[number])
    return result


def require_like_sessions(pairs: pd.DataFrame, family: str) -> None:
    """Require that the cause of a family's ratios can be separated from sessions.

    With one session per side, sessions shift all ratios by the same factor. With several, each may
    contain different points, so the factor may differ between points.

    Raises:
        NotEnoughData: If it cannot be separated.
    """
    design = get_sampling(pairs, family).design
    if not design.comparable and max(design.sessions) > 1:
        raise NotEnoughData(
            "its points were measured in several sessions, which may differ as much as they do"
        )


def direction(metric: str) -> str:
    """Return the better direction of a registered metric, "higher" or "lower".

    Raises:
        ConfigError: If the metric is not registered, or has no better direction.
    """
    try:
        better = registered(metric).better
    except KeyError:
        raise ConfigError(
            "metric", metric, "is no registered metric", "see paradnn/store/metrics.py"
        ) from None
    if better is None:
        raise ConfigError(
            "metric",
            metric,
            "is neither better high nor low",
            "choose for example examples_per_second",
        )
    return better


def levelled(a: pd.DataFrame, b: pd.DataFrame, metric: str) -> str:
    """Return the name of a metric of speed at the machine's reference speed, if it is usable.

    It is usable if all runs of both sides have it, report plausible machine speeds and are from one
    environment. Otherwise it is the metric itself: two machines have two references.
    """
    name = LEVELLED.get(metric, "")
    ok = [side[is_ok(side)] if "outcome" in side else side for side in (a, b)]
    places = {
        place
        for side in ok
        for place in side.get("environment_id", pd.Series(dtype="object")).unique()
    }
    known = len(places) == 1 and all(
        name in side and len(side) and _positive(side[name]).all() for side in ok
    )
    known = known and all(
        side[seen].between(*ends).all() for side in ok for seen, ends in _CAN_BE.items()
    )
    return name if known else metric


def _by_family_slope(
    side: pd.DataFrame, runs: pd.DataFrame, metric: str, sign: float
) -> pd.DataFrame:
    """Scale a side's values and their intervals to the reference speed by the slope of the family.

    The slope is that of all `runs` of the family. It replaces the slope of each run, which is
    estimated from few blocks. The reference speed is that of the best times in any of `runs`, since
    ceilings that were measured again may have found better ones.

    Args:
        side: Runs of one side.
        runs: Runs of both sides.
        metric: A metric at the reference speed.
        sign: 1 if more is better, -1 if less is better.
    """
    slope = side["family"].map(
        {name: family_slope(rows)[0] for name, rows in runs.groupby("family")}
    )
    speed = side["reference_speed"].astype("float64")
    better = pd.Series(0.0, side.index)
    for kernel in side["reference_kernel"].dropna().unique() if "reference_kernel" in side else ():
        best = side[name := f"best_reference_{kernel}_ms"].astype("float64")
        better = better.mask(side["reference_kernel"].eq(kernel), np.log(best / runs[name].min()))
    slow = -np.log(speed) - side["reference_own"].astype("float64")
    factor = np.exp(
        sign * (slope * (slow + better) - side["reference_slope"].astype("float64") * slow)
    )
    return _scaled(side, metric, factor).assign(reference_speed=speed * np.exp(-better))


def _scaled(runs: pd.DataFrame, metric: str, factor: pd.Series | np.ndarray) -> pd.DataFrame:
    """Multiply the values of runs and their intervals by a factor (n,)."""
    return runs.assign(
        **{name: runs[name] * factor for name in (metric, *interval_names(metric)) if name in runs}
    )


def _require_sides(a: pd.DataFrame, b: pd.DataFrame, metric: str) -> None:
    """Require that both sides have the metric and share no run.

    Raises:
        ConfigError: If they do not.
    """
    for name, side in (("A", a), ("B", b)):
        if metric not in side:
            raise ConfigError(
                "metric",
                metric,
                f"the runs of {name} do not hold it",
                "choose a metric of both sides",
            )
    shared = set(a.get("run_id", ())) & set(b.get("run_id", ()))
    if shared:
        raise ConfigError(
            "A and B",
            f"{len(shared)} runs",
            "are on both sides",
            "choose sides that do not overlap",
        )


def _positive(column: pd.Series) -> np.ndarray[Any, Any]:
    values = column.to_numpy(dtype="float64", na_value=np.nan)
    positive: np.ndarray[Any, Any] = np.isfinite(values) & (values > 0)
    return positive


def _disjoint(found: _Match, a: pd.DataFrame, b: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Return the join columns in which the sides share no value, with the values of A and of B."""
    if len(a) and len(b):
        keys = [name for name in found.keys if name not in found.further]
    else:
        keys = []
    held = {name: (distinct_values(a[name]), distinct_values(b[name])) for name in keys}
    return {
        name: (format_values(of_a), format_values(of_b))
        for name, (of_a, of_b) in held.items()
        if of_a | of_b and not of_a & of_b
    }


def _left_out(rows: pd.DataFrame, kept: pd.DataFrame) -> int:
    """Count the points of `rows` whose families were not kept."""
    names = [
        name
        for name in map(str, rows.columns)
        if name in ("family", "device") or is_configuration_column(name) or is_platform_column(name)
    ]
    return len(rows.loc[~rows["family"].isin(kept["family"]), names].drop_duplicates())


@dataclass(frozen=True)
class _Match:
    """Runs of both sides, matched by point.

    Attributes:
        keys: The columns that the runs were joined on; the last of them are the `further` ones.
        runs: The runs of A and below them those of B; n in all.
        side: (n,) side of each run, 0 or 1.
        point: (n,) number of each run's point.
        both: Numbers of the points that both sides measured.
        points: The join columns of these points.
        further: Columns that were joined on in addition, to separate runs of a point.
        differ: Columns that set the sides apart -> values of A and of B.
        mixed: Column -> number of omitted points. The runs of such a point differ in the column on
            one side, and the other side does not determine which of them to compare.
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


_Sampled = dict[str, Sampling]
_Lost = dict[str, Design]
#: A side (0 or 1), a column of the configuration or the platform, and the numbers of the points
#: whose runs on that side differ in the column.
_Mixed = tuple[int, str, "np.ndarray[Any, Any]"]


def _match(a: pd.DataFrame, b: pd.DataFrame, on: Sequence[str] | None = None) -> _Match:
    """Match the runs of A with those of B by `join_columns`, or by the columns of `on`.

    If runs of a point differ in a further column on one side, this column is joined on as well. The
    condition is that the other side has one of their values, or that both sides have runs without a
    value. Otherwise these points are omitted.

    Raises:
        ConfigError: If points would have to be omitted although `on` is given, or no point remains.
    """
    keys, differ = join_columns(a, b) if on is None else named_join_columns(on, a, b)
    further: tuple[str, ...] = ()
    found = _by_keys(a, b, keys)
    mixed = list(_mixed(found))
    while on is None and (name := next(_telling(found, mixed, {*a} & {*b}), None)):
        further = (*further, name)
        found = _by_keys(a, b, [*keys, *further])
        mixed = list(_mixed(found))
    counts = Counter[str]()
    if mixed:
        left_out = np.unique(np.concatenate([points for _, _, points in mixed]))
        if on is not None or len(left_out) == len(found.both):
            side, column, _ = mixed[0]
            values = format_values(
                distinct_values(
                    found.runs.loc[(found.side == side) & np.isin(found.point, found.both), column]
                )
            )
            problem = "are no replicates of one point, and the other side does not separate them"
            raise ConfigError(
                f"runs of {'AB'[side]}", f"{column} = {values}", problem, f"choose one {column}"
            )
        for _, name, points in mixed:
            counts[name] += len(points)
        found = _by_keys(a, b, found.keys, left_out)
    differ = {name: values for name, values in differ.items() if name not in further}
    return replace(found, differ=differ, further=further, mixed=dict(counts))


def _by_keys(
    a: pd.DataFrame, b: pd.DataFrame, keys: list[str], left_out: Sequence[int] | np.ndarray = ()
) -> _Match:
    rows = _stacked(a, b, keys)
    side = np.repeat([0, 1], [len(a), len(b)])
    point = rows.groupby(keys, sort=False, dropna=False).ngroup().to_numpy()
    both = np.setdiff1d(np.intersect1d(point[side == 0], point[side == 1]), left_out)
    points = rows.iloc[np.unique(point, return_index=True)[1][both]].reset_index(drop=True)
    return _Match(keys, pd.concat([a, b], ignore_index=True), side, point, both, points)


def _stacked(a: pd.DataFrame, b: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the join columns of A's runs and below them those of B's.

    Types are made comparable: a column that is numeric on one side only becomes text.
    """
    columns = {}
    for name in keys:
        parts = [a[name], b[name]]
        if len({pd.api.types.is_numeric_dtype(part) for part in parts}) > 1:
            parts = [part.astype("string").astype("object") for part in parts]
        columns[name] = pd.concat(parts, ignore_index=True)
    return pd.DataFrame(columns)


def _mixed(found: _Match) -> Iterator[_Mixed]:
    names = [
        name
        for name in map(str, found.runs)
        if name not in found.keys and (is_configuration_column(name) or is_platform_column(name))
    ]
    for side in (0, 1):
        mine = (found.side == side) & np.isin(found.point, found.both)
        frame = found.runs[mine]
        points = found.point[mine]
        for name in names:
            if frame[name].nunique(dropna=False) > 1:
                counts = frame[name].groupby(points).nunique(dropna=False)
                if (counts > 1).any():
                    yield side, name, counts.index[counts > 1].to_numpy()


def _telling(found: _Match, mixed: Iterable[_Mixed], shared: set[str]) -> Iterator[str]:
    """Yield the columns that separate the runs of mixed points.

    In such a column, the other side has a value that runs of these points have, or both sides have
    runs without a value.

    Args:
        found: The matched runs.
        mixed: The mixed points.
        shared: Columns that both sides have.
    """
    for _, name, points in (one for one in mixed if one[1] in shared):
        there = np.isin(found.point, points)
        one, other = (found.runs.loc[there & (found.side == side), name] for side in (0, 1))
        if (one.isna().any() and other.isna().any()) or distinct_values(one) & distinct_values(
            other
        ):
            yield name


def _sampled(
    found: _Match, metric: str, lost: _Lost
) -> tuple[_Sampled, np.ndarray, np.ndarray, np.ndarray]:
    """Determine for each family how its paired runs are distributed over sessions.

    Args:
        found: The n matched runs.
        metric: The compared metric.
        lost: Family -> its design if replicates of one side were lost.

    Returns:
        Four values. The first is the `Sampling` of each family, with the scatter of its sessions.
        The others are arrays (n,): the session that counts as one measurement, None for a run that
        counts alone; whether a run is used in the comparison; and the shift of the logarithms by
        steps of the machine's speed, for sides that were measured together.
    """
    samplings = {}
    paired = np.isin(found.point, found.both)
    used = paired.copy()
    units = np.full(len(paired), None, dtype=object)
    moved = np.zeros(len(paired))
    taken = np.ones(len(paired))
    wanders = np.zeros(len(paired), dtype=bool)
    family = found.runs["family"].fillna("").to_numpy()
    logs = np.log(found.runs[metric].to_numpy(dtype="float64"))
    for name in dict.fromkeys(family[paired & (found.side == 0)]):
        mine = np.flatnonzero(paired & (family == name))
        rows = found.runs.iloc[mine]
        point = found.point[mine]
        of_a = found.side[mine] == 0
        arrangement = arrange(rows[of_a], rows[~of_a], point, logs[mine])
        if metric in LEVELLED.values() and arrangement.design.overlap in (
            SessionOverlap.ALONE,
            SessionOverlap.APART,
        ):
            arrangement = arrange_at_one_speed(arrangement, rows, of_a)
        # If no run of a point has a counterpart in its session, the point keeps all runs and gets
        # no verdict.
        apart = ~np.isin(point, point[arrangement.used])
        used[mine] = arrangement.used | apart
        units[mine] = arrangement.units if arrangement.design.comparable else None
        design = lost.get(str(name), arrangement.design)
        if design.overlap is SessionOverlap.TOGETHER and "start_time" in rows:
            times = rows["start_time"].to_numpy(dtype="datetime64[ns]")
            for session in pd.Series(mine).groupby(assign_sessions(rows)).indices.values():
                one = mine[session]
                moved[one], taken[one], wanders[one] = find_speed_steps(
                    logs[one], (2 * point + of_a)[session], times[session]
                )
            design = replace(design, speed_change=math.expm1(np.ptp(moved[mine])))
        changes = {"variance_inflation": taken[mine].mean(), "drifts": wanders[mine].any()}
        samplings[str(name)] = Sampling(
            design, arrangement.between, outside=frozenset(point[apart]), **changes
        )
    return samplings, units, used, moved


def _by_point(
    found: _Match, mine: np.ndarray, metric: str, sessions: np.ndarray, sampled: _Sampled
) -> pd.DataFrame:
    """Return a row for each paired point with the values of one side that `_ratios` needs.

    Args:
        found: The n matched runs.
        mine: (n,) whether a run is of this side and used.
        metric: The compared metric.
        sessions: (n,) sessions from `_sampled`.
        sampled: Family -> `Sampling`, from `_sampled`.
    """
    frame = found.runs[mine].reset_index(drop=True)
    points = found.point[mine]
    value = frame[metric].astype("float64")
    below, above = _within(frame, metric)
    processes = np.ones(len(frame))
    if "processes" in frame:
        processes = frame["processes"].to_numpy(dtype="float64", na_value=1.0)
    table = pd.DataFrame(
        {
            "value": value,
            "log": np.log(value),
            "below": below,
            "above": above,
            "processes": processes,
        }
    )
    grouped = table.groupby(points)
    unit = [name or f"run {number}" for number, name in enumerate(sessions[mine])]
    logs = (
        table["log"].groupby([pd.Series(points, name="point"), pd.Series(unit, name="unit")]).mean()
    )
    units = logs.groupby("point")
    summary = pd.DataFrame(
        {
            "median": grouped["value"].median(),
            "count": grouped["value"].size(),
            "spread": grouped["value"].std() / grouped["value"].mean(),
            "below": grouped["below"].median(),
            "above": grouped["above"].median(),
            "processes": grouped["processes"].min().fillna(1.0),
            "units": units.size(),
            "log_mean": units.mean(),
            "error": units.var() / units.size(),
        }
    ).reindex(found.both)
    # A single run contributes the scatter between its processes: its recorded interval is
    # Student's over them.
    inside = (summary["units"] == 1) & (summary["processes"] >= 2)
    degrees = summary["processes"].where(inside, 2.0) - 1
    half = (summary["below"] + summary["above"]) / 2
    error = (half / stats.t.ppf((1 + LEVEL) / 2, degrees)) ** 2
    by_process = inside & error.notna()
    count = summary["units"].where(~by_process, summary["processes"]).astype("int64").to_numpy()
    variance = summary["error"].where(~inside, error).to_numpy() * count
    freedom = count - 1.0
    rarer, span = np.zeros((2, len(count)))
    # np.split returns one part even if there are no points, so zip is not strict.
    cells = dict(
        zip(
            units.size().index,
            np.split(logs.to_numpy(), units.size().cumsum().to_numpy()[:-1]),
            strict=False,
        )
    )
    family = found.points["family"].fillna("").to_numpy()
    for name in dict.fromkeys(family):
        mine = family == name
        axes = [
            pd.factorize(found.points.loc[mine, key])[0]
            for key in found.keys
            if is_configuration_column(key)
        ]
        own = sampled[name].variance_inflation * variance[mine]
        few = freedom[mine]
        known = freedom[mine] > 0
        variance[mine], freedom[mine] = moderate_variances(own, few, axes)
        # If sessions are repeated, all points share the scatter of the same sessions, so
        # moderation adds no degrees of freedom.
        if sampled[name].design.overlap is SessionOverlap.REPEATED:
            freedom[mine] = few
        else:
            rarer[mine], span[mine] = rarer_level([cells[point] for point in found.both[mine]])
        # With a drift, the scatter is the machine's. A few runs may agree only because they were
        # close in time, so the mean variance is a lower limit.
        if sampled[name].drifts and known.any():
            variance[mine] = np.maximum(variance[mine], np.average(own[known], weights=few[known]))
    told = {"by_process": by_process, "error": variance / count, "units": count, "degrees": freedom}
    return summary.assign(**told, rarer=rarer, span=span).reset_index(drop=True)


def _within(frame: pd.DataFrame, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return log(median / low) and log(high / median) of each run, NaN if it has no interval."""
    found = np.full((2, len(frame)), np.nan)
    for names, sign in _WITHIN.get(metric, ()):
        if set(names) <= set(frame.columns):
            with np.errstate(divide="ignore", invalid="ignore"):
                centre, bottom, top = (
                    np.log(frame[name].to_numpy(dtype="float64")) for name in names
                )
            reach = np.array([np.maximum(centre - bottom, 0), np.maximum(top - centre, 0)])[::sign]
            found = np.where(np.isfinite(found), found, np.where(np.isfinite(reach), reach, np.nan))
    return found[0], found[1]


def _ratios(a: pd.DataFrame, b: pd.DataFrame, sign: float) -> pd.DataFrame:
    """Return the columns RESULT_COLUMNS of all points, except `comparable`.

    The test is Welch's test of the difference of mean logarithms. If all measurements agree
    exactly, the interval has no width, and there is no p.

    Args:
        a: Values of A from `_by_point`.
        b: Values of B.
        sign: 1 if more is better, -1 if less is better.
    """
    if sign > 0:
        speedup = a["median"] / b["median"]
    else:
        speedup = b["median"] / a["median"]
    measured = (a["units"] >= 2) & (b["units"] >= 2)
    difference = sign * (a["log_mean"] - b["log_mean"]).to_numpy()
    parts = [side["error"].to_numpy(dtype="float64") for side in (a, b)]
    error = np.sqrt(parts[0] + parts[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        below = sum(
            part**2 / side["degrees"].to_numpy() for part, side in zip(parts, (a, b), strict=True)
        )
        degrees = (parts[0] + parts[1]) ** 2 / below
        p_value = 2 * stats.t.sf(np.abs(difference / error), degrees)
    levels = [
        np.array([side["rarer"], 1 - side["rarer"]]) ** side["units"].to_numpy() for side in (a, b)
    ]
    near = np.abs(difference) <= np.maximum(a["span"], b["span"])
    p_value = np.minimum(p_value + near * (levels[0] * levels[1][::-1]).sum(axis=0), 1)
    reach = np.where(error == 0, 0.0, stats.t.ppf((1 + LEVEL) / 2, degrees) * error)
    # The part of a step time's interval above its median is below the median of the speed.
    reach_a, reach_b = (("below", "above"), ("above", "below"))[:: int(sign)]
    down, up = (np.sqrt(a[x] ** 2 + b[y] ** 2) for x, y in zip(reach_a, reach_b, strict=True))
    low = np.where(
        measured, np.minimum(np.exp(difference - reach), speedup), speedup * np.exp(-down)
    )
    high = np.where(measured, np.maximum(np.exp(difference + reach), speedup), speedup * np.exp(up))
    known = np.isfinite(low) & np.isfinite(high)
    between = np.where(a["by_process"] | b["by_process"], "processes", "replicates")
    found: dict[str, Any] = {"a": a["median"], "b": b["median"], "speedup": speedup}
    found |= {
        "speedup_low": np.where(known, low, np.nan),
        "speedup_high": np.where(known, high, np.nan),
    }
    for name in ("count", "units", "spread"):
        found |= {f"{key}_{name}": side[name] for key, side in (("a", a), ("b", b))}
    source = np.where(~known, "none", np.where(measured, between, "within process"))
    found["interval_source"] = pd.Series(source, dtype="str")
    test = {"log_error": error, "degrees": degrees, "p_value": p_value}
    found |= {name: np.where(measured, values, np.nan) for name, values in test.items()}
    table = pd.DataFrame(found)[[name for name in RESULT_COLUMNS if name != "comparable"]]
    return table.astype(dict.fromkeys(("a_count", "b_count", "a_units", "b_units"), "int64"))


def _missing(
    a: pd.DataFrame, b: pd.DataFrame, metric: str, on: list[str]
) -> tuple[dict[str, tuple[int, int]], _Lost]:
    """Find points and replicates that only one side lacks.

    Lacking replicates are those that failed, and those whose numbers are absent below the highest
    one. If one side of a family lacks them more often than the other (Fisher's exact test), the
    rest of that side may be the fast runs.

    Args:
        a: Runs of A.
        b: Runs of B.
        metric: The compared metric.
        on: The join columns.

    Returns:
        Family -> number of points that both sides tried and only A measured, and that only B
        measured; and family -> its design if one side lost replicates more often.
    """
    if not all(name in side for name in (*on, "outcome") for side in (a, b)):
        return {}, {}
    tried = [side[side["outcome"].notna()] for side in (a, b)]
    code = (
        _stacked(tried[0], tried[1], on).groupby(on, sort=False, dropna=False).ngroup().to_numpy()
    )
    family = pd.concat([side["family"] for side in tried]).fillna("").to_numpy()
    has = np.concatenate([is_ok(side).to_numpy() & _positive(side[metric]) for side in tried])
    side = np.repeat(["a", "b"], [len(side) for side in tried])
    number = (
        pd.concat([one.get("replicate", pd.Series(-1, one.index)) for one in tried])
        .fillna(-1)
        .to_numpy()
    )
    runs = pd.DataFrame(
        {
            "family": family,
            "code": code,
            "side": side,
            "kept": has,
            "number": number.astype("int64"),
        }
    )
    points = runs.groupby(["family", "code", "side"]).agg({"kept": "sum", "number": "max"})
    wide = points["kept"].gt(0).unstack().reindex(columns=["a", "b"]).dropna().astype(bool)
    sums = (
        pd.DataFrame({"a": wide["a"] & ~wide["b"], "b": wide["b"] & ~wide["a"]})
        .groupby("family")
        .sum()
    )
    points["lost"] = (points.pop("number") + 1 - points["kept"]).clip(lower=0)
    measured: Any = points[points["kept"] > 0].groupby(["family", "side"]).sum().unstack()
    lost = {}
    for name, row in (
        measured.reindex(columns=list(itertools.product(("kept", "lost"), "ab")))
        .dropna()
        .iterrows()
    ):
        counts = row.to_numpy(dtype="int64").reshape(2, 2)
        if stats.fisher_exact(counts).pvalue < BY_CHANCE:
            lost[str(name)] = Design(SessionOverlap.LOST, (int(counts[1, 0]), int(counts[1, 1])))
    return {str(name): (int(row["a"]), int(row["b"])) for name, row in sums.iterrows()}, lost


def _carried(name: str, found: _Match) -> np.ndarray[Any, Any]:
    """Return the median of a number over the runs of each paired point, on both sides together."""
    values = found.runs.get(name, pd.Series(np.nan, found.runs.index)).astype("float64")
    medians: np.ndarray[Any, Any] = (
        values.groupby(found.point).median().reindex(found.both).to_numpy()
    )
    return medians
