"""`memory`: where memory ends, and which size fills it fastest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.options import Options
from analysis.result import Paragraph, Result, pooled_within
from analysis.summaries.gate import gated_untimed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.memory import GroupMemory, Memory

__all__ = ["MemoryOptions", "MemoryResult", "memory"]

_NAMED = 3  # points that contradict the frontier and are named


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(Options):
    """Only what every analysis takes."""

    command = "memory"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MemoryResult(Result):
    """Every point that was tried, whether it fitted, and what the others say of it."""

    memory: Memory

    @property
    def table(self) -> pd.DataFrame:
        return self.memory.table

    @property
    def drawable(self) -> bool:
        return any(group.weights is not None for group in self.memory.groups)

    def _figure(self) -> Figure:
        from analysis.figures.memory import draw_memory

        return draw_memory(self.memory)

    def _paragraphs(self) -> Iterator[Paragraph]:
        for group in self.memory.groups:
            failed, count = int(group.points["failed"].sum()), len(group.points)
            others = ", ".join(f"{number} {outcome}" for outcome, number in group.left_out.items())
            without = f"; left out: {others}" if others else ""
            head = f"{group.name}: {failed:,} of {count:,} points that were tried ran out of memory{without}."
            yield Paragraph(head, tuple(_describe(group)))
        for lacking in self.memory.lacking:
            yield Paragraph(f"{lacking}.")


@gated_untimed
def memory(frame: pd.DataFrame, options: MemoryOptions | None = None) -> MemoryResult:
    """Where memory ends, for each family on each device.

    NotEnoughData where no sizes differ, SchemaError for heterogeneous runs of a group.
    """
    from analysis.methods.memory import memory as analyse

    options = options or MemoryOptions()
    found = analyse(frame, options.pool)
    pooled = pooled_within(frame, ["family", "device"], pool=True) if options.pool else ""
    return MemoryResult(memory=found, sources=found.run_ids, pooled=pooled)


def _describe(group: GroupMemory) -> Iterator[str]:
    points = group.points
    edge, failed = points["edge"], points["failed"]
    if failed.any():
        smallest = points[edge & failed]
        yield f"The smallest that did: {_named(smallest.iloc[0])}{_of(smallest, 'that none smaller is below')}."
    if not failed.all():
        largest = points[edge & ~failed]
        yield f"The largest that fitted: {_named(largest.iloc[-1])}{_of(largest, 'that none larger is above')}."
    if group.weights is not None:
        yield from _regression(group)
    contradicting = points[~failed & points["side"].isin(["contradicted", "fails"])]
    if len(contradicting):
        listed = "; ".join(_named(row) for _, row in contradicting.head(_NAMED).iterrows())
        more = f"; and {len(contradicting) - _NAMED} more" if len(contradicting) > _NAMED else ""
        yield (
            f"{_points(len(contradicting))} fitted though others that are no larger in any size did not: "
            f"{listed}{more}. Memory does not grow with every size there, or what is free differs from run to run."
        )


def _regression(group: GroupMemory) -> Iterator[str]:
    assert group.weights is not None
    rows = group.weights.sort_values("weight", key=lambda column: -column.abs(), kind="stable")
    first = float(rows["weight"].iloc[0])
    listed = "; ".join(
        f"{name} {row['weight']:+.3g} ({row['low']:+.3g} to {row['high']:+.3g})"
        + (f", {row['weight'] / first:.2g} of the first" if number and row["weight"] else "")
        for number, (name, row) in enumerate((rows.round(6) + 0.0).iterrows())
    )
    yield f"Doubling a size adds to the log-odds of running out (95% intervals by profile likelihood): {listed}."
    if group.collinear:
        yield f"Without a weight of their own, since they go with other sizes: {', '.join(group.collinear)}."
    said, missed, share = group.wrong
    yield (
        f"By the other points' frontier {said:,} of {len(group.points):,} are known, {missed} of these wrongly; the "
        f"regression has {100 * share:.2g}% on the wrong side, each model judged by the others."
    )


def _named(row: pd.Series) -> str:
    """Such as "batch_size 64, nodes 8192"."""
    names = [name for name in row.index if name not in ("failed", "side", "edge", "chance")]
    return ", ".join(f"{str(name).removeprefix('model.')} {row[name]}" for name in names)


def _of(points: pd.DataFrame, what: str) -> str:
    return f" (one of {len(points)} {what})" if len(points) > 1 else ""


def _points(count: int) -> str:
    return f"{count} point{'s'[: count != 1]}"
