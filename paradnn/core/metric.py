"""Declarations of metrics: name, unit, meaning.

A metric is declared next to the code that computes it. `paradnn.store.metrics` collects the
declarations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace

#: Units at the end of the name of a metric.
_UNIT_SUFFIXES = ("_us", "_ms", "_seconds", "_joules", "_watts")

#: Sections of a run's page in MLflow -> their contents. MLflow groups metrics by the part of the
#: name before a slash. Names with a section, such as memory/step_memory_bytes, occur only in
#: stores; all other code uses the bare name. Headline metrics have no section. Sections must not be
#: removed, so that every version can read the stores of earlier versions.
SECTIONS: Mapping[str, str] = {
    "blocks": "series over blocks or time: whether the run was steady",
    "step": "blocks behind the step time, and their spread",
    "latency": "quantiles of latency, queueing and service apart from the headline ones",
    "load": "the offered load and the served queries",
    "generation": "reading prompts and decoding tokens",
    "learning": "the effort until the target accuracy",
    "messages": "messages between processes, and their cost in a training step",
    "work": "parameters, FLOPs and bytes of a step",
    "roofline": "the position under the roofline, and its peaks",
    "operations": "the profile: shares of operations and of their categories",
    "input": "the input pipeline",
    "compile": "compilation and conversion",
    "memory": "bounds and parts of the memory",
    "energy": "power, and energy of a step, an example, a query or a training",
    "cost": "costs at the price of an hour",
    "machine": "other work on the machine, and the machine's own speed",
    "phase": "wall time of the phases, and of the driver",
    "trace": "values from published profiler traces",
}


@dataclass(frozen=True)
class Metric:
    """One measured or derived quantity.

    Attributes:
        name: The name under which the metric is recorded, without section.
        unit: The unit; "1" for counts and ratios.
        better: "higher" if higher values are better, "lower" if lower values are; None if neither.
        description: The meaning, or the formula.
        has_interval: Whether the ends of a 95% interval are recorded as separate metrics.
        section: One of `SECTIONS`; empty for a headline metric.
    """

    name: str
    unit: str
    better: str | None
    description: str
    _: KW_ONLY
    has_interval: bool = False
    section: str = ""

    @property
    def stored_prefix(self) -> str:
        """Prefix of the name in a store: the section and a slash; empty for a headline metric."""
        return f"{self.section}/" if self.section else ""

    def with_interval_ends(self) -> Iterator[Metric]:
        """Yield the metric and, if it has a 95% interval, a metric for each end of it."""
        yield self
        if self.has_interval:
            for name, end in zip(interval_names(self.name), ("lower", "upper"), strict=True):
                yield replace(
                    self,
                    name=name,
                    description=f"{end} end of its 95% interval",
                    has_interval=False,
                )


def in_section(section: str, *metrics: Metric) -> tuple[Metric, ...]:
    """Return copies of metrics that are assigned to a section of a run's page in MLflow.

    Args:
        section: One of `SECTIONS`.
        metrics: The metrics.

    Raises:
        KeyError: If the section is unknown. `SECTIONS` must list all sections, because stores are
            also read on machines without the plug-in that records a metric.
    """
    if section not in SECTIONS:
        raise KeyError(f"section {section!r} is unknown; choose one of {', '.join(SECTIONS)}")
    return tuple(replace(metric, section=section) for metric in metrics)


def bare_name(stored: str) -> str:
    """Return the name of a metric without its section (a prefix such as "memory/").

    Args:
        stored: The name in a store, with or without a section.
    """
    section, slash, name = stored.partition("/")
    if slash and section in SECTIONS:
        return name
    return stored


def stored_names(names: Collection[str]) -> list[str]:
    """Return all names that metrics may have in a store, sorted.

    Args:
        names: Names of metrics without section.

    Returns:
        The names, alone and with the prefix of every section.
    """
    sectioned = [f"{section}/{name}" for section in SECTIONS for name in names]
    return sorted({*names, *sectioned})


@dataclass(frozen=True)
class MetricSnapshot:
    """Values of metrics at one time of a run, such as the end of an epoch.

    Attributes:
        step: Position in the series (MLflow's `step`), such as the number of the epoch.
        time: Unix time in milliseconds.
        metrics: Values by metric.
    """

    step: int
    time: int
    metrics: Mapping[str, float]


def interval_names(name: str) -> tuple[str, str]:
    """Return the names of the metrics for lower and upper end of a metric's 95% interval.

    A unit remains at the end of the name: step_time_ms has the ends step_time_low_ms and
    step_time_high_ms.

    Args:
        name: Name of the metric, without section.
    """
    suffix = ""
    for unit in _UNIT_SUFFIXES:
        if name.endswith(unit):
            suffix = unit
            break
    stem = name.removesuffix(suffix)
    return f"{stem}_low{suffix}", f"{stem}_high{suffix}"


def interval_metrics(name: str, interval: tuple[float, float] | None) -> dict[str, float]:
    """Return the ends of a 95% interval as metrics by name.

    Args:
        name: The metric to which the interval belongs.
        interval: Lower and upper end; None if there is no interval. The result is then empty.
    """
    if interval is None:
        return {}
    low, high = interval_names(name)
    return {low: interval[0], high: interval[1]}


def known_values(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics whose value is known, that is, not None.

    Args:
        metrics: Name -> value.
    """
    return {name: value for name, value in metrics.items() if value is not None}
