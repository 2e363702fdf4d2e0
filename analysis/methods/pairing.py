"""The same points on two sides: what every comparison of A and B starts from.

`pair` brings together the runs of one side and of the other that measured the same point, so that a ratio is never
one of different models. Out comes one row for each point that both sides measured, with both medians, their ratio and
its 95% interval. `point_id` cannot serve for this: it covers the platform, which is what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.store.frame import families, is_ok
from paradnn.errors import ConfigError
from paradnn.store.metrics import metric as registered

__all__ = ["CONFIDENCE", "RESULT_COLUMNS", "direction", "join_columns", "pair"]

#: The stated rate of every interval here.
CONFIDENCE = 0.95

#: What follows the join columns in the result of `pair`.
RESULT_COLUMNS = (
    "a",
    "b",
    "speedup",
    "speedup_low",
    "speedup_high",
    "a_count",
    "b_count",
    "a_spread",
    "b_spread",
    "interval_source",
    "p_value",
)

# What is computed, and where and with what. Of the second only what both sides share takes part in a pair's identity.
_POINT = ("batch_size", "precision", "compile", "mode", "devices", "transport")
_POINT_PREFIXES = ("model.", "optimizer.", "data.")
_PLACE_PREFIXES = ("platform.", "framework.", "software.")
_NEVER = ("model.name", "platform.index")

# The 95% interval of a median within one process: (median, low, high, inverse of the metric), for metrics that are
# proportional to one of these. The first whose columns are there is taken.
_RATE = ("examples_per_second", "examples_per_second_low", "examples_per_second_high", False)
_STEP = ("step_time_ms", "step_time_low_ms", "step_time_high_ms", False)
_RATES = ("examples_per_second", "flops_per_second", "flops_utilization", "flops_utilization_spec")
_WITHIN: dict[str, tuple[tuple[str, str, str, bool], ...]] = {
    "step_time_ms": (_STEP, (*_RATE[:3], True)),
    **dict.fromkeys(_RATES, (_RATE, (*_STEP[:3], True))),
}


def pair(
    a: pd.DataFrame,
    b: pd.DataFrame,
    metric: str = "examples_per_second",
    on: Sequence[str] | None = None,
    carry: Sequence[str] = (),
) -> pd.DataFrame:
    """One row for each point that both sides measured, sorted by family and join columns.

    Only runs with outcome ok and a positive `metric` count. Runs of a side that agree in the join columns are
    replicates of one point, brought to their median. Default join columns: `join_columns`.

    Columns: family and the other join columns; those of `carry`, numbers that belong to the point on either side, such
    as parameters, as medians over its runs; `a` and `b`, the medians, in the metric's unit; `speedup`, above 1 where
    A is better: a / b where higher is better, b / a where lower is; `speedup_low` and `speedup_high`, its 95%
    interval, with where it is from in `interval_source`; `a_count` and `b_count`, the replicates; `a_spread` and
    `b_spread`, their sample standard deviation / mean, NaN below two; `p_value` of no difference, two-sided, where the
    interval is from replicates.

    interval_source:
      "replicates"      at least two on both sides: Welch's t interval of the difference of mean logarithms (Welch,
                        Biometrika 34, 1947), widened if need be to hold the ratio of the medians.
      "within process"  the recorded 95% intervals of the two medians, combined on the log scale by the method of
                        variance estimates recovery (Zou and Donner, Statistics in Medicine 27, 2008). It does not
                        hold the spread between processes, so it is too narrow for what a repetition would show.
      "none"            nothing to make an interval from; both ends are NaN.

    attrs: `metric`; `unpaired_a` and `unpaired_b`, measured points that the other side has not; `unusable_a` and
    `unusable_b`, ok runs without a positive value; `differ`, column -> (values of A, values of B) of what sets the
    sides apart and so is not joined on; `disjoint`, the same for join columns in which the sides share no value.

    Raises ConfigError for a metric without direction or that a side lacks, for sides that share runs, and for runs
    that would pass as replicates but differ in a column that describes a point.
    """
    better = direction(metric)
    for name, side in (("A", a), ("B", b)):
        if metric not in side:
            raise ConfigError("metric", metric, f"the runs of {name} do not hold it", "choose a metric of both sides")
    shared = set(a.get("run_id", ())) & set(b.get("run_id", ()))
    if shared:
        raise ConfigError("A and B", f"{len(shared)} runs", "are on both sides", "choose sides that do not overlap")
    finished = _ok(a), _ok(b)
    one, two = (side[_positive(side[metric])] for side in finished)
    keys, differ = join_columns(one, two) if on is None else _given(on, one, two)
    stacked = _stacked(one, two, keys)
    code = stacked.groupby(keys, sort=False, dropna=False).ngroup().to_numpy()
    group_a, group_b = code[: len(one)], code[len(one) :]
    _require_replicates("A", one, group_a, keys)
    _require_replicates("B", two, group_b, keys)
    both = np.intersect1d(group_a, group_b)
    first = np.unique(code, return_index=True)[1][both]
    points = stacked.iloc[first].reset_index(drop=True)
    for name in carry:
        values = pd.concat(
            [
                side[name].astype("float64") if name in side else pd.Series(np.nan, index=side.index)
                for side in (one, two)
            ]
        )
        points[name] = values.groupby(code).median().reindex(both).to_numpy()
    sign = 1.0 if better == "higher" else -1.0
    ratios = _ratios(_side(one, group_a, both, metric), _side(two, group_b, both, metric), sign)
    result = _sorted(pd.concat([points, ratios], axis=1), keys)
    result.attrs = {
        "metric": metric,
        "differ": differ,
        "disjoint": _disjoint(one, two, keys),
        "unpaired_a": len(np.setdiff1d(group_a, both)),
        "unpaired_b": len(np.setdiff1d(group_b, both)),
        "unusable_a": len(finished[0]) - len(one),
        "unusable_b": len(finished[1]) - len(two),
    }
    return result


def direction(metric: str) -> str:
    """ "higher" or "lower", whichever is better of a registered metric; ConfigError where neither is."""
    try:
        better = registered(metric).better
    except KeyError:
        raise ConfigError("metric", metric, "is no registered metric", "see paradnn/store/metrics.py") from None
    if better is None:
        raise ConfigError("metric", metric, "is neither better high nor low", "choose for example examples_per_second")
    return better


def join_columns(a: pd.DataFrame, b: pd.DataFrame) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """The columns that identify a point, and those that set the two sides apart (column -> values of A, values of B).

    A point is identified by family, model.*, optimizer.*, data.*, batch_size, precision, compile, mode, devices and
    transport; where
    both sides share a value also by device, platform.*, framework.* and software.*. Left out is what sets the sides
    apart: a column with one value in A and another one in B, or that one side lacks altogether. How a run was timed
    (measure.*), tracked, seeded or repeated identifies no point.
    """
    keys, differ = ["family"], {}
    for name in [column for column in a.columns if column in b]:
        point = _describes(name)
        if not point and name != "device" and not _is_place(name):
            continue
        values, others = _values(a[name]), _values(b[name])
        if not values and not others:
            continue
        # Runs that are not there set nothing apart.
        apart = len(a) > 0 and len(b) > 0 and not values & others
        if apart and (not point or not values or not others or len(values) == len(others) == 1):
            differ[name] = (_shown(values), _shown(others))
        else:
            keys.append(name)
    return keys, differ


def _given(on: Sequence[str], a: pd.DataFrame, b: pd.DataFrame) -> tuple[list[str], dict[str, tuple[str, str]]]:
    for name in on:
        for side, frame in (("A", a), ("B", b)):
            if name not in frame:
                raise ConfigError("on", name, f"the runs of {side} have no such column", "name columns of both sides")
    keys = list(dict.fromkeys(["family", *on]))
    return keys, {name: values for name, values in join_columns(a, b)[1].items() if name not in keys}


def _describes(name: str) -> bool:
    return name not in _NEVER and (name in _POINT or name.startswith(_POINT_PREFIXES))


def _is_place(name: str) -> bool:
    return name not in _NEVER and name.startswith(_PLACE_PREFIXES)


def _values(column: pd.Series) -> set[Any]:
    return set(column.dropna().unique())


def _shown(values: set[Any], limit: int = 3) -> str:
    texts = [str(value) for value in sorted(values, key=lambda value: (str(type(value)), value))]
    return ", ".join(texts[:limit]) + (f" and {len(texts) - limit} more" if len(texts) > limit else "") or "(none)"


def _disjoint(a: pd.DataFrame, b: pd.DataFrame, keys: list[str]) -> dict[str, tuple[str, str]]:
    if not len(a) or not len(b):
        return {}
    both = {name: (_values(a[name]), _values(b[name])) for name in keys}
    return {name: (_shown(one), _shown(two)) for name, (one, two) in both.items() if (one or two) and not one & two}


def _ok(frame: pd.DataFrame) -> pd.DataFrame:
    if "outcome" not in frame:
        return frame
    return frame[is_ok(frame).to_numpy()]


def _positive(column: pd.Series) -> np.ndarray[Any, Any]:
    values = column.to_numpy(dtype="float64", na_value=np.nan)
    positive: np.ndarray[Any, Any] = np.isfinite(values) & (values > 0)
    return positive


def _stacked(a: pd.DataFrame, b: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The join columns of A's runs and below them B's, in types that compare: numbers with numbers, else text."""
    columns = {}
    for name in keys:
        parts = [a[name], b[name]]
        numeric = [pd.api.types.is_numeric_dtype(part) for part in parts]
        if numeric[0] != numeric[1]:
            parts = [part.astype("string").astype("object") for part in parts]
        columns[name] = pd.concat(parts, ignore_index=True)
    return pd.DataFrame(columns)


def _require_replicates(side: str, frame: pd.DataFrame, group: np.ndarray[Any, Any], keys: list[str]) -> None:
    """ConfigError where runs of one point differ in what describes a point or its place: they are no replicates."""
    for name in frame.columns:
        if name in keys or not (_describes(name) or _is_place(name)) or frame[name].nunique(dropna=False) < 2:
            continue
        if frame[name].groupby(group).nunique(dropna=False).max() > 1:
            raise ConfigError(
                f"runs of {side}",
                f"{name} = {_shown(_values(frame[name]))}",
                "are no replicates of one point, and the other side does not separate them",
                f"choose one {name}",
            )


def _side(frame: pd.DataFrame, group: np.ndarray[Any, Any], both: np.ndarray[Any, Any], metric: str) -> pd.DataFrame:
    """A row for each group of `both`: median, count, spread, mean and variance of the logarithms, and how far the
    interval within a process reaches below and above, on the log scale."""
    value = pd.Series(frame[metric].to_numpy(dtype="float64"))
    below, above = _within(frame, metric)
    table = pd.DataFrame({"value": value, "log": np.log(value), "below": below, "above": above})
    grouped = table.groupby(group)
    summary = pd.DataFrame(
        {
            "median": grouped["value"].median(),
            "count": grouped["value"].size(),
            "spread": grouped["value"].std() / grouped["value"].mean(),
            "log_mean": grouped["log"].mean(),
            "log_var": grouped["log"].var(),
            "below": grouped["below"].median(),
            "above": grouped["above"].median(),
        }
    )
    return summary.reindex(both).reset_index(drop=True)


def _within(frame: pd.DataFrame, metric: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """log(median / low) and log(high / median) of each run, NaN where it has no interval."""
    below, above = np.full(len(frame), np.nan), np.full(len(frame), np.nan)
    for middle, low, high, inverse in _WITHIN.get(metric, ()):
        if not {middle, low, high} <= set(frame.columns):
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            centre, bottom, top = (np.log(frame[name].to_numpy(dtype="float64")) for name in (middle, low, high))
        reach = [np.maximum(centre - bottom, 0), np.maximum(top - centre, 0)]
        if inverse:
            reach.reverse()
        below, above = (np.where(np.isfinite(old), old, new) for old, new in zip((below, above), reach, strict=True))
    return np.where(np.isfinite(below), below, np.nan), np.where(np.isfinite(above), above, np.nan)


def _ratios(a: pd.DataFrame, b: pd.DataFrame, sign: float) -> pd.DataFrame:
    """RESULT_COLUMNS of two sides, row by row; `sign` is -1 where lower is better."""
    speedup = a["median"] / b["median"] if sign > 0 else b["median"] / a["median"]
    replicated = (a["count"] >= 2) & (b["count"] >= 2)
    welch_low, welch_high, p_value = _welch(a, b, sign)
    # A step time's interval above its median lies below the median of the speed.
    reach_a, reach_b = (("below", "above"), ("above", "below"))[:: int(sign)]
    down, up = (np.sqrt(a[x] ** 2 + b[y] ** 2) for x, y in zip(reach_a, reach_b, strict=True))
    low = np.where(replicated, np.minimum(np.exp(welch_low), speedup), speedup * np.exp(-down))
    high = np.where(replicated, np.maximum(np.exp(welch_high), speedup), speedup * np.exp(up))
    known = np.isfinite(low) & np.isfinite(high)
    source = np.where(~known, "none", np.where(replicated, "replicates", "within process"))
    return pd.DataFrame(
        {
            "a": a["median"],
            "b": b["median"],
            "speedup": speedup,
            "speedup_low": np.where(known, low, np.nan),
            "speedup_high": np.where(known, high, np.nan),
            "a_count": a["count"].astype("int64"),
            "b_count": b["count"].astype("int64"),
            "a_spread": a["spread"],
            "b_spread": b["spread"],
            "interval_source": pd.Series(source, dtype="str"),
            "p_value": np.where(replicated, p_value, np.nan),
        }
    )


def _welch(a: pd.DataFrame, b: pd.DataFrame, sign: float) -> tuple[np.ndarray[Any, Any], ...]:
    """Ends of Welch's interval of the mean log ratio and the two-sided p, NaN below two replicates on a side.

    Where no replicate differs from another the interval has no width, and there is no p.
    """
    difference = sign * (a["log_mean"] - b["log_mean"]).to_numpy()
    parts = [(side["log_var"] / side["count"]).to_numpy() for side in (a, b)]
    error = np.sqrt(parts[0] + parts[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = (parts[0] + parts[1]) ** 2 / (
            parts[0] ** 2 / (a["count"].to_numpy() - 1) + parts[1] ** 2 / (b["count"].to_numpy() - 1)
        )
        p_value = 2 * stats.t.sf(np.abs(difference / error), degrees)
    reach = np.where(error == 0, 0.0, stats.t.ppf((1 + CONFIDENCE) / 2, degrees) * error)
    return difference - reach, difference + reach, p_value


def _sorted(result: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    order = {name: place for place, name in enumerate(families(result))}
    return result.sort_values(
        keys, key=lambda column: column.map(order) if column.name == "family" else column, ignore_index=True
    )
