"""`infeed`: which models wait for their input, and what a faster input pipeline could bring."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from analysis.format import percent_interval, short
from analysis.options import Options, option, unit_option
from analysis.result import Paragraph, Result, joined
from analysis.summaries.gate import gated
from analysis.summaries.told import rare

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.infeed import GroupInfeed, Infeed

__all__ = ["InfeedOptions", "InfeedResult", "infeed"]


@dataclass(frozen=True, kw_only=True)
class InfeedOptions(Options):
    """What the wait is held against, and from where on it counts."""

    command = "infeed"

    against: Literal["flops_per_example", "flops_per_step", "parameters"] = option(
        "flops_per_example", "size of a model (default: flops_per_example)"
    )
    threshold: float = option(
        0.1, "share of the step above which a model is input-bound (default: 0.1)", metavar="SHARE", above=0, below=1
    )
    unit: Literal["crossed", "model", "point"] = unit_option()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class InfeedResult(Result):
    """Every point with its wait and its headroom, and for each family on each device which are input-bound."""

    infeed: Infeed

    @property
    def table(self) -> pd.DataFrame:
        return self.infeed.points.rename(columns={"size": self.infeed.against})

    def _figure(self) -> Figure:
        from analysis.figures.infeed import draw_infeed

        return draw_infeed(self.infeed)

    def _paragraphs(self) -> Iterator[Paragraph]:
        for group in self.infeed.groups:
            yield _describe(group, self.infeed)
        for lacking in self.infeed.lacking:
            yield Paragraph(f"{lacking}.")
        if any(group.cores for group in self.infeed.groups):
            yield Paragraph(
                "Cores: examples a second without the wait, times the pipeline's processor time for an example."
            )
        samples = "; ".join(dict.fromkeys(group.sample for group in self.infeed.groups))
        yield Paragraph(f"Intervals are 95%, over {samples}. Headroom is a bound: the step without the wait.")
        fewest = min(group.points for group in self.infeed.groups)
        yield from map(Paragraph, rare(fewest))


@gated
def infeed(frame: pd.DataFrame, options: InfeedOptions | None = None) -> InfeedResult:
    """Which models wait for their input, how the wait falls with size, and what input without cost would bring.

    NotEnoughData where no run has an `infeed_fraction`, SchemaError for heterogeneous runs of a group.
    """
    from analysis.methods.infeed import infeed as analyse

    options = options or InfeedOptions()
    waits = analyse(frame, options.against, options.threshold, options.pool, options.unit)
    return InfeedResult(infeed=waits, sources=waits.run_ids, pooled=joined(waits.pooled))


def _describe(group: GroupInfeed, of: Infeed) -> Paragraph:
    rows = of.points[(of.points["family"] == group.family) & (of.points["device"] == group.device)]
    head = (
        f"{group.name}: {group.bound} of {group.points} points are input-bound, {percent_interval(group.share)}: they "
        f"wait for more than {of.threshold:.0%} of the step. Median wait {percent_interval(group.median)}."
    )
    return Paragraph(head, (*_wait(group, rows, of.against.replace("_", " ")), *_balance(group, rows)))


def _wait(group: GroupInfeed, rows: pd.DataFrame, size: str) -> Iterator[str]:
    """How the wait goes with the size of a model, and what would be gained without it."""
    bound, free = rows[rows["input_bound"]], rows[~rows["input_bound"]]
    value, low, high = group.correlation
    if not math.isnan(value):
        trend = "falls with" if high < 0 else "rises with" if low > 0 else "is not shown to depend on"
        yield f"The wait {trend} {size}: rank correlation {value:+.2f} ({low:+.2f} to {high:+.2f})."
    if len(bound):
        others = f"; the others have {_range(free)}" if len(free) else ""
        middle, most = bound["headroom"].median(), bound["headroom"].max()
        yield f"Input-bound are models of {_range(bound)} {size}{others}."
        yield f"Without the wait they would be up to {middle:.3g}x as fast in the median, {most:.3g}x at most."


def _balance(group: GroupInfeed, rows: pd.DataFrame) -> Iterator[str]:
    """What was measured with input free of charge, and what would feed the models."""
    if group.gain is not None:
        gains = rows.dropna(subset="gain").sort_values("gain")
        shown = int((gains["gain_low"] > 0).sum()) if "gain_low" in gains else 0
        yield (
            f"Measured: input free of charge makes them {percent_interval(group.gain)} faster in the median, "
            f"{100 * gains['gain'].iloc[-1]:.3g}% at most; distinguished from none in {shown} of {len(gains)}."
        )
    if group.cores is not None:
        cores = rows.dropna(subset="cores").sort_values("cores")
        last = cores.iloc[-1]
        ends = f" ({last['cores_low']:.3g} to {last['cores_high']:.3g})" if "cores_low" in cores else ""
        yield (
            f"Cores that would feed them at that speed: {cores['cores'].min():.3g} to "
            f"{last['cores']:.3g}{ends}, median {group.cores.value:.3g}."
        )


def _range(rows: pd.DataFrame) -> str:
    return f"{short(rows['size'].min())} to {short(rows['size'].max())}"
