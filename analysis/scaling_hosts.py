"""Steps over several devices as a channel predicts them: beside measured ones, and on more hosts than were measured.

What a channel says of data-parallel steps: of those that were measured, and of more hosts than were measured.

The step of a device alone is measured, with the batch that it would have as one of N; its layers' gradients follow
from the model (`Model.layer_work`), and their exchange from the channel (`data_parallel`).

Efficiency over numbers of hosts that were not measured, as a channel predicts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from analysis.lazy import drawing, np, pd
from analysis.result import Paragraph, Result, joined, pooled_within
from analysis.store.frame import is_ok
from paradnn.errors import ConfigError, NotEnoughData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from paradnn.families.layers import LayerWork
    from paradnn.forecast.communication.channels import FittedLink, RingCheck
    from paradnn.forecast.communication.data_parallel import Exchange, Step

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.analyses.extrapolate import stated_model
from analysis.columns import describes
from analysis.format import short
from paradnn.core.words import MOST_HOSTS, counted, is_count
from paradnn.families import FAMILIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PredictedResult(Result):
    """Measured steps beside predicted ones, where no point was measured on one device and on more (weak scaling)."""

    expected: Expected

    @property
    def table(self) -> pd.DataFrame:
        """A row for each point and number of devices; times in ms."""
        return told_apart(self.expected.table)

    def _figure(self) -> Figure:
        return draw_predicted(self.expected)

    def _paragraphs(self) -> Iterator[Paragraph]:
        yield from describe_expected(self.expected)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HostsResult(Result):
    """What numbers of hosts would give."""

    expected: Expected
    scaling: Literal["weak", "strong"]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each point and number of hosts (`devices`); times in ms."""
        return told_apart(self.expected.table)

    def _figure(self) -> Figure:
        return draw_hosts(self.expected.table, f"{self.scaling} scaling over {self.expected.exchange.words}")

    def _paragraphs(self) -> Iterator[Paragraph]:
        exchange = self.expected.exchange
        for family, rows in self.expected.table.groupby("family"):
            points = counted(int(rows.groupby("devices").size().max()), "point")
            yield Paragraph(
                f"{family}: {self.scaling} scaling over {exchange.words}, on paper, of {points} measured on one.",
                tuple(
                    _on(count, rows[rows["devices"] == count], exchange.hides) for count in sorted(set(rows["devices"]))
                ),
            )
        yield from _reservations(self.expected)
        yield Paragraph(
            "Times of one device alone are measured, messages are the channel's; no link is shared, no host late. "
            "Shares are medians over points with those of their intervals, 95% of the channel's fit."
        )


def plan(
    frame: pd.DataFrame, exchange: Exchange, hosts: Sequence[str], scaling: Literal["weak", "strong"], pool: bool
) -> HostsResult:
    """What so many hosts of a measured channel would give; ConfigError for what is no count of them."""
    expected = plan_hosts(frame, exchange, [_count(text) for text in hosts], scaling)
    used = trainings(frame)
    sources = (*used["run_id"], *expected.run_ids)
    pooled = joined((pooled_within(used, ["family", "device"], pool), pooled_messages(frame, expected, pool)))
    return HostsResult(expected=expected, scaling=scaling, sources=sources, pooled=pooled)


def pooled_messages(frame: pd.DataFrame, expected: Expected, pool: bool) -> str:
    """What differs among the runs of the channel; SchemaError where anything does, unless `pool`."""
    return pooled_within(frame[frame["run_id"].isin(expected.run_ids)], ["device"], pool)


def told_apart(table: pd.DataFrame) -> pd.DataFrame:
    """Without what describes all rows alike, which only crowds them."""
    numbers = list(table.columns).index("batch_size")
    same = [name for name in table.columns[1:numbers] if table[name].nunique(dropna=False) == 1]
    return table.drop(columns=same)


def describe_expected(expected: Expected) -> Iterator[Paragraph]:
    """How near measured steps are to predicted ones, by family, number of devices and transport."""
    by_transport = "transport" in expected.table and expected.table["transport"].notna().all()
    groups = ["family", *["transport"] * bool(by_transport), "devices"]
    for names, rows in expected.table.groupby(groups):
        *who, count = names
        measured = rows["measured_ms"]
        off = {name: _share((rows[f"{name}_ms"] / measured - 1).abs().median()) for name in ("serial", "overlapped")}
        lost = {name: _share((1 - rows["alone_ms"] / rows[f"{name}_ms"]).median()) for name in (*off, "measured")}
        shift = (rows["serial_ms"] / measured - 1).median()
        signed = f"{abs(shift):.0%} too {'short' if shift < 0 else 'long'}"
        within = ((rows["overlapped_ms_low"] <= measured) & (measured <= rows["serial_ms_high"])).sum()
        hides = expected.exchange.hides
        without, with_ = (" without overlap", ", {} with") if hides else ("", "")
        yield Paragraph(
            f"{', '.join(map(str, who))} on {count}, predicted over {expected.exchange.words}: off by "
            f"{off['serial']} in the median{without} ({signed}){with_.format('by ' + off['overlapped'])}.",
            (
                f"Lost to more than one device: {lost['measured']} of the measured step, "
                f"{lost['serial']} of the predicted{without}{with_.format(lost['overlapped'])} (medians).",
                f"{within} of {counted(len(rows), 'point')} {'between the two' if hides else 'as predicted'}, "
                "with their intervals.",
            ),
        )
    yield from _reservations(expected)


def _on(count: int, rows: pd.DataFrame, hides: bool) -> str:
    ends = [rows[f"efficiency{ending}"].median() for ending in ("", "_low", "_high")]
    serial = [rows[f"efficiency_serial{ending}"].median() for ending in ("", "_low", "_high")]
    lost = (1 - rows["alone_ms"] / rows["overlapped_ms"]).median()
    with_, without = (" with overlap", f", {_shares(serial)} without") if hides else ("", "")
    return (
        f"on {count}: {_shares(ends)} of the speed of {count} without loss{with_}{without}; "
        f"{_share(lost)} of the step waits for gradients{with_}."
    )


def _reservations(expected: Expected) -> Iterator[Paragraph]:
    """How the link holds on other numbers of processes, and what the prediction was not measured for."""
    for check in expected.checks:
        small, large = (f"{ratio:.2f} times as long at {short(size, 'B')}" for size, ratio in check.ratios)
        yield Paragraph(
            f"On {check.processes} processes {check.channel} takes {small} and {large} as predicted from this channel."
        )
    beyond = int(expected.table["alone_from"].eq("extrapolated").sum())
    if beyond:
        yield Paragraph(
            f"Of {len(expected.table)} predictions {beyond} are for batches of a device that are beyond those measured "
            "on one; measure such batches with devices=1 to be surer."
        )
    if expected.largest > expected.link.largest:
        yield Paragraph(
            f"Messages of up to {short(expected.largest, 'B')} are asked for, the channel was measured to "
            f"{short(expected.link.largest, 'B')}: its last line is drawn on."
        )
    if expected.too_many:
        yield Paragraph(f"Left out: {counted(expected.too_many, 'step')} with fewer examples than devices.")


def _count(text: str) -> int:
    if not is_count(text, MOST_HOSTS):
        reason = f"is no number of hosts from 1 to {MOST_HOSTS:,}"
        raise ConfigError("--hosts", text, reason, "write whole numbers, as in --hosts 1,2,4,1024")
    return int(text)


def _share(value: float) -> str:
    return short(float(value), share=True)


def _shares(ends: list[float]) -> str:
    value, low, high = (_share(each) for each in ends)
    return f"{value} ({low} to {high})"


#: What a step is listed with, beside what describes its point.
_LINE = "#555555"
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
    layered = [name for name, family in FAMILIES.items() if family.has_layers]
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
    from paradnn.forecast.communication.channels import channels, check_rings, choose_channel, link_of

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


_QUARTILES = (0.25, 0.75)


def draw_hosts(table: pd.DataFrame, title: str) -> Figure:
    """Left the speed as a share of that without loss, right the share of the step that waits for gradients; medians
    over the points of a family, solid with overlap, dashed without where that differs, quartiles as a band.
    """
    drawn, (both,) = drawing.figure(11.0, 4.8, 1, 2)
    hides = not np.allclose(table["overlapped_ms"], table["serial_ms"])
    kinds_drawn = (("-o", ", with overlap"), ("--s", ", without")) if hides else (("-o", ""),)
    for family, rows in table.groupby("family"):
        colour = drawing.colour_of(str(family))
        counts = rows["devices"]
        for axes, kinds in (
            (both[0], (rows["efficiency"], rows["efficiency_serial"])),
            (both[1], tuple(1 - rows["alone_ms"] / rows[name] for name in ("overlapped_ms", "serial_ms"))),
        ):
            for values, (line, words) in zip(kinds, kinds_drawn, strict=False):
                by_count = values.groupby(counts)
                middle = by_count.median()
                axes.plot(middle.index, middle, line, color=colour, markersize=4, label=f"{family}{words}")
                if line == "-o":
                    low, high = (by_count.quantile(share) for share in _QUARTILES)
                    axes.fill_between(low.index, low, high, color=colour, alpha=0.15, linewidth=0)
    for axes in both:
        _counts(axes, sorted(set(table["devices"])))
    drawing.finish(both[0], f"Speed, {title}", "hosts", "share of the speed without loss")
    drawing.finish(both[1], "Waiting for gradients", "hosts", "share of the step")
    handles, labels = both[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return drawn


def _counts(axes: Axes, counts: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def draw_predicted(expected: Expected) -> Figure:
    """Predicted steps against measured ones alone."""
    drawn, axes = drawing.figure(6.0, 4.8)
    _predicted(axes, expected, [])
    axes.legend(frameon=False)
    return drawn


def _predicted(axes: Axes, expected: Expected, among: list[str]) -> None:
    """A bar for each point from the step with overlap to that without, at the measured one; x = y where it holds."""
    rows = expected.table
    names = rows["family"] + ", " + rows["transport"] if among and "transport" in rows else rows["family"]
    for name in dict.fromkeys(names):
        own, colour = rows[names == name], drawing.colour_of(name, among)
        axes.vlines(own["measured_ms"], own["overlapped_ms"], own["serial_ms"], color=colour, alpha=0.6, linewidth=1.5)
        axes.plot(
            own["measured_ms"],
            own["serial_ms"],
            drawing.marker_of(name, among),
            color=colour,
            markersize=5,
            alpha=0.6,
            markeredgewidth=0,
            linestyle="none",
            label=name,
        )
    ends = [
        min(rows["measured_ms"].min(), rows["overlapped_ms"].min()),
        max(rows["measured_ms"].max(), rows["serial_ms"].max()),
    ]
    axes.plot(ends, ends, "--", color=_LINE, linewidth=1)
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        drawing.log_ticks(axis)
    drawing.finish(
        axes,
        f"Predicted over {expected.link.name}",
        "measured step (ms)",
        "predicted: full overlap to none, marked (ms)" if expected.exchange.hides else "predicted (ms)",
    )
