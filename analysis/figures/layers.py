"""Where the wall clock of sessions goes: a bar for each launcher or sweep, stacked by the layers of the stack."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.drawing import COLOURS, stacked
from analysis.methods.layers import LAYERS, Layers

__all__ = ["draw_layers"]

#: What belongs together shares a colour and differs in hatch: the launcher, the framework, the model, the steps.
_LOOK = {
    "queue": (COLOURS[4], ""),
    "task start": (COLOURS[4], "////"),
    "import": (COLOURS[3], ""),
    "fork": (COLOURS[3], "////"),
    "build": (COLOURS[5], ""),
    "compile": (COLOURS[5], "////"),
    "warm-up": (COLOURS[5], "...."),
    "communication": (COLOURS[0], ""),
    "input": (COLOURS[0], "////"),
    "computation": (COLOURS[2], ""),
    "profile": (COLOURS[6], ""),
    "recording": (COLOURS[1], ""),
    "rest": (COLOURS[-1], ""),
}
_WRITTEN = 0.05  # shares from here on have their number in the bar


def draw_layers(found: Layers) -> Figure:
    """Share of the wall clock by layer, groups below each other, a session's mean wall clock at the end of each bar."""
    sessions = found.sessions.groupby("group", sort=False)
    means, counts = sessions["wall"].mean(), sessions["points"].agg(["size", "sum"])
    rows = {f"{name} ({counts['size'][name]}, {counts['sum'][name]})": f"{means[name]:.3g} s" for name in counts.index}
    shares = found.shares.pivot(index="group", columns="layer", values="share").reindex(counts.index)
    shares = shares.fillna(0.0).clip(lower=0.0)
    parts = {layer: (layer, shares[layer]) for layer in LAYERS if layer in shares and shares[layer].any()}
    return stacked(
        rows, parts, _LOOK, "Where the wall clock of a session goes (sessions, points)", "wall clock", _WRITTEN
    )
