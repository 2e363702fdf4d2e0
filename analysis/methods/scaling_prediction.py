"""What a channel says of data-parallel steps: of those that were measured, and of more hosts than were measured.

The step of a device alone is measured, with the batch that it would have as one of N; its layers' gradients follow
from the model (`Model.layer_work`), and their exchange from the channel (`data_parallel`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from analysis.methods.extrapolation import stated_model
from analysis.methods.joining import describes
from analysis.store.frame import is_ok
from paradnn.errors import NotEnoughData
from paradnn.families import FAMILIES
from paradnn.families.layers import LayerWork
from paradnn.forecast.communication.channels import channels
from paradnn.forecast.communication.data_parallel import Exchange, Step
from paradnn.forecast.communication.link import FittedLink, RingCheck, check_rings, choose_channel, link_of

__all__ = ["Expected", "expect_measured", "plan_hosts", "trainings"]

#: What a step is listed with, beside what describes its point.
_PLACE = ("family", "device", "framework.name", "platform.threads", "platform.cores")
#: What one model differs in from step to step.
_STEP = ("batch_size", "devices", "transport", "hosts")
Row = Mapping[Any, Any]


class Curve(NamedTuple):
    """What one device took by itself: batches (b,) in order, seconds of each (b,), and the ends of their intervals."""

    batches: np.ndarray
    seconds: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def at(self, batch: float) -> float:
        """Seconds with `batch` examples."""
        return seconds_at(self.batches, self.seconds, batch)


@dataclass(frozen=True)
class Expected:
    """`table` has a row for each point and number of devices, times in ms.

    family, what tells points apart, batch_size (of the step), devices, transport, hosts; `alone_ms`, the step of a
    device by itself with its part of the batch, and `alone_from`: measured, interpolated or extrapolated;
    `exchange_ms`, what the link is busy for; `overlapped_ms` and `serial_ms`; `efficiency` (overlapped) and
    `efficiency_serial`: speed as a share of N times one device's. These four have `_low` and `_high`. Of measured
    points `measured_ms`.

    An end of a time's interval has the channel and the device alone both at that end of their own, so that it is
    rather too wide; an efficiency's interval is the channel's alone.
    `largest` is the largest message that was asked of the link, bytes. `too_many`: points left out, for some device
    would have had no example. `checks`: the channel on other numbers of processes. `run_ids` are those of the channel.
    """

    link: FittedLink
    exchange: Exchange
    table: pd.DataFrame
    largest: float
    too_many: int
    checks: tuple[RingCheck, ...]
    run_ids: tuple[str, ...]


def trainings(frame: pd.DataFrame) -> pd.DataFrame:
    """Measured training steps of models that are counted layer by layer, with `seconds` and its ends (low, high)."""
    layered = [name for name, family in FAMILIES.items() if not family.is_kernel]
    rows = frame[is_ok(frame) & frame["family"].isin(layered)]
    if "mode" in rows:
        rows = rows[rows["mode"].eq("train") | rows["mode"].isna()]
    speed, batch = (_numbers(rows, name) for name in ("examples_per_second", "batch_size"))
    seconds = batch / speed
    # A run without an interval of its own stands for its time alone.
    step, low, high = (_numbers(rows, f"step_time{end}_ms") for end in ("", "_low", "_high"))
    ends = (np.where(np.isfinite(end / step), end / step, 1.0) * seconds for end in (low, high))
    timed = rows.assign(seconds=seconds, **dict(zip(("low", "high"), ends, strict=True)))
    kept: pd.DataFrame = timed[np.isfinite(seconds)]
    return kept


@dataclass(frozen=True)
class _Asked:
    """A point on `devices`, with `batch` examples a step over all; `alone` is what one device by itself took for
    batches (ordered), seconds, low and high; `reference` the seconds of the step without loss."""

    row: Row
    batch: int
    devices: int
    alone: Curve
    reference: float
    measured: float = math.nan


def expect_measured(frame: pd.DataFrame, exchange: Exchange) -> Expected:
    """Each point that was measured on several devices, and on one. NotEnoughData where there is none, or no channel."""
    rows = trainings(frame)
    rows = rows[rows["devices"].notna()] if "devices" in rows else rows.head(0)
    keys, curves = _alone(rows[rows["devices"] == 1] if len(rows) else rows)
    many = rows[rows["devices"] > 1] if len(rows) else rows
    asked = []
    for _, alike in many.groupby([*keys, *(name for name in _STEP if name in many)], sort=True, dropna=False):
        row = alike.iloc[0].to_dict()
        if (curve := curves.get(_point(row, keys))) is not None:
            batch, count = int(row["batch_size"]), int(row["devices"])
            whole = curve.at(batch) / count if batch in curve.batches else curve.at(batch / count)
            asked.append(_Asked(row, batch, count, curve, whole, float(alike["seconds"].median())))
    if not asked:
        raise NotEnoughData(
            "no training step was measured with devices=1 and with more; measure the same points on both"
        )
    return _expect(frame, exchange, keys, asked)


def plan_hosts(
    frame: pd.DataFrame, exchange: Exchange, hosts: Sequence[int], scaling: Literal["weak", "strong"]
) -> Expected:
    """Each point that was measured on one device, on so many hosts with one each.

    weak: every host has the batch that was measured; strong: all share it. NotEnoughData without a point or channel.
    """
    rows = trainings(frame)
    rows = rows[rows["devices"].eq(1) | rows["devices"].isna()] if "devices" in rows else rows
    keys, curves = _alone(rows)
    asked = []
    for _, alike in rows.groupby([*keys, "batch_size"], sort=True, dropna=False) if keys else ():
        row = alike.iloc[0].to_dict()
        curve, batch = curves[_point(row, keys)], int(row["batch_size"])
        for count in sorted(set(hosts)):
            whole, share = (batch * count, 1) if scaling == "weak" else (batch, count)
            asked.append(_Asked(row, whole, count, curve, curve.at(batch) / share))
    if not asked:
        raise NotEnoughData("no training step was measured on one device; measure some, as in python -m paradnn.train")
    return _expect(frame, exchange, keys, asked)


def _alone(rows: pd.DataFrame) -> tuple[list[str], dict[tuple[str, ...], Curve]]:
    """What tells models apart, and of each the batches that one device ran with seconds, low and high."""
    keys = [name for name in map(str, rows) if (describes(name) or name in _PLACE) and name not in _STEP]
    keys = ["family", *(name for name in keys if name != "family" and rows[name].notna().any())] if len(rows) else []
    curves: dict[tuple[str, ...], Curve] = {}
    for _, alike in rows.groupby(keys, sort=False, dropna=False) if len(rows) else ():
        by_batch = alike.groupby("batch_size").agg({"seconds": "median", "low": "min", "high": "max"})
        columns = (by_batch.index, *(by_batch[name] for name in by_batch))
        curve = Curve(*(np.asarray(part, dtype="float64") for part in columns))
        curves[_point(alike.iloc[0].to_dict(), keys)] = curve
    return keys, curves


def _point(row: Row, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(row.get(name)) for name in keys)


def _expect(frame: pd.DataFrame, exchange: Exchange, keys: list[str], asked: Sequence[_Asked]) -> Expected:
    measured = channels(frame)
    chosen = choose_channel(measured, exchange.channel)
    link = link_of(chosen)
    possible = [one for one in asked if one.devices <= one.batch]
    if not possible:
        raise NotEnoughData("every step has fewer examples than devices; ask for fewer, or for --scaling weak")
    found, largest = [], 0.0
    for one in possible:
        layers = stated_model(one.row).layer_work()
        shown = {name: one.row[name] for name in (*keys, *_STEP) if name in one.row}
        shown |= {"batch_size": one.batch, "devices": one.devices, "measured_ms": 1e3 * one.measured}
        found.append({**shown, **dict(_times(layers, one, link, exchange))})
        largest = max(largest, exchange.largest_message(layers, one.devices))
    table = pd.DataFrame(found)
    if "hosts" in table and table["hosts"].nunique(dropna=False) == 1:
        table = table.drop(columns="hosts")
    if table["measured_ms"].isna().all():
        # Hosts beyond those measured meet over no transport that was measured.
        table = table.drop(columns=["measured_ms", "transport", "hosts"], errors="ignore")
    checks = check_rings(measured, chosen, link)
    return Expected(link, exchange, table, largest, len(asked) - len(possible), checks, tuple(chosen.rows["run_id"]))


def _times(
    layers: Sequence[LayerWork], one: _Asked, link: FittedLink, exchange: Exchange
) -> Iterator[tuple[str, object]]:
    """The columns of one point: milliseconds of its step, with overlap and without, and what they are made of."""
    batches, *seconds = one.alone
    part = one.batch / one.devices

    def step(alone: int, end: int) -> Step:
        return exchange.step(layers, seconds_at(batches, seconds[alone], part), one.devices, link.links[end])

    middle, low, high = step(0, 0), step(1, 1), step(2, 2)
    yield "alone_ms", 1e3 * middle.computing
    yield "alone_from", _source(batches, part)
    yield "exchange_ms", 1e3 * middle.exchanging
    for name in ("overlapped", "serial"):
        for ending, each in (("", middle), ("_low", low), ("_high", high)):
            yield f"{name}_ms{ending}", 1e3 * getattr(each, name)
    # One device stands above and below the line: of its error the ratio knows nothing, only of the channel's.
    for name, column in (("overlapped", "efficiency"), ("serial", "efficiency_serial")):
        for ending, end in (("", 0), ("_low", 2), ("_high", 1)):
            yield column + ending, one.reference / getattr(step(0, end), name)


def seconds_at(batches: np.ndarray, seconds: np.ndarray, batch: float) -> float:
    """Seconds of a device alone with `batch` examples, from those that were measured (ordered).

    Between two of them on the line between; beyond, on the line through the nearest two, but never better than in
    proportion to the batch nor worse than without regard to it; with one batch alone, in proportion: the best case.
    """
    if batch in batches or batches[0] < batch < batches[-1]:
        return float(np.interp(batch, batches, seconds))
    near = 0 if batch < batches[0] else -1
    last = float(seconds[near])
    proportion = last * batch / float(batches[near])
    if len(batches) == 1:
        return proportion
    (x, y), (to_x, to_y) = ((batches[place], seconds[place]) for place in ((0, 1) if near == 0 else (-1, -2)))
    line = float(y + (batch - x) * (to_y - y) / (to_x - x))
    return float(np.clip(line, min(last, proportion), max(last, proportion)))


def _source(batches: np.ndarray, batch: float) -> str:
    if batch in batches:
        return "measured"
    return "interpolated" if batches[0] < batch < batches[-1] else "extrapolated"


def _numbers(rows: pd.DataFrame, name: str) -> np.ndarray:
    """A column as floats, NaN where a run or all of them lack it."""
    if name not in rows:
        return np.full(len(rows), np.nan)
    return np.asarray(rows[name].to_numpy(dtype="float64", na_value=np.nan))
