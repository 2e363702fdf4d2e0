"""`channel`: start-up time and bandwidth of messages, fitted to the runs of model=channel.

A channel is a transport (such as tcp) with a communication pattern. Each channel has a separate fit
of the line start-up + size / bandwidth. If the protocol changes with the size of the message, the
fit has several pieces, each with its own line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from analysis.format import format_number, format_with_interval
from analysis.labels import label
from analysis.lazy import drawing, np, pd
from analysis.options import Options
from analysis.registry import SectionSpec, analysis
from analysis.result import AnalysisAnswer, Paragraph, Result, pooled_within
from analysis.store.frame import is_ok
from paradnn.core.errors import InsufficientData
from paradnn.core.words import counted
from paradnn.statistics.estimate import Estimate
from paradnn.statistics.sessions import assign_sessions
from paradnn.statistics.transfers import MIN_SIZES, Piece, TransferFit, fit_transfers

#: Columns with the size of a message in bytes, and its time in microseconds.
SIZE = "model.bytes"
TIME = "transfer_us"
#: Settings that determine the size of a message. They do not distinguish channels.
_SIZE_KEYS = (SIZE, "model.buffers")
_GROUP = ["device", "model.transport", "model.pattern"]
#: Settings that distinguish channels, in addition to `model.*`.
_OTHER_SETTINGS = ("hosts", "platform.cores")
_ALPHA = 0.55
#: Maximum number of breaks that a figure marks. If the fits have more, no break is marked.
_MAX_BREAKS = 12


class _Channel(NamedTuple):
    """One communication channel on one device: a transport with a pattern and settings.

    Attributes:
        device: Name of the device.
        name: Name of the channel, such as "tcp bandwidth, window 64".
        full_name: The name, followed by the device if the runs are from several devices.
        runs: The runs of the channel, with the columns `SIZE` (bytes) and `TIME` (microseconds).
        fit: The fit to these runs; None if they have too few sizes.
    """

    device: str
    name: str
    full_name: str
    runs: pd.DataFrame
    fit: TransferFit | None

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Pieces of the fit, one per range of sizes; empty if there are too few sizes for a fit."""
        return self.fit.pieces if self.fit else ()


def _list_sections(rows: pd.DataFrame) -> list[SectionSpec]:
    if TIME in rows and rows[TIME].notna().any():
        return [SectionSpec()]
    return []


@analysis(
    Options,
    summary="latency and bandwidth of messages by transport and pattern, as lines over their size",
    example="python -m analysis channel --figure channel.png",
    section="system",
    order=40,
    title="Messages between processes",
    reading="Lines are start-up + size / bandwidth; a dotted line marks the size at which a new "
    "line begins.",
    list_sections=_list_sections,
)
def channel(frame: pd.DataFrame, options: Options) -> Result:
    """Fit start-up time and bandwidth to the messages of each channel.

    A channel is a transport, such as tcp, with a communication pattern. Each piece of a fit is a
    line that holds for a range of message sizes.

    Args:
        frame: Runs, one per row.
        options: Whether to pool runs of different environments or protocols.

    Returns:
        The result. Its table has a row for each piece of each channel:

        - `device`, `channel`: the device, and the name of the channel.
        - `first_bytes`, `last_bytes`: the range of message sizes of the piece.
        - `measurements`: the number of measurements in this range.
        - `start_up_us`, `bytes_per_second`: the fit, with 95% intervals (`_low`, `_high`).
        - `median_error`: the median relative error of the fit of the channel.

    Raises:
        InsufficientData: If no run measured messages.
        HeterogeneousError: If the runs of a channel differ in their environment or timing protocol,
            and the option `pool` is not set.
    """
    channels = _find_channels(frame)
    run_ids = [run for each in channels for run in each.runs["run_id"]]
    rows = [_piece_row(each, piece) for each in channels for piece in each.pieces]
    return Result(
        numbers=pd.DataFrame(rows, columns=_COLUMNS),
        answer=_answer(channels),
        sentences=[*_sentences(channels)],
        picture=lambda: _draw(channels),
        sources=tuple(run_ids),
        pooled=pooled_within(frame[frame["run_id"].isin(run_ids)], _GROUP, pool=options.pool),
    )


_COLUMNS = [
    "device",
    "channel",
    "first_bytes",
    "last_bytes",
    "measurements",
    "start_up_us",
    "start_up_us_low",
    "start_up_us_high",
    "bytes_per_second",
    "bytes_per_second_low",
    "bytes_per_second_high",
    "median_error",
]


def _piece_row(each: _Channel, piece: Piece) -> dict[str, object]:
    assert each.fit is not None
    return {
        "device": each.device,
        "channel": each.name,
        "first_bytes": piece.first,
        "last_bytes": piece.last,
        "measurements": piece.measurements,
        "start_up_us": piece.start_up.value,
        "start_up_us_low": piece.start_up.low,
        "start_up_us_high": piece.start_up.high,
        "bytes_per_second": piece.bandwidth.value,
        "bytes_per_second_low": piece.bandwidth.low,
        "bytes_per_second_high": piece.bandwidth.high,
        "median_error": np.median(each.fit.errors),
    }


def _find_channels(frame: pd.DataFrame) -> list[_Channel]:
    """Find the channels in a frame of runs, and fit each channel that has enough message sizes.

    Args:
        frame: Runs, one per row.

    Raises:
        InsufficientData: If no run measured messages.
    """
    runs = frame.head(0)
    if {*_GROUP, SIZE, TIME} <= {*frame.columns}:
        runs = frame[is_ok(frame) & frame[TIME].lt(np.inf)]
    if runs.empty:
        raise InsufficientData(
            "no run timed messages between processes; measure some: "
            "python -m paradnn.train -m experiment=channel"
        )
    runs = runs.astype({SIZE: "float64", TIME: "float64"})
    has_several_devices = runs["device"].nunique() > 1
    channels = []
    for (device, transport, pattern), group in runs.groupby(_GROUP, sort=True):
        for variant, part in _split_variants(group):
            name = ", ".join([f"{transport} {pattern}", *variant])
            full_name = name
            if has_several_devices:
                full_name += f" on {device}"
            fit = None
            if part[SIZE].nunique() >= MIN_SIZES:
                fit = fit_transfers(part[SIZE], part[TIME], assign_sessions(part))
            channels.append(
                _Channel(
                    device=str(device),
                    name=name,
                    full_name=full_name,
                    runs=part,
                    fit=fit,
                )
            )
    return channels


def _split_variants(group: pd.DataFrame) -> Iterator[tuple[list[str], pd.DataFrame]]:
    """Split runs by the settings that vary among them, such as the window.

    Args:
        group: Runs with the same device, transport and pattern.

    Yields:
        The settings as text, such as ["window 64"], and the runs with these settings.
    """
    settings = [
        name
        for name in map(str, group)
        if (name.startswith("model.") and name not in (*_GROUP, *_SIZE_KEYS, "model.name"))
        or name in _OTHER_SETTINGS
    ]
    varying = [name for name in settings if group[name].nunique(dropna=False) > 1]
    if not varying:
        yield [], group
        return
    for values, part in group.groupby(varying, sort=True, dropna=False):
        yield _format_settings(varying, list(values)), part


def _format_settings(names: Sequence[str], values: Sequence[Any]) -> list[str]:
    texts = []
    for name, value in zip(names, values, strict=True):
        if isinstance(value, float) and not np.isnan(value):
            texts.append(f"{label(name)} {value:g}")
        elif not pd.isna(value):
            texts.append(f"{label(name)} {value}")
    return texts


def _answer(channels: Sequence[_Channel]) -> AnalysisAnswer:
    """State the shortest start-up time and the highest bandwidth of all channels."""
    runs = sum(len(each.runs) for each in channels)
    fits = {each.full_name: each.fit for each in channels if each.fit is not None}
    if not fits:
        verb = "has" if len(channels) == 1 else "have"
        sentence = (
            f"{counted(len(channels), 'channel')} {verb} too few message sizes for a fit; measure "
            f"at least {MIN_SIZES}."
        )
        return AnalysisAnswer(sentence=sentence, points=runs)
    quickest = min(fits, key=lambda name: fits[name].latency.value)
    widest = max(fits, key=lambda name: fits[name].bandwidth.value)
    latency = format_with_interval(fits[quickest].latency, "{:.3g} us".format)
    format_rate = partial(format_number, unit="B/s", digits=3)
    bandwidth = format_with_interval(fits[widest].bandwidth, format_rate)
    if len(fits) == 1:
        text = (
            f"A message over {quickest} starts in {latency}, and large messages reach {bandwidth}"
        )
    else:
        text = (
            f"Of {counted(len(fits), 'channel')}, {quickest} has the shortest start-up, {latency}, "
            f"and {widest} the highest bandwidth, {bandwidth}"
        )
    return AnalysisAnswer(
        sentence=f"{text}.", points=runs, basis="the scatter between measurements"
    )


def _sentences(channels: Sequence[_Channel]) -> Iterator[Paragraph]:
    """Yield a paragraph per channel with start-up time, bandwidth, error of the fit, and breaks.

    A break is a message size at which the fit changes to a different line.
    """
    for each in channels:
        if each.fit is not None:
            yield _channel_paragraph(each, each.fit)
    without_fit = dict.fromkeys(each.name for each in channels if each.fit is None)
    if without_fit:
        yield Paragraph(f"Too few sizes for a fit: {'; '.join(without_fit)}.")
    yield Paragraph(
        "A line is start-up + size / bandwidth. The fit minimizes relative errors, with several "
        "lines if the data require them. Intervals are 95%, over measurements."
    )


def _channel_paragraph(each: _Channel, fit: TransferFit) -> Paragraph:
    head = (
        f"{each.full_name}: start-up {_format_microseconds(fit.latency)}, bandwidth of the largest "
        f"messages {_format_bandwidth(fit.bandwidth)}, over {counted(len(each.runs), 'run')}."
    )
    median_error = format_number(float(np.median(fit.errors)), share=True)
    largest_error = format_number(float(fit.errors.max()), share=True)
    points = [f"The fit is off by {median_error} in the median, {largest_error} at most."]
    if len(set(assign_sessions(each.runs))) < 2:
        points.append(
            "All runs are from one session, so no interval includes an effect of that session."
        )
    if fit.breaks:
        sizes = ", ".join(map(_format_bytes, fit.breaks))
        line_error = format_number(float(np.median(fit.line_errors)), share=True)
        points.append(
            f"A new line begins at {sizes}; a single line would be off by {line_error} in the "
            "median."
        )
    return Paragraph(head, tuple(points))


def _format_microseconds(estimate: Estimate) -> str:
    value, low, high = (f"{number:.3g} us" for number in estimate)
    return f"{value} ({low} to {high})"


def _format_bandwidth(estimate: Estimate) -> str:
    value, low, high = (format_number(number, "B/s", digits=3) for number in estimate)
    return f"{value} ({low} to {high})"


def _format_bytes(count: float) -> str:
    """Return a number of bytes as text, such as "64 KiB"."""
    for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= size and count % size == 0:
            return f"{count / size:g} {name}"
    return f"{count:,.0f} B"


def _draw(channels: Sequence[_Channel]) -> drawing.Figure:
    """Draw the time of messages on the left, and their bandwidth (size / time) on the right.

    Marks are runs, lines are fits, and dotted lines separate the pieces of a fit.

    Args:
        channels: The channels with their runs and fits.
    """
    figure, (left, right) = drawing.panels(2, 5.5, 4.6, across=2)
    names = [each.full_name for each in channels]
    breaks = sum(max(0, len(each.pieces) - 1) for each in channels)
    for each in channels:
        style = drawing.look(each.full_name, names)
        sizes = each.runs[SIZE]
        times = each.runs[TIME]
        marks = {"alpha": _ALPHA, "markersize": 3, "label": each.full_name, **style}
        drawing.marks(left, sizes, times, **marks)
        drawing.marks(right, sizes, sizes / times * 1e6, **marks)
        for piece in each.pieces:
            x = np.geomspace(piece.first, max(piece.last, piece.first * 1.01), 100)
            fitted = piece.at(x)
            line = {"linewidth": 1.3, "color": style["color"]}
            left.plot(x, fitted, **line)
            right.plot(x, x / np.maximum(fitted, 1e-12) * 1e6, **line)
        if breaks <= _MAX_BREAKS:
            _mark_breaks(left, each.pieces, style["color"])
    _finish_panel(left, "Time of a message or a collective", "time (us)", "{:g}".format)
    _finish_panel(right, "Bandwidth", "size / time (B/s)", format_number)
    drawing.legend(figure)
    return figure


def _mark_breaks(axes: drawing.Axes, pieces: Sequence[Piece], color: str) -> None:
    for piece in pieces[1:]:
        axes.axvline(piece.first, color=color, linewidth=0.8, linestyle=":", alpha=_ALPHA)


def _finish_panel(axes: drawing.Axes, title: str, y_label: str, format_y: Any) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: _format_bytes(value).removesuffix("B").strip())
    axes.xaxis.get_major_locator().set_params(numticks=8)  # type: ignore[call-arg]
    drawing.finish(axes, title, "size (bytes)", y_label, logs={"y": format_y})
