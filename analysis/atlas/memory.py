"""Memory that a step needs on each device, and whether the device has enough."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.atlas.hardware import device_hardware
from analysis.atlas.parts import weight_bytes
from paradnn.core.layers import COMPUTE_BYTES, Costs

#: Bytes of a weight in the analytic memory of a step that does not generate.
_FULL_BYTES = 4.0


def memory_bytes(phases: Iterable[Costs], precision: str, compute: str, mode: str) -> float:
    """Return a lower bound of the memory of a step in bytes: the largest need of any phase.

    A phase is a whole step, or the prompt or one token of a generation. Training keeps weights,
    optimizer variables and activations, as docs/reference/metrics.md lists them. In other modes,
    the weights are kept in `precision`.

    Args:
        phases: Analytic costs of each phase.
        precision: Precision of the weights; it may be narrower than 16 bits.
        compute: Precision of the activations.
        mode: "train", "inference" or "generate".
    """
    largest = 0.0
    for costs in phases:
        needed = float(costs.memory_lower_bound_bytes)
        if mode != "train":
            counted = COMPUTE_BYTES[compute] if mode == "generate" else _FULL_BYTES
            parameters = costs.parameters + costs.non_trainable_parameters
            needed += (weight_bytes(precision) - counted) * parameters
        largest = max(largest, needed)
    return largest


def device_memory_bytes(device: str) -> float | None:
    """Return the bytes of memory of a device by its specification; None if unknown.

    Args:
        device: Name of the device.
    """
    hardware = device_hardware(device)
    if hardware is None or not hardware.memory_bytes:
        return None
    return float(hardware.memory_bytes)


def memory_reason(device: str, needed: float, available: float | None) -> str:
    """Return why a step does not fit into memory; empty if it fits or this is unknown.

    Args:
        device: Name of the device.
        needed: Bytes that the step needs.
        available: Bytes of memory of the device; None if unknown.
    """
    hardware = device_hardware(device)
    if hardware is None or available is None or needed <= available:
        return ""
    return (
        f"it needs {format_gib(needed)} GiB or more, and {hardware.name} has "
        f"{format_gib(available)} GiB"
    )


def format_gib(size: float) -> str:
    """Return a size as text in GiB, with one decimal below 10 GiB and without decimals above.

    Args:
        size: The size in bytes.
    """
    gib = size / 2**30
    if gib < 9.95:
        return f"{gib:.1f}"
    return f"{gib:,.0f}"
