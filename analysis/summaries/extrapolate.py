"""`extrapolate`: the step time of models on a device that only ran kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from analysis.format import short
from analysis.options import Options, option
from analysis.result import Paragraph, Result, require_runs
from analysis.summaries.gate import gated
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.extrapolation import Kernels, Step

__all__ = ["ExtrapolateOptions", "ExtrapolateResult", "extrapolate"]

_LISTED = 6


@dataclass(frozen=True, kw_only=True)
class ExtrapolateOptions(Options):
    """Which steps, on which device."""

    command = "extrapolate"

    to: str = option(text="the device, which ran kernels: model=gemm, conv2d, elementwise", metavar="DEVICE")
    run: str | None = option(
        None, "the beginning of one run's id, or a condition as in --where (default: all models)", metavar="RUN"
    )
    model: str | None = option(
        None, "points that need no run, such as 'model=fc model.nodes=64,256 batch_size=32'", metavar="POINTS"
    )

    metric: Literal["step_time_ms", "step_time_min_ms"] = option(
        "step_time_ms",
        "the time of kernels and of measured steps (default: step_time_ms, the median; step_time_min_ms, the fastest "
        "block, where other work shared the machine)",
        metavar="M",
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ExtrapolateResult(Result):
    """The steps that were asked for, with the runs or points (rows) that they are of."""

    kernels: Kernels
    rows: pd.DataFrame
    steps: Sequence[Step]
    metric: str

    @property
    def table(self) -> pd.DataFrame:
        """Of one step its operations; of several a row each, with the measured step where the run is of the device."""
        if len(self.steps) == 1:
            return self.steps[0].operations
        return self.steps_table

    @property
    def steps_table(self) -> pd.DataFrame:
        """A row for each step, in seconds; measured and ratio (predicted / measured) where it ran on the device."""
        import numpy as np

        named = [name for name in ("run_id", "run_name", "family", "batch_size") if name in self.rows]
        table = self.rows[named].reset_index(drop=True)
        for name in ("seconds", "low", "high", "covered"):
            table[name] = [getattr(step, name) for step in self.steps]
        measured = np.full(len(table), np.nan)
        if self.metric in self.rows:
            here = self.rows["device"].eq(self.kernels.device).to_numpy(dtype=bool)
            measured = np.where(here, self.rows[self.metric].to_numpy(dtype="float64", na_value=np.nan) / 1e3, np.nan)
        return table.assign(measured=measured, ratio=table["seconds"] / measured)

    @property
    def drawable(self) -> bool:
        return bool(self.steps_table["measured"].notna().any())

    def _figure(self) -> Figure:
        from analysis.figures.extrapolation import draw_extrapolation

        return draw_extrapolation(self.steps_table, self.kernels.device)

    def _paragraphs(self) -> Iterator[Paragraph]:
        yield _of_kernels(self.kernels)
        if len(self.steps) == 1:
            yield from _of_step(self.steps[0], self.kernels.device)
        yield from _of_ratios(self.steps_table)


def _of_kernels(kernels: Kernels) -> Paragraph:
    points = tuple(
        f"{kind}: {kernels.counts[kind]} kernels; each predicted from the others with a median error of "
        f"{model.left_out.median_error:.1%}, {model.left_out.coverage():.0%} of them in their 95% interval; "
        f"a call takes {short(model.dispatch * 1e6, digits=2)} microseconds."
        for kind, model in kernels.models.items()
    )
    few = ", ".join(f"{kind} ({count} of its kernels ran)" for kind, count in kernels.missing.items())
    return Paragraph(f"Operation times on {kernels.device}{f'; not modelled: {few}' if few else ''}:", points)


def _of_step(step: Step, device: str) -> Iterator[Paragraph]:
    yield Paragraph(
        f"The step takes {_seconds(step.seconds)} ({_seconds(step.low)} to {_seconds(step.high)}) on {device}."
    )
    if math.isnan(step.covered):
        yield Paragraph(
            "Without a profile of it, what the operations cover is not known, and what is no product is only the "
            "traffic that cannot be avoided; a run with measure.profile=true says more."
        )
    else:
        yield Paragraph(f"The modelled operations took {step.covered:.1%} of the step in the profile.")
    left = [name if math.isnan(share) else f"{name} ({share:.1%})" for name, share in step.not_modelled.items()]
    if left:
        more = f" and {len(left) - _LISTED} more" if len(left) > _LISTED else ""
        yield Paragraph(f"Not modelled: {', '.join(left[:_LISTED])}{more}.")


def _of_ratios(table: pd.DataFrame) -> Iterator[Paragraph]:
    known = table[table["measured"].notna()]
    if known.empty:
        return
    error = (known["ratio"] - 1).abs()
    held = known["measured"].between(known["low"], known["high"])
    yield Paragraph(
        f"Beside {len(known)} measured steps: predicted / measured {known['ratio'].median():.3g} in the median, "
        f"a median error of {error.median():.1%}, {held.mean():.0%} within their 95% interval."
    )


def _seconds(value: float) -> str:
    return short(value * 1e3, "ms", digits=3)


@gated
def extrapolate(frame: pd.DataFrame, options: ExtrapolateOptions) -> ExtrapolateResult:
    """Steps of a frame's models, or of points that are named, on a device whose kernels are in the frame.

    ConfigError for a run, points or a device that is not there, NotEnoughData for too few kernels, SchemaError for
    kernels of several environments or protocols.
    """
    from analysis.methods.extrapolation import fit_kernels, require_step, step_of

    require_runs(frame)
    rows = _chosen(frame, options)
    records = rows.to_dict("records")
    for row in records:
        require_step(row, *(() if options.model is None else ("--model", "name other points")))
    kernels = fit_kernels(frame, options.to, records[0], options.metric, options.pool)
    differing = [
        name for name in ("precision", "framework.name", "compile") if name in rows and rows[name].nunique() > 1
    ]
    if differing:
        values = ", ".join(map(str, rows[differing[0]].unique()))
        raise ConfigError("--run", differing[0], f"differs: {values}", f"choose one with --where {differing[0]}=...")
    tables = _operations(rows, options)
    steps = [step_of(row, kernels, tables.get(str(row.get("run_id")))) for row in records]
    runs = tuple(rows["run_id"]) if "run_id" in rows else ()
    return ExtrapolateResult(
        kernels=kernels,
        rows=rows,
        steps=steps,
        metric=options.metric,
        sources=(*runs, *kernels.run_ids),
        pooled=kernels.pooled,
    )


def _chosen(frame: pd.DataFrame, options: ExtrapolateOptions) -> pd.DataFrame:
    """The rows that are to be predicted: points that are named, else the measured runs of models that are meant."""
    from analysis.store.conditions import select
    from analysis.store.frame import is_ok
    from analysis.store.spaces import read_points
    from paradnn.families import FAMILIES

    if options.run is not None and options.model is not None:
        raise ConfigError("--model", options.model, "is given beside --run", "leave one of them out")
    if options.model is not None:
        return read_points(options.model, "--model")
    models = [name for name, family in FAMILIES.items() if not family.is_kernel]
    runs = frame[is_ok(frame) & frame["family"].isin(models)].reset_index(drop=True)
    if options.run is not None:
        is_condition = any(sign in options.run for sign in "=<>")
        chosen = (
            select(runs, [options.run], "--run") if is_condition else runs[runs["run_id"].str.startswith(options.run)]
        )
        if chosen.empty or (not is_condition and len(chosen) > 1):
            problem = f"{len(chosen)} runs begin so" if len(chosen) else "no measured run of a model is it"
            raise ConfigError("--run", options.run, problem, "see run_id in python -m analysis export runs.csv")
        runs = chosen
    if runs.empty:
        raise ConfigError("--run", "(none given)", "no model was measured", "name points with --model")
    return runs.reset_index(drop=True)


def _operations(rows: pd.DataFrame, options: ExtrapolateOptions) -> dict[str, pd.DataFrame]:
    """Run id -> the operation table of a run that was profiled."""
    from analysis.store.load import load_tables

    if "profile" not in rows or not rows["profile"].eq("ok").any():
        return {}
    tables = load_tables(rows[rows["profile"].eq("ok")], "operations.json", options.store)
    return {str(run_id): table for run_id, table in tables.groupby("run_id")}
