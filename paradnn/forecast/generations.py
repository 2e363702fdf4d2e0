"""Measured gains between pairs of devices, which predict the gains of unmeasured upgrades.

`generations.csv` has one row per pair of devices and published table of operation times. Both
devices ran the operations of the table. A row contains the ratios of their specifications, and the
gains in arithmetic, memory and overhead that were fitted to the measured speedups
(`paradnn.forecast.upgrades.fit_gains`). `python -m benchmarks.whatif --write` writes the file.

The logarithm of a gain is modeled as linear in the logarithm of the specified ratio. Overhead is
expected to scale with the clock. The distance between two devices is the norm of the logarithms of
the three ratios between them. The variance of the deviations from the line grows with this
distance; an unmeasured pair is expected to have the same variance. Every pair of devices has a
total weight of 1, whatever its number of tables. In the fit of a gain, a table's weight is
multiplied by the share of its times that the gain affects.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from paradnn.core.tables import rows
from paradnn.forecast.upgrades import Upgrade
from paradnn.platform.specifications import find_hardware
from paradnn.statistics.robust_regression import Array

#: Prior means of the offset and the slope of the line from log ratios to log gains.
_EXPECTED_LINE = np.array([0.0, 1.0])
#: Prior standard deviations of the offset and the slope.
_LINE_SPREADS = np.array([0.1, 0.25])
#: Standard deviation of a pair's log gain around the line that the fit of the line assumes.
_ASSUMED_SPREAD = 0.2
#: Standard deviation of log gains and log speedups between devices of equal specifications.
_MIN_SPREAD = 0.07
#: Number of parameters per gain that the pairs determine: offset, slope and spread.
_PARAMETERS = 3


@dataclass(frozen=True, eq=False)
class DevicePair:
    """The gains in speed between two devices, measured with operations of one kind.

    Attributes:
        older: Name of the older device.
        newer: Name of the newer device.
        ratios: Logarithms (3,) of the specified ratios (newer / older) of arithmetic rate, memory
            bandwidth and clock.
        gains: Logarithms (3,) of the factors by which arithmetic, memory and overhead became
            faster, fitted to the measured times.
        shares: Mean shares (3,) of arithmetic, memory and overhead in the times of the older
            device, from 0 to 1.
        scatter: Standard deviation of the measured log speedups around the log speedups that the
            gains predict.
    """

    older: str
    newer: str
    ratios: Array
    gains: Array
    shares: Array
    scatter: float

    @property
    def distance(self) -> float:
        """Distance between the specifications of the two devices.

        This is the Euclidean norm of `ratios`: the logarithms of the ratios of arithmetic rate,
        memory bandwidth and clock between the devices' data sheets. Devices with equal
        specifications have the distance 0.
        """
        return float(np.linalg.norm(self.ratios))


@functools.cache
def built_pairs() -> tuple[DevicePair, ...]:
    """Return the measured pairs of devices that are shipped with the package.

    They are read from `generations.csv`.
    """
    return tuple(
        DevicePair(
            older=row["older"],
            newer=row["newer"],
            ratios=_logs(row, ("peak_ratio", "bandwidth_ratio", "clock_ratio")),
            gains=_logs(row, ("compute_gain", "memory_gain", "overhead_gain")),
            shares=np.array(
                [float(row[f"{name}_share"]) for name in ("compute", "memory", "overhead")]
            ),
            scatter=float(row["scatter"]),
        )
        for row in rows(__file__)
    )


def _logs(row: dict[str, str], names: Sequence[str]) -> Array:
    return np.log([float(row[name]) for name in names])


def pairs_without(device: str, pairs: Sequence[DevicePair]) -> list[DevicePair]:
    """Return the pairs of devices that do not include a given device.

    Validation uses them to predict the device as if it had never been measured.

    Args:
        device: Name of the device. Pairs whose device has another name but the same hardware are
            also excluded.
        pairs: All pairs.
    """
    return [
        pair
        for pair in pairs
        if not (_is_same_device(device, pair.older) or _is_same_device(device, pair.newer))
    ]


@functools.cache
def _is_same_device(first: str, second: str) -> bool:
    """Return whether two names are equal or denote the same hardware."""
    if first == second:
        return True
    parts = [find_hardware(text) or find_hardware(f"NVIDIA {text}") for text in (first, second)]
    return parts[0] is not None and parts[0] == parts[1]


def upgrade_between(ratios: Array, pairs: Sequence[DevicePair]) -> Upgrade:
    """Predict the gains in speed of a new device over an old one, from their specifications.

    Args:
        ratios: Logarithms (3,) of the specified ratios (new / old) of arithmetic rate, memory
            bandwidth and clock.
        pairs: The measured pairs of other devices, from which the prediction is learned.

    Returns:
        The expected gains in arithmetic, memory and overhead, with their uncertainty.
    """
    counts = Counter((pair.older, pair.newer) for pair in pairs)
    weights = np.array([1 / counts[pair.older, pair.newer] for pair in pairs])
    distances = np.array([pair.distance for pair in pairs])
    distance = float(np.linalg.norm(ratios))
    gains = np.zeros(3)
    deviations = np.zeros((len(pairs), 3))
    shares = np.array([pair.shares for pair in pairs]) * weights[:, None]
    for limit in range(3):
        specified = np.array([pair.ratios[limit] for pair in pairs])
        shown = np.array([pair.gains[limit] for pair in pairs])
        line = _fit_line(specified, shown, shares[:, limit])
        gains[limit] = line[0] + line[1] * ratios[limit]
        deviations[:, limit] = shown - line[0] - line[1] * specified
    spreads = np.array(
        [
            _spread_at(distance, deviations[:, limit], distances, shares[:, limit])
            for limit in range(3)
        ]
    )
    scatter = _spread_at(distance, np.array([pair.scatter for pair in pairs]), distances, weights)
    return Upgrade(
        gains=gains,
        spreads=spreads,
        scatter=scatter,
        freedom=max(3.0, len(counts) - _PARAMETERS),
    )


def changed_hardware(
    *, peak: float, bandwidth: float, overhead: float, pairs: Sequence[DevicePair]
) -> Upgrade:
    """Predict the gains in speed if a device is changed only by the given factors.

    An unchanged quantity (factor 1) has a gain of exactly 1. The gain of a changed quantity lies
    between 1 and its factor, and is as uncertain as the gains of the measured pairs. In addition,
    the time of each operation has an independent error, because operations in caches differ from
    others, and repeated timings differ. This error is as large as between devices of equal
    specifications, but at most as large as the change.

    Args:
        peak: Factor by which the arithmetic rate changes; above 1 is faster.
        bandwidth: Factor by which the memory bandwidth changes; above 1 is faster.
        overhead: Factor by which the overhead of an operation changes; below 1 is faster.
        pairs: The measured pairs of devices from which the prediction is learned.

    Returns:
        The expected gains in arithmetic, memory and overhead, with their uncertainty.
    """
    ratios = np.log([peak, bandwidth, 1 / overhead])
    found = upgrade_between(ratios, pairs)
    is_changed = ratios != 0
    return Upgrade(
        gains=np.where(is_changed, found.gains, 0.0),
        spreads=np.where(is_changed, found.spreads, 0.0),
        scatter=min(_MIN_SPREAD, float(np.linalg.norm(ratios))),
        freedom=found.freedom,
        most=ratios,
    )


def compared_with(
    first: Upgrade, second: Upgrade, difference: Array, pairs: Sequence[DevicePair]
) -> Upgrade:
    """Return the second of two upgrades of the same device, correlated with the first.

    An upgrade replaces the present device by a new one. The gains of both upgrades share part of
    their errors. The correlations are chosen such that the difference of the gains is as uncertain
    as the gains of an upgrade between the two new devices.

    Args:
        first: Gains of the first new device over the present device.
        second: Gains of the second new device over the present device.
        difference: Logarithms (3,) of the specified ratios (second / first new device) of
            arithmetic rate, memory bandwidth and clock.
        pairs: The measured pairs of devices from which the uncertainty is learned.

    Returns:
        `second`, with its correlations to `first`.
    """
    between = upgrade_between(difference, pairs)
    correlations = [
        _correlation(*spreads)
        for spreads in zip(first.spreads, second.spreads, between.spreads, strict=True)
    ]
    return replace(
        second,
        correlations=np.array(correlations),
        scatter_correlation=_correlation(first.scatter, second.scatter, between.scatter),
    )


def _correlation(first: float, second: float, difference: float) -> float:
    """Return the correlation (0..1) of two errors, given three standard deviations.

    The result is 0 if either error has no spread.

    Args:
        first: Standard deviation of the first error.
        second: Standard deviation of the second error.
        difference: Standard deviation of the difference of the errors.
    """
    if not (first and second):
        return 0.0
    shared = first**2 + second**2 - difference**2
    return float(np.clip(shared / (2 * first * second), 0.0, 1.0))


def _fit_line(specified: Array, shown: Array, weights: Array) -> Array:
    """Fit a line from specified ratios to measured gains, both as logarithms, with a prior.

    Args:
        specified: Logarithms (n,) of the specified ratios of n pairs of devices.
        shown: Logarithms (n,) of the measured gains.
        weights: Weights (n,) of the pairs.

    Returns:
        Offset and slope of the line, as an array (2,).
    """
    design = np.stack([np.ones_like(specified), specified], axis=1)
    weighted = design * (weights / _ASSUMED_SPREAD**2)[:, None]
    prior = np.diag(_LINE_SPREADS**-2.0)
    return np.linalg.solve(weighted.T @ design + prior, weighted.T @ shown + prior @ _EXPECTED_LINE)


def _spread_at(distance: float, deviations: Array, distances: Array, weights: Array) -> float:
    """Return the expected standard deviation of a log gain between two devices.

    The variance is that of devices of equal specifications plus a term proportional to the distance
    between the specifications. This term is fitted to the deviations.

    Args:
        distance: The distance between two devices, as in `DevicePair.distance`.
        deviations: Deviations (n,) of the log gains of the measured pairs from the fitted line.
        distances: Distances (n,) of the measured pairs.
        weights: Weights (n,) of the measured pairs.
    """
    excess = np.maximum(deviations**2 - _MIN_SPREAD**2, 0.0)
    slope = float((weights * excess).sum() / max((weights * distances).sum(), 1e-9))
    return math.sqrt(_MIN_SPREAD**2 + slope * distance)
