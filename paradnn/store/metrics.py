"""The registry of metrics: what every recorded number means. A kind of work declares its own (`paradnn.core.workload`);
the table beside this file has the others, and no other is recorded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paradnn.core.metric import Metric, declared, interval_names
from paradnn.core.workload import WORKLOADS

_COMMON = (
    *("schedule", "start", "build", "input", "compile", "warmup", "measure", "latency", "balance", "profile", "record"),
)


def _phases() -> tuple[str, ...]:
    """The common phases, with those of each kind of work behind the one that they follow."""
    found = list(_COMMON)
    for work in reversed(list(WORKLOADS.values())):
        for name, before in work.phases.items():
            if name not in found:
                found.insert(found.index(before) + 1 if before in found else len(found), name)
    return tuple(found)


PHASES = _phases()  # what the stack does for one point, in order; each has a metric `phase_<name>_seconds`

_TABLE = [
    *declared(__file__),
    *(Metric(f"phase_{name}_seconds", "s", "lower", "phases", f"wall time of the phase '{name}'") for name in PHASES),
]
#: Metrics whose names end in what they are of, such as `op_share.MatMul`, by what those begin with; and all others.
FAMILIES = {f"{entry.name.partition('.')[0]}.": entry for entry in _TABLE if "<" in entry.name}
METRICS = {entry.name: entry for entry in _TABLE if "<" not in entry.name}
METRICS |= {entry.name: entry for work in WORKLOADS.values() for entry in work.declares}


def metric(name: str) -> Metric:
    """The registry's entry for `name`; raises KeyError for a name that is not registered."""
    if name in METRICS:
        return METRICS[name]
    for prefix, entry in FAMILIES.items():
        if name.startswith(prefix) and len(name) > len(prefix):
            return entry
    raise KeyError(f"metric {name!r} is not declared; do so where it is computed, with its unit and formula")


_HOUR, _MILLION = 3600.0, 1e6


@dataclass(frozen=True)
class PriceMetric:
    """A metric in the currency of the prices, from the first known of the metrics `of`: seconds, or so many a second
    (`rate`), of a million. `low` and `high` bound it, the dearer last. `learning`: also of a training that failed."""

    name: str
    of: tuple[str, ...]
    rate: bool
    low: str = ""
    high: str = ""
    learning: bool = False

    def value(self, price: Any, amount: Any) -> Any:
        """At `price` an hour: of numbers, or of columns of them."""
        return price / _HOUR * (_MILLION / amount if self.rate else amount)


def _rate(name: str, *of: str) -> PriceMetric:
    low, high = interval_names(of[0])
    return PriceMetric(name, of, rate=True, low=high, high=low)


COST_TO_TARGET = PriceMetric("cost_to_target", ("seconds_to_target",), rate=False, learning=True)
COSTS = (
    _rate("cost_per_million_examples", "examples_per_second"),
    # The rate of a schedule is what is asked of the server and what it serves, as long as the run is ok.
    _rate("cost_per_million_queries", "peak_queries_per_second", "scheduled_queries_per_second", "queries_per_second"),
    _rate("cost_per_million_tokens", "tokens_per_second"),
    COST_TO_TARGET,
    PriceMetric("cost_of_learning", ("learning_seconds",), rate=False, learning=True),
)


def costs(price: float, ok: bool, known: Callable[[str], float | None]) -> dict[str, float]:
    """The costs of one run at `price` an hour, of the metrics that `known` gives; of a run that is not `ok` those of
    its learning alone."""
    found = {}
    for cost in COSTS:
        amount = next((value for name in cost.of if (value := known(name))), None)
        if amount and (ok or cost.learning):
            found[cost.name] = cost.value(price, amount)
    return found
