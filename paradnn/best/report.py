"""The answer of a race as text, as a table, and as a document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Column

from paradnn.best.objective import (
    COST_UNITS,
    as_value,
    format_bytes,
    format_value,
    is_larger_better,
    mean_metrics,
)
from paradnn.best.race import Candidate, Race
from paradnn.cli.console import fitting_table, standard_output
from paradnn.config.point import Point
from paradnn.core.words import counted, in_seconds, rounded
from paradnn.session.design import DesignResult
from paradnn.statistics.elimination import MIN_PROCESSES, Interval, RaceState
from paradnn.store.metrics import COSTS

#: Maximum number of candidates in the table, and of lines about excluded candidates.
_ROWS = 20
#: Maximum number of rivals that a sentence names.
_NAMED = 3
#: Columns that a narrow terminal omits, in this order.
_DROPPED_COLUMNS = ("processes", "p99", "epoch", "step time", "memory")


@dataclass(frozen=True)
class RaceAnswer:
    """The result of a race between combinations of settings, and its formatting.

    The combinations are called candidates.

    Attributes:
        race: The race, which may be undecided or interrupted.
        epoch: Examples per epoch; None if unknown.
        currency: Currency of the costs; empty if unknown.
    """

    race: Race
    epoch: int | None = None
    currency: str = ""

    @property
    def verdict(self) -> str:
        """ "best" if a candidate has won, "undecided", or "none" if no candidate may win."""
        if self.race.state() is None:
            return "none"
        return "best" if self.race.is_decided() else "undecided"

    @property
    def measured_candidates(self) -> int:
        """Number of candidates that may win and were measured."""
        return sum(bool(each.rows) and not each.problem for each in self.race.candidates)

    def sentences(self) -> list[str]:
        """Return the answer as sentences.

        They name the winner or the current leader, its close rivals, and the confidence. If the
        race is undecided, the last sentence says why.
        """
        state = self.race.state()
        if state is None:
            return [self._nothing_measured()]
        leader = self.race.candidates[state.leader].label
        score = self._score_text(state)
        if self.verdict == "best":
            first = f"{leader} {self.race.objective.predicate}: {score}"
        else:
            first = f"undecided: {leader} leads: {score}"
        order = self._order(state)
        rival = order[1] if len(order) > 1 else None
        if rival is None:
            if not self._unmeasured() and len(self.race.candidates) > 1:
                first += ", the only candidate that is not excluded"
            lines = [f"{first}."]
            if self.verdict != "best":
                lines.append(self._undecided_reason())
            return lines
        first += self.race.objective.describe_rival(
            self.race.candidates[rival].label, format_ratio(state.lead(rival))
        )
        first += "."
        close = [each for each in order[1:] if state.may_be_as_good(each)]
        lines = [first]
        if close:
            names = "; ".join(self._rival_text(state, each) for each in close[:_NAMED])
            more = f"; and {len(close) - _NAMED} more" if len(close) > _NAMED else ""
            lines.append(f"May be as good: {names}{more}.")
        if self.verdict == "best":
            margin = _percent(self.race.rule.margin)
            lines.append(f"With 95% confidence no other candidate is better by more than {margin}.")
        else:
            lines.append(self._undecided_reason())
        return lines

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the headings and rows of the table of measured candidates, the best first.

        Excluded candidates have no row.
        """
        state = self.race.state()
        if state is None:
            return [], []
        name = self.race.metric
        headings = ["candidate", self._score_heading(), "95% CI", "best is ahead by"]
        columns = self._extra_columns()
        headings += [*columns, "processes"]
        rows = []
        for index in self._order(state)[:_ROWS]:
            candidate = self.race.candidates[index]
            interval = self._value_interval(state.score(index))
            if index == state.leader:
                lead = "-"
            else:
                lead = format_ratio(state.lead(index))
            metrics = mean_metrics(candidate.rows)
            cells = [self._cell(column, metrics) for column in columns]
            rows.append(
                [
                    candidate.label,
                    _number(name, interval.value),
                    f"{_number(name, interval.low)} to {_number(name, interval.high)}",
                    lead,
                    *cells,
                    str(len(candidate.rows)),
                ]
            )
        return headings, rows

    def exclusions(self) -> list[str]:
        """Return one line per candidate that is excluded or was not measured, with the reason."""
        lines = [
            f"{each.label}: {each.outcome}: {each.problem}"
            for each in self.race.candidates
            if each.problem
        ]
        lines += [
            f"{each.label}: not measured: {self._missing_reason()}" for each in self._unmeasured()
        ]
        return lines

    def document(self) -> dict[str, Any]:
        """Return the content of the file of --json.

        It is also recorded as an artifact of the sweep's parent run.
        """
        state = self.race.state()
        document: dict[str, Any] = {
            "answer": " ".join(self.sentences()),
            "verdict": self.verdict,
            "goal": self.race.objective.goal,
            "metric": self.race.metric,
            "margin": self.race.rule.margin,
            "best": None,
            "ratio": None,
            "low": None,
            "high": None,
            "rounds": self.race.rounds,
            "processes": self.race.processes,
        }
        order = self._order(state) if state else []
        if state:
            document["best"] = self.race.candidates[state.leader].label
            document["risk"] = state.risk
        if state and len(order) > 1:
            lead = state.lead(order[1])
            document |= {"ratio": lead.value, "low": lead.low, "high": lead.high}
        document["candidates"] = [self._candidate_entry(index, state) for index in order] + [
            self._excluded_entry(each)
            for index, each in enumerate(self.race.candidates)
            if index not in order
        ]
        return document

    def conclusion(self) -> DesignResult:
        """Return the answer for the parent run of the sweep.

        It consists of a description, metrics, the tag `best`, and the content of --json.
        """
        state = self.race.state()
        document = self.document()
        metrics = {
            "race_candidates": float(len(self.race.candidates)),
            "race_processes": float(self.race.processes),
        }
        tags = {}
        if state:
            metrics["race_risk"] = state.risk
            tags["best"] = self.race.candidates[state.leader].label
        if document["ratio"] is not None:
            metrics["race_lead"] = document["ratio"]
            metrics["race_lead_low"] = document["low"]
            metrics["race_lead_high"] = document["high"]
        markdown = "\n".join(f"- **{line}**" for line in self.sentences())
        return DesignResult(markdown, metrics, tags, {"race.json": document})

    def _nothing_measured(self) -> str:
        if self._unmeasured():
            return f"no answer: no candidate was measured, {self._missing_reason()}."
        return "no answer: every candidate is excluded."

    def _missing_reason(self) -> str:
        return "the time ran out" if self.race.is_time_over else "the race was interrupted"

    def _unmeasured(self) -> list[Candidate]:
        return [each for each in self.race.candidates if not each.problem and not each.rows]

    def _order(self, state: RaceState) -> list[int]:
        """Return the indices of the leader and then of its rivals, the closest first."""
        rivals = sorted(state.rivals, key=lambda each: state.lead(each).value)
        return [state.leader, *rivals]

    def _value_interval(self, score: Interval) -> Interval:
        """Convert the interval of a score to the interval of the metric's value."""
        ends = [as_value(self.race.metric, each) for each in score]
        return Interval(ends[0], min(ends[1:]), max(ends[1:]))

    def _score_text(self, state: RaceState) -> str:
        """Return the leader's value with its unit and its 95% confidence interval."""
        name = self.race.metric
        interval = self._value_interval(state.score(state.leader))
        return (
            f"{format_value(name, interval.value, self.currency)} "
            f"(95% CI {_number(name, interval.low)} to {_number(name, interval.high)})"
        )

    def _score_heading(self) -> str:
        name = self.race.metric
        if name not in COST_UNITS:
            return _HEADINGS.get(name, name)
        heading = f"cost {COST_UNITS[name]}"
        if self.currency:
            heading += f", {self.currency}"
        return heading

    def _rival_text(self, state: RaceState, rival: int) -> str:
        """Return a rival's label and the ratio of its metric value to the leader's, as text."""
        ratio = state.lead(rival)
        if is_larger_better(self.race.metric):
            ratio = Interval(1 / ratio.value, 1 / ratio.high, 1 / ratio.low)
        return f"{self.race.candidates[rival].label} at {format_ratio(ratio)}"

    def _undecided_reason(self) -> str:
        unmeasured = self._unmeasured()
        reasons = []
        if unmeasured:
            reasons.append(
                f"{counted(len(unmeasured), 'candidate')} not measured, {self._missing_reason()}"
            )
        state = self.race.state()
        if state is not None and state.risk > self.race.rule.risk:
            margin = _percent(self.race.rule.margin)
            reasons.append(f"another candidate may be better by more than {margin}")
        elif state is not None and not state.is_decided():
            reasons.append(f"the best candidates need {MIN_PROCESSES} measurements each")
        text = f"Not decided: {'; '.join(reasons)}."
        minutes = self.race.minutes_needed()
        if minutes:
            limit = _rounded_up(minutes)
            text += f" A race of about {limit} minutes would decide it"
            text += f"; set --minutes {limit}." if self.race.is_time_over else "."
        return text

    def _extra_columns(self) -> list[str]:
        """Return the headings of the columns for all metrics except the compared metric.

        A column of the table is included if any candidate has one of its metrics.
        """
        known = {
            name for each in self.race.candidates if each.rows for name in mean_metrics(each.rows)
        }
        columns = []
        for heading, names in _COLUMNS.items():
            if self.race.metric not in names and known & set(names):
                columns.append(heading)
        if self.epoch and "examples_per_second" in known:
            columns.append("epoch")
        return columns

    def _cell(self, column: str, metrics: Mapping[str, float]) -> str:
        if column == "epoch":
            rate = metrics.get("examples_per_second")
            return in_seconds(self.epoch / rate) if rate and self.epoch else "-"
        for name in _COLUMNS[column]:
            if name in metrics:
                if column == "cost per million":
                    return f"{rounded(metrics[name])} {self.currency}".strip()
                return format_value(name, metrics[name])
        return "-"

    def _candidate_entry(self, index: int, state: RaceState | None) -> dict[str, Any]:
        assert state is not None
        candidate = self.race.candidates[index]
        interval = self._value_interval(state.score(index))
        lead = None
        if index != state.leader:
            lead = state.lead(index)._asdict()
        return {
            "candidate": candidate.label,
            "outcome": candidate.outcome,
            "reason": None,
            "value": interval.value,
            "low": interval.low,
            "high": interval.high,
            "lead_of_best": lead,
            "may_be_best": index == state.leader or state.may_be_as_good(index),
            "runs": [row.run_id for row in candidate.rows],
            "metrics": _reported_metrics(candidate),
        }

    def _excluded_entry(self, candidate: Candidate) -> dict[str, Any]:
        if candidate.problem:
            outcome = candidate.outcome
            reason = candidate.problem
        else:
            outcome = "not measured"
            reason = self._missing_reason()
        return {
            "candidate": candidate.label,
            "outcome": outcome,
            "reason": reason,
            "runs": [row.run_id for row in candidate.rows],
            "metrics": _reported_metrics(candidate),
        }


_HEADINGS = {
    "examples_per_second": "examples/s",
    "tokens_per_second": "tokens/s",
    "queries_per_second": "queries/s",
    "scheduled_queries_per_second": "queries/s",
    "step_time_ms": "step time, ms",
    "latency_p50_ms": "latency p50, ms",
    "latency_p99_ms": "latency p99, ms",
    "peak_memory_bytes": "memory, GiB",
}
#: Heading of a column -> its metrics; a cell shows the first metric that the candidate has.
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "step time": ("step_time_ms",),
    "speed": ("examples_per_second", "tokens_per_second", "queries_per_second"),
    "p99": ("latency_p99_ms",),
    "cost per million": tuple(cost.name for cost in COSTS if cost.rate),
    "memory": ("peak_memory_bytes",),
}


def _reported_metrics(candidate: Candidate) -> dict[str, float]:
    if not candidate.rows:
        return {}
    metrics = mean_metrics(candidate.rows)
    names = {name for column in _COLUMNS.values() for name in column}
    return {name: metrics[name] for name in sorted(names & set(metrics))}


def _number(name: str, value: float) -> str:
    if name == "peak_memory_bytes":
        return format_bytes(value).removesuffix(" GiB")
    return rounded(value)


def format_ratio(ratio: Interval) -> str:
    """Return a ratio with its 95% interval, such as 1.31x (1.22 to 1.40)."""
    return f"{_ratio(ratio.value)}x ({_ratio(ratio.low)} to {_ratio(ratio.high)})"


def _ratio(value: float) -> str:
    if value < 10:
        return f"{value:.2f}"
    return rounded(value, 3)


def _rounded_up(minutes: float) -> str:
    """Return minutes as text, rounded up to tenths if below 10, else to whole minutes."""
    if minutes < 10:
        return f"{math.ceil(10 * minutes) / 10:g}"
    return str(math.ceil(minutes))


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def epoch_examples(points: Sequence[Point], given: int | None) -> int | None:
    """Return the number of examples per epoch.

    Args:
        points: The combinations of settings to compare.
        given: The number that the user gave with --epoch; None to use the size of the training set.

    Returns:
        The number; None if the size of the training set is unknown or differs between `points`.
    """
    if given:
        return given
    sizes = {getattr(getattr(point.data, "sizes", None), "training", None) for point in points}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None


def print_answer(answer: RaceAnswer, closing: Sequence[str], *, is_quiet: bool) -> None:
    """Print the answer of a race, then the table, the excluded candidates and closing lines.

    Args:
        answer: The answer.
        closing: Lines to print at the end.
        is_quiet: Whether to print only the first sentence of the answer.
    """
    console = standard_output()
    sentences = answer.sentences()
    if is_quiet:
        console.print(sentences[0], soft_wrap=True, markup=False)
        return
    for line in sentences:
        console.print(line, soft_wrap=True, markup=False)
    headings, rows = answer.table()
    if rows:
        columns = [
            Column(heading, justify="left" if position == 0 else "right", no_wrap=position > 0)
            for position, heading in enumerate(headings)
        ]
        console.print()
        console.print(fitting_table(console, columns, rows, _DROPPED_COLUMNS))
        hidden = answer.measured_candidates - len(rows)
        if hidden > 0:
            console.print(f"and {counted(hidden, 'slower candidate')}; --json lists all")
    exclusions = answer.exclusions()
    if exclusions:
        console.print()
    for line in exclusions[:_ROWS]:
        console.print(line, soft_wrap=True, markup=False)
    if len(exclusions) > _ROWS:
        console.print(f"and {len(exclusions) - _ROWS:,} more; --json lists all")
    console.print()
    for line in closing:
        console.print(line, soft_wrap=True, markup=False)
