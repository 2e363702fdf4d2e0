"""`breakdown`: where the step's time goes, by categories and types of operations."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from analysis.format import short
from analysis.summaries.command import Command
from analysis.summaries.pooling import alike_within, sentence
from analysis.summaries.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.breakdown import Breakdown

__all__ = ["COMMANDS"]

_LEADING = 3  # types of operation that are named for a family


def breakdown(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    """Median share of every category and type of operation, family by family."""
    import pandas as pd

    from analysis.methods.breakdown import breakdown as analyse

    pooled = alike_within(frame, ["family", "device"], args.pool)
    found = analyse(frame)

    def draw() -> Figure:
        from analysis.figures.breakdown import draw_breakdown

        return draw_breakdown(found)

    tables = [found.categories, *([found.types] if found.level == "category" else [])]
    table = pd.concat([part for part in tables if len(part)], ignore_index=True)
    text = "\n".join([*_lines(found), *sentence(pooled)])
    return Result(table, text, draw, sources=found.run_ids, pooled=pooled)


def _lines(found: Breakdown) -> Iterable[str]:
    for family, rows in found.categories.groupby("family", sort=False):
        models = rows["models"].iloc[0]
        shares = [_share(row) for row in rows.head(_LEADING + 2).to_dict("records")]
        yield f"{family}, {models} profiled model{'s' if models != 1 else ''}: {', '.join(shares)}."
        types = found.types[found.types["family"] == family].head(_LEADING)
        if found.level == "category" and len(types):
            yield f"  Leading types: {', '.join(_share(row) for row in types.to_dict('records'))}."
    if found.without:
        yield f"{found.without} measured points have no profile."
    yield (
        "Shares are medians over models, with the 95% interval of the median, or the middle half where models are "
        "too few for one; medians need not add up to the whole."
    )


def _share(row: Mapping[Any, Any]) -> str:
    known = math.isfinite(row["low"]) and math.isfinite(row["high"])
    ends = ("low", "high") if known else ("q25", "q75")
    low, high = (short(row[end], share=True) for end in ends)
    what = f" ({'' if known else 'middle half '}{low} to {high})" if row["models"] > 1 else ""
    return f"{row['name']} {short(row['median'], share=True)}{what}"


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="breakdown",
        summary="where the step's time goes: categories and types of operations by family",
        description="Median share of the profiled step that each category and type of operation takes, over the\n"
        "models of a family. Profiles are taken with measure.profile=true.",
        example="python -m analysis breakdown --family fc --png breakdown.png",
        analyse=breakdown,
        draws=True,
    ),
)
