"""An analysis of another package: how far apart the slowest and the fastest run of each family are."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.lazy import drawing, pd
from analysis.options import Options, option
from analysis.registry import analysis
from analysis.result import Result


@dataclass(frozen=True, kw_only=True)
class SpreadOptions(Options):
    """Options of `spread`."""

    metric: str = option("examples_per_second", "the metric", metavar="M", names="columns")


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
def spread(frame: pd.DataFrame, options: SpreadOptions) -> Result:
    """The spread of a metric over the runs of each family."""
    found = frame.groupby("family")[options.metric].agg(["min", "max"]).dropna()
    found["factor"] = found["max"] / found["min"]
    table = found.reset_index()

    def picture() -> drawing.Figure:
        drawn, (axes,) = drawing.panels(1, 7.0, 4.5)
        axes.barh(table["family"], table["factor"])
        drawing.finish(axes, "Spread", "factor")
        return drawn

    return Result(
        numbers=table,
        sentences=[
            f"{row.family} is spread by a factor of {row.factor:.3g}." for row in table.itertuples()
        ],
        picture=picture,
        sources=tuple(frame["run_id"]),
    )
