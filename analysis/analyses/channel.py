"""`channel`: latency and bandwidth of messages by transport and pattern, as lines over their size.

Messages over their size: the time of one, and the bandwidth it sees, with the fitted lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.format import short
from analysis.lazy import drawing, np, pd, ticker
from analysis.options import Options, option
from analysis.registry import Shown, analysis
from analysis.result import Paragraph, Result, pooled_within
from paradnn.core.words import counted
from paradnn.forecast.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from paradnn.forecast.communication.channels import ChannelFit, Channels, Piece, TransferFit


@dataclass(frozen=True, kw_only=True)
class ChannelOptions(Options):
    """From which size on errors are given apart."""

    command = "channel"

    large: int = option(
        65536, "tell the error of the fit from so many bytes on by itself (default: 65536)", metavar="BYTES", low=1
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ChannelResult(Result):
    """The channels, each with its fit."""

    channels: Channels
    large: int

    @property
    def table(self) -> pd.DataFrame:
        """A row for each piece of each fit; times in us, bandwidths in B/s."""
        rows = [_row(each, fit, piece) for each, fit in self.channels.fitted for piece in fit.pieces]
        return pd.DataFrame(rows)

    def _figure(self) -> Figure:
        return draw_channels(self.channels)

    def _paragraphs(self) -> Iterator[Paragraph]:
        several = len({each.device for each in self.channels.channels}) > 1
        for each, fit in self.channels.fitted:
            yield _describe(each, fit, self.large, several)
        few = [each.name for each in self.channels.channels if each.fit is None]
        if few:
            yield Paragraph(f"Too few sizes for a fit: {'; '.join(dict.fromkeys(few))}.")
        for row in self.channels.floors.to_dict("records"):
            yield Paragraph(
                f"{row['channel']} takes {short(row['smallest_ratio'])} times as long as {row['floor']} at "
                f"{_bytes(row['smallest'])}, {short(row['largest_ratio'])} times at {_bytes(row['largest'])}."
            )
        yield Paragraph(
            "A line is start-up + size / bandwidth, fitted to relative errors, in pieces where more than chance asks "
            "for them; intervals are 95%, over measurements."
        )


def _shown(rows: pd.DataFrame) -> Iterator[Shown]:
    """If any messages were measured."""
    if "transfer_us" in rows and rows["transfer_us"].notna().any():
        yield Shown()


@analysis(
    ChannelOptions,
    summary="latency and bandwidth of messages by transport and pattern, as lines over their size",
    description="Fit start-up time and bandwidth to the runs of model=channel, each transport and pattern by\n"
    "itself, in pieces where a protocol changes, with intervals; raw TCP and shared memory stand beside\n"
    "the others as floors.",
    example="python -m analysis channel --figure channel.png",
    section="system",
    order=40,
    title="Messages between processes",
    reading=("Lines are start-up + size / bandwidth; a dotted line is a size from which on another one holds."),
    shown=_shown,
)
def channel(frame: pd.DataFrame, options: ChannelOptions) -> ChannelResult:
    """Start-up time and bandwidth of messages, for each transport and pattern, in pieces where a protocol changes.

    NotEnoughData where no run measured messages, SchemaError for heterogeneous runs of a channel.
    """
    from paradnn.forecast.communication.channels import channels

    found = channels(frame)
    used = [name for each in found.channels for name in each.rows["run_id"]]
    by = ["device", "model.transport", "model.pattern"]
    pooled = pooled_within(frame[frame["run_id"].isin(used)], by, options.pool)
    return ChannelResult(channels=found, large=options.large, sources=tuple(used), pooled=pooled)


def _row(each: ChannelFit, fit: TransferFit, piece: Piece) -> dict[str, object]:
    ends = {
        name: value
        for what, estimate in (("start_up_us", piece.start_up), ("bytes_per_second", piece.bandwidth))
        for name, value in zip((what, f"{what}_low", f"{what}_high"), estimate, strict=True)
    }
    return {
        "device": each.device,
        "channel": each.name,
        "first_bytes": piece.first,
        "last_bytes": piece.last,
        "measurements": piece.measurements,
        **ends,
        "median_error": _median(fit.errors),
    }


def _describe(each: ChannelFit, fit: TransferFit, large: int, several: bool) -> Paragraph:
    where = f" on {each.device}" if several else ""
    head = (
        f"{each.name}{where}: start-up {_interval(fit.latency, 'us')}, bandwidth of the largest messages "
        f"{_interval(fit.bandwidth, 'B/s')}, over {counted(len(each.rows), 'run')}."
    )
    points = [_errors(each, fit, large)]
    for before, after in zip(fit.pieces, fit.pieces[1:], strict=False):
        step = float(after.at(after.first) / before.at(after.first)) - 1
        points.append(
            f"From {_bytes(after.first)} on another line holds: {_interval(after.start_up, 'us')} and "
            f"{_interval(after.bandwidth, 'B/s')}; a message of that size takes {step:+.0%} against the line before."
        )
    if len(fit.pieces) > 1:
        points.append(f"One line through all would be off by {_share(_median(fit.line_errors))} in the median.")
    return Paragraph(head, tuple(points))


def _errors(each: ChannelFit, fit: TransferFit, large: int) -> str:
    from paradnn.forecast.communication.channels import SIZE

    sizes = each.rows[SIZE].astype("float64").sort_values(kind="stable").to_numpy()
    beyond = fit.errors[sizes >= large]
    text = f"The fit is off by {_share(_median(fit.errors))} in the median, {_share(float(max(fit.errors)))} at most"
    return text + (f"; from {_bytes(large)} on by {_share(_median(beyond))}." if len(beyond) else ".")


def _median(values: object) -> float:
    return float(np.median(np.asarray(values)))


def _interval(estimate: Estimate, unit: str) -> str:
    value, low, high = (_with_unit(each, unit) for each in estimate)
    return f"{value} ({low} to {high})"


def _with_unit(value: float, unit: str) -> str:
    return f"{value:.3g} us" if unit == "us" else short(value, unit, digits=3)


def _share(value: float) -> str:
    return short(value, share=True)


def _bytes(count: float) -> str:
    """A size as people write it: 64 KiB."""
    for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= size and count % size == 0:
            return f"{count / size:g} {name}"
    return f"{count:,.0f} B"


_FAINT = 0.55
_LINES = ("-", "--", "-.")
#: Breaks beyond which none is marked, and runs of a channel from which on their marks are small.
_MOST_BREAKS, _MANY = 12, 200


def draw_channels(found: Channels) -> Figure:
    """Left the time of a message, right its size over that time; a mark is a run, a line its fit, dotted where another
    piece begins. Colours are transports, so that floors stand beside what is built on them, and markers and kinds of
    line are patterns; of one transport each channel has a colour of its own."""
    drawn, (both,) = drawing.figure(11.0, 5.0, 1, 2)
    transports = list(dict.fromkeys(each.transport for each in found.channels))
    shapes = list(dict.fromkeys((each.pattern, each.variant, each.device) for each in found.channels))
    several = len({each.device for each in found.channels}) > 1
    crowded = sum(len(fit.breaks) for _, fit in found.fitted) > _MOST_BREAKS
    for number, each in enumerate(found.channels):
        place = transports.index(each.transport) if len(transports) > 1 else number
        colour = drawing.COLOURS[place % len(drawing.COLOURS)]
        marker = drawing.MARKERS[shapes.index((each.pattern, each.variant, each.device)) % len(drawing.MARKERS)]
        name = f"{each.name} on {each.device}" if several else each.name
        _channel(both, each, (colour, marker, _LINES[drawing.MARKERS.index(marker) % len(_LINES)]), name)
        for size in each.fit.breaks if each.fit and not crowded else ():
            both[0].axvline(size, color=colour, linewidth=0.8, linestyle=":", alpha=_FAINT)
    for axes in both:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: _size(value)))
    both[0].yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    both[1].yaxis.set_major_formatter(drawing.quantity(""))
    drawing.finish(both[0], "Time of a message or a collective", "size (bytes)", "time (us)")
    drawing.finish(both[1], "Its bandwidth", "size (bytes)", "size / time (B/s)")
    handles, labels = both[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return drawn


def _channel(both: list[Axes], each: ChannelFit, look: tuple[str, str, str], name: str) -> None:
    """Marks and lines of one channel in its colour, marker and kind of line."""
    from paradnn.forecast.communication.channels import SIZE, TIME

    colour, marker, line = look
    sizes, times = (each.rows[column].astype("float64").to_numpy() for column in (SIZE, TIME))
    size = 4 if len(sizes) < _MANY else 2
    for axes, values in zip(both, (times, sizes / times * 1e6), strict=True):
        axes.plot(sizes, values, marker, color=colour, markersize=size, alpha=_FAINT, markeredgewidth=0, label=name)
    for piece in each.fit.pieces if each.fit else ():
        x = np.geomspace(piece.first, max(piece.last, piece.first * 1.01), 100)
        time = piece.at(x)
        for axes, values in zip(both, (time, x / np.maximum(time, 1e-12) * 1e6), strict=True):
            axes.plot(x, values, line, color=colour, linewidth=1.3)


def _size(value: float) -> str:
    for size, name in ((2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")):
        if value >= size:
            return f"{value / size:g} {name}"
    return f"{value:g}"
