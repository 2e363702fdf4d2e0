"""Latency over the rate at which queries come: a curve for each policy and platform, and its knee.

The knee is the rate at which power, rate / latency, is highest: below it a higher rate costs little latency, above it
latency grows faster than the rate does (Kleinrock, Power and deterministic rules of thumb for probabilistic problems in
computer communications, ICC 1979; Jain, The Art of Computer Systems Performance Analysis, 1991, section 3.3). Of one
server with exponential times it is at half of what it can serve, whatever the quantile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.methods.choices import estimate, tasks, words_of
from analysis.store.frame import require_homogeneous
from paradnn.errors import NotEnoughData
from paradnn.forecast.estimate import LEVEL

__all__ = ["Curve", "Knee", "Peak", "knee_of", "latency_curves"]

_RATE = "scheduled_queries_per_second"
#: What is swept or searched, and so no policy.
_LIMIT = ("server.percentile", "server.latency_ms")
_SWEPT = ("server.rate", *_LIMIT)
_FEWEST = 3


@dataclass(frozen=True)
class Knee:
    """The measured rate with the highest power, queries/s; `low` and `high` are the outermost rates whose power may be
    as high. `inside`: whether rates on both of its sides were measured."""

    rate: float
    low: float
    high: float
    inside: bool


@dataclass(frozen=True)
class Peak:
    """The highest rate (queries/s) found at which `percentile` of the queries took no longer than `limit` (ms); of
    several searches their geometric mean."""

    rate: float
    percentile: float
    limit: float


@dataclass(frozen=True)
class Curve:
    """One policy on one platform. `table` has a row for each rate, in order: `rate`, `latency` (ms) with `low` and
    `high`, `median` (ms), `served` (queries/s), `held` (whether what came was served), `runs`, `run_id` (of the first).

    `peaks` are those of the limits for which one was searched.
    """

    task: str
    name: str
    table: pd.DataFrame
    knee: Knee | None
    peaks: tuple[Peak, ...]
    run_ids: tuple[str, ...]
    pooled: str = ""


def latency_curves(frame: pd.DataFrame, metric: str = "latency_p99_ms", pool: bool = False) -> list[Curve]:
    """A curve for each policy of each platform and model. NotEnoughData where no run was loaded by a schedule."""
    there = frame[_RATE].notna() & frame[metric].notna() if {_RATE, metric} <= set(frame) else frame["family"].isna()
    runs = frame[there & frame["outcome"].isin(["ok", "overload"])]
    if runs.empty:
        command = "python -m paradnn.train -m mode=inference scenario=server server.rate=50,100,200"
        raise NotEnoughData(f"no run has queries by a schedule and {metric}; measure some: {command}")
    curves = []
    for task in tasks(runs):
        rows = require_homogeneous(task.rows, ("protocol_id", "schema_version"), pool=pool)
        columns = [name for name in task.varies if name not in _SWEPT]
        parts = [part for _, part in rows.groupby(columns, dropna=False, sort=True)] if columns else [rows]
        for part in parts:
            name = words_of(part.iloc[0], columns) if columns else str(part["device"].iloc[0])
            curves.append(_curve(task.name, name, part, metric, rows.attrs.get("pooled", "")))
    return curves


def _curve(task: str, name: str, rows: pd.DataFrame, metric: str, pooled: str) -> Curve:
    table = pd.DataFrame([_at(rate, part, metric) for rate, part in rows.groupby(_RATE, sort=True)])
    return Curve(task, name, table, knee_of(table[table["held"]]), _peaks(rows), tuple(rows["run_id"]), pooled)


def _peaks(rows: pd.DataFrame) -> tuple[Peak, ...]:
    if "peak_queries_per_second" not in rows:
        return ()
    searched = rows[rows["peak_queries_per_second"].notna()]
    found = []
    for _, part in searched.groupby([*_LIMIT]):
        percentile, limit = (float(part[name].iloc[0]) for name in _LIMIT)
        rates = part["peak_queries_per_second"].astype("float64")
        found.append(Peak(float(np.exp(np.log(rates).mean())), percentile, limit))
    return tuple(found)


def _at(rate: object, part: pd.DataFrame, metric: str) -> dict[str, object]:
    held = part[part["outcome"].eq("ok")]
    shown = held if len(held) else part
    value, low, high = estimate(shown, metric, 1 - LEVEL)
    return {
        "rate": rate,
        "latency": value,
        "low": low,
        "high": high,
        "median": estimate(shown, "latency_p50_ms", 1 - LEVEL)[0],
        "served": estimate(shown, "queries_per_second", 1 - LEVEL)[0],
        "held": len(held) == len(part),
        "runs": len(part),
        "run_id": shown["run_id"].iloc[0],
    }


def knee_of(table: pd.DataFrame) -> Knee | None:
    """The knee of rates with `latency`, `low` and `high`; None of fewer than three rates.

    A rate whose latency has no interval is taken at its value; one whose interval has no upper end may have any power.
    """
    if len(table) < _FEWEST:
        return None
    rate, latency = (table[name].to_numpy(dtype="float64") for name in ("rate", "latency"))
    ends = table[["low", "high"]].astype("float64")
    unknown = ends.isna().all(axis=1)
    low = ends["low"].where(~unknown, table["latency"]).fillna(0.0).to_numpy()
    high = ends["high"].where(~unknown, table["latency"]).fillna(np.inf).to_numpy()
    place = int((rate / latency).argmax())
    possible = np.flatnonzero(rate * high[place] >= rate[place] * low)  # inf and 0 are no divisors
    inside = 0 < place < len(rate) - 1
    return Knee(float(rate[place]), float(rate[possible.min()]), float(rate[possible.max()]), inside)
