"""Ratios of two sides point by point, with the interval that their independent measurements allow.

What counts as independent depends on how the sides were measured (`analysis.methods.sessions`): sessions where the
sides share none, else the runs of a point, else the processes that one run holds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

__all__ = ["CONFIDENCE", "RESULT_COLUMNS", "Source", "ratios", "side_by_point"]

#: The stated rate of every interval here.
CONFIDENCE = 0.95

#: The columns that `ratios` gives.
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
    "comparable",
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
    return pd.DataFrame(
        {
            "a": a["median"],
            "b": b["median"],
            "speedup": speedup,
            "speedup_low": np.where(known, low, np.nan),
            "speedup_high": np.where(known, high, np.nan),
            "a_count": a["count"].astype("int64"),
            "b_count": b["count"].astype("int64"),
            "a_units": a["units"].astype("int64"),
            "b_units": b["units"].astype("int64"),
            "a_spread": a["spread"],
            "b_spread": b["spread"],
            "interval_source": pd.Series(source, dtype="str"),
            "log_error": np.where(measured, error, np.nan),
            "degrees": np.where(measured, degrees, np.nan),
            "p_value": np.where(measured, p_value, np.nan),
        }
    )


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
        if not {middle, low, high} <= set(frame.columns):
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            centre, bottom, top = (np.log(frame[name].to_numpy(dtype="float64")) for name in (middle, low, high))
        reach = [np.maximum(centre - bottom, 0), np.maximum(top - centre, 0)]
        if inverse:
            reach.reverse()
        below, above = (np.where(np.isfinite(old), old, new) for old, new in zip((below, above), reach, strict=True))
    return np.where(np.isfinite(below), below, np.nan), np.where(np.isfinite(above), above, np.nan)
