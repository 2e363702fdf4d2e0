"""Published times of whole training steps: fully connected models on TPU v2 and V100."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.atlas import TimingGroup, load
from analysis.atlas.points import get_text, model_from_row
from analysis.format import format_seconds
from analysis.lazy import np
from paradnn.families import Model

#: Largest factor between the times of steps of one batch size that count as equally long. If the
#: FLOPs of such steps differ by `_MIN_FLOPS_FACTOR` or more, input and dispatch determine their
#: time, not the model.
_OVERHEAD_FACTOR = 1.25
_MIN_FLOPS_FACTOR = 10.0


def fc_columns(model: Model, batch: int) -> dict[str, int]:
    """Return the sizes of a step of a fully connected model, in the columns of its timings.

    Args:
        model: A fully connected model.
        batch: Batch size.
    """
    sizes = vars(model)
    return {
        "m": batch,
        "n": sizes["nodes"],
        "k": sizes["nodes"],
        "calls": sizes["layers"],
        "images": sizes["input_size"],
        "window": sizes["output_size"],
    }


def overhead_note(group: TimingGroup, batch: int, seconds: float) -> str:
    """Return a note if input and dispatch, not the device, determine a published step's time.

    Two conditions must hold for this. The step takes about as long as the fastest step with the
    same batch size. The models that take this long differ at least tenfold in FLOPs.

    Args:
        group: Published whole steps.
        batch: Batch size of the step.
        seconds: Time of the step.

    Returns:
        The note; empty if the device determines the time.
    """
    timings = group.timings
    batches = timings["m"].to_numpy(dtype=float)
    nearest = batches[np.abs(np.log(batches / batch)).argmin()]
    same_batch = timings[batches == nearest]
    least = float(same_batch["seconds"].min())
    if seconds > _OVERHEAD_FACTOR * least * batch / float(nearest):
        return ""
    bound = same_batch[same_batch["seconds"] <= _OVERHEAD_FACTOR * least]
    flops_factor = float(bound["flops"].max() / bound["flops"].min())
    if flops_factor < _MIN_FLOPS_FACTOR:
        return ""
    engine = f"{group.engine} {group.version}".strip()
    return (
        f"input and dispatch under {engine} determine the published time, not the {group.device}: "
        f"no step with a batch of {nearest:.0f} takes less than {format_seconds(least)}, and "
        f"models with {flops_factor:,.0f} times the FLOPs take about the same time"
    )


def published_seconds(row: Mapping[Any, Any], device: str) -> float | None:
    """Return the published seconds of exactly this step on the device; None if unpublished.

    Args:
        row: The step, as a mapping from configuration keys to values.
        device: The atlas's name of the device.
    """
    group = _published_group(row, device)
    if group is None:
        return None
    shape = fc_columns(model_from_row(row), int(row["batch_size"]))
    matches = np.logical_and.reduce(
        [group.timings[name].eq(value) for name, value in shape.items() if name != "k"]
    )
    seconds = group.timings.loc[matches, "seconds"]
    if seconds.empty:
        return None
    return float(seconds.iloc[0])


def published_overhead_note(row: Mapping[Any, Any], device: str) -> str:
    """Return a note if input and dispatch determine the published time of a step.

    Args:
        row: The step, as a mapping from configuration keys to values.
        device: The atlas's name of the device.

    Returns:
        The note; empty if the device determines the time or the time is unpublished.
    """
    seconds = published_seconds(row, device)
    group = _published_group(row, device)
    if seconds is None or group is None:
        return ""
    return overhead_note(group, int(row["batch_size"]), seconds)


def _published_group(row: Mapping[Any, Any], device: str) -> TimingGroup | None:
    if row["family"] != "fc" or get_text(row, "mode", "train") != "train":
        return None
    return load().find_group(device, "fc", str(row["precision"]))
