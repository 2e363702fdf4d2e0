"""A race between combinations of settings: the choice of the next measurement, and the result."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paradnn.best.objective import Objective, WinnerLimits
from paradnn.config.identity import as_params
from paradnn.config.point import Point
from paradnn.session.design import DesignPoint, DesignResult, RecordedPoint, SweepDesign
from paradnn.session.record import run_name
from paradnn.statistics.elimination import EliminationRule, Observation, RaceState


@dataclass
class Candidate:
    """One combination of settings in a race, with its measurements.

    Attributes:
        label: The settings, in the syntax of the command line.
        point: The configuration to measure; None if the combination is invalid.
        outcome: "ok", or the outcome that excludes the candidate, such as "invalid", "oom_host" or
            "over limit".
        problem: Why the candidate is excluded; empty if it may win.
        rows: Successful measurements of the candidate.
        seconds: Duration of each measurement in seconds, including failed measurements.
    """

    label: str
    point: Point | None
    outcome: str = "ok"
    problem: str = ""
    rows: list[RecordedPoint] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def exclude(self, outcome: str, problem: str) -> None:
        """Exclude the candidate from the race.

        Args:
            outcome: Short reason, such as "invalid", or the outcome of the failed measurement.
            problem: The reason as text.
        """
        self.outcome = outcome
        self.problem = problem


class Race(SweepDesign):
    """Sweep design that measures combinations of settings in rounds, until one of them has won.

    The combinations are called candidates. The first round measures all of them. Each further round
    measures the contenders, that is, the candidates that may still be the best. Every batch is a
    single measurement, so an interruption loses at most that measurement.

    Args:
        name: Identifier of the sweep, which also seeds the random order of each round.
        candidates: The candidates; those with a `problem` are not measured.
        objective: The quantity by which the candidates are compared.
        limits: Limits that the winner must not exceed.
        rule: Decides which candidates can no longer win, and when the race ends.
        seconds: Time limit in seconds.
        clock: Returns the time in seconds, from any origin.
    """

    resumes = False  # every round is measured

    def __init__(
        self,
        name: str,
        candidates: Sequence[Candidate],
        objective: Objective,
        *,
        limits: WinnerLimits,
        rule: EliminationRule,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.candidates = candidates
        self.objective = objective
        self.rule = rule
        self.metric: str = objective.names[0]
        self.points = [each.point for each in candidates if each.point]
        self.is_time_over = False
        self.conclude: Callable[[], DesignResult] = DesignResult
        self._name = name
        self._limits = limits
        self._limit = seconds
        self._clock = clock
        self._random = random.Random(name)
        self._observations: list[Observation] = []
        #: Cache of `state`: the key of its inputs, and the state.
        self._known_state: tuple[object, RaceState] | None = None
        self._begin: float | None = None
        self._visit_begin = 0.0
        self._round = 0
        self._queue: list[int] = []
        self._current: int | None = None

    @property
    def left(self) -> int:
        """Number of measurements left in the current round, including the current one."""
        return len(self._queue) + 1

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit of the race; negative after it."""
        return self._limit - self._elapsed()

    @property
    def progress(self) -> str:
        """The number of the round and the leading candidate, as text."""
        state = self.state()
        if state is None:
            return f"round {self._round}"
        return f"round {self._round}, best so far: {self.candidates[state.leader].label}"

    @property
    def rounds(self) -> int:
        """Number of rounds that have begun."""
        return self._round

    @property
    def processes(self) -> int:
        """Number of successful measurements. Each measurement ran in a separate process."""
        return len(self._observations)

    def batch(self, rows: Sequence[RecordedPoint]) -> list[DesignPoint]:
        """Return the next measurement; an empty list if the race has ended.

        Args:
            rows: The result of the previous measurement; empty at the start.
        """
        if self._begin is None:
            self._begin = self._clock()
        for row in rows:
            self._collect(row)
        while self._queue and self.candidates[self._queue[0]].problem:
            self._queue.pop(0)
        if not self._queue:
            self._queue = self._next_round()
        if not self._queue:
            return []
        if self._is_too_late(self._queue[0]):
            self.is_time_over = True
            return []
        self._current = self._queue.pop(0)
        self._visit_begin = self._clock()
        return [self._visit(self._current)]

    def state(self) -> RaceState | None:
        """Return the estimated scores so far; None if no measured candidate may win."""
        eligible = frozenset(
            index for index, each in enumerate(self.candidates) if not each.problem and each.rows
        )
        if not eligible:
            return None
        key = (len(self._observations), eligible)
        if self._known_state is None or self._known_state[0] != key:
            state = RaceState(self._observations, eligible, self.rule)
            self._known_state = (key, state)
        return self._known_state[1]

    def is_decided(self) -> bool:
        """Return whether all candidates are measured and one of them has won."""
        if any(not each.problem and not each.rows for each in self.candidates):
            return False
        state = self.state()
        return state is not None and state.is_decided()

    def seconds_needed(self) -> float | None:
        """Estimate the remaining seconds until the race is decided.

        The estimate assumes that every further round measures all current contenders, that is, all
        candidates that may still be the best (`RaceState.rounds_needed`).

        Returns:
            The seconds; None if the race is already decided, or if no measured candidate may win.
        """
        state = self.state()
        if state is None or self.is_decided():
            return None
        rounds = state.rounds_needed()
        contenders = [self.candidates[index] for index in state.contenders()]
        round_seconds = sum(statistics.fmean(each.seconds) for each in contenders)
        unmeasured = sum(not each.problem and not each.rows for each in self.candidates)
        return rounds * round_seconds + unmeasured * self._typical_seconds()

    def minutes_needed(self) -> float | None:
        """Estimate the minutes of the whole race, from its start until it is decided.

        Returns:
            The minutes; None if the race is already decided, or if no measured candidate may win.
        """
        seconds = self.seconds_needed()
        if seconds is None:
            return None
        measured = sum(sum(each.seconds) for each in self.candidates)
        return (measured + seconds) / 60

    def conclusion(self) -> DesignResult:
        """Return the answer of the race, to be recorded in the parent run of the sweep."""
        return self.conclude()

    def _elapsed(self) -> float:
        return 0.0 if self._begin is None else self._clock() - self._begin

    def _next_round(self) -> list[int]:
        """Begin the next round, unless the race is over.

        Returns:
            The indices of the candidates to measure, in random order; empty if the race is over.
        """
        if self._round == 0:
            chosen = [index for index, each in enumerate(self.candidates) if not each.problem]
        else:
            state = self.state()
            if state is None or state.is_decided():
                return []
            chosen = state.contenders()
        self._round += 1
        self._random.shuffle(chosen)
        return chosen

    def _is_too_late(self, index: int) -> bool:
        """Return whether a measurement is expected to end after the time limit.

        The first measurement of a race is never too late.

        Args:
            index: Index of the candidate to measure.
        """
        seconds = self.candidates[index].seconds
        if seconds:
            expected = statistics.fmean(seconds)
        else:
            expected = self._typical_seconds()
        return expected > 0 and self._elapsed() + expected > self._limit

    def _typical_seconds(self) -> float:
        """Return the median duration of all measurements so far in seconds; 0 without any."""
        seconds = [value for each in self.candidates for value in each.seconds]
        return statistics.median(seconds) if seconds else 0.0

    def _visit(self, index: int) -> DesignPoint:
        candidate = self.candidates[index]
        assert candidate.point is not None
        # A round measures each candidate in one new process. A race does not use profiles.
        measure = replace(candidate.point.measure, processes=1, profile=False)
        point = replace(candidate.point, replicate=self._round, measure=measure)
        return DesignPoint(point, {"race": self._name, "candidate": candidate.label})

    def _collect(self, row: RecordedPoint) -> None:
        """Add the result of the current measurement to its candidate, or exclude the candidate."""
        assert self._current is not None
        candidate = self.candidates[self._current]
        candidate.seconds.append(self._clock() - self._visit_begin)
        if row.outcome != "ok":
            candidate.exclude(row.outcome, row.reason or row.outcome)
            return
        score = self.objective.log_score(row)
        if score is None:
            candidate.exclude("no score", self.objective.missing_score(row))
            return
        self.metric = self.objective.metric_name(row) or self.metric
        candidate.rows.append(row)
        self._observations.append(Observation(self._current, self._round, score))
        violation = self._limits.violation(candidate.rows)
        if violation:
            candidate.exclude("over limit", violation)


def axis_values(
    configs: Sequence[Mapping[str, Any]], typed_keys: Sequence[str]
) -> list[dict[str, str]]:
    """Return the settings by which candidates differ, as key -> value for each candidate.

    A candidate is one combination of settings. Only keys that the user typed are returned.

    Args:
        configs: The settings of each candidate as nested mappings of plain values.
        typed_keys: Keys with several values, in the order in which the user typed them.
    """
    params = [as_params(config) for config in configs]
    rows = [{key: _value(row, key) for key in typed_keys} for row in params]
    axes = [key for key in dict.fromkeys(typed_keys) if len({row[key] for row in rows}) > 1]
    return [{key: row[key] for key in axes} for row in rows]


def label_candidates(
    axes: Sequence[Mapping[str, str]], points: Sequence[Point | None]
) -> list[str]:
    """Return distinct names of candidates, such as `compile=xla batch_size=64`.

    A candidate is one combination of settings. Candidates of a preset, a stored sweep, may differ
    in keys that the user did not type. They get the names of their runs.

    Args:
        axes: For each candidate, the keys and values by which it differs (`axis_values`).
        points: The configuration of each candidate; None for an invalid candidate.
    """
    labels = [" ".join(f"{key}={value}" for key, value in row.items()) for row in axes]
    if len(set(labels)) == len(labels):
        return labels
    names = [
        run_name(point) if point else label for point, label in zip(points, labels, strict=True)
    ]
    if len(set(names)) == len(names):
        return names
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]


def is_combination_invalid(index: int, axes: Sequence[Mapping[str, str]], valid: int) -> bool:
    """Return whether a candidate is invalid only because of the combination of its values.

    In this case, each of its values also occurs in a valid candidate. Otherwise one value is
    invalid in every combination, for example because it is misspelled.

    Args:
        index: Index of the invalid candidate in `axes`.
        axes: For each candidate, the keys and values by which it differs (`axis_values`), with the
            valid candidates first.
        valid: Number of valid candidates.
    """
    return all(any(row[key] == value for row in axes[:valid]) for key, value in axes[index].items())


def _value(params: Mapping[str, str], key: str) -> str:
    """Return the value of a key as text; for a group such as `model`, the chosen option's name.

    An integer that was read as a float loses its ".0".

    Args:
        params: Flattened settings of a candidate: dotted key -> value.
        key: A key that the user typed.
    """
    text = params.get(f"{key}.name", params.get(key, ""))
    return text.removesuffix(".0")
