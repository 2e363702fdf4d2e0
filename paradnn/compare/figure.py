"""The picture of a comparison: the ratio of every round, and what the rounds say together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paradnn.compare.comparison import Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["comparison_figure"]

#: More points than colours would not be told apart.
_MOST = 9


def comparison_figure(comparison: Comparison) -> Figure:
    """Ratios over rounds, a colour and a marker for each of the first nine points; bands are the 95% intervals."""
    from paradnn.plotting import COLOURS, MARKERS, figure, finish

    drawn, axes = figure(7.0, 4.0)
    results = [result for result in comparison.results() if result.rounds][:_MOST]
    axes.axhline(1.0, color="#444444", linewidth=1.0)
    for result, colour, marker in zip(results, COLOURS, MARKERS, strict=False):
        numbers = [one.number for one in result.rounds]
        ratios = [math.exp(one.log_ratio) for one in result.rounds]
        label = result.name if len(results) > 1 else "a round"
        axes.plot(numbers, ratios, marker, color=colour, markersize=5, label=label)
        if found := result.estimate:
            ends = numbers[0] - 0.5, numbers[-1] + 0.5
            axes.fill_between(ends, found.low, found.high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(ends, [found.ratio] * 2, color=colour, linewidth=1.2)
    ratios = [math.exp(one.log_ratio) for result in results for one in result.rounds]
    if max(ratios) > 3 * min(ratios):
        axes.set_yscale("log")
    first, second = comparison.labels
    finish(axes, f"{first} over {second}", "round", "ratio of examples/s")
    if len(results) > 1:
        axes.legend(fontsize=8, frameon=False)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return drawn
