"""The one number of a run that a line of progress or a table of points shows, with its interval and its unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paradnn.core.metric import interval_names
from paradnn.core.workload import WORKLOADS, Workload

#: An interval that reaches further, as a share of the value, says nothing.
_WIDEST = 10.0


@dataclass(frozen=True)
class Headline:
    """A metric's value in its unit; `ends` of its 95% interval, None where it has none."""

    value: float
    unit: str
    ends: tuple[float, float] | None

    def relative(self) -> str:
        """Half of the interval as a share of the value: "2.1%"; beyond ten times the value it says no more."""
        if not self.ends:
            return "-"
        share = (self.ends[1] - self.ends[0]) / 2 / self.value
        return f"{share:.1%}" if share < _WIDEST else f">{_WIDEST:.0%}"

    def number(self) -> str:
        """The value without its unit: "1,234.5"."""
        return f"{self.value:,.1f}"

    def __str__(self) -> str:
        return f"{self.number()} {self.unit}"


def headline(metrics: Mapping[str, float]) -> Headline | None:
    """What the run was measured for; None where it has no time."""
    return _first(metrics, lambda work: work.headlines) or throughput(metrics)


def throughput(metrics: Mapping[str, float]) -> Headline | None:
    """Tokens or examples a second of the timed steps; None where there are none."""
    return _first(metrics, lambda work: work.rates)


def _first(metrics: Mapping[str, float], units: Callable[[Workload], Mapping[str, str]]) -> Headline | None:
    for work in sorted(WORKLOADS.values(), key=lambda work: -work.place):  # a point under load has timed steps too
        for name, unit in units(work).items():
            if name in metrics:
                low, high = (metrics.get(end) for end in interval_names(name))
                return Headline(metrics[name], unit, (low, high) if low is not None and high is not None else None)
    return None
