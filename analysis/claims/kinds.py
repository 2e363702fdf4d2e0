"""The kinds of check a claim may be made of: what each says and what it needs.

A record only says what is claimed; `analysis.claims.evaluate` finds the numbers.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from analysis.store.conditions import Conditions, format_conditions
from paradnn.core.schema import option
from paradnn.core.tables import rows


class ClaimAnswer(StrEnum):
    """What a claim or a check may be."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    NOT_ENOUGH = "not enough data"


@dataclass(frozen=True)
class Bound:
    """Where a number must lie: from `low` to `high`, both included."""

    low: float = -math.inf
    high: float = math.inf

    def answer(self, low: float, high: float) -> ClaimAnswer:
        """An interval within the bound supports, one outside refutes, one that straddles or is
        unknown does neither.
        """
        if low >= self.low and high <= self.high:
            return ClaimAnswer.SUPPORTED
        if high < self.low or low > self.high:
            return ClaimAnswer.REFUTED
        return ClaimAnswer.NOT_ENOUGH

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"at least {self.low:g}"
        if self.low == -math.inf:
            return f"at most {self.high:g}"
        return f"between {self.low:g} and {self.high:g}"


#: What a check's `kind` may be: what it says, and which fields it takes beside `where` and `name`,
#: those it needs with a mark. The table also says what each is about.
KINDS = {row["kind"]: (row["says"], row["takes"]) for row in rows(__file__)}


@dataclass(frozen=True)
class Check:
    """One check: `where` holds the conditions on all of its runs; which of the other fields count,
    its `kind` says.
    """

    kind: str
    where: Conditions = field(default_factory=dict)
    name: str = ""
    metric: str = "examples_per_second"
    a: Conditions = field(default_factory=dict)
    b: Conditions = field(default_factory=dict)
    bound: Bound = field(default_factory=Bound)
    quantile: float = option(0.5, above=0, below=1)
    margin: float = option(1.0, above=0)
    operations: Conditions = field(default_factory=dict)
    successive: str = ""
    paired: bool = True
    of: str = ""
    direction: str = option("rises", choices=("rises", "falls"))
    larger: str = ""
    than: tuple[str, ...] = ()
    a_outcome: tuple[str, ...] = ("ok",)
    b_outcome: tuple[str, ...] = ("oom_host", "oom_device", "oom_predicted")
    by: str = "devices"

    def sentence(self) -> str:
        """What is checked, in words."""
        a, b, meant = map(format_conditions, (self.a, self.b, self.operations))
        if self.metric == "examples_per_second":
            named = ""
        else:
            named = f" in {self.metric}"
        words = {
            "a": a,
            "b": b,
            "operations": meant,
            "response": f"speedup of {a} over {b}" if self.a else self.metric,
            "times": f" by {self.margin:g}x" if self.margin != 1 else "",
            "measured": f" of operations with {meant}" if meant else named,
            "sides": f"each {self.successive} over the one before"
            if self.successive
            else f"{a} over {b}",
            "middle": self.middle(),
            "than": ", ".join(self.than),
            "a_outcome": "|".join(self.a_outcome),
            "b_outcome": "|".join(self.b_outcome),
        }
        return KINDS[self.kind][0].format_map(vars(self) | words)

    def __str__(self) -> str:
        return (
            self.name
            or f"{self.sentence()}{f' ({format_conditions(self.where)})' if self.where else ''}"
        )

    def middle(self) -> str:
        """What its quantile is called."""
        if self.quantile == 0.5:
            return "median"
        return f"{100 * self.quantile:g}th percentile"


@dataclass(frozen=True)
class StatedClaim:
    """A claim: what it says, what the paper proves it with, and the checks it is made of."""

    id: str
    says: str
    checks: tuple[Check, ...]
    proof: str = ""
