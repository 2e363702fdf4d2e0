"""The pictures on a run: where a step's time went, how far its operations are from the roof."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paradnn.cli.console import si
from paradnn.record.measured import slowdown_note
from paradnn.worker.messages import Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Types of operations that have a bar of their own; the rest is one bar.
_BARS = 9
#: Operations below this share of the step are not drawn on the roofline.
_SMALLEST_SHARE = 1e-4
_REMAINDER = "(no operation)"
_CATEGORIES = ("matmul", "convolution", "elementwise", "reduction", "data movement", "communication")
_GREY = "#999999"


def point_figure(title: str, profile: Profile, metrics: Mapping[str, float], precision: str) -> Figure:
    """Share of the step by type of operation, and the roofline with the operations and the whole step.

    `metrics` are those of the point, with the measured ceilings where there are any.
    """
    from paradnn.plotting import figure

    drawn, axes = figure(11.5, 4.6, columns=2)
    drawn.suptitle(title, x=0.01, ha="left", fontsize=12)
    _shares(axes[0, 0], profile.operation_types.rows())
    if note := slowdown_note(profile):
        axes[0, 0].set_xlabel(f"share of wall time; {note}", fontsize=8)
    _roofline(axes[0, 1], profile.operations.rows(), metrics, precision)
    return drawn


def _shares(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Horizontal bars, the longest on top, the unexplained remainder last."""
    from paradnn.plotting import finish

    known = sorted((row for row in rows if row["type"] != _REMAINDER), key=lambda row: -row["share"])
    shown = [(row["type"], row["share"], _colour(row["category"])) for row in known[:_BARS]]
    if len(known) > _BARS:
        shown.append((f"{len(known) - _BARS} more types", sum(row["share"] for row in known[_BARS:]), _GREY))
    shown += [("no operation", row["share"], "#dddddd") for row in rows if row["type"] == _REMAINDER]
    for index, (_, share, colour) in enumerate(shown):
        axes.barh(-index, share, color=colour)
        axes.text(share + 0.005, -index, f"{share:.1%}", va="center", fontsize=8)
    labels = ["\n".join(textwrap.wrap(name, 36)) for name, _, _ in shown]
    axes.set_yticks([-index for index in range(len(shown))], labels, fontsize=8)
    axes.set_xlim(0, 1.15 * max(share for _, share, _ in shown))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    finish(axes, "Share of the step", "share of wall time")
    axes.grid(False, axis="y")


def _roofline(axes: Axes, rows: Sequence[Mapping[str, Any]], metrics: Mapping[str, float], precision: str) -> None:
    from paradnn.plotting import MARKERS, finish, quantity

    placed = [row for row in rows if row.get("flops_per_second") and row.get("arithmetic_intensity")]
    placed = [row for row in placed if row["share"] >= _SMALLEST_SHARE]
    for index, category in enumerate(dict.fromkeys(row["category"] for row in placed)):
        some = [row for row in placed if row["category"] == category]
        place = [row["arithmetic_intensity"] for row in some], [row["flops_per_second"] for row in some]
        look: dict[str, Any] = {
            "color": _colour(category),
            "marker": MARKERS[index % len(MARKERS)],
            "edgecolors": "none",
        }
        axes.scatter(*place, s=[15 + 400 * row["share"] for row in some], alpha=0.7, label=category, **look)
    if metrics.get("flops_per_second"):
        place = [metrics["arithmetic_intensity"]], [metrics["flops_per_second"]]
        axes.scatter(*place, marker="*", s=200, color="black", label="whole step", zorder=5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    peak, bandwidth = metrics.get("peak_flops_per_second"), metrics.get("peak_bytes_per_second")
    if peak and bandwidth:
        low, high = axes.get_xlim()
        ridge = peak / bandwidth
        corners = [low, min(ridge, high), high]
        axes.plot(corners, [min(peak, corner * bandwidth) for corner in corners], color="black", linewidth=1.2)
        axes.set_xlim(low, high)
        limits = f"{si(peak)}FLOP/s {precision}, {si(bandwidth)}B/s"
        note = f"measured roof: {limits}, ridge at {ridge:.1f} FLOP/B"
        axes.text(0.02, 1.0, note, transform=axes.transAxes, fontsize=8, va="bottom")
    axes.yaxis.set_major_formatter(quantity("FLOP/s"))
    finish(axes, "", "arithmetic intensity (FLOP/B)", "rate")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="lower right")


def _colour(category: str) -> str:
    from paradnn.plotting import COLOURS

    return COLOURS[_CATEGORIES.index(category)] if category in _CATEGORIES else _GREY
