"""The meaning of recorded numbers.

A metric is declared next to the code that computes it. `paradnn.store.metrics` collects the
declarations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass

#: Units at the end of the name of a metric.
_UNIT_SUFFIXES = ("_us", "_ms", "_seconds", "_joules")


@dataclass(frozen=True)
class Metric:
    """One measured or derived quantity.

    Attributes:
        name: The name under which it is recorded.
        unit: The unit; 1 for counts and ratios.
        better: "higher", "lower", or None if neither is better in itself.
        description: What it is, or its formula.
        has_interval: Whether the ends of its 95% interval are recorded as metrics, too.
    """

    name: str
    unit: str
    better: str | None
    description: str
    _: KW_ONLY
    has_interval: bool = False

    def with_interval_ends(self) -> Iterator[Metric]:
        """Yield the metric, and the ends of its interval if it has one."""
        yield self
        if self.has_interval:
            low, high = interval_names(self.name)
            yield Metric(low, self.unit, self.better, "lower end of its 95% interval")
            yield Metric(high, self.unit, self.better, "upper end of its 95% interval")


@dataclass(frozen=True)
class MetricSnapshot:
    """Values of metrics at one step, such as the end of an epoch.

    Attributes:
        step: The number of the step.
        time: Unix time in milliseconds.
        metrics: The values by metric.
    """

    step: int
    time: int
    metrics: Mapping[str, float]


def interval_names(name: str) -> tuple[str, str]:
    """Return the metrics that hold the lower and the upper end of the 95% interval of a metric.

    The unit stays at the end: step_time_ms has step_time_low_ms and step_time_high_ms.
    """
    suffix = ""
    for unit in _UNIT_SUFFIXES:
        if name.endswith(unit):
            suffix = unit
            break
    stem = name.removesuffix(suffix)
    return f"{stem}_low{suffix}", f"{stem}_high{suffix}"


def interval_metrics(name: str, interval: tuple[float, float] | None) -> dict[str, float]:
    """Return the ends of the 95% interval of a metric; empty if there is no interval."""
    if interval is None:
        return {}
    low, high = interval_names(name)
    return {low: interval[0], high: interval[1]}


def known_values(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics that have a value."""
    return {name: value for name, value in metrics.items() if value is not None}
