"""Presentation of the results of a kind of work: metrics, one headline number, and text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from paradnn.core.metric import Metric


@dataclass(frozen=True)
class ResultText:
    """A result as text.

    Attributes:
        heading: One word.
        clauses: Clauses that describe the result, the most important first.
        replaces_steps: Whether the timed steps are not mentioned next to this text.
        verdict: Text for the headline of a progress line; empty if the numbers suffice.
    """

    heading: str
    clauses: Sequence[str]
    replaces_steps: bool = False
    verdict: str = ""


class ResultDescription:
    """The role of a kind of work that declares and presents its results (`Workload.role`).

    Attributes:
        declared_metrics: The metrics that only this kind records.
        headlines: Metrics that summarize a run in one number, with the unit, by descending
            priority.
        rates: Throughputs of timed steps, with the unit, by descending priority.
        objectives: The metrics that platforms are compared by: the cost, the metric that replaces
            it if no price is known, and the benefit.
        phases: The phases that only this kind has, each with the phase that precedes it.
        contention_prefixes: The phases whose contention is recorded, each with the text that
            precedes the reason.
    """

    declared_metrics: ClassVar[tuple[Metric, ...]] = ()
    headlines: ClassVar[Mapping[str, str]] = {}
    rates: ClassVar[Mapping[str, str]] = {}
    objectives: ClassVar[tuple[str, ...]] = (
        "cost_per_million_examples",
        "examples_per_second",
        "latency_p50_ms",
    )
    phases: ClassVar[Mapping[str, str]] = {}
    contention_prefixes: ClassVar[Mapping[str, str]] = {}

    def describe(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        """Return the result of a run as text; None if the run is of another kind of work."""
        return None
