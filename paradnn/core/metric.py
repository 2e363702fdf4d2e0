"""What a recorded number means: declared where it is computed, collected by
`paradnn.store.metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass

from paradnn.core.tables import rows


@dataclass(frozen=True)
class Metric:
    """One measured or derived quantity. `better` is "higher", "lower" or None where neither is
    better in itself; `ends`: the ends of its 95% interval are metrics too.
    """

    name: str
    unit: str
    better: str | None
    description: str
    _: KW_ONLY
    ends: bool = False

    def entries(self) -> Iterator[Metric]:
        """The metric itself, and the ends of its interval."""
        yield self
        for name, word in (
            zip(interval_names(self.name), ("lower", "upper"), strict=True) if self.ends else ()
        ):
            yield Metric(name, self.unit, self.better, f"{word} end of its 95% interval")


def declared(file: str) -> tuple[Metric, ...]:
    """Those of the table `metrics.csv` beside a module `file`."""
    table = (tuple(row.values()) for row in rows(file, "metrics.csv"))
    return tuple(
        Metric(name, unit, way or None, words, ends=bool(ends))
        for name, unit, way, ends, words in table
    )


def interval_names(name: str) -> tuple[str, str]:
    """The metrics that hold the lower and the upper end of a metric's 95% interval: the unit of a
    time stands last.
    """
    unit = next((unit for unit in ("_us", "_ms", "_seconds", "_joules") if name.endswith(unit)), "")
    stem = name.removesuffix(unit)
    return f"{stem}_low{unit}", f"{stem}_high{unit}"


def interval_metrics(name: str, *ends: float) -> dict[str, float]:
    """The ends of a metric's 95% interval, both or none."""
    return dict(zip(interval_names(name), ends, strict=bool(ends)))


def given(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """The metrics whose values are known."""
    return {name: value for name, value in metrics.items() if value is not None}


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
