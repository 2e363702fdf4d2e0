"""The kinds of check a claim may be made of, as typed records: what each says and what it needs.

    trend      a metric, or the speedup of A over B, rises or falls with a hyperparameter
    ranking    one hyperparameter weighs more than others
    compare    the share of paired points in which A beats B
    ratio      a quantile of the speedups of A over B, or of each version over the one before
    threshold  a quantile of a metric
    share      the share of the profiled step in some operations
    outcome    of the points that ended one way on B, the share that ended another way on A
    scaling    Amdahl's non-parallel fraction
    layers     the share of wall clock that layers of the stack took

A record only says what is claimed; `analysis.claims.evaluate` finds the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from analysis.lazy import np
from analysis.store.conditions import Conditions, in_words

__all__ = [
    "KINDS",
    "Answer",
    "Bound",
    "Check",
    "Claim",
    "Compare",
    "LayerShare",
    "OutcomeShare",
    "Ranking",
    "Ratio",
    "Scaling",
    "Share",
    "Threshold",
    "Trend",
]

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
class _Base:
    """What every check has: `where` holds the conditions on all of its runs."""

    where: Conditions = field(default_factory=dict)
    name: str = ""

    def sentence(self) -> str:
        """What is checked, in words."""
        raise TypeError(f"{type(self).__name__} does not say what it checks")

    def __str__(self) -> str:
        return self.name or f"{self.sentence()}{f' ({in_words(self.where)})' if self.where else ''}"


@dataclass(frozen=True)
class _Weighed(_Base):
    """A check on weights of a regression; with `a` and `b` the metric is the speedup of A over B in it."""

    metric: str = "examples_per_second"
    a: Conditions = field(default_factory=dict)
    b: Conditions = field(default_factory=dict)
    given: tuple[str, ...] | None = None
    scale: str = "rank"

    @property
    def response(self) -> str:
        """The regression's left side in words."""
        return f"speedup of {in_words(self.a)} over {in_words(self.b)}" if self.a else self.metric


@dataclass(frozen=True)
class Trend(_Weighed):
    """`metric` rises or falls with `of`, `given` the other hyperparameters: the sign of its standardised weight."""

    of: str = ""
    direction: str = "rises"

    def sentence(self) -> str:
        return f"{self.response} {self.direction} with {self.of}"


@dataclass(frozen=True)
class Ranking(_Weighed):
    """The weight of `larger` is larger in size than that of each of `than`."""

    larger: str = ""
    than: tuple[str, ...] = ()

    def sentence(self) -> str:
        return f"{self.larger} weighs more in {self.response} than {', '.join(self.than)}"


@dataclass(frozen=True)
class Compare(_Base):
    """The share of paired points in which A is more than `margin` times as good as B lies in the bound."""

    a: Conditions = field(default_factory=dict)
    b: Conditions = field(default_factory=dict)
    metric: str = "examples_per_second"
    margin: float = 1.0
    bound: Bound = field(default_factory=Bound)

    def sentence(self) -> str:
        times = f" by {self.margin:g}x" if self.margin != 1 else ""
        return f"share of points in which {in_words(self.a)} beats {in_words(self.b)}{times} is {self.bound}"


@dataclass(frozen=True)
class Ratio(_Base):
    """The `quantile` of the speedups of A over B lies in the bound.

    With `successive`, a column of versions, A and B are each version and the one before. With `operations` the
    speedups are those of the operations of profiled runs, chosen by type and B's intensity. Unless `paired`, the
    ratio is that of A's quantile over B's, whichever points were measured.
    """

    a: Conditions = field(default_factory=dict)
    b: Conditions = field(default_factory=dict)
    successive: str = ""
    operations: Conditions = field(default_factory=dict)
    metric: str = "examples_per_second"
    quantile: float = 0.5
    paired: bool = True
    bound: Bound = field(default_factory=Bound)

    def sentence(self) -> str:
        what = "median" if self.quantile == 0.5 else f"{100 * self.quantile:g}th percentile"
        sides = (
            f"each {self.successive} over the one before"
            if self.successive
            else (f"{in_words(self.a)} over {in_words(self.b)}")
        )
        of = f" of operations with {in_words(self.operations)}" if self.operations else ""
        measured = "" if self.metric == "examples_per_second" or self.operations else f" in {self.metric}"
        return f"{what} speedup{of}{measured}, {sides}, is {self.bound}"


@dataclass(frozen=True)
class Threshold(_Base):
    """The `quantile` of a metric over points lies in the bound."""

    metric: str = ""
    quantile: float = 0.5
    bound: Bound = field(default_factory=Bound)

    def sentence(self) -> str:
        what = "median" if self.quantile == 0.5 else f"{100 * self.quantile:g}th percentile"
        return f"{what} {self.metric} is {self.bound}"


@dataclass(frozen=True)
class Share(_Base):
    """The `quantile` over profiled points of the share of the step in the chosen operations lies in the bound."""

    operations: Conditions = field(default_factory=dict)
    quantile: float = 0.5
    bound: Bound = field(default_factory=Bound)

    def sentence(self) -> str:
        what = "median" if self.quantile == 0.5 else f"{100 * self.quantile:g}th percentile"
        return f"{what} share of the step in operations with {in_words(self.operations)} is {self.bound}"


@dataclass(frozen=True)
class OutcomeShare(_Base):
    """Of the points that ended as `b_outcome` on B, the share that ended as `a_outcome` on A lies in the bound."""

    a: Conditions = field(default_factory=dict)
    b: Conditions = field(default_factory=dict)
    a_outcome: tuple[str, ...] = ("ok",)
    b_outcome: tuple[str, ...] = _OOM
    bound: Bound = field(default_factory=Bound)

    def sentence(self) -> str:
        return (
            f"of the points with outcome {'|'.join(self.b_outcome)} on {in_words(self.b)}, the share with "
            f"{'|'.join(self.a_outcome)} on {in_words(self.a)} is {self.bound}"
        )


@dataclass(frozen=True)
class Scaling(_Base):
    """Amdahl's non-parallel fraction, fitted over the counts in column `by`, lies in the bound."""

    metric: str = "examples_per_second"
    by: str = "devices"
    bound: Bound = field(default_factory=Bound)

    def sentence(self) -> str:
        return f"non-parallel fraction over {self.by} is {self.bound}"


@dataclass(frozen=True)
class LayerShare(_Base):
    """The share of the wall clock of sessions that some layers of the stack took together lies in the bound."""

    layers: tuple[str, ...] = ()
    bound: Bound = field(default_factory=Bound)

    def sentence(self) -> str:
        return f"share of wall clock in {' + '.join(self.layers)} is {self.bound}"


Check = Trend | Ranking | Compare | Ratio | Threshold | Share | OutcomeShare | Scaling | LayerShare

#: What a check's `kind` may be.
KINDS: dict[str, type[Check]] = {
    "trend": Trend,
    "ranking": Ranking,
    "compare": Compare,
    "ratio": Ratio,
    "threshold": Threshold,
    "share": Share,
    "outcome": OutcomeShare,
    "scaling": Scaling,
    "layers": LayerShare,
}


@dataclass(frozen=True)
class Claim:
    """A claim: what it says, what the paper proves it with, and the checks it is made of."""

    id: str
    says: str
    checks: tuple[Check, ...]
    proof: str = ""
