"""Timings of the kernels in the user's own store, for devices without published timings.

A kernel is an operation that was timed alone. An operation within a step is not called from Python,
so the call is subtracted from each kernel's time. Chains of elementwise kernels show the duration
of a call and of an operation within it. If kernels of another kind have a longer fixed time than an
elementwise call, the excess is their preparation in the library. This preparation also occurs
within a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.atlas import Atlas, TimingGroup, load
from analysis.atlas.points import model_from_row
from analysis.lazy import np, pd
from analysis.store.frame import IDENTITY
from analysis.store.lazy_step_inputs import step_inputs
from paradnn.core.errors import InsufficientData, StoreError
from paradnn.families import FAMILIES
from paradnn.families.operations import Operation

#: Columns in which a kernel must agree with the point, if both have a value.
_SHARED_COLUMNS = ("precision", "framework.name", "compile")


def load_kernels(store: str | Sequence[str] | None) -> pd.DataFrame:
    """Load the measured kernels (operations that were timed alone) of a store.

    Args:
        store: Address of the store, or of several; None for the default one, which may be absent.

    Returns:
        A row per kernel; no rows if the default store does not exist.
    """
    from analysis.store.load import load as load_runs

    families = [
        name
        for name, family in FAMILIES.items()
        if family.is_kernel and not family.is_communication
    ]
    try:
        runs = load_runs(store, family=families, outcome="ok")
    except StoreError:
        if store is not None:
            raise
        runs = pd.DataFrame()
    if "step_time_ms" in runs:
        return runs[runs["step_time_ms"].gt(0)]
    return pd.DataFrame({"device": []})


def own_atlas(
    runs: pd.DataFrame, device: str, row: Mapping[Any, Any], similar: str | None = None
) -> Atlas:
    """Return timings of the kernels that ran on a device under the settings of a step.

    Only kernels of the latest environment and protocol are used.

    Args:
        runs: Kernels, as `load_kernels` returns them.
        device: Name of the device in the store.
        row: The step to be estimated, as a mapping from configuration keys to values.
        similar: Name of a device with published timings, whose fits are priors; None for no priors.

    Raises:
        InsufficientData: If too few kernels were measured on the device with these settings.
        ConfigError: If the similar device has no published timings.
    """
    from paradnn.forecast.operation_times import MIN_OPERATIONS

    runs = _comparable_kernels(runs, device, row)
    operations = [
        model_from_row(run).as_operation(int(run["batch_size"]), str(run["precision"]))
        for run in runs.to_dict("records")
    ]
    timings = pd.DataFrame(map(vars, operations)).assign(
        seconds=runs["step_time_ms"].to_numpy(dtype="float64") / 1e3
    )
    noise = step_inputs.stated_run_noise(runs)
    prior_atlas = None
    prior_device = ""
    if similar:
        prior_atlas = load()
        prior_device = prior_atlas.device_name(similar, "--from")
    groups = {}
    counts = {}
    for kind, positions in timings.groupby("kind").indices.items():
        kind_operations = [operations[position] for position in positions]
        counts[kind] = len(set(kind_operations))
        if counts[kind] < MIN_OPERATIONS:
            continue
        prior = None
        if prior_atlas is not None:
            prior = prior_atlas.find_group(prior_device, str(kind), str(row["precision"]))
        groups[kind] = _fit_group(
            kind=str(kind),
            device=device,
            row=row,
            operations=kind_operations,
            timings=timings.iloc[positions],
            noise=noise[positions],
            prior=prior,
        )
    if not groups:
        kind_counts = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        raise InsufficientData(
            f"too few kernels were measured on {device} ({kind_counts}) for an estimate, which "
            f"needs at least {MIN_OPERATIONS} of a kind, and preferably {2 * MIN_OPERATIONS}; "
            "measure more: paradnn train -m experiment=kernels"
        )
    return Atlas(tuple(_with_overheads(groups).values()))


def _comparable_kernels(runs: pd.DataFrame, device: str, row: Mapping[Any, Any]) -> pd.DataFrame:
    """Return the kernels of a device that ran under the settings of a step.

    Kernels of earlier environments or protocols are excluded.

    Args:
        runs: Kernels, as `load_kernels` returns them.
        device: Name of the device.
        row: The step, as a mapping from configuration keys to values. Its precision, framework and
            compile mode count.

    Raises:
        InsufficientData: If no kernel ran under these settings.
    """
    runs = runs[runs["device"].eq(device)]
    wanted = {
        name: row[name] for name in _SHARED_COLUMNS if name in runs and pd.notna(row.get(name))
    }
    for name, value in wanted.items():
        runs = runs[runs[name].eq(value) | runs[name].isna()]
    if runs.empty:
        settings = " ".join(f"{name}={value}" for name, value in wanted.items())
        raise InsufficientData(
            f"no kernel was measured on {device} with {settings}; "
            "measure some: paradnn train -m experiment=kernels"
        )
    for name in IDENTITY:
        if name in runs:
            last = runs[name].iloc[-1]
            if pd.isna(last):
                runs = runs[runs[name].isna()]
            else:
                runs = runs[runs[name].eq(last)]
    return runs


def _fit_group(
    *,
    kind: str,
    device: str,
    row: Mapping[Any, Any],
    operations: Sequence[Operation],
    timings: pd.DataFrame,
    noise: np.ndarray,
    prior: TimingGroup | None,
) -> TimingGroup:
    """Fit the times of the kernels of one kind, if possible with a similar device as prior.

    Args:
        kind: Kind of the kernels, such as "gemm".
        device: Name of the device.
        row: The step that the fit will estimate, as a mapping from configuration keys to values. It
            names the framework and the precision of the kernels.
        operations: The n kernels.
        timings: Sizes and seconds of the kernels (n rows).
        noise: (n,) standard deviation of the logarithm of each time, due to measurement noise; NaN
            if unknown.
        prior: Published timings of a similar device. Their fit is the prior if that improves
            leave-one-out predictions; None for no prior.
    """
    from paradnn.forecast.operation_times import OperationTimes

    seconds = timings["seconds"].to_numpy()
    fit = OperationTimes.fit(operations, seconds, noise)
    source = "the store"
    if prior is not None:
        fit = fit.select_better(prior.predictor(), operations, seconds, noise)
        source = f"the store, with {prior.description} as prior"
    return TimingGroup(
        source=source,
        commit="",
        device=device,
        engine=str(row.get("framework.name", "")),
        version="",
        precision=str(row["precision"]),
        kind=kind,
        rows=len(timings),
        kept=len(timings),
        held_out=len(timings),
        median_error=fit.leave_one_out.median_error,
        coverage=fit.leave_one_out.coverage(),
        includes_call=True,
        timings=timings,
        fit=fit,
    )


def _with_overheads(groups: Mapping[Any, TimingGroup]) -> dict[Any, TimingGroup]:
    """Return the timings with the dispatch time of a step and the overhead of each operation.

    Args:
        groups: Timings by kind of kernel. They include calls from Python.

    Returns:
        The same mapping with `dispatch_seconds` and `overhead_seconds`. If it has matrix products
        ("gemm"), batched products ("bmm") are added.
    """
    step_seconds = 0.0
    if "elementwise" in groups:
        chains = groups["elementwise"].predictor()
        call_seconds = chains.dispatch
        step_seconds = chains.step
    else:
        call_seconds = min(group.predictor().dispatch for group in groups.values())
    complete = {}
    for kind, group in groups.items():
        preparation = max(group.predictor().dispatch - call_seconds, 0.0)
        complete[kind] = replace(
            group,
            dispatch_seconds=call_seconds,
            overhead_seconds=preparation + step_seconds,
        )
    if "gemm" in complete:
        # Libraries prepare batched products, as in attention, in the same way as convolutions.
        prepared = complete.get("conv2d", complete["gemm"])
        complete["bmm"] = replace(
            complete["gemm"], kind="bmm", overhead_seconds=prepared.overhead_seconds
        )
    return complete
