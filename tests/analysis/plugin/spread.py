"""An analysis of another package: how far apart the slowest and the fastest run of each family are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.lazy import drawing, pd
from analysis.options import Options, option
from analysis.registry import analysis
from analysis.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class SpreadOptions(Options):
    """What is spread."""

    metric: str = option("examples_per_second", "what is spread", metavar="M", names="columns")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SpreadResult(Result):
    """A row a family: its least and its most, and how many times as much that is."""

    spread: pd.DataFrame

    @property
    def table(self) -> pd.DataFrame:
        return self.spread

    def _paragraphs(self) -> Iterator[str]:
        for row in self.spread.to_dict("records"):
            yield f"{row['family']} is spread by a factor of {row['factor']:.3g}."

    def _figure(self) -> Figure:
        drawn, (axes,) = drawing.panels(1, 7.0, 4.5)
        axes.barh(self.spread["family"], self.spread["factor"])
        drawing.finish(axes, "Spread", "factor")
        return drawn


@analysis(
    SpreadOptions,
    summary="how far apart the runs of a family are",
    description="Divide the most of a metric by the least, family by family.",
    example="python -m analysis spread --metric examples_per_second",
    section="system",
    order=15,
    title="Spread of the families",
    reading="The longer the bar, the more a family's runs differ.",
)
def spread(frame: pd.DataFrame, options: SpreadOptions) -> SpreadResult:
    """The spread of a metric over the runs of each family."""
    found = frame.groupby("family")[options.metric].agg(["min", "max"]).dropna()
    found["factor"] = found["max"] / found["min"]
    return SpreadResult(spread=found.reset_index(), sources=tuple(frame["run_id"]))
