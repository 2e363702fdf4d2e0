"""Messages over their size: the time of one, and the bandwidth it sees, with the fitted lines."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from analysis.drawing import COLOURS, MARKERS, figure, finish, quantity
from paradnn.forecast.communication.channels import SIZE, TIME, ChannelFit, Channels

__all__ = ["draw_channels"]

_FAINT = 0.55
_LINES = ("-", "--", "-.")
#: Breaks beyond which none is marked, and runs of a channel from which on their marks are small.
_MOST_BREAKS, _MANY = 12, 200


def draw_channels(found: Channels) -> Figure:
    """Left the time of a message, right its size over that time; a mark is a run, a line its fit, dotted where another
    piece begins. Colours are transports, so that floors stand beside what is built on them, and markers and kinds of
    line are patterns; of one transport each channel has a colour of its own."""
    drawn, (both,) = figure(11.0, 5.0, 1, 2)
    transports = list(dict.fromkeys(each.transport for each in found.channels))
    shapes = list(dict.fromkeys((each.pattern, each.variant, each.device) for each in found.channels))
    several = len({each.device for each in found.channels}) > 1
    crowded = sum(len(fit.breaks) for _, fit in found.fitted) > _MOST_BREAKS
    for number, each in enumerate(found.channels):
        place = transports.index(each.transport) if len(transports) > 1 else number
        colour = COLOURS[place % len(COLOURS)]
        marker = MARKERS[shapes.index((each.pattern, each.variant, each.device)) % len(MARKERS)]
        name = f"{each.name} on {each.device}" if several else each.name
        _channel(both, each, (colour, marker, _LINES[MARKERS.index(marker) % len(_LINES)]), name)
        for size in each.fit.breaks if each.fit and not crowded else ():
            both[0].axvline(size, color=colour, linewidth=0.8, linestyle=":", alpha=_FAINT)
    for axes in both:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _size(value)))
    both[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    both[1].yaxis.set_major_formatter(quantity(""))
    finish(both[0], "Time of a message or a collective", "size (bytes)", "time (us)")
    finish(both[1], "Its bandwidth", "size (bytes)", "size / time (B/s)")
    handles, labels = both[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return drawn


def _channel(both: list[Axes], each: ChannelFit, look: tuple[str, str, str], name: str) -> None:
    """Marks and lines of one channel in its colour, marker and kind of line."""
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
