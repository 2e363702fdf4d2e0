"""Hypothetical changes of a device, and how much faster each part of a step becomes.

The model of `paradnn.forecast.upgrades` is fitted to the timings of each part on the unchanged
device. The time of communication does not change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from analysis.atlas import TimingGroup
from analysis.lazy import np
from paradnn.core.errors import ConfigError
from paradnn.core.words import did_you_mean
from paradnn.families.operations import Operation

#: Number of draws of the predicted speedup, from which the returned draws are resampled.
_DRAWS = 200


@dataclass(frozen=True)
class HardwareChange:
    """Factors by which the properties of a device change; 1 for no change.

    Attributes:
        bandwidth: Factor for the memory bandwidth.
        peak: Factor for the peak arithmetic rate.
        overhead: Factor for the overhead of each operation; 0.5 halves it.
        memory: Factor for the size of the memory.
    """

    bandwidth: float = 1.0
    peak: float = 1.0
    overhead: float = 1.0
    memory: float = 1.0

    @property
    def label(self) -> str:
        """The factors other than 1 as text, such as "2x bandwidth"; empty if all factors are 1."""
        factors = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return ", ".join(f"{value:g}x {name}" for name, value in factors.items() if value != 1)


def read_change(text: str, flag: str = "--what-if") -> HardwareChange:
    """Return the change of a device that a text such as "bandwidth=2,peak=1.5" describes.

    Args:
        text: Factors, separated by commas.
        flag: Option that an error message names.

    Raises:
        ConfigError: If a name is unknown, or a factor is not a positive number.
    """
    names = [entry.name for entry in fields(HardwareChange)]
    factors = {}
    for word in text.split(","):
        name, _, value = word.partition("=")
        if name not in names:
            hint = did_you_mean(name, names)
            raise ConfigError(
                flag,
                word,
                "is not a property of a device",
                f"{hint}write NAME=FACTOR, such as bandwidth=2, with one of {', '.join(names)}",
            )
        factors[name] = _positive_factor(word, value, flag)
    return HardwareChange(**factors)


def _positive_factor(word: str, text: str, flag: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        raise ConfigError(flag, word, "needs a positive factor", "for example, write bandwidth=2")
    return factor


def speedup_draws(
    group: TimingGroup,
    counts: Mapping[Operation, float],
    seconds: np.ndarray,
    change: HardwareChange,
    draws: int,
) -> np.ndarray:
    """Return random draws of the factor by which operations together become faster.

    Args:
        group: Timings of such operations on the unchanged device.
        counts: The n operations, and how many times each runs.
        seconds: Predicted seconds (n,) of each operation.
        change: The change of the device.
        draws: Number of draws.

    Returns:
        The factors (draws,).
    """
    if group.kind == "collective":
        return np.ones(draws)
    from paradnn.forecast.upgrades import OperationLimits, TimedWork, Upgrade, predict_speedups

    timed = group.timings
    fit = OperationLimits.fit(
        TimedWork.single(
            timed["flops"].to_numpy(dtype="float64"),
            timed["bytes"].to_numpy(dtype="float64"),
            timed["seconds"].to_numpy(dtype="float64"),
        )
    )
    calls = np.array(list(counts.values()))
    work = TimedWork(
        flops=np.array([operation.flops for operation in counts]),
        bytes=np.array([operation.bytes for operation in counts]),
        calls=calls,
        owner=np.zeros(len(calls), dtype="intp"),
        seconds=np.array([float(calls @ seconds)]),
    )
    gains = np.log([change.peak, change.bandwidth, 1 / change.overhead])
    upgrade = Upgrade(gains=gains, spreads=np.zeros(3), scatter=0.0)
    predicted = predict_speedups(work, fit, upgrade, draws=_DRAWS)
    chosen = np.random.default_rng(3).integers(0, _DRAWS, draws)
    return np.asarray(np.exp(predicted.log_speedups[0][chosen]))
