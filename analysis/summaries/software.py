"""`software`: what versions, precisions and compile modes bring, family by family."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from analysis.options import Options, option, unit_option
from analysis.result import Paragraph, Result, joined
from analysis.summaries.gate import gated
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.software import Software

__all__ = ["SoftwareOptions", "SoftwareResult", "software"]


@dataclass(frozen=True, kw_only=True)
class SoftwareOptions(Options):
    """What is compared with which baseline."""

    command = "software"

    by: tuple[str, ...] | None = option(
        None, "what to compare, such as precision (default: what varies)", metavar="COLUMNS"
    )
    baseline: str | None = option(None, "what the others are compared with", metavar="VALUE")
    metric: str = option("examples_per_second", "any metric with a direction", metavar="M")
    unit: Literal["crossed", "model", "point"] = unit_option()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SoftwareResult(Result):
    """The median and the 90th percentile of each family's speedups over the baseline."""

    software: Software

    @property
    def table(self) -> pd.DataFrame:
        return self.software.table

    def _figure(self) -> Figure:
        from analysis.figures.software import draw_software

        return draw_software(self.software)

    def _paragraphs(self) -> Iterator[Paragraph]:
        for row in self.table.to_dict("records"):
            yield Paragraph(_describe(row))
        for lacking in self.software.lacking:
            yield Paragraph(f"Not compared: {lacking}.")
        for why in dict.fromkeys(filter(None, self.table["why"])):
            yield Paragraph(f"No verdict: {why}.")
        yield Paragraph(
            f"Speedups are in {self.software.metric}, point by point; intervals are 95%, over models and batch sizes "
            "as a sample of their design space."
        )


@gated
def software(frame: pd.DataFrame, options: SoftwareOptions | None = None) -> SoftwareResult:
    """What each version, precision or compile mode brings over its baseline, family by family.

    ConfigError for a column or baseline that is not there, NotEnoughData where nothing can be paired, SchemaError for
    heterogeneous runs of a side.
    """
    from analysis.methods.software import software as analyse

    options = options or SoftwareOptions()
    if options.baseline is not None and len(options.by or ()) != 1:
        raise ConfigError("--baseline", options.baseline, "is of one column", "name it: --by version.tensorflow")
    speedups = analyse(frame, options.by, options.baseline, options.metric, options.pool, options.unit)
    return SoftwareResult(software=speedups, sources=speedups.run_ids, pooled=joined(speedups.pooled))


def _describe(row: Mapping[Any, Any]) -> str:
    from analysis.methods.software import verdict

    found = verdict(row["median_low"], row["median_high"], row["comparable"])
    return (
        f"{row['family']} on {row['device']}, {row['column']} {row['value']} over {row['over']}: "
        f"{found}. Median {_times(row, 'median')}, 90th percentile "
        f"{_times(row, 'p90')}; faster in {row['faster']:.0%} of {row['pairs']} points ({row['faster_low']:.0%} to "
        f"{row['faster_high']:.0%})."
    )


def _times(row: Mapping[Any, Any], name: str) -> str:
    if not any(math.isfinite(row[f"{name}_{end}"]) for end in ("low", "high")):
        return f"{row[name]:.3g}x (too few points for an interval)"
    ends = [f"{row[end]:.3g}" if math.isfinite(row[end]) else "unknown" for end in (f"{name}_low", f"{name}_high")]
    return f"{row[name]:.3g}x ({ends[0]} to {ends[1]})"
