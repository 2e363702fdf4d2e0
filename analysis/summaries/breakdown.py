"""`breakdown`: where the step's time goes, by categories and types of operations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from analysis.format import short
from analysis.options import Options, unit_option
from analysis.result import Paragraph, Result, pooled_within
from analysis.summaries.gate import gated

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.breakdown import Breakdown

__all__ = ["BreakdownOptions", "BreakdownResult", "breakdown", "share_in_words"]

_LEADING = 3  # types of operation that are named for a family


@dataclass(frozen=True, kw_only=True)
class BreakdownOptions(Options):
    """What intervals are over."""

    command = "breakdown"

    unit: Literal["crossed", "model", "point"] = unit_option()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BreakdownResult(Result):
    """Median shares of the profiled step, of categories and of types of operations."""

    breakdown: Breakdown

    @property
    def table(self) -> pd.DataFrame:
        import pandas as pd

        parts = [self.breakdown.categories, *([self.breakdown.types] if self.breakdown.level == "category" else [])]
        return pd.concat([part for part in parts if len(part)], ignore_index=True)

    def _figure(self) -> Figure:
        from analysis.figures.breakdown import draw_breakdown

        return draw_breakdown(self.breakdown)

    def _paragraphs(self) -> Iterator[Paragraph]:
        of = self.breakdown
        for family, rows in of.categories.groupby("family", sort=False):
            models = rows["models"].iloc[0]
            shares = ", ".join(map(_share, rows.head(_LEADING + 2).to_dict("records")))
            types = of.types[(of.types["family"] == family) & (of.level == "category")].head(_LEADING)
            leading = f"Leading types: {', '.join(map(_share, types.to_dict('records')))}." if len(types) else ""
            head = f"{family}, {models} profiled point{'s' if models != 1 else ''}: {shares}."
            yield Paragraph(head, (leading,) if leading else ())
        if of.without:
            yield Paragraph(f"{of.without} measured points have no profile.")
        samples = "; ".join(dict.fromkeys(of.categories["sample"]))
        yield Paragraph(
            f"Shares are medians, with their 95% interval over {samples}, or the middle half where these are too few "
            "for one; medians need not add up to the whole."
        )


@gated
def breakdown(frame: pd.DataFrame, options: BreakdownOptions | None = None) -> BreakdownResult:
    """Median share of every category and type of operation, family by family.

    ParadnnError where no run was profiled, SchemaError for heterogeneous runs of a family on a device.
    """
    from analysis.methods.breakdown import breakdown as analyse

    options = options or BreakdownOptions()
    pooled = pooled_within(frame, ["family", "device"], options.pool)
    shares = analyse(frame, options.unit)
    return BreakdownResult(breakdown=shares, sources=shares.run_ids, pooled=pooled)


def share_in_words(row: Mapping[Any, Any], what: str = "95% interval ") -> str:
    """The interval of a share, or where models are too few for one, the middle half."""
    known = math.isfinite(row["low"]) and math.isfinite(row["high"])
    low, high = (short(row[end], share=True) for end in (("low", "high") if known else ("q25", "q75")))
    return f"{what if known else 'middle half '}{low} to {high}"


def _share(row: Mapping[Any, Any]) -> str:
    interval = f" ({share_in_words(row, '')})" if row["models"] > 1 else ""
    return f"{row['name']} {short(row['median'], share=True)}{interval}"
