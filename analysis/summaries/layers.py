"""`layers`: from the wall clock of a sweep, or of a launched job, to the layers of the stack that took it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from analysis.format import short
from analysis.options import Options, option
from analysis.result import Paragraph, Result, pooled_within, require_runs
from paradnn.core.words import counted

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.layers import Layers
    from paradnn.forecast.estimate import Estimate

__all__ = ["LayersOptions", "LayersResult", "layers"]

_LARGEST = 4  # layers that are named


@dataclass(frozen=True, kw_only=True)
class LayersOptions(Options):
    """What the wall clock is divided for."""

    command = "layers"

    by: Literal["launcher", "sweep"] = option("launcher", "a bar for each launcher (the default), or for each sweep")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LayersResult(Result):
    """Seconds and share of every layer, by launcher or sweep."""

    layers: Layers

    @property
    def table(self) -> pd.DataFrame:
        return self.layers.shares

    def _figure(self) -> Figure:
        from analysis.figures.layers import draw_layers

        return draw_layers(self.layers)

    def _paragraphs(self) -> Iterator[Paragraph]:
        of = self.layers
        for group in dict.fromkeys(of.sessions["group"]):
            yield _of_group(of, group)
        if of.restarted:
            yield Paragraph(
                f"{counted(of.restarted, 'run')} of restarted tasks are left out: how long these waited is not known."
            )
        if of.without:
            yield Paragraph(f"{counted(of.without, 'run')} without phases are left out.")


def layers(frame: pd.DataFrame, options: LayersOptions | None = None) -> LayersResult:
    """What of the wall clock each layer took, by launcher or sweep, with intervals over sessions, else over points.

    NotEnoughData without runs that report their phases, SchemaError for heterogeneous runs on a device.
    """
    from analysis.methods.layers import layers as divide

    options = options or LayersOptions()
    require_runs(frame)
    found = divide(frame, options.by)
    used = frame[frame["run_id"].isin(found.run_ids)]
    return LayersResult(layers=found, sources=found.run_ids, pooled=pooled_within(used, ["device"], options.pool))


def _of_group(of: Layers, group: str) -> Paragraph:
    from analysis.methods.layers import SCHEDULER, share_of

    sessions = of.sessions[of.sessions["group"] == group]
    points, wall = int(sessions["points"].sum()), float(sessions["wall"].sum())
    each = f", {_seconds(wall / len(sessions))} a session" if len(sessions) > 1 else ""
    what = f"{counted(points, 'point')} in {counted(len(sessions), 'session')}"
    head = f"{group}: {what} took {_seconds(wall)} of wall clock{each}."
    shares = of.shares[of.shares["group"] == group].sort_values("share", ascending=False)
    largest = [
        f"{row['layer']}: {_share((row['share'], row['low'], row['high']))}, {_seconds(row['seconds'])} a session."
        for row in shares[shares["layer"] != "rest"].head(_LARGEST).to_dict("records")
    ]
    waits = [f"Scheduler ({' + '.join(SCHEDULER)}): {_share(share_of(of, SCHEDULER, group)[0])}."]
    rest = float(sessions["rest"].sum()) / wall
    told = f"Outside these layers: {short(rest, share=True)} (ceilings, points given back, waits for other drivers)."
    if rest < 0:
        told = f"The layers add up to {short(-rest, share=True)} more than it: these runs do not say when they began."
    return Paragraph(head, (*largest, *(waits if sessions["queue"].any() else ()), told))


def _share(found: Estimate | tuple[float, float, float]) -> str:
    value, low, high = found
    if math.isnan(low):
        return short(value, share=True)
    return f"{short(value, share=True)} (95% interval {short(low, share=True)} to {short(high, share=True)})"


def _seconds(value: float) -> str:
    return short(value, "s", digits=3) if value >= 0.1 else short(1000 * value, "ms", digits=3)
