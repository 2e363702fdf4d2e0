"""The same points on two sides: what every comparison of A and B starts from.

`pair` brings together the runs of one side and of the other that measured the same point, so that a ratio is never
one of different models. Out comes one row for each point that both sides measured, with both medians, their ratio and
its 95% interval. `point_id` cannot serve for this: it covers the platform, which is what differs.

Its columns: family and the other join columns; those of `carry`, numbers that belong to the point on either side, such
as parameters, as medians over its runs; `a` and `b`, the medians, in the metric's unit; `speedup`, above 1 where
A is better: a / b where higher is better, b / a where lower is; `speedup_low` and `speedup_high`, its 95%
interval, with where it is from in `interval_source`; `a_count` and `b_count`, the replicates; `a_spread` and
`b_spread`, their sample standard deviation / mean, NaN below two; `a_units` and `b_units`, the independent
measurements; `log_error` and `degrees`, the standard error of the log ratio and its degrees of freedom, and
`p_value` of no difference, two-sided, where the interval is from such; `comparable`, whether the sides' sessions
allow a verdict (`sessions.Design`).

Independent are sessions where each side has several of its own, else a point's replicates, else the processes of
its one run. interval_source:
  "replicates"      at least two on both sides: Welch's t interval of the difference of mean logarithms (Welch,
                    Biometrika 34, 1947), widened if need be to hold the ratio of the medians.
  "processes"       the same where a side has one run of several processes, from the spread between these.
  "within process"  the recorded 95% intervals of the two medians, combined on the log scale by the method of
                    variance estimates recovery (Zou and Donner, Statistics in Medicine 27, 2008). It does not
                    hold the spread between processes, so it is too narrow for what a repetition would show.
  "none"            nothing to make an interval from; both ends are NaN.

Its attrs: `metric`; `sampling`, by family what `sampling` gives; `unpaired_a` and `unpaired_b`, measured points that
the other side has not; `alone`, "a" and "b" -> the families that this side alone measured; `unusable_a` and
`unusable_b`, ok runs without a positive value; `differ`, column -> (values of A, values of B) of what sets the
sides apart and so is not joined on; `disjoint`, the same for join columns in which the sides share no value;
`mixed`, column -> points left out since nothing tells their runs apart (`analysis.methods.matching`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.methods.dependence import Component
from analysis.methods.joining import describes, is_place, shown, values_of
from analysis.methods.matching import Match, Runs, match, stacked
from analysis.methods.ratios import CONFIDENCE, RESULT_COLUMNS, ratios, side_by_point
from analysis.methods.sessions import Design, Standing, design_of, session_component, sessions_of
from analysis.store.frame import families, is_ok
from paradnn.errors import ConfigError
from paradnn.store.metrics import metric as registered

__all__ = ["CONFIDENCE", "RESULT_COLUMNS", "Missing", "Sampling", "direction", "pair", "sampling"]


@dataclass(frozen=True)
class Missing:
    """Points that both sides tried and one alone measured: `a` that A did, `b` that B did."""

    a: int = 0
    b: int = 0


@dataclass(frozen=True)
class Sampling:
    """What a family's comparison rests on beside its points: the `design` in time, what the sessions of each side add
    to the variance of the mean log ratio (`between`), and which points are `missing` on one side."""

    design: Design = field(default_factory=lambda: Design(Standing.UNKNOWN))
    between: tuple[Component, ...] = ()
    missing: Missing = field(default_factory=Missing)


def _repeated_sessions(runs: Runs, found: Mapping[str, Sampling]) -> np.ndarray[Any, Any]:
    """The sessions of runs whose sessions count as one measurement each, None of the others."""
    repeated = {name for name, one in found.items() if one.design.standing is Standing.REPEATED}
    names = sessions_of(runs.frame) if repeated else np.full(len(runs.frame), None, dtype=object)
    names[~runs.frame["family"].fillna("").isin(repeated).to_numpy(dtype=bool)] = None
    return names


def _sampling(a: Runs, b: Runs, metric: str) -> dict[str, Sampling]:
    """Family -> how its paired runs stand in time, and how much their sessions scatter."""
    found = {}
    for family in set(a.frame.loc[a.paired, "family"].fillna("")):
        sides = [(each, each.paired & (each.frame["family"].fillna("") == family).to_numpy()) for each in (a, b)]
        rows = [each.frame[mask] for each, mask in sides]
        design, between = design_of(*rows), []
        if design.standing is Standing.REPEATED:
            for (each, mask), runs in zip(sides, rows, strict=True):
                logs = np.log(runs[metric].to_numpy(dtype="float64"))
                between.append(session_component(logs, each.group[mask], sessions_of(runs)))
        known = [component for component in between if component is not None]
        if len(known) < len(between):
            design = replace(design, standing=Standing.ALONE)
        found[str(family)] = Sampling(design, tuple(known) if design.comparable else ())
    return found


def _missing(a: pd.DataFrame, b: pd.DataFrame, metric: str, keys: list[str]) -> dict[str, Missing]:
    """Family -> points that both sides tried and one alone has a value of."""
    if not all(name in side for name in keys for side in (a, b)) or "outcome" not in a or "outcome" not in b:
        return {}
    tried = [side[side["outcome"].notna()] for side in (a, b)]
    code = stacked(tried[0], tried[1], keys).groupby(keys, sort=False, dropna=False).ngroup().to_numpy()
    there = np.concatenate([(is_ok(side).to_numpy() & _positive(side[metric])) for side in tried])
    table = pd.DataFrame(
        {
            "code": code,
            "family": pd.concat([side["family"] for side in tried]).fillna("").to_numpy(),
            "side": np.repeat(["a", "b"], [len(side) for side in tried]),
            "ok": there,
        }
    )
    wide = table.groupby(["family", "code", "side"])["ok"].any().unstack("side")
    if not {"a", "b"} <= set(wide.columns):
        return {}
    wide = wide.dropna().astype(bool)
    counts = {"a": wide["a"] & ~wide["b"], "b": wide["b"] & ~wide["a"]}
    sums = pd.DataFrame(counts).groupby("family").sum()
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
    finished = _ok(a), _ok(b)
    usable = finished[0][_positive(finished[0][metric])], finished[1][_positive(finished[1][metric])]
    one, two = _common(*usable)
    found = match(one, two, on)
    sampled = _sampling(*found.sides, metric)
    sides = [
        side_by_point(each.frame, each.group, found.both, metric, _repeated_sessions(each, sampled))
        for each in found.sides
    ]
    points = found.points.assign(**{name: _carried(name, found) for name in carry})
    result = pd.concat([points, ratios(sides[0], sides[1], 1.0 if better == "higher" else -1.0)], axis=1)
    result["comparable"] = [sampled[family].design.comparable for family in result["family"].fillna("")]
    result = _sorted(result, found.keys)
    missing = _missing(a, b, metric, found.keys)
    unpaired = found.unpaired()
    result.attrs = {
        "metric": metric,
        "sampling": {
            family: replace(sampled.get(family, Sampling()), missing=missing.get(family, Missing()))
            for family in {*sampled, *missing}
        },
        "differ": found.differ,
        "disjoint": _disjoint(one, two, [name for name in found.keys if name not in found.further]),
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
    frames = [side.frame for side in found.sides]
    parts = [rows[name].astype("float64") if name in rows else pd.Series(np.nan, index=rows.index) for rows in frames]
    code = np.concatenate([side.group for side in found.sides])
    medians: np.ndarray[Any, Any] = pd.concat(parts).groupby(code).median().reindex(found.both).to_numpy()
    return medians


def sampling(pairs: pd.DataFrame, family: str) -> Sampling:
    """How a family's pairs were sampled, as `pair` found it; for another word, such as "all", that of all families."""
    known: Mapping[str, Sampling] = pairs.attrs.get("sampling", {})
    if family in known or not known:
        return known.get(family, Sampling())
    every = [known[name] for name in sorted(known)]
    first = next((one for one in every if not one.design.comparable), every[0])
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


def _disjoint(a: pd.DataFrame, b: pd.DataFrame, keys: list[str]) -> dict[str, tuple[str, str]]:
    if not len(a) or not len(b):
        return {}
    both = {name: (values_of(a[name]), values_of(b[name])) for name in keys}
    return {name: (shown(one), shown(two)) for name, (one, two) in both.items() if (one or two) and not one & two}


def _ok(frame: pd.DataFrame) -> pd.DataFrame:
    if "outcome" not in frame:
        return frame
    return frame[is_ok(frame).to_numpy()]


def _positive(column: pd.Series) -> np.ndarray[Any, Any]:
    values = column.to_numpy(dtype="float64", na_value=np.nan)
    positive: np.ndarray[Any, Any] = np.isfinite(values) & (values > 0)
    return positive


def _sorted(result: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    order = {name: place for place, name in enumerate(families(result))}
    return result.sort_values(
        keys, key=lambda column: column.map(order) if column.name == "family" else column, ignore_index=True
    )
