"""`roofline --operations all`: the types of operation of all profiled models under the roofs of their devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from analysis.format import percent_interval
from analysis.labels import not_recorded
from analysis.result import Paragraph, Result
from analysis.summaries.operation_roofline import percent, roof_in_words
from paradnn.errors import StoreError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.dependence import Levels, Unit
    from analysis.methods.operation_roofline import OperationsOfModels
    from paradnn.forecast.estimate import Estimate

__all__ = ["ModelOperationsResult", "operations_of_all"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelOperationsResult(Result):
    """The types of operation of many models; `levels` are what these (rows of `found.models`) share, `colour` is the
    column that colours the types, None for the type itself."""

    found: OperationsOfModels
    levels: Levels
    colour: str | None = None

    @property
    def table(self) -> pd.DataFrame:
        rows = self.found.operations.drop(columns="name")
        return rows[[*(name for name in rows if name != "run_id"), "run_id"]]

    @cached_property
    def types(self) -> pd.DataFrame:
        """A row for each type that is drawn, the most frequent first: operations, how many are compute-bound, whether
        they go between devices, the range of their intensities (FLOP/B), median and maximum of their share of the roof,
        median share of the time."""
        rows = self.found.operations[self.found.operations["drawn"]]
        limits = {"compute": rows["verdict"].eq("compute-bound"), "between": rows["verdict"].eq("between devices")}
        grouped = rows.assign(**limits).groupby("type")
        table = grouped.agg(
            operations=("share", "size"),
            compute_bound=("compute", "sum"),
            between_devices=("between", "any"),
            lowest_intensity=("arithmetic_intensity", "min"),
            highest_intensity=("arithmetic_intensity", "max"),
            roof_share=("roof_share", "median"),
            roof_share_best=("roof_share", "max"),
            share=("share", "median"),
        )
        return table.sort_values("operations", ascending=False, kind="stable").reset_index()

    def time(self, *verdicts: str) -> Estimate:
        """Median over models of the share of the profiled time under these verdicts together, with its 95% interval."""
        from analysis.methods.dependence import crossed_quantile

        return crossed_quantile(self.found.models[list(verdicts)].sum(axis=1), self.levels)

    @property
    def drawable(self) -> bool:
        return bool(self.found.operations["drawn"].any())

    def _figure(self) -> Figure:
        from analysis.figures.operations import draw_operations_of_models

        return draw_operations_of_models(self.found, self.colour)

    def _paragraphs(self) -> Iterator[Paragraph]:
        yield from (Paragraph(roof_in_words(roof)) for roof in self.found.roofs)
        drawn, models = int(self.found.operations["drawn"].sum()), len(self.found.models)
        left_out = ", ".join(f"{count} {reason}" for reason, count in self.found.left_out.items())
        least = percent(self.found.minimum_share)
        yield Paragraph(
            f"{drawn} operations of {models} models are drawn, types of operation with FLOPs and at least {least} of "
            f"their model's time{f'; left out: {left_out}' if left_out else ''}.",
            tuple(map(_type, self.types.to_dict("records"))),
        )
        over = f"95% intervals over {self.levels.words}"
        yield Paragraph(f"Of a model's profiled time, in the median ({over}): {'; '.join(self._times())}.")
        if len(self.types) and self.types["between_devices"].any():
            both = percent_interval(self.time("memory-bound", "between devices"))
            yield Paragraph(
                "What goes between devices has an intensity far left of the ridge, yet its bytes cross links, which "
                f"are no ceiling of this roof. Counted as memory-bound, these would be {both} of the time together."
            )

    def _times(self) -> Iterator[str]:
        models = self.found.models
        for name in ("memory-bound", "between devices", "at the ridge", "compute-bound", "unknown"):
            if (models[name] > 0).any():
                yield f"{name} {percent_interval(self.time(name))}"
        yield f"without FLOPs {percent_interval(self.time('without_flops', 'unplaced'))}"


def operations_of_all(
    frame: pd.DataFrame, store: Sequence[str], colour: str | None, pooled: str, unit: Unit
) -> ModelOperationsResult:
    """The types of operation of the profiled runs of a frame, one run for each point; StoreError where none was
    profiled, ConfigError for a `colour` that is no column."""
    from analysis.methods.columns import find_column
    from analysis.methods.dependence import levels_of
    from analysis.methods.operation_roofline import operations_of_models
    from analysis.methods.roofline import find_roofs
    from analysis.store.frame import is_ok
    from analysis.store.operations import load_types
    from paradnn.platform.specifications import find_hardware

    runs = frame[is_ok(frame)]
    types = load_types(runs, store)
    runs = runs[runs["run_id"].isin(types["run_id"])]
    if runs.empty:
        raise StoreError("none of the chosen runs was profiled; measure them with measure.profile=true")
    # Replicates of a point say the same thing again; points of different environments do not.
    keys = [name for name in ("point_id", "environment_id", "protocol_id") if name in runs]
    runs = runs.drop_duplicates(keys) if "point_id" in runs else runs
    places = ("device", "precision")
    runs = runs.assign(**{name: runs[name].astype("object").fillna(not_recorded(name)) for name in places})
    found = operations_of_models(types, runs, find_roofs(runs, find_hardware))
    column = None if colour in (None, "type") else find_column(runs, str(colour), "--colour")
    extra = [name for name in ("batch_size", *sorted(_model_columns(runs)), column) if name and name in runs]
    extra = [name for name in dict.fromkeys(extra) if name not in found.operations]
    return ModelOperationsResult(
        found=_with(found, runs[["run_id", *extra]]),
        levels=levels_of(runs.set_index("run_id").loc[found.models["run_id"]], unit),
        colour=column,
        sources=tuple(runs["run_id"]),
        pooled=pooled,
    )


def _model_columns(runs: pd.DataFrame) -> list[str]:
    sizes = [str(name) for name in runs if str(name).startswith("model.") and name != "model.name"]
    return [name for name in sizes if runs[name].nunique() > 1]


def _with(found: OperationsOfModels, columns: pd.DataFrame) -> OperationsOfModels:
    from dataclasses import replace

    return replace(found, operations=found.operations.merge(columns, on="run_id", how="left"))


def _type(row: dict[Any, Any]) -> str:
    """One type's operations: what limits them, where they lie, how near they come to the roof."""
    low, high = (f"{row[end]:.3g}" for end in ("lowest_intensity", "highest_intensity"))
    where = f"{low} FLOP/B" if low == high else f"{low} to {high} FLOP/B"
    name = f"{row['type']}, {row['operations']} operations at {where}"
    if row["between_devices"]:
        best = percent(row["roof_share_best"])
        return f"{name}: between devices; they never draw more than {best} of what memory would give."
    return (
        f"{name}: {row['compute_bound']} compute-bound; {percent(row['roof_share'])} of the roof in the median, at "
        f"most {percent(row['roof_share_best'])}."
    )
