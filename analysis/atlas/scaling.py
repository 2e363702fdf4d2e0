"""Estimates for devices that the atlas lacks, scaled from the most similar device."""

from __future__ import annotations

import math
from dataclasses import replace

from analysis.atlas import Atlas
from analysis.atlas.hardware import device_hardware
from paradnn.platform.specifications import Hardware


def scaled_atlas(atlas: Atlas, device: str, precision: str) -> tuple[str, Atlas] | None:
    """Return the timings of the most similar device, scaled by peak arithmetic and bandwidth.

    The distance between two devices is the log ratio of their ridge points plus half the log ratio
    of their bandwidths.

    Args:
        atlas: The atlas.
        device: A device that the atlas lacks.
        precision: Precision in which the other device must have timings of products.

    Returns:
        The name of the other device and its scaled timings; None if `device` has no specifications
        or no device of its kind has timings.
    """
    candidates = []
    names = {
        group.device
        for group in atlas.groups
        if (group.kind, group.precision) == ("gemm", precision)
    }
    own = device_hardware(device) or device_hardware(f"NVIDIA {device}")
    for name in names:
        ratios = _speed_ratios(own, device_hardware(name), precision)
        if ratios is not None:
            peak_ratio, bandwidth_ratio = ratios
            ridge_distance = abs(math.log(peak_ratio / bandwidth_ratio))
            distance = ridge_distance + 0.5 * abs(math.log(bandwidth_ratio))
            candidates.append((distance, name, ratios))
    if not candidates:
        return None
    _, nearest, ratios = min(candidates)
    groups = (
        replace(group, speed_ratios=ratios)
        for group in atlas.groups
        # A whole step includes input and dispatch, which do not scale with the device.
        if group.device == nearest and group.kind != "fc"
    )
    return nearest, Atlas(tuple(groups))


def _speed_ratios(
    own: Hardware | None, other: Hardware | None, precision: str
) -> tuple[float, float] | None:
    """Return the ratios of peak arithmetic and of bandwidth of two devices (own / other).

    Return None if a specification is missing or the devices are of different kinds.
    """
    if own is None or other is None or own.kind != other.kind:
        return None
    own_peak = _peak_flops(own, precision)
    other_peak = _peak_flops(other, precision)
    if not (own_peak and other_peak and own.bandwidth and other.bandwidth):
        return None
    return own_peak / other_peak, own.bandwidth / other.bandwidth


def _peak_flops(hardware: Hardware, precision: str) -> float:
    """Return the peak FLOP/s at a precision; 0 if unknown.

    Types narrower than 16 bits use the peak of 16 bits, since the ratio of two devices is usually
    similar.
    """
    names = ("float32",) if precision == "float32" else ("bfloat16", "float16")
    return max(hardware.peak_flops.get(name, 0.0) for name in names)
