"""Data-parallel steps as a channel predicts them: beside measured ones, and on more hosts than were measured.

The step of a device alone is measured, with the batch that it would have as one of N; its layers' gradients follow
from the model (`Model.layer_work`), and their exchange from the channel (`data_parallel`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from analysis.analyses.extrapolate import stated_model
from analysis.columns import describes
from analysis.format import short
from analysis.lazy import drawing, np, pd
from analysis.result import Answer, Paragraph, joined, pooled_within
from analysis.store.frame import is_ok
from paradnn.core.words import MOST_HOSTS, counted, is_count
from paradnn.errors import ConfigError, NotEnoughData
from paradnn.families import FAMILIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from paradnn.forecast.communication.channels import FittedLink
    from paradnn.forecast.communication.data_parallel import Algorithm

#: What a step is listed with beside what describes its point, and what one model differs in from step to step.
_PLACE = ("family", "device", "framework.name", "platform.threads", "platform.cores")
_STEP = ("batch_size", "devices", "transport", "hosts")
_ENDS = ("", "_low", "_high")


@dataclass(frozen=True)
class Expected:
    """`table` has a row for each point and number of devices, times in ms.

    family, what distinguishes points, batch_size (of the step), devices, transport, hosts; `alone_ms`, the step of a
    device by itself with its part of the batch, and `alone_from`: measured, interpolated or extrapolated;
    `exchange_ms`, what the link is busy for; `predicted_ms`, both; `efficiency`, speed as a share of N times one
    device's. The last two have `_low` and `_high`. Of measured points `measured_ms`.

    An end of a time's interval has the channel and the device alone both at that end of their own, so that it is
    rather too wide; an efficiency's interval is the channel's alone. `reservations` are what the prediction was not
    measured for, in words; `words` say how gradients are exchanged; `run_ids` are those of the channel.
    """

    words: str
    table: pd.DataFrame
    reservations: tuple[str, ...]
    run_ids: tuple[str, ...]


class Exchange(NamedTuple):
    """How gradients are exchanged: over which channel (its name), by which algorithm."""

    channel: str
    algorithm: Algorithm = "ring"

    @property
    def words(self) -> str:
        """Such as "tcp latency (ring)"."""
        return f"{self.channel} ({self.algorithm})"


def plan(
    frame: pd.DataFrame, exchange: Exchange, hosts: Sequence[str], scaling: Literal["weak", "strong"], pool: bool
) -> Answer:
    """What so many hosts of a measured channel would give, from each point that was measured on one device.

    weak: every host has the batch that was measured; strong: all share it. ConfigError for what is no count of hosts,
    NotEnoughData without a point or channel.
    """
    for text in hosts:
        if not is_count(text, MOST_HOSTS):
            reason = f"is no number of hosts from 1 to {MOST_HOSTS:,}"
            raise ConfigError("--hosts", text, reason, "write whole numbers, as in --hosts 1,2,4,1024")
    counts, used = sorted(set(map(int, hosts))), trainings(frame)
    rows = used[used["devices"].eq(1) | used["devices"].isna()] if "devices" in used else used
    rows, keys, curves = _alone(rows, rows)
    asked = []
    for _, same in rows.groupby(["_model", "batch_size"], sort=True):
        row = same.iloc[0].to_dict()
        curve, batch = curves[row["_model"]], int(row["batch_size"])
        for count in counts:
            whole, share = (batch * count, 1) if scaling == "weak" else (batch, count)
            asked.append(_Asked(row, whole, count, curve, seconds_at(curve["seconds"], batch) / share))
    if not asked:
        raise NotEnoughData("no training step was measured on one device; measure some, as in python -m paradnn.train")
    expected = _expect(frame, exchange, keys, asked)
    return Answer(
        numbers=varied(expected.table),
        sentences=[*_of_hosts(expected, scaling), *expected.reservations],
        picture=lambda: _draw_hosts(expected, scaling),
        sources=(*used["run_id"], *expected.run_ids),
        pooled=joined((pooled_within(used, ["family", "device"], pool), pooled_messages(frame, expected, pool))),
    )


def pooled_messages(frame: pd.DataFrame, expected: Expected, pool: bool) -> str:
    """What differs among the runs of the channel; SchemaError where anything does, unless `pool`."""
    return pooled_within(frame[frame["run_id"].isin(expected.run_ids)], ["device"], pool)


def varied(table: pd.DataFrame) -> pd.DataFrame:
    """Without what describes all rows in the same way, which only crowds them."""
    numbers = list(table.columns).index("batch_size")
    return table.drop(columns=[name for name in table.columns[1:numbers] if table[name].nunique(dropna=False) == 1])


def describe_expected(expected: Expected) -> Iterator[Paragraph | str]:
    """How near measured steps are to predicted ones, by family, number of devices and transport."""
    table, groups = expected.table, ["family", "transport", "devices"]
    if "transport" not in table or table["transport"].isna().any():
        groups.remove("transport")
    for (*who, count), rows in table.groupby(groups):
        off = rows["predicted_ms"] / rows["measured_ms"] - 1
        lost = {
            name: _share((1 - rows["alone_ms"] / rows[f"{name}_ms"]).median()) for name in ("measured", "predicted")
        }
        shift = off.median()
        yield (
            f"{', '.join(map(str, who))} on {count}, predicted over {expected.words}: off by "
            f"{_share(off.abs().median())} in the median ({abs(shift):.0%} too {'short' if shift < 0 else 'long'}); "
            f"lost to more than one device are {lost['measured']} of the measured step, {lost['predicted']} of the "
            "predicted (medians)."
        )
    yield from expected.reservations


def _of_hosts(expected: Expected, scaling: str) -> Iterator[Paragraph]:
    for family, rows in expected.table.groupby("family"):
        points = []
        for count, each in rows.groupby("devices"):
            value, low, high = (_share(each[f"efficiency{ending}"].median()) for ending in _ENDS)
            points.append(f"on {count}: {value} ({low} to {high}) of the speed of {count} without loss.")
        yield Paragraph(
            f"{family}: {scaling} scaling over {expected.words}, on paper, of "
            f"{counted(int(rows.groupby('devices').size().max()), 'point')} measured on one (medians over these, with "
            "the channel's 95% intervals).",
            tuple(points),
        )


def _share(value: float) -> str:
    return short(float(value), share=True)


class _Asked(NamedTuple):
    """A point on `devices`, with `batch` examples a step over all; `reference` are the seconds of the step without
    loss, `measured` those of the step itself."""

    row: dict[Any, Any]
    batch: int
    devices: int
    alone: pd.DataFrame
    reference: float
    measured: float = math.nan


def trainings(frame: pd.DataFrame) -> pd.DataFrame:
    """Measured training steps of models that are counted layer by layer, with `seconds` and its ends (low, high)."""
    layered = [name for name, family in FAMILIES.items() if family.has_layers]
    rows = frame[is_ok(frame) & frame["family"].isin(layered)]
    if "mode" in rows:
        rows = rows[rows["mode"].eq("train") | rows["mode"].isna()]
    names = ("batch_size", "examples_per_second", "step_time_ms", "step_time_low_ms", "step_time_high_ms")
    batch, speed, step, low, high = rows.reindex(columns=names).to_numpy(dtype="float64", na_value=np.nan).T
    seconds = batch / speed
    # A run without an interval of its own stands for its time alone.
    ends = {name: np.where(np.isfinite(end / step), end / step, 1.0) for name, end in (("low", low), ("high", high))}
    timed = rows.assign(seconds=seconds, **{name: end * seconds for name, end in ends.items()})
    kept: pd.DataFrame = timed[np.isfinite(seconds)]
    return kept


def expect_measured(frame: pd.DataFrame, exchange: Exchange) -> Expected:
    """Each point that was measured on several devices, and on one. NotEnoughData where there is none, or no channel."""
    rows = trainings(frame)
    rows = rows[rows["devices"].notna()] if "devices" in rows else rows.head(0).assign(devices=0)
    rows, keys, curves = _alone(rows, rows[rows["devices"] == 1])
    asked = []
    steps = ["_model", *(name for name in _STEP if name in rows)]
    for _, same in rows[rows["devices"] > 1].groupby(steps, sort=True, dropna=False):
        row = same.iloc[0].to_dict()
        if (curve := curves.get(row["_model"])) is not None:
            batch, count = int(row["batch_size"]), int(row["devices"])
            whole = seconds_at(curve["seconds"], batch if batch in curve.index else batch / count)
            whole = whole / count if batch in curve.index else whole
            asked.append(_Asked(row, batch, count, curve, whole, float(same["seconds"].median())))
    if not asked:
        problem = "no training step was measured with devices=1 and with more; measure the same points on both"
        raise NotEnoughData(problem)
    return _expect(frame, exchange, keys, asked)


def _alone(rows: pd.DataFrame, one: pd.DataFrame) -> tuple[pd.DataFrame, list[str], dict[int, pd.DataFrame]]:
    """`rows` with the number of their model, what models differ in, and by number what one device took (`one`): for
    each batch, in order, seconds and the ends of their interval."""
    if rows.empty:
        return rows.assign(_model=0, batch_size=0), [], {}
    keys = [str(name) for name in rows if (describes(str(name)) or name in _PLACE) and name not in _STEP]
    keys = ["family", *(name for name in keys if name != "family" and one[name].notna().any())]
    rows = rows.assign(_model=rows.groupby(keys, dropna=False).ngroup())
    by_batch = (
        rows.loc[one.index].groupby(["_model", "batch_size"]).agg({"seconds": "median", "low": "min", "high": "max"})
    )
    curves = {int(str(model)): part.droplevel(0) for model, part in by_batch.astype("float64").groupby("_model")}
    return rows, keys, curves


def _expect(frame: pd.DataFrame, exchange: Exchange, keys: list[str], asked: Sequence[_Asked]) -> Expected:
    from paradnn.forecast.communication.channels import channels, choose_channel, link_of
    from paradnn.forecast.communication.data_parallel import messages

    chosen = choose_channel(channels(frame), exchange.channel)
    link = link_of(chosen)
    possible = [one for one in asked if one.devices <= one.batch]
    if not possible:
        raise NotEnoughData("every step has fewer examples than devices; ask for fewer, or for --scaling weak")
    found, largest = [], 0.0
    for one in possible:
        try:
            gradients = sum(layer.gradient_bytes for layer in stated_model(one.row).layer_work())
        except (TypeError, ValueError) as error:
            run = one.row["run_id"]
            raise ConfigError("model", f"of run {run}", f"its sizes make no model ({error})", "leave it out") from None
        shown = {name: one.row[name] for name in (*keys, *_STEP) if name in one.row}
        shown |= {"batch_size": one.batch, "devices": one.devices, "measured_ms": 1e3 * one.measured}
        found.append(shown | _times(gradients, one, link, exchange.algorithm))
        sent = messages(exchange.algorithm, one.devices, gradients)
        largest = max(largest, *(size for _, size in sent), 0.0)
    table = pd.DataFrame(found)
    if "hosts" in table and table["hosts"].nunique(dropna=False) == 1:
        table = table.drop(columns="hosts")
    if table["measured_ms"].isna().all():
        # Hosts beyond those measured meet over no transport that was measured.
        table = table.drop(columns=["measured_ms", "transport", "hosts"], errors="ignore")
    said = (*_reservations(table, largest, link.largest, len(asked) - len(possible)),)
    return Expected(exchange.words, table, said, tuple(chosen.rows["run_id"]))


def _reservations(table: pd.DataFrame, largest: float, measured: float, too_many: int) -> Iterator[str]:
    """Bytes of the `largest` message that is asked for and that was `measured`; points left out, for some device would
    have had no example."""
    if beyond := int(table["alone_from"].eq("extrapolated").sum()):
        yield (
            f"Of {len(table)} predictions {beyond} are for batches of a device that are beyond those measured "
            "on one; measure such batches with devices=1 to be surer."
        )
    if largest > measured:
        yield (
            f"Messages of up to {short(largest, 'B')} are asked for, the channel was measured to "
            f"{short(measured, 'B')}: its last line is drawn on."
        )
    if too_many:
        yield f"Left out: {counted(too_many, 'step')} with fewer examples than devices."


def _times(gradients: float, one: _Asked, link: FittedLink, algorithm: Algorithm) -> dict[str, object]:
    """The columns of one point: milliseconds of its step, and what they are made of."""
    from paradnn.forecast.communication.data_parallel import exchange_seconds

    part, batches = one.batch / one.devices, one.alone.index
    alone = [seconds_at(one.alone[name], part) for name in ("seconds", "low", "high")]
    sent = [float(exchange_seconds(algorithm, one.devices, gradients, end)) for end in link.links]
    within = "interpolated" if batches[0] < part < batches[-1] else "extrapolated"
    found: dict[str, object] = {
        "alone_ms": 1e3 * alone[0],
        "alone_from": "measured" if part in batches else within,
        "exchange_ms": 1e3 * sent[0],
    }
    for place, end in enumerate(_ENDS):
        found[f"predicted_ms{end}"] = 1e3 * (alone[place] + sent[place])
    # One device stands above and below the line: of its error the ratio knows nothing, only of the channel's.
    for place, end in zip((0, 2, 1), _ENDS, strict=True):
        found[f"efficiency{end}"] = one.reference / (alone[0] + sent[place])
    return found


def seconds_at(seconds: pd.Series, batch: float) -> float:
    """Seconds of a device alone with `batch` examples, from those that were measured, by batch in order.

    Between two of them on the line between; beyond, on the line through the nearest two, but never better than in
    proportion to the batch nor worse than without regard to it; with one batch alone, in proportion: the best case.
    """
    batches, times = seconds.index.to_numpy(dtype="float64"), seconds.to_numpy()
    if batches[0] <= batch <= batches[-1]:
        return float(np.interp(batch, batches, times))
    near, next_ = (0, 1) if batch < batches[0] else (-1, -2)
    last = float(times[near])
    proportion = last * batch / float(batches[near])
    if len(batches) == 1:
        return proportion
    line = last + (batch - batches[near]) * (times[next_] - last) / (batches[next_] - batches[near])
    return float(np.clip(line, min(last, proportion), max(last, proportion)))


def draw_expected(axes: Axes, expected: Expected, among: list[str], named: bool) -> None:
    """The predicted step over the measured one; x = y where it holds."""
    rows = expected.table
    names = rows["family"] + ", " + rows["transport"] if among and "transport" in rows else rows["family"]
    for name in dict.fromkeys(names):
        own, look = rows[names == name], drawing.look(name, among)
        ends = own["predicted_ms_low"], own["predicted_ms_high"]
        how = look | {"alpha": 0.6, "capsize": 0, "label": name if named else None}
        drawing.marks(axes, own["measured_ms"], own["predicted_ms"], y_ends=ends, **how)
    every = rows[["measured_ms", "predicted_ms"]]
    corners = [every.min().min(), every.max().max()]
    axes.plot(corners, corners, "--", color="#555555", linewidth=1)
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        drawing.log_ticks(axis)
    drawing.finish(axes, f"Predicted over {expected.words}", "measured step (ms)", "predicted (ms)")


def _draw_hosts(expected: Expected, scaling: str) -> Figure:
    """The speed as a share of that without loss; medians over the points of a family, quartiles as a band."""
    table, counts = expected.table, sorted(set(expected.table["devices"]))
    drawn, (axes,) = drawing.panels(1, 6.5, 4.4)
    for family, rows in table.groupby("family"):
        colour = drawing.colour_of(str(family))
        low, middle, high = (rows.groupby("devices")["efficiency"].quantile(at) for at in (0.25, 0.5, 0.75))
        axes.plot(middle.index, middle, "-o", color=colour, markersize=4, label=str(family))
        drawing.band(axes, low.index, low, high, colour)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(drawing.PercentFormatter(1.0))
    title = f"Speed, {scaling} scaling over {expected.words}"
    drawing.finish(axes, title, "hosts", "share of the speed without loss")
    drawing.legend(drawn)
    return drawn
