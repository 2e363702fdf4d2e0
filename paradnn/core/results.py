"""Presentation of the results of a kind of work: metrics, one headline number, and text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from paradnn.core.metric import Metric


@dataclass(frozen=True)
class ResultText:
    """The result of a measurement as text.

    Attributes:
        heading: One word that names the result.
        clauses: Clauses that describe the result, the most important first.
        replaces_steps: Whether this text replaces the description of the timed steps; otherwise it
            is added to that description.
        verdict: Text that replaces the numbers in a progress line; empty to show the numbers.
    """

    heading: str
    clauses: Sequence[str]
    replaces_steps: bool = False
    verdict: str = ""


class ResultDescription:
    """Declares and presents the results of a kind of work, such as a training step or serving.

    This is a role (`Workload.role`): a kind of work inherits from it to override its defaults.

    Attributes:
        declared_metrics: The metrics that only this kind records.
        headlines: Metrics that summarize a run in one number -> their units. The first metric that
            a run has is used.
        rates: Throughputs of timed steps -> their units. The first metric that a run has is used.
        objectives: Metrics by which platforms are compared. The first metric is the cost. The next
            metrics are throughputs, in order of preference, which replace the cost if no price is
            known. The last metric is the default second objective, such as a latency.
        phases: Phases that only this kind has -> the phase that precedes each.
        contention_prefixes: Phase whose contention for processor cores is recorded -> text that
            precedes the reason of the contention, such as "under load: ".
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
        """Return the result of a run as text; None if it has no result of this kind of work.

        Args:
            metrics: Metrics of the run by name.
            tags: Tags of the run by name.
        """
        return None
