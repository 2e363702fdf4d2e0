"""The registry of metrics, which defines the unit and meaning of every recorded number.

Each kind of work, such as training steps, declares metrics (`paradnn.core.workload`). The kind
`step` declares the metrics of every measured configuration and every timed step. This module
declares all other metrics.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from paradnn.core.metric import SECTIONS, Metric, bare_name, in_section, interval_names
from paradnn.core.results import ResultDescription
from paradnn.core.workload import WORKLOADS

_COMMON_PHASES = (
    "schedule",
    "start",
    "build",
    "input",
    "compile",
    "warmup",
    "measure",
    "latency",
    "balance",
    "profile",
    "record",
)


def _phases() -> tuple[str, ...]:
    """Return the common phases and the phases of every kind of work.

    Each additional phase comes directly after the phase that its kind of work names.
    """
    phases = list(_COMMON_PHASES)
    for work in reversed(list(WORKLOADS.values())):
        for name, previous in work.role(ResultDescription).phases.items():
            if name in phases:
                continue
            if previous in phases:
                phases.insert(phases.index(previous) + 1, name)
            else:
                phases.append(name)
    return tuple(phases)


#: Phases of one point, in order; each has a metric `phase_<name>_seconds`.
PHASES = _phases()

_HOUR = 3600.0
_MILLION = 1e6


@dataclass(frozen=True)
class PriceMetric:
    """A metric for the cost of a training or of one million items, such as queries.

    The unit is the currency of the user's prices.

    Attributes:
        name: Name of the metric.
        description: Formula of the metric.
        of: Metrics from which to compute the cost; the first known metric is used. They are
            durations in seconds, or items per second if `rate` is set.
        rate: Whether this is the cost of one million items. Otherwise it is the cost of a duration.
        learning: Whether the cost also applies to a training that failed.
    """

    name: str
    description: str
    of: tuple[str, ...]
    rate: bool = False
    learning: bool = False

    @property
    def ends(self) -> tuple[str, ...]:
        """Names of the metrics with the ends of the rate's 95% interval; empty without a rate.

        The upper end comes first, because it determines the lower end of the cost.
        """
        if not self.rate:
            return ()
        low, high = interval_names(self.of[0])
        return high, low

    def value(self, price: Any, amount: Any) -> Any:
        """Return the cost in the currency of the price.

        Args:
            price: Price per hour, as a number or a column of a table.
            amount: Value of the metric in `of`: seconds, or items per second if `rate` is set. A
                number or a column of a table.
        """
        if self.rate:
            seconds = _MILLION / amount
        else:
            seconds = amount
        return price / _HOUR * seconds


COST_TO_TARGET = PriceMetric(
    "cost_to_target",
    "price of an hour / 3600 * seconds_to_target",
    ("seconds_to_target",),
    learning=True,
)
#: Rates of served queries, in order of preference. The scheduled rate is the requested load, which
#: the server achieves in a successful run.
_SERVED = ("peak_queries_per_second", "scheduled_queries_per_second", "queries_per_second")
COSTS = (
    PriceMetric(
        "cost_per_million_examples",
        "price of an hour / 3600 * 1e6 / examples_per_second",
        ("examples_per_second",),
        rate=True,
    ),
    PriceMetric(
        "cost_per_million_queries",
        "price of an hour / 3600 * 1e6 / queries per second: at the peak, scheduled, or measured",
        _SERVED,
        rate=True,
    ),
    PriceMetric(
        "cost_per_million_tokens",
        "price of an hour / 3600 * 1e6 / tokens_per_second",
        ("tokens_per_second",),
        rate=True,
    ),
    COST_TO_TARGET,
    PriceMetric(
        "cost_of_learning",
        "price of an hour / 3600 * learning_seconds",
        ("learning_seconds",),
        learning=True,
    ),
)
_COMMON_METRICS = (
    Metric(
        "speed_ratio",
        "1",
        None,
        "examples/s of the first side / examples/s of the second, mean over rounds",
        has_interval=True,
    ),
    Metric("comparison_rounds", "1", None, "rounds in which both sides were measured"),
    Metric("race_candidates", "1", None, "candidates of a race, invalid ones included"),
    Metric("race_processes", "1", None, "processes that a race measured"),
    Metric(
        "race_lead",
        "1",
        None,
        "score of a race's best candidate / score of the second best, shrunk",
        has_interval=True,
    ),
    Metric("race_risk", "1", "lower", "bound of the probability that another candidate is better"),
    Metric("design_candidates", "1", None, "distinct points that the sweep could measure"),
    Metric("design_measured", "1", None, "points that any driver or session measured or tried"),
    Metric(
        "design_expected_error",
        "1",
        "lower",
        "expected median relative error of the step times that were not measured",
    ),
    Metric(
        "published_flops_per_second", "FLOP/s", "higher", "as printed; TPU v2: one core of eight"
    ),
    Metric(
        "published_intensity", "FLOP/B", None, "as printed: FLOPs / bytes of parameters, no traffic"
    ),
    Metric(
        "trace_flops_utilization", "1", "higher", "FLOP rate in the best trace / specified peak"
    ),
    Metric(
        "peak_flops_per_second.<precision>",
        "FLOP/s",
        None,
        "rate of the fastest matrix product of a ceilings run",
    ),
    Metric(
        "peak_flops_per_second_low.<precision>", "FLOP/s", None, "lower end of its 95% interval"
    ),
    Metric(
        "peak_flops_per_second_high.<precision>", "FLOP/s", None, "upper end of its 95% interval"
    ),
    *in_section(
        "roofline",
        Metric(
            "peak_bytes_per_second.<array>",
            "B/s",
            None,
            "measured bandwidth over arrays of one size",
        ),
    ),
    *in_section(
        "phase",
        Metric(
            "overhead_seconds",
            "s",
            "lower",
            "schedule + start + record: the cost of ParaDnn itself",
        ),
        Metric(
            "task_start_seconds",
            "s",
            "lower",
            "time from the start of the driver's process until its first point could begin",
        ),
        Metric(
            "queue_seconds",
            "s",
            "lower",
            "time from the launch of the driver to the start of its job",
        ),
        Metric(
            "launcher_seconds",
            "s",
            "lower",
            "time from the start of the job to the start of the driver's process",
        ),
        Metric(
            "session_seconds",
            "s",
            None,
            "time from when the session's first point could begin until this point was recorded",
        ),
        *(
            Metric(f"phase_{name}_seconds", "s", "lower", f"wall time of the phase '{name}'")
            for name in PHASES
        ),
    ),
    *in_section(
        "trace",
        Metric("trace_captures", "1", None, "number of the profiler's captures of the traced run"),
        Metric(
            "trace_flops_utilization_median",
            "1",
            "higher",
            "FLOP rate in a trace / specified peak, median over the run's captures",
        ),
        Metric(
            "trace_flops_utilization_lowest",
            "1",
            "higher",
            "FLOP rate in a trace / specified peak, lowest of the run's captures",
        ),
        Metric(
            "trace_bandwidth_utilization", "1", "higher", "traffic rate in a trace / specified peak"
        ),
        Metric(
            "trace_arithmetic_intensity",
            "FLOP/B",
            None,
            "FLOPs / bytes moved, both counted by a trace",
        ),
        Metric("trace_bytes", "B", None, "memory traffic in a whole profiler trace"),
    ),
    *in_section(
        "cost",
        *(Metric(cost.name, "currency", "lower", cost.description) for cost in COSTS),
    ),
)
_DECLARED = (
    *(
        entry
        for work in WORKLOADS.values()
        for entry in work.role(ResultDescription).declared_metrics
    ),
    *_COMMON_METRICS,
)
#: Prefix -> entry of metrics whose names end in a parameter, such as `op_share.MatMul`. METRICS
#: holds all other metrics, by name.
FAMILIES = {f"{entry.name.partition('.')[0]}.": entry for entry in _DECLARED if "<" in entry.name}
METRICS = {
    entry.name: entry
    for each in _DECLARED
    for entry in each.with_interval_ends()
    if "<" not in entry.name
}
_POSITIONS = {name: position for position, name in enumerate(METRICS)}


def metric(name: str) -> Metric:
    """Return the declaration of a metric: its unit, meaning and section.

    Args:
        name: Name of the metric without section, such as "step_time_ms" or "op_share.MatMul".

    Raises:
        KeyError: If the name is not declared.
    """
    if name in METRICS:
        return METRICS[name]
    for prefix, entry in FAMILIES.items():
        if name.startswith(prefix) and len(name) > len(prefix):
            return entry
    raise KeyError(
        f"metric {name!r} is not declared; declare it where it is computed, with unit and formula"
    )


@cache
def stored_name(name: str) -> str:
    """Return the name of a metric in stores, such as "memory/step_memory_bytes".

    The prefix is the section of the metric in MLflow's UI. Headline metrics and undeclared metrics
    have no section, and keep their name.
    """
    try:
        return f"{metric(name).stored_prefix}{name}"
    except KeyError:
        return name


def listing_position(stored: str) -> tuple[int, int]:
    """Return a sort key that lists headline metrics first, and the others section by section.

    Metrics of a section are sorted in the order of their declarations.

    Args:
        stored: Name of a metric in stores, from `stored_name`.

    Returns:
        The position of the section, and the position within the section.
    """
    name = bare_name(stored)
    section = "" if name == stored else stored.partition("/")[0]
    return ["", *SECTIONS].index(section), _POSITIONS.get(name, len(_POSITIONS))


def stored_value(value: float) -> float:
    """Return the value of a metric for a store: integers unchanged, other values rounded."""
    number = float(value)
    if number.is_integer():
        return number
    return rounded_measurement(number)


def rounded_measurement(value: float) -> float:
    """Round a measurement to seven significant digits, more than its precision.

    If a metric summarizes a table of rates, both are rounded. Rounding preserves order, so the
    metric stays between the smallest and the largest rate.
    """
    return float(f"{value:.7g}")


def costs(price: float, known: Callable[[str], float | None], *, ok: bool) -> dict[str, float]:
    """Return the costs of one run by metric name, in the currency of the price.

    Args:
        price: Price per hour of the hardware on which the run was measured.
        known: Returns the value of a metric of the run, given its name; None if the run lacks it.
        ok: Whether the run succeeded. If not, only costs that also apply to a failed training are
            returned.
    """
    values = {}
    for cost in COSTS:
        amount = next(filter(None, map(known, cost.of)), None)
        if amount and (ok or cost.learning):
            values[cost.name] = cost.value(price, amount)
    return values
