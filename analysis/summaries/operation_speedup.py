"""`speedup --operations`: A over B operation by operation, and the gain in memory bandwidth that this implies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.result import Paragraph, Result
from analysis.summaries.sides import KEPT, Sides, apart, mean_in_words, tidy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.operation_speedup import OperationSpeedup

__all__ = ["OperationSpeedupResult", "operations_over"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OperationSpeedupResult(Result):
    """Paired operation types, levels of what limits them, and the bandwidth gain; `ridges` in FLOP/B."""

    speedup: OperationSpeedup
    sides: Sides
    ridges: tuple[float, ...]

    @property
    def table(self) -> pd.DataFrame:
        return tidy(self.speedup.operations, ("operation_type", *KEPT))

    def _figure(self) -> Figure:
        from analysis.figures.speedup import draw_operations

        return draw_operations(self.speedup, self.ridges, self.sides.name_a, self.sides.name_b)

    def _paragraphs(self) -> Iterator[Paragraph]:
        of, sides = self.speedup, self.sides
        yield Paragraph(
            f"{sides.named()}Speedup of {' over '.join(sides.called)} in the FLOP rate of {len(of.operations)} "
            f"operation types in paired points; {of.small} below 1% of the time are left out."
        )
        for row in of.levels.to_dict("records"):
            mean = mean_in_words(row["geometric_mean"], row["geometric_mean_low"], row["geometric_mean_high"])
            yield Paragraph(f"{row['level']}: {mean} over {row['operations']} operations in {row['points']} points.")
        yield Paragraph(self._gain())
        yield from apart(of.operations, sides, "operation types")

    def _gain(self) -> str:
        if not self.ridges:
            return (
                "No ridge point is known, so memory-bound operations cannot be identified: give it with --ridge, or "
                "measure the ceilings."
            )
        if self.speedup.gain_from is None:
            return "No operation is memory-bound on both sides: nothing is said of the bandwidth."
        edges = ", ".join(f"{ridge:.3g}" for ridge in self.ridges)
        return (
            f"Memory bandwidth gain of {' over '.join(self.sides.called)}, from the level '{self.speedup.gain_from}': "
            f"{mean_in_words(*self.speedup.gain)}; ridge at {edges} FLOP/B."
        )


def operations_over(
    sides: Sides, on: Sequence[str] | None, given: Sequence[float], store: Sequence[str]
) -> OperationSpeedupResult:
    """The operations of A's profiled runs over those of B's; NotEnoughData where nothing can be paired."""
    import pandas as pd

    from analysis.methods.operation_speedup import operation_speedup
    from analysis.store.operations import load_types

    ridges = _ridges(sides, given)
    types = load_types(pd.concat([sides.a, sides.b], ignore_index=True), store)
    speedup = operation_speedup(sides.a, sides.b, types, ridges, on)
    return OperationSpeedupResult(
        speedup=speedup, sides=sides, ridges=ridges, sources=sides.sources, pooled=sides.pooled
    )


def _ridges(sides: Sides, given: Sequence[float]) -> tuple[float, ...]:
    """The ridge points as given, else those of the sides' roofs; none where one of these is unknown.

    Half a knowledge would call operations memory-bound that are so on one side alone.
    """
    from analysis.methods.roofline import find_roofs
    from paradnn.platform.specifications import find_hardware

    if given:
        return tuple(sorted(given))
    ridges = {roof.ridge for side in (sides.a, sides.b) for roof in find_roofs(side, find_hardware)}
    return () if None in ridges else tuple(sorted(ridge for ridge in ridges if ridge is not None))
