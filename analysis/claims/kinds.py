"""The kinds of check that a claim about platforms can have.

Each kind has a statement and fields. A check only states the claim. `analysis.claims.evaluate`
estimates its numbers.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from analysis.store.conditions import Conditions, format_conditions
from paradnn.core.schema import option


class ClaimAnswer(StrEnum):
    """The answer to a claim, or to one of its checks."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    NO_DATA = "no data"


@dataclass(frozen=True)
class Bound:
    """The interval from `low` to `high`, both included, in which a number must lie."""

    low: float = -math.inf
    high: float = math.inf

    def answer(self, low: float, high: float) -> ClaimAnswer:
        """Return whether a confidence interval supports the claim that a number is in the bound.

        An interval within the bound supports the claim, and an interval outside refutes it. If the
        interval includes an end of the bound or is unknown (NaN), the claim is undecided.

        Args:
            low: Low end of the interval.
            high: High end of the interval.
        """
        if low >= self.low and high <= self.high:
            return ClaimAnswer.SUPPORTED
        if high < self.low or low > self.high:
            return ClaimAnswer.REFUTED
        return ClaimAnswer.UNDECIDED

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"at least {self.low:g}"
        if self.low == -math.inf:
            return f"at most {self.high:g}"
        return f"between {self.low:g} and {self.high:g}"


@dataclass(frozen=True)
class CheckKind:
    """A kind of check: its statement, and its fields in addition to `where` and `name`.

    Attributes:
        statement: A template of the sentence, see `Check.sentence`.
        required: Fields that a check needs.
        optional: Fields that a check may have.
        needs_bound: Whether a check needs a bound (at_least, at_most or between).
    """

    statement: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    needs_bound: bool = True


#: The kinds of check. docs/how-to/claims.md explains them.
KINDS = {
    # A metric, or the speedup of A over B, rises or falls with a hyperparameter while the others
    # are fixed: the sign of its standardized weight.
    "trend": CheckKind(
        statement="{response} {direction} with {of}",
        required=("metric", "of", "direction"),
        optional=("a", "b"),
        needs_bound=False,
    ),
    # The weight of `larger` is larger in size than that of each of `than`.
    "ranking": CheckKind(
        statement="{larger} weighs more in {response} than {than}",
        required=("metric", "larger", "than"),
        optional=("a", "b"),
        needs_bound=False,
    ),
    # The share of paired points at which A is more than `margin` times as good as B.
    "compare": CheckKind(
        statement="share of points in which {a} beats {b}{times} is {bound}",
        required=("a", "b"),
        optional=("metric", "margin"),
    ),
    # A quantile of the speedups of A over B. If `successive` names a column of versions, A is each
    # version and B is the previous version. With `operations`, the speedups are of operations in
    # profiled runs, selected by their type and their intensity on B. If `paired` is false, A's
    # quantile is divided by B's quantile, whether or not both sides measured the same points.
    "ratio": CheckKind(
        statement="{middle} speedup{measured}, {sides}, is {bound}",
        optional=("a", "b", "successive", "operations", "metric", "quantile", "paired"),
    ),
    # A quantile of a metric over points.
    "threshold": CheckKind(
        statement="{middle} {metric} is {bound}", required=("metric",), optional=("quantile",)
    ),
    # The share of the step time in the chosen operations: a quantile over profiled points.
    "share": CheckKind(
        statement="{middle} share of the step in operations with {operations} is {bound}",
        required=("operations",),
        optional=("quantile",),
    ),
    # The share of the points with an outcome in `b_outcome` on B whose outcome on A is in
    # `a_outcome`.
    "outcome": CheckKind(
        statement=(
            "of the points with outcome {b_outcome} on {b}, the share with {a_outcome} on {a} "
            "is {bound}"
        ),
        required=("a", "b"),
        optional=("a_outcome", "b_outcome"),
    ),
    # Amdahl's non-parallel fraction, fitted over the counts in column `by`.
    "scaling": CheckKind(
        statement="non-parallel fraction over {by} is {bound}", optional=("metric", "by")
    ),
    # The share of layers of the software stack in the wall time of drivers (`overhead --layers`).
    "layers": CheckKind(
        statement="share of {layers} in a driver's wall time is {bound}", required=("layers",)
    ),
}


@dataclass(frozen=True)
class Check:
    """A part of a claim that runs can support or refute.

    `KINDS` documents the fields that each kind of check uses. All other fields have their defaults.

    Attributes:
        kind: Key of `KINDS`.
        where: Conditions on the runs: column -> the conditions on its values.
        name: Text of the check; empty for the statement of its kind.
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
    layers: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Return the statement of the check as text."""
        a = format_conditions(self.a)
        b = format_conditions(self.b)
        operations = format_conditions(self.operations)
        measured = ""
        if operations:
            measured = f" of operations with {operations}"
        elif self.metric != "examples_per_second":
            measured = f" in {self.metric}"
        sides = f"{a} over {b}"
        if self.successive:
            sides = f"each {self.successive} over the version before it"
        texts = {
            "a": a,
            "b": b,
            "operations": operations,
            "response": f"speedup of {a} over {b}" if self.a else self.metric,
            "times": f" by {self.margin:g}x" if self.margin != 1 else "",
            "measured": measured,
            "sides": sides,
            "middle": self.middle(),
            "than": ", ".join(self.than),
            "layers": " and ".join(self.layers),
            "a_outcome": "|".join(self.a_outcome),
            "b_outcome": "|".join(self.b_outcome),
        }
        return KINDS[self.kind].statement.format_map(vars(self) | texts)

    def __str__(self) -> str:
        if self.name:
            return self.name
        if self.where:
            return f"{self.sentence()} ({format_conditions(self.where)})"
        return self.sentence()

    def middle(self) -> str:
        """Return the name of the quantile, such as "median" or "90th percentile"."""
        if self.quantile == 0.5:
            return "median"
        return f"{100 * self.quantile:g}th percentile"


@dataclass(frozen=True)
class StatedClaim:
    """A statement about platforms, with the checks that can support or refute it.

    Attributes:
        id: Id of the claim, unique in its file.
        says: The statement.
        checks: Its checks.
        proof: The evidence in the ParaDnn paper; empty for none.
    """

    id: str
    says: str
    checks: tuple[Check, ...]
    proof: str = ""
