"""Timings for devices without published ones, scaled from the most similar device."""

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
        atlas: Published timings of several devices.
        device: Name of a device that the atlas lacks.
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
    target = device_hardware(device) or device_hardware(f"NVIDIA {device}")
    for name in names:
        ratios = _speed_ratios(target, device_hardware(name), precision)
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
    target: Hardware | None, timed: Hardware | None, precision: str
) -> tuple[float, float] | None:
    """Return the ratios of peak arithmetic and of bandwidth of two devices (target / timed).

    Args:
        target: Specification of the device without timings; None if unknown.
        timed: Specification of a device with timings; None if unknown.
        precision: Precision of the peak arithmetic.

    Returns:
        Both ratios; None if a specification is missing or the devices are of different kinds.
    """
    if target is None or timed is None or target.kind != timed.kind:
        return None
    target_peak = _peak_flops(target, precision)
    timed_peak = _peak_flops(timed, precision)
    if not (target_peak and timed_peak and target.bandwidth and timed.bandwidth):
        return None
    return target_peak / timed_peak, target.bandwidth / timed.bandwidth


def _peak_flops(hardware: Hardware, precision: str) -> float:
    """Return the peak FLOP/s of a device at a precision; 0 if unknown.

    Types narrower than 16 bits use the peak of 16 bits, since the ratio of two devices is usually
    similar.

    Args:
        hardware: Specification of the device.
        precision: Name of the precision, such as "float32".
    """
    names = ("float32",) if precision == "float32" else ("bfloat16", "float16")
    return max(hardware.peak_flops.get(name, 0.0) for name in names)
