"""The same points on two sides: what every comparison of A and B starts from.

`pair` brings together the runs of one side and of the other that measured the same point, so that a ratio is never
one of different models. Out comes one row for each point that both sides measured, with both medians, their ratio and
its 95% interval. `point_id` cannot serve for this: it covers the platform, which is what differs. What is said of all
points together, and the verdicts, are `analysis.statistics.contrast`'s.

Its columns: family and the other join columns; those of `carry`, numbers that belong to the point on either side, such
as parameters, as medians over its runs; `a` and `b`, the medians, in the metric's unit; `speedup`, above 1 where
A is better: a / b where higher is better, b / a where lower is; `speedup_low` and `speedup_high`, its 95%
interval, with where it is from in `interval_source`; `a_count` and `b_count`, the replicates; `a_spread` and
`b_spread`, their sample standard deviation / mean, NaN below two; `a_units` and `b_units`, the independent
measurements; `log_error` and `degrees`, the standard error of the log ratio and its degrees of freedom, and
`p_value` of no difference, two-sided, where the interval is from such; `comparable`, whether the sides' sessions
allow a verdict on this point (`analysis.statistics.sessions`): runs without a counterpart in their session count only
where no run of their point has one.

Independent are sessions where each side has several of its own, else a point's replicates, else the processes of
its one run. interval_source:
  "replicates"      at least two on both sides: Welch's t interval of the difference of mean logarithms (Welch,
                    Biometrika 34, 1947), widened if need be to hold the ratio of the medians.
  "processes"       the same where a side has one run of several processes, from the spread between these.
  "within process"  the recorded 95% intervals of the two medians, combined on the log scale by the method of
                    variance estimates recovery (Zou and Donner, Statistics in Medicine 27, 2008). It does not
                    hold the spread between processes, so it is too narrow for what a repetition would show.
  "none"            nothing to make an interval from; both ends are NaN.

Its attrs: `metric`; `sampling`, by family a `Sampling`; `unpaired_a` and `unpaired_b`, measured points that
the other side has not; `alone`, "a" and "b" -> the families that this side alone measured; `unusable_a` and
`unusable_b`, ok runs without a positive value; `differ`, column -> (values of A, values of B) of what sets the
sides apart and so is not joined on; `disjoint`, the same for join columns in which the sides share no value;
`mixed`, column -> points left out since nothing tells their runs apart (`match`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.columns import describes, given_columns, is_place, join_columns, shown, values_of
from analysis.lazy import np, pd, stats
from analysis.statistics.dependence import Component
from analysis.statistics.sessions import Arrangement, Design, Standing, arrange, session_component
from analysis.store.frame import families, is_ok
from paradnn.errors import ConfigError
from paradnn.store.metrics import metric as registered


@dataclass(frozen=True)
class Runs:
    """A side's measured runs (n,) with the number of their point, and which of them have a counterpart."""

    frame: pd.DataFrame
    group: np.ndarray[Any, Any]
    paired: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Match:
    """The runs of both sides and the columns that they were joined on (`keys`, the last of them the `further` ones).

    `points` has these columns of every point that both sides measured, whose numbers are `both`; `differ` are the
    columns that set the sides apart; `mixed` counts by column the points that are left out, since their runs on one
    side differ there and the other side does not tell which it means.
    """

    keys: list[str]
    sides: tuple[Runs, Runs]
    both: np.ndarray[Any, Any]
    points: pd.DataFrame
    further: tuple[str, ...] = ()
    differ: dict[str, tuple[str, str]] = field(default_factory=dict)
    mixed: dict[str, int] = field(default_factory=dict)

    def unpaired(self) -> tuple[int, int]:
        """How many points of each side have no counterpart."""
        a, b = (len(np.setdiff1d(side.group, self.both)) for side in self.sides)
        return a, b


def match(a: pd.DataFrame, b: pd.DataFrame, on: Sequence[str] | None = None) -> Match:
    """Match the runs of A with those of B by `join_columns`, or by the columns of `on`.

    Where runs of a point differ, on one side, in a further column, that is joined on as well if the other side holds
    one of these values, or as some of these runs none; else these points are left out. ConfigError where that leaves
    no point, or where columns were given.
    """
    keys, differ = join_columns(a, b) if on is None else given_columns(on, a, b)
    further: tuple[str, ...] = ()
    found = _by_keys(a, b, keys)
    mixed = list(_mixed(found))
    while on is None and (name := next(_telling(found, mixed), None)):
        further = (*further, name)
        found = _by_keys(a, b, [*keys, *further])
        mixed = list(_mixed(found))
    counts = Counter[str]()
    if mixed:
        left_out = np.unique(np.concatenate([groups for _, _, groups in mixed]))
        if on is not None or len(left_out) == len(found.both):
            raise _no_replicates(found, *mixed[0][:2])
        for _, name, groups in mixed:
            counts[name] += len(groups)
        found = _by_keys(a, b, found.keys, left_out)
    differ = {name: values for name, values in differ.items() if name not in further}
    return replace(found, differ=differ, further=further, mixed=dict(counts))


def stacked(a: pd.DataFrame, b: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The join columns of A's runs and below them B's, in types that compare: numbers with numbers, else text."""
    columns = {}
    for name in keys:
        parts = [a[name], b[name]]
        numeric = [pd.api.types.is_numeric_dtype(part) for part in parts]
        if numeric[0] != numeric[1]:
            parts = [part.astype("string").astype("object") for part in parts]
        columns[name] = pd.concat(parts, ignore_index=True)
    return pd.DataFrame(columns)


#: Points (their numbers) whose runs on a side, 0 or 1, differ in a column that says what was computed, or where.
_Mixed = tuple[int, str, "np.ndarray[Any, Any]"]


def _no_replicates(found: Match, side: int, column: str) -> ConfigError:
    runs = found.sides[side]
    values = shown(values_of(runs.frame.loc[runs.paired, column]))
    problem = "are no replicates of one point, and the other side does not separate them"
    return ConfigError(f"runs of {'AB'[side]}", f"{column} = {values}", problem, f"choose one {column}")


def _by_keys(a: pd.DataFrame, b: pd.DataFrame, keys: list[str], left_out: Sequence[int] | np.ndarray = ()) -> Match:
    rows = stacked(a, b, keys)
    code = rows.groupby(keys, sort=False, dropna=False).ngroup().to_numpy()
    groups = code[: len(a)], code[len(a) :]
    both = np.setdiff1d(np.intersect1d(*groups), left_out)
    sides = Runs(a, groups[0], np.isin(groups[0], both)), Runs(b, groups[1], np.isin(groups[1], both))
    points = rows.iloc[np.unique(code, return_index=True)[1][both]].reset_index(drop=True)
    return Match(keys, sides, both, points)


def _mixed(found: Match) -> Iterator[_Mixed]:
    for place, side in enumerate(found.sides):
        frame, group = side.frame[side.paired], side.group[side.paired]
        for name in frame.columns:
            if name in found.keys or not (describes(name) or is_place(name)):
                continue
            if frame[name].nunique(dropna=False) > 1:
                counts = frame[name].groupby(group).nunique(dropna=False)
                if (counts > 1).any():
                    yield place, name, counts.index[counts > 1].to_numpy()


def _telling(found: Match, mixed: Iterable[_Mixed]) -> Iterator[str]:
    """Columns of which the other side holds a value that runs of these points have, or as these none."""
    for _, name, groups in mixed:
        if all(name in side.frame for side in found.sides):
            held = [side.frame.loc[np.isin(side.group, groups), name] for side in found.sides]
            if all(part.isna().any() for part in held) or values_of(held[0]) & values_of(held[1]):
                yield name


#: The stated rate of every interval here.
CONFIDENCE = 0.95

#: The columns that `ratios` gives.
RESULT_COLUMNS = (
    *("a", "b", "speedup", "speedup_low", "speedup_high", "a_count", "b_count", "a_units", "b_units"),
    *("a_spread", "b_spread", "interval_source", "log_error", "degrees", "p_value", "comparable"),
)


class Source:
    """Where the interval of a single ratio comes from; values of `interval_source`."""

    REPLICATES = "replicates"
    PROCESSES = "processes"
    WITHIN = "within process"
    NONE = "none"


# The 95% interval of a median within one process: (median, low, high, inverse of the metric), for metrics that are
# proportional to one of these. The first whose columns are there is taken.
_RATE = ("examples_per_second", "examples_per_second_low", "examples_per_second_high", False)
_STEP = ("step_time_ms", "step_time_low_ms", "step_time_high_ms", False)
_RATES = ("examples_per_second", "flops_per_second", "flops_utilization", "flops_utilization_spec")
_WITHIN: dict[str, tuple[tuple[str, str, str, bool], ...]] = {
    "step_time_ms": (_STEP, (*_RATE[:3], True)),
    **dict.fromkeys(_RATES, (_RATE, (*_STEP[:3], True))),
}


def side_by_point(
    frame: pd.DataFrame, group: np.ndarray, both: np.ndarray, metric: str, sessions: np.ndarray | None = None
) -> pd.DataFrame:
    """A row for each group of `both` (points of `group`, (runs,)) with what `ratios` needs of one side.

    `sessions` (runs,) names the sessions that count as one measurement each, None for a run that is one by itself.
    """
    value = pd.Series(frame[metric].to_numpy(dtype="float64"))
    below, above = _within(frame, metric)
    processes = frame["processes"].to_numpy(dtype="float64", na_value=1.0) if "processes" in frame else 1.0
    table = pd.DataFrame({"value": value, "log": np.log(value), "below": below, "above": above, "processes": processes})
    grouped = table.groupby(group)
    alone = [f"run {number}" for number in range(len(table))]
    unit = alone if sessions is None else [name or each for name, each in zip(sessions, alone, strict=True)]
    logs = table["log"].groupby([pd.Series(group, name="point"), pd.Series(unit, name="unit")]).mean()
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
    )
    return _with_processes(summary.reindex(both).reset_index(drop=True))


def _with_processes(points: pd.DataFrame) -> pd.DataFrame:
    """Where one run is all there is, the scatter between its processes: its interval is Student's over them."""
    inside = (points["units"] == 1) & (points["processes"] >= 2)
    degrees = points["processes"].where(inside, 2.0) - 1
    half = (points["below"] + points["above"]) / 2
    error = (half / stats.t.ppf((1 + CONFIDENCE) / 2, degrees)) ** 2
    return points.assign(
        by_process=inside & error.notna(),
        error=points["error"].where(~inside, error),
        units=points["units"].where(~(inside & error.notna()), points["processes"]).astype("int64"),
    )


def ratios(a: pd.DataFrame, b: pd.DataFrame, sign: float) -> pd.DataFrame:
    """RESULT_COLUMNS but `comparable`, of sides as `side_by_point` gives them; `sign` is -1 where lower is better."""
    speedup = a["median"] / b["median"] if sign > 0 else b["median"] / a["median"]
    measured = (a["units"] >= 2) & (b["units"] >= 2)
    difference = sign * (a["log_mean"] - b["log_mean"]).to_numpy()
    error, degrees, p_value = _welch(a, b, difference)
    reach = np.where(error == 0, 0.0, stats.t.ppf((1 + CONFIDENCE) / 2, degrees) * error)
    # A step time's interval above its median lies below the median of the speed.
    reach_a, reach_b = (("below", "above"), ("above", "below"))[:: int(sign)]
    down, up = (np.sqrt(a[x] ** 2 + b[y] ** 2) for x, y in zip(reach_a, reach_b, strict=True))
    low = np.where(measured, np.minimum(np.exp(difference - reach), speedup), speedup * np.exp(-down))
    high = np.where(measured, np.maximum(np.exp(difference + reach), speedup), speedup * np.exp(up))
    known = np.isfinite(low) & np.isfinite(high)
    between = np.where(a["by_process"] | b["by_process"], Source.PROCESSES, Source.REPLICATES)
    source = np.where(~known, Source.NONE, np.where(measured, between, Source.WITHIN))
    test = {"log_error": error, "degrees": degrees, "p_value": p_value}
    found: dict[str, Any] = {"a": a["median"], "b": b["median"], "speedup": speedup}
    found |= {"speedup_low": np.where(known, low, np.nan), "speedup_high": np.where(known, high, np.nan)}
    for name in ("count", "units", "spread"):
        found |= {f"{key}_{name}": side[name] for key, side in (("a", a), ("b", b))}
    found["interval_source"] = pd.Series(source, dtype="str")
    found |= {name: np.where(measured, values, np.nan) for name, values in test.items()}
    table = pd.DataFrame(found)[[name for name in RESULT_COLUMNS if name != "comparable"]]
    return table.astype(dict.fromkeys(("a_count", "b_count", "a_units", "b_units"), "int64"))


def _welch(a: pd.DataFrame, b: pd.DataFrame, difference: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(standard error of the difference of mean logarithms, Welch's degrees of freedom, two-sided p).

    Where no measurement differs from another the interval has no width, and there is no p.
    """
    parts = [side["error"].to_numpy(dtype="float64") for side in (a, b)]
    error = np.sqrt(parts[0] + parts[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = (parts[0] + parts[1]) ** 2 / (
            parts[0] ** 2 / (a["units"].to_numpy() - 1) + parts[1] ** 2 / (b["units"].to_numpy() - 1)
        )
        p_value = 2 * stats.t.sf(np.abs(difference / error), degrees)
    return error, degrees, p_value


def _within(frame: pd.DataFrame, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """log(median / low) and log(high / median) of each run, NaN where it has no interval."""
    below, above = np.full(len(frame), np.nan), np.full(len(frame), np.nan)
    for middle, low, high, inverse in _WITHIN.get(metric, ()):
        if {middle, low, high} <= set(frame.columns):
            with np.errstate(divide="ignore", invalid="ignore"):
                centre, bottom, top = (np.log(frame[name].to_numpy(dtype="float64")) for name in (middle, low, high))
            reach = np.maximum(centre - bottom, 0), np.maximum(top - centre, 0)
            one, other = reach[::-1] if inverse else reach
            below, above = np.where(np.isfinite(below), below, one), np.where(np.isfinite(above), above, other)
    return np.where(np.isfinite(below), below, np.nan), np.where(np.isfinite(above), above, np.nan)


@dataclass(frozen=True)
class Missing:
    """Points that both sides tried and one alone measured: `a` that A did, `b` that B did."""

    a: int = 0
    b: int = 0


@dataclass(frozen=True)
class Sampling:
    """What a family's comparison rests on beside its points: the `design` in time, what the sessions of each side add
    to the variance of the mean log ratio (`between`), which points are `missing` on one side, and which of both, by
    their number in the match, are `outside`, their runs having no counterpart in their session."""

    design: Design = field(default_factory=lambda: Design(Standing.UNKNOWN))
    between: tuple[Component, ...] = ()
    missing: Missing = field(default_factory=Missing)
    outside: frozenset[int] = frozenset()


def _sampled(a: Runs, b: Runs, metric: str) -> tuple[dict[str, Sampling], list[np.ndarray], list[np.ndarray]]:
    """By family how its paired runs stand in time, and how much their sessions scatter; then of each side's runs the
    sessions that count as one measurement each, and which runs stand in a comparison."""
    found = {}
    units = [np.full(len(side.frame), None, dtype=object) for side in (a, b)]
    used = [side.paired.copy() for side in (a, b)]
    family = [side.frame["family"].fillna("").to_numpy() for side in (a, b)]
    for name in dict.fromkeys(family[0][a.paired]):
        masks = [side.paired & (of == name) for side, of in zip((a, b), family, strict=True)]
        rows = [side.frame[mask] for side, mask in zip((a, b), masks, strict=True)]
        points = np.concatenate([side.group[mask] for side, mask in zip((a, b), masks, strict=True)])
        logs = np.log(np.concatenate([one[metric].to_numpy(dtype="float64") for one in rows]))
        arrangement, between = sessions_add(rows[0], rows[1], points, logs)
        # A point none of whose runs has a counterpart in its session keeps them all, and gets no verdict.
        apart = ~np.isin(points, points[arrangement.used])
        split = len(rows[0])
        for number, part in enumerate((slice(None, split), slice(split, None))):
            used[number][masks[number]] = (arrangement.used | apart)[part]
            units[number][masks[number]] = arrangement.units[part] if arrangement.design.comparable else None
        found[str(name)] = Sampling(arrangement.design, between, outside=frozenset(points[apart]))
    return found, units, used


def sessions_add(
    a: pd.DataFrame, b: pd.DataFrame, points: np.ndarray, logs: np.ndarray
) -> tuple[Arrangement, tuple[Component, ...]]:
    """How runs of the same points stand in time, and what the sessions of each side add to the variance of the mean
    log ratio. `points` and `logs` are of the runs of A, then of B."""
    arrangement = arrange(a, b, points)
    if arrangement.design.standing is not Standing.REPEATED:
        return arrangement, ()
    parts = (slice(None, len(a)), slice(len(a), None))
    found = [session_component(logs[part], points[part], arrangement.units[part]) for part in parts]
    known = tuple(component for component in found if component is not None)
    if len(known) < 2:
        return arrangement._replace(design=replace(arrangement.design, standing=Standing.ALONE)), ()
    return arrangement, known


def _missing(a: pd.DataFrame, b: pd.DataFrame, metric: str, keys: list[str]) -> dict[str, Missing]:
    """Family -> points that both sides tried and one alone has a value of."""
    if not all(name in side for name in (*keys, "outcome") for side in (a, b)):
        return {}
    tried = [side[side["outcome"].notna()] for side in (a, b)]
    table = pd.DataFrame(
        {
            "code": stacked(tried[0], tried[1], keys).groupby(keys, sort=False, dropna=False).ngroup().to_numpy(),
            "family": pd.concat([side["family"] for side in tried]).fillna("").to_numpy(),
            "side": np.repeat(["a", "b"], [len(side) for side in tried]),
            "ok": np.concatenate([is_ok(side).to_numpy() & _positive(side[metric]) for side in tried]),
        }
    )
    wide = table.groupby(["family", "code", "side"])["ok"].any().unstack("side").reindex(columns=["a", "b"])
    wide = wide.dropna().astype(bool)
    sums = pd.DataFrame({"a": wide["a"] & ~wide["b"], "b": wide["b"] & ~wide["a"]}).groupby("family").sum()
    return {str(name): Missing(int(row["a"]), int(row["b"])) for name, row in sums.iterrows()}


def pair(
    a: pd.DataFrame,
    b: pd.DataFrame,
    metric: str = "examples_per_second",
    on: Sequence[str] | None = None,
    carry: Sequence[str] = (),
) -> pd.DataFrame:
    """One row for each point that both sides measured, sorted by family and join columns.

    Only runs with outcome ok and a positive `metric` count. Runs of a side that agree in the join columns are
    replicates of one point, brought to their median. Default join columns: `join_columns`. Columns and `attrs` stand
    at the head of this module.

    Raises ConfigError for a metric without direction or that a side lacks, for sides that share runs, and where the
    runs of every point would pass as replicates but differ in a column that describes a point.
    """
    better = direction(metric)
    _require_sides(a, b, metric)
    finished = tuple(side[is_ok(side).to_numpy()] if "outcome" in side else side for side in (a, b))
    usable = finished[0][_positive(finished[0][metric])], finished[1][_positive(finished[1][metric])]
    one, two = _common(*usable)
    found = match(one, two, on)
    sampled, units, used = _sampled(*found.sides, metric)
    sides = [
        side_by_point(each.frame[kept], each.group[kept], found.both, metric, unit[kept])
        for each, unit, kept in zip(found.sides, units, used, strict=True)
    ]
    points = found.points.assign(**{name: _carried(name, found) for name in carry})
    result = pd.concat([points, ratios(sides[0], sides[1], 1.0 if better == "higher" else -1.0)], axis=1)
    designs = [sampled[family] for family in result["family"].fillna("")]
    result["comparable"] = [
        one.design.comparable and number not in one.outside for one, number in zip(designs, found.both, strict=True)
    ]
    order = {name: place for place, name in enumerate(families(result))}
    result = result.sort_values(
        found.keys, key=lambda column: column.map(order) if column.name == "family" else column, ignore_index=True
    )
    missing = _missing(a, b, metric, found.keys)
    unpaired = found.unpaired()
    keys = [name for name in found.keys if name not in found.further] if len(one) and len(two) else []
    held = {name: (values_of(one[name]), values_of(two[name])) for name in keys}
    held = {name: values for name, values in held.items() if any(values)}
    result.attrs = {
        "metric": metric,
        "sampling": {
            family: replace(sampled.get(family, Sampling()), missing=missing.get(family, Missing()))
            for family in {*sampled, *missing}
        },
        "differ": found.differ,
        "disjoint": {name: tuple(map(shown, values)) for name, values in held.items() if not values[0] & values[1]},
        "mixed": found.mixed,
        "unpaired_a": unpaired[0] + _left_out(usable[0], one),
        "unpaired_b": unpaired[1] + _left_out(usable[1], two),
        "alone": _alone(*usable),
        "unusable_a": len(finished[0]) - len(usable[0]),
        "unusable_b": len(finished[1]) - len(usable[1]),
    }
    return result


def _require_sides(a: pd.DataFrame, b: pd.DataFrame, metric: str) -> None:
    """ConfigError where a side lacks the metric, or both have a run."""
    for name, side in (("A", a), ("B", b)):
        if metric not in side:
            raise ConfigError("metric", metric, f"the runs of {name} do not hold it", "choose a metric of both sides")
    shared = set(a.get("run_id", ())) & set(b.get("run_id", ()))
    if shared:
        raise ConfigError("A and B", f"{len(shared)} runs", "are on both sides", "choose sides that do not overlap")


def _alone(a: pd.DataFrame, b: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """The families that one side has and the other has not."""
    of_a, of_b = families(a), families(b)
    return {
        "a": tuple(name for name in of_a if name not in of_b),
        "b": tuple(name for name in of_b if name not in of_a),
    }


def _common(a: pd.DataFrame, b: pd.DataFrame) -> list[pd.DataFrame]:
    """The runs of families that both sides have: what is only in others sets no sides apart and joins no points."""
    alone = [name for names in _alone(a, b).values() for name in names]
    kept = [side[~side["family"].isin(alone)] for side in (a, b)]
    return kept if all(map(len, kept)) else [a, b]


def _left_out(rows: pd.DataFrame, kept: pd.DataFrame) -> int:
    """How many points there are of families that were not kept."""
    names = [
        name for name in map(str, rows.columns) if name in ("family", "device") or describes(name) or is_place(name)
    ]
    return len(rows.loc[~rows["family"].isin(kept["family"]), names].drop_duplicates())


def _carried(name: str, found: Match) -> np.ndarray[Any, Any]:
    """The median of a number over the runs of each point, on either side."""
    parts = [side.frame.get(name, pd.Series(np.nan, side.frame.index)).astype("float64") for side in found.sides]
    code = np.concatenate([side.group for side in found.sides])
    medians: np.ndarray[Any, Any] = pd.concat(parts).groupby(code).median().reindex(found.both).to_numpy()
    return medians


def sampling(pairs: pd.DataFrame, family: str) -> Sampling:
    """How a family's pairs were sampled, as `pair` found it; for another word, such as "all", that of all families."""
    known: Mapping[str, Sampling] = pairs.attrs.get("sampling", {})
    if family in known or not known:
        return known.get(family, Sampling())
    every = [known[name] for name in sorted(known)]
    widest = max(every, key=lambda one: sum(part.variance for part in one.between))
    first = next((one for one in every if not one.design.comparable), widest)
    missing = Missing(sum(one.missing.a for one in every), sum(one.missing.b for one in every))
    return replace(first, missing=missing)


def direction(metric: str) -> str:
    """ "higher" or "lower", whichever is better of a registered metric; ConfigError where neither is."""
    try:
        better = registered(metric).better
    except KeyError:
        raise ConfigError("metric", metric, "is no registered metric", "see paradnn/store/metrics.py") from None
    if better is None:
        raise ConfigError("metric", metric, "is neither better high nor low", "choose for example examples_per_second")
    return better


def _positive(column: pd.Series) -> np.ndarray[Any, Any]:
    values = column.to_numpy(dtype="float64", na_value=np.nan)
    positive: np.ndarray[Any, Any] = np.isfinite(values) & (values > 0)
    return positive
