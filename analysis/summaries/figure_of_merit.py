"""`figure-of-merit`: one number for each platform over a stated suite."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.format import short
from analysis.options import Options, option
from analysis.result import Paragraph, Result, pooled_within, require_runs
from analysis.summaries.gate import gated
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.methods.figure_of_merit import Merit

__all__ = ["FigureOfMeritOptions", "FigureOfMeritResult", "figure_of_merit"]


@dataclass(frozen=True, kw_only=True)
class FigureOfMeritOptions(Options):
    """Which rate, of which sides, against which."""

    command = "figure-of-merit"

    metric: str = option("examples_per_second", "a rate (default: examples_per_second)", metavar="M")
    by: str = option("device", "what sets the sides apart (default: device), as software.name", metavar="COLUMN")
    baseline: str | None = option(None, "the side that is 1 (default: the first by name)", metavar="SIDE")
    work: tuple[tuple[str, str], ...] = option(
        (),
        "examples in a unit of work of a family, repeatable: rates are then units in a second, and a family whose "
        "unit is large weighs more (default: one example)",
        metavar="FAMILY=EXAMPLES",
        several="repeat",
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FigureOfMeritResult(Result):
    """The figure of each side, and the suite it is over; `unit` of the rates."""

    merit: Merit
    unit: str

    @property
    def table(self) -> pd.DataFrame:
        return self.merit.table

    @property
    def drawable(self) -> bool:
        return False

    def _paragraphs(self) -> Iterator[Paragraph]:
        rows = self.table.to_dict("records")
        counts = self.merit.suite["family"].value_counts().to_dict()
        listed = ", ".join(f"{count} {family}" for family, count in counts.items())
        yield Paragraph(
            f"The suite is the {len(self.merit.suite)} points that every {self.merit.by} measured: {listed}."
        )
        base = rows[0]
        for row in rows:
            rate = f"{short(row['harmonic'], self.unit, digits=4)}{self._ends(row, 'harmonic', self.unit)}"
            words = f"{row['side']}: {rate} in the harmonic mean"
            if row is not base:
                words += f", {short(row['merit'], digits=4)} times {base['side']}{self._ends(row, 'merit')}"
            mean = short(row["mean_ratio"], digits=4)
            beside = (f"The arithmetic mean of the points' ratios, {mean}, is no ratio of times.",)
            yield Paragraph(f"{words}.", () if row is base else beside)
        missing = [f"{count} of {name}" for name, count in self.merit.left_out.items()]
        if missing:
            yield Paragraph(f"Left out, since not every side measured them: {', '.join(missing)}.")
        yield Paragraph("95% intervals hold the errors of the measurements; the suite is as it was stated.")
        for name, reason in self.merit.apart.items():
            yield Paragraph(f"No interval of {name} holds what time does to it: {reason}.")

    @staticmethod
    def _ends(row: dict[object, float], name: str, unit: str = "") -> str:
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        if math.isnan(low):
            return ""
        return f" ({short(low, unit, digits=4)} to {short(high, unit, digits=4)})"


@gated
def figure_of_merit(frame: pd.DataFrame, options: FigureOfMeritOptions | None = None) -> FigureOfMeritResult:
    """The harmonic mean of a rate over the points that every side of a column measured, and its ratio to a baseline's.

    ConfigError for what is no rate, column, side or amount of work, NotEnoughData where the sides share no point,
    SchemaError for heterogeneous runs of a side.
    """
    from analysis.methods.columns import find_column, find_metric
    from analysis.methods.figure_of_merit import figure_of_merit as analyse

    options = options or FigureOfMeritOptions()
    require_runs(frame)
    metric, by = find_metric(frame, options.metric), find_column(frame, options.by, "--by")
    merit = analyse(frame, metric, by, options.baseline, dict(_amount(*pair) for pair in options.work))
    used = frame[frame["run_id"].isin(merit.run_ids)]
    return FigureOfMeritResult(
        merit=merit,
        unit="units/s" if options.work else frame.attrs.get("units", {}).get(metric, ""),
        pooled=pooled_within(used, [by], options.pool),
        sources=merit.run_ids,
    )


def _amount(family: str, text: str) -> tuple[str, float]:
    try:
        return family, float(text)
    except ValueError:
        raise ConfigError("--work", f"{family}={text}", "is no amount of work", "give a number above 0") from None
