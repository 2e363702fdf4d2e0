"""What a price of an hour makes of rates and times: the same formulas for a run and for a frame of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["COSTS", "COST_TO_TARGET", "Cost", "costs"]

_HOUR, _MILLION = 3600.0, 1e6


@dataclass(frozen=True)
class Cost:
    """A metric in the currency of the prices. It follows from the first of the metrics `of` that is known.

    rate: those are so many a second, and the cost is that of a million; else they are seconds. `low` and `high` are the
    metrics that bound it, the dearer one last. `learning`: also of a training that did not reach its target.
    """

    name: str
    of: tuple[str, ...]
    rate: bool
    low: str = ""
    high: str = ""
    learning: bool = False

    def value(self, price: Any, amount: Any) -> Any:
        """At `price` an hour: of numbers, or of columns of them."""
        return price / _HOUR * (_MILLION / amount if self.rate else amount)


COST_TO_TARGET = Cost("cost_to_target", ("seconds_to_target",), rate=False, learning=True)
COSTS = (
    Cost(
        "cost_per_million_examples",
        ("examples_per_second",),
        rate=True,
        low="examples_per_second_high",
        high="examples_per_second_low",
    ),
    # The rate of a schedule is what is asked of the server and what it serves, as long as the run is ok.
    Cost(
        "cost_per_million_queries",
        ("peak_queries_per_second", "scheduled_queries_per_second", "queries_per_second"),
        rate=True,
        low="peak_queries_per_second_high",
        high="peak_queries_per_second_low",
    ),
    Cost(
        "cost_per_million_tokens",
        ("tokens_per_second",),
        rate=True,
        low="tokens_per_second_high",
        high="tokens_per_second_low",
    ),
    COST_TO_TARGET,
    Cost("cost_of_learning", ("learning_seconds",), rate=False, learning=True),
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
