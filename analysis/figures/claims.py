"""All claims at a glance: a row for each, a mark for each of its checks."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.claims.evaluate import Finding
from analysis.claims.judge import Verdict
from analysis.claims.kinds import Answer
from analysis.figures.style import COLOURS, figure, finish

__all__ = ["draw_claims"]

#: State of a check -> (marker, colour, filled).
_LOOKS = {
    "supported": ("o", COLOURS[0], True),
    "refuted": ("X", COLOURS[1], True),
    "undecided": ("D", COLOURS[4], True),
    "no data": ("o", "#999999", False),
}
_WRAP = 62  # characters of a claim's line


def draw_claims(verdicts: Sequence[Verdict]) -> Figure:
    """Claims from top to bottom with their answer, their checks from left to right in the order of the file."""
    labels = [textwrap.fill(f"{verdict.claim.id}. {verdict.claim.says}", _WRAP) for verdict in verdicts]
    lines = sum(max(2, label.count("\n") + 1) for label in labels)
    most = max(len(verdict.findings) for verdict in verdicts)
    drawn, axes = figure(6.2 + 0.32 * most + 1.6, 1.3 + 0.2 * lines)
    places, top = [], 0.0
    for label in labels:
        height = max(2, label.count("\n") + 1)
        places.append(top + height / 2)
        top += height
    for place, verdict in zip(places, verdicts, strict=True):
        axes.plot((0.4, most + 0.5), (place, place), color="#dddddd", linewidth=0.6, zorder=0)
        for number, finding in enumerate(verdict.findings, 1):
            marker, colour, filled = _LOOKS[_state(finding)]
            axes.plot(
                number,
                place,
                marker,
                color=colour,
                markerfacecolor=colour if filled else "none",
                markersize=8,
                linestyle="none",
            )
        partly = (
            f" ({verdict.measured} of {len(verdict.findings)})" if 0 < verdict.measured < len(verdict.findings) else ""
        )
        axes.annotate(
            f"{verdict.answer}{partly}",
            (most + 0.8, place),
            va="center",
            fontsize=9,
            annotation_clip=False,
            fontweight="normal" if verdict.answer is Answer.NOT_ENOUGH else "bold",
        )
    finish(axes, "Claims and their checks", x="check")
    axes.set_yticks(places, labels, fontsize=9)
    axes.set_xticks(range(1, most + 1))
    axes.set_xlim(0.4, most + 4.6)
    axes.set_ylim(top, 0)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    handles = [
        Line2D(
            [],
            [],
            marker=marker,
            color=colour,
            markerfacecolor=colour if filled else "none",
            linestyle="none",
            label=state,
        )
        for state, (marker, colour, filled) in _LOOKS.items()
    ]
    drawn.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return drawn


def _state(finding: Finding) -> str:
    if finding.answer is not Answer.NOT_ENOUGH:
        return finding.answer.value
    return "undecided" if finding.points else "no data"
