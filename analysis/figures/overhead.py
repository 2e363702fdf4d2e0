"""Where the wall time of points goes: a bar for each family, stacked by phase."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from analysis.figures.style import COLOURS, figure, finish_stacks, stack
from analysis.methods.overhead import OVERHEAD_PHASES, Overhead

__all__ = ["draw_overhead"]

#: Phases of the stack itself share a colour and differ in hatch, so do those that the model costs.
_LOOK = {
    "schedule": (COLOURS[1], ""),
    "start": (COLOURS[1], "////"),
    "record": (COLOURS[1], "xxxx"),
    "build": (COLOURS[5], ""),
    "compile": (COLOURS[5], "////"),
    "warmup": (COLOURS[5], "...."),
    "measure": (COLOURS[2], ""),
    "latency": (COLOURS[2], "////"),
    "profile": (COLOURS[3], ""),
}


def draw_overhead(result: Overhead) -> Figure:
    """Share of wall time by phase, families below each other, mean seconds of a point at the end of each bar."""
    table = result.families
    families = list(dict.fromkeys(table["family"]))
    drawn, axes = figure(8.0, 1.9 + 0.5 * len(families))
    left = np.zeros(len(families))
    for phase in dict.fromkeys(table["phase"]):
        shares = table[table["phase"] == phase].set_index("family")["share"].reindex(families).fillna(0).to_numpy()
        colour, hatch = _LOOK.get(phase, (COLOURS[-1], ""))
        label = f"{phase} (stack)" if phase in OVERHEAD_PHASES else phase
        stack(axes, left, shares, label, colour, hatch, 0.08)
        left += shares
    means = table.groupby("family")["seconds"].sum()
    points = table.groupby("family")["points"].first()
    rows = [f"{name} ({points[name]})" for name in families]
    ends = [f"{means[name]:.3g} s a point" for name in families]
    finish_stacks(drawn, axes, rows, ends, "Where the time of a point goes, by family (points)", "wall time")
    return drawn
