"""The kinds of check a claim may be made of: what each says and what it needs.

A record only says what is claimed; `analysis.claims.evaluate` finds the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from analysis.lazy import np
from analysis.store.conditions import Conditions, in_words

_OOM = ("oom_host", "oom_device", "oom_predicted")


class Answer(StrEnum):
    """What a claim or a check may be."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    NOT_ENOUGH = "not enough data"


@dataclass(frozen=True)
class Bound:
    """Where a number must lie: from `low` to `high`, both included."""

    low: float = -np.inf
    high: float = np.inf

    def answer(self, low: float, high: float) -> Answer:
        """An interval within the bound supports, one outside refutes, one that straddles or is unknown does neither."""
        if low >= self.low and high <= self.high:
            return Answer.SUPPORTED
        return Answer.REFUTED if high < self.low or low > self.high else Answer.NOT_ENOUGH

    def __str__(self) -> str:
        if np.isinf(self.high):
            return f"at least {self.low:g}"
        return f"at most {self.high:g}" if np.isinf(self.low) else f"between {self.low:g} and {self.high:g}"


@dataclass(frozen=True)
class Check:
    """One check: `where` holds the conditions on all of its runs; which of the other fields count, its `kind` says."""

    kind: str
    where: Conditions = field(default_factory=dict)
    name: str = ""
    metric: str = "examples_per_second"
    a: Conditions = field(default_factory=dict)
    b: Conditions = field(default_factory=dict)
    bound: Bound = field(default_factory=Bound)
    quantile: float = 0.5
    margin: float = 1.0
    operations: Conditions = field(default_factory=dict)
    successive: str = ""
    paired: bool = True
    of: str = ""
    direction: str = "rises"
    larger: str = ""
    than: tuple[str, ...] = ()
    given: tuple[str, ...] | None = None
    scale: str = "rank"
    a_outcome: tuple[str, ...] = ("ok",)
    b_outcome: tuple[str, ...] = _OOM
    by: str = "devices"

    def sentence(self) -> str:
        """What is checked, in words."""
        return KINDS[self.kind].sentence(self)

    def __str__(self) -> str:
        return self.name or f"{self.sentence()}{f' ({in_words(self.where)})' if self.where else ''}"

    @property
    def response(self) -> str:
        """The left side of a regression in words."""
        return f"speedup of {in_words(self.a)} over {in_words(self.b)}" if self.a else self.metric

    def middle(self) -> str:
        """What its quantile is called."""
        return "median" if self.quantile == 0.5 else f"{100 * self.quantile:g}th percentile"


def _compare(check: Check) -> str:
    times = f" by {check.margin:g}x" if check.margin != 1 else ""
    return f"share of points in which {in_words(check.a)} beats {in_words(check.b)}{times} is {check.bound}"


def _ratio(check: Check) -> str:
    sides = f"{in_words(check.a)} over {in_words(check.b)}"
    if check.successive:
        sides = f"each {check.successive} over the one before"
    of = f" of operations with {in_words(check.operations)}" if check.operations else ""
    measured = "" if check.metric == "examples_per_second" or check.operations else f" in {check.metric}"
    return f"{check.middle()} speedup{of}{measured}, {sides}, is {check.bound}"


def _outcome(check: Check) -> str:
    return (
        f"of the points with outcome {'|'.join(check.b_outcome)} on {in_words(check.b)}, the share with "
        f"{'|'.join(check.a_outcome)} on {in_words(check.a)} is {check.bound}"
    )


class Kind(NamedTuple):
    """What a kind of check says, and which fields it takes beside `where` and `name`, those it needs with a mark."""

    sentence: Callable[[Check], str]
    takes: str

    @property
    def fields(self) -> list[str]:
        """All fields."""
        return self.takes.replace("!", "").split()

    @property
    def required(self) -> list[str]:
        """Those it needs."""
        return [name.rstrip("!") for name in self.takes.split() if name.endswith("!")]


#: What a check's `kind` may be.
KINDS: dict[str, Kind] = {
    # A metric, or the speedup of A over B, rises or falls with a hyperparameter, `given` the others: the sign of its
    # standardised weight.
    "trend": Kind(
        lambda check: f"{check.response} {check.direction} with {check.of}", "metric! a b given scale of! direction!"
    ),
    # The weight of `larger` is larger in size than that of each of `than`.
    "ranking": Kind(
        lambda check: f"{check.larger} weighs more in {check.response} than {', '.join(check.than)}",
        "metric! a b given scale larger! than!",
    ),
    # The share of paired points in which A is more than `margin` times as good as B.
    "compare": Kind(_compare, "a! b! metric margin bound!"),
    # A quantile of the speedups of A over B. With `successive`, a column of versions, A and B are each version and the
    # one before. With `operations` the speedups are those of the operations of profiled runs, chosen by type and B's
    # intensity. Unless `paired`, the ratio is that of A's quantile over B's, whichever points were measured.
    "ratio": Kind(_ratio, "a b successive operations metric quantile paired bound!"),
    # A quantile of a metric over points.
    "threshold": Kind(lambda check: f"{check.middle()} {check.metric} is {check.bound}", "metric! quantile bound!"),
    # A quantile over profiled points of the share of the step in the chosen operations.
    "share": Kind(
        lambda check: (
            f"{check.middle()} share of the step in operations with {in_words(check.operations)} is {check.bound}"
        ),
        "operations! quantile bound!",
    ),
    # Of the points that ended as `b_outcome` on B, the share that ended as `a_outcome` on A.
    "outcome": Kind(_outcome, "a! b! a_outcome b_outcome bound!"),
    # Amdahl's non-parallel fraction, fitted over the counts in column `by`.
    "scaling": Kind(lambda check: f"non-parallel fraction over {check.by} is {check.bound}", "metric by bound!"),
}


@dataclass(frozen=True)
class Claim:
    """A claim: what it says, what the paper proves it with, and the checks it is made of."""

    id: str
    says: str
    checks: tuple[Check, ...]
    proof: str = ""
