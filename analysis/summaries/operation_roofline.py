"""`roofline --operations`: the operations of one profiled run under the roof of its device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.format import short
from analysis.result import Paragraph, Result
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.operation_roofline import OperationRoofline
    from analysis.methods.roofline import Roof

__all__ = ["OperationRooflineResult", "operations_of", "percent", "roof_in_words"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OperationRooflineResult(Result):
    """One run's operations; `title` names the run, `model` is its own place (FLOP/B, FLOP/s), None without one."""

    roofline: OperationRoofline
    title: str
    model: tuple[float, float] | None

    @property
    def table(self) -> pd.DataFrame:
        return self.roofline.operations

    @property
    def drawable(self) -> bool:
        return bool(self.roofline.operations["drawn"].any())

    def _figure(self) -> Figure:
        from analysis.figures.operations import draw_operations

        return draw_operations(self.roofline, self.title, self.model)

    def _paragraphs(self) -> Iterator[Paragraph]:
        yield Paragraph(roof_in_words(self.roofline.roof))
        yield Paragraph(f"Of the profiled time: {', '.join(_time(self.roofline))}.")
        yield from map(Paragraph, _savings(self.roofline))


def operations_of(run_id: str, frame: pd.DataFrame, store: Sequence[str]) -> OperationRooflineResult:
    """The operations of the run whose id begins so; ConfigError where not exactly one does, StoreError where it was
    not profiled."""
    from analysis.methods.operation_roofline import operation_roofline
    from analysis.methods.roofline import find_roofs, roofline
    from analysis.store.operations import read_operations
    from paradnn.platform.specifications import find_hardware

    rows = frame[frame["run_id"].str.startswith(run_id)]
    if len(rows) != 1:
        problem = f"{len(rows)} runs begin so" if len(rows) else "no chosen run has this id"
        raise ConfigError("--operations", run_id, problem, "see run_id in python -m analysis roofline --csv -")
    run = rows.iloc[0]
    (roof,) = find_roofs(rows, find_hardware)
    title = str(run["run_name"] or run["run_id"])
    placed = roofline(rows, find_hardware).points
    return OperationRooflineResult(
        roofline=operation_roofline(read_operations(run["run_id"], store), roof),
        title=title if roof.device in title else f"{title} on {roof.device}",
        model=tuple(placed.loc[0, ["arithmetic_intensity", "flops_per_second"]]) if len(placed) else None,
        sources=(str(run["run_id"]),),
    )


def _time(of: OperationRoofline) -> Iterator[str]:
    """Where the profiled time went, by what limits it."""
    from analysis.methods.roofline import Verdict

    for verdict, share in of.time.items():
        if share > 0 and verdict is not Verdict.UNKNOWN:
            yield f"{percent(share)} in {verdict} operations"
    if of.time[Verdict.UNKNOWN] > 0:
        yield f"{percent(of.time[Verdict.UNKNOWN])} in operations under no known roof"
    yield f"{percent(of.without_flops)} in operations without FLOPs"
    if of.unplaced > 0:
        yield f"{percent(of.unplaced)} in operations with FLOPs but without a rate"
    missing = 1 - of.covered
    if missing > 0.0005:
        yield f"{percent(missing)} in no row of the table"


def _savings(of: OperationRoofline) -> Iterator[str]:
    """What the operations would save at their own roofs, and which of them are above those or not drawn."""
    from analysis.methods.roofline import Verdict

    # Links between devices have another roof.
    here = of.operations["roof_share"].notna() & of.operations["verdict"].ne(Verdict.TRANSFER)
    operations = of.operations[here]
    saved = operations["share"] * (1 - operations["roof_share"].clip(upper=1))
    if saved.sum() > 0:
        ranked = operations.assign(saved=saved).sort_values("saved", ascending=False).head(3)
        top = [
            f"{row['name']} ({row['verdict']}, at {percent(row['roof_share'])} of its roof) {percent(row['saved'])}"
            for row in ranked.to_dict("records")
        ]
        yield (
            f"Brought to their roofs, all operations together would save {percent(saved.sum())} of the time; "
            f"most of it: {', '.join(top)}."
        )
    above = operations[operations["roof_share"] > 1.05]
    if len(above):
        yield (
            f"Above their roof: {len(above)} of them, {percent(above['share'].sum())} of the time; "
            "their operands came from caches, or the ceilings are too low."
        )
    hidden = int((~of.operations["drawn"]).sum())
    if hidden:
        yield f"Below {percent(of.minimum_share)} of the time, and not drawn: {hidden} of them."


def roof_in_words(roof: Roof) -> str:
    """The ceilings with their sources and the ridge point, or what is not known of them."""
    name = f"{roof.device} in {roof.precision}"
    if roof.ridge is None:
        known = [f"peak {_si(roof.peak, 'FLOP/s')} ({roof.peak_source})"] if roof.peak else []
        known += [f"bandwidth {_si(roof.bandwidth, 'B/s')} ({roof.bandwidth_source})"] if roof.bandwidth else []
        extent = f"only its {known[0]} is known" if known else "neither ceiling is known"
        return f"{name}: no roof, {extent}; measure the ceilings with python -m paradnn.ceilings."
    same = roof.peak_source == roof.bandwidth_source
    source = f"{roof.peak_source} ceilings" if same else f"ceilings, {roof.source}"
    spread = ""
    if roof.ridge_low != roof.ridge_high:
        spread = f" ({roof.ridge_low:.3g} to {roof.ridge_high:.3g} over its runs)"
    return (
        f"{name}: {source}, {_si(roof.peak or 0, 'FLOP/s')} and {_si(roof.bandwidth or 0, 'B/s')}; "
        f"the ridge point is at {roof.ridge:.3g} FLOP/B{spread}."
    )


def percent(value: float) -> str:
    """A share to three digits, "unknown" where it is NaN."""
    return "unknown" if math.isnan(value) else short(value, share=True, digits=3)


def _si(value: float, unit: str) -> str:
    return short(value, unit, digits=3)
