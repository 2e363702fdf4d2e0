"""Compare two commands, or one command at two commits, in interleaved runs.

Each round runs both commands, one right after the other, each in a fresh process. The order is
random in one round and reversed in the next. The value of a round is the logarithm of the ratio of
speeds. Influences that both sides share, such as a drift or other work on the machine, cancel in
this ratio (`paradnn.statistics.paired_rounds`).
"""

import math
import os
import re
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paradnn.compare.loaded_code import LoadedFiles, foreign_code, load_trace
from paradnn.compare.processes import (
    Command,
    CommandProtocol,
    CommandRun,
    command_line,
    prepare_run,
    run_once,
)
from paradnn.compare.result import PairedResult
from paradnn.core.errors import ConfigError
from paradnn.core.words import counted, in_seconds
from paradnn.platform.process_guard import ProcessGuard
from paradnn.statistics.paired_rounds import Rule, orders

#: Minimum duration of a visit in seconds. A short command runs several times per visit, so that
#: its value does not depend on the resolution of the clock or on a single slow start.
VISIT_SECONDS = 0.1
#: Maximum number of runs in a visit.
MAX_RUNS = 50
#: A comparison ends as undecided if a side fails in more than this share of its visits and at least
#: `MIN_FAILURES` times, or if `MIN_FAILURES` warm-up rounds fail.
MAX_FAILURE_SHARE = 0.2
MIN_FAILURES = 3
#: Default command of `--null`: a few tenths of a second of matrix products in NumPy.
_PRODUCTS = "import numpy as n; a = n.ones((384, 384), 'f'); [a @ a for _ in range(100)]"
NULL_COMMAND = shlex.join([sys.executable, "-c", _PRODUCTS])
#: Remedy if a side loads code of another commit, per program; "" for all other programs.
_SEPARATE_ENVIRONMENTS = {
    "": "--setup 'python -m venv .venv-gate && .venv-gate/bin/pip install .' "
    "-- .venv-gate/bin/python ...",
    "node": "--setup 'npm ci' -- node ...",
    "npm": "--setup 'npm ci' -- npm ...",
    "npx": "--setup 'npm ci' -- npx ...",
}
#: Variables with folders of packages. They have precedence over the packages of an environment.
_PACKAGE_PATHS = ("PYTHONPATH", "NODE_PATH")

#: Consecutive runs of one command in a round. The first failure ends them, so only the last run can
#: have failed.
Visit = list[CommandRun]


class CommandComparison(PairedResult):
    """Comparison of two commands in alternating runs.

    The two commands are called sides 0 and 1. In each round, each side has one visit, which
    consists of one or more consecutive runs.

    Args:
        sides: The two commands.
        rule: Decides when the comparison ends.
        protocol: How the commands are run; None for the defaults.
        seed: Seed of the order of the sides; None for a different order in each comparison.

    Attributes:
        visits: All visits of each side after the warm-up, including failed visits.
        failed_side: The side (0 or 1) that caused `problem`; None without a problem.
        loaded: For each side, the files that it loads. Empty unless both sides are commits.
    """

    def __init__(
        self,
        sides: Sequence[Command],
        rule: Rule,
        protocol: CommandProtocol | None = None,
        seed: object = None,
    ) -> None:
        protocol = protocol or CommandProtocol()
        unit = "metric" if protocol.metric.is_printed else "seconds"
        super().__init__((sides[0].label, sides[1].label), rule, unit=unit)
        self.sides = sides
        self.protocol = protocol
        self.visits: tuple[list[Visit], list[Visit]] = ([], [])
        self.failed_side: int | None = None
        self.loaded: list[LoadedFiles] = []
        self._orders = orders(time.time_ns() if seed is None else seed)
        self._runs_per_visit = 1
        self._guard = ProcessGuard()

    @property
    def runs_same_code(self) -> bool:
        """Whether both commands are known to have loaded the same code."""
        digests = {loaded.digest for loaded in self.loaded}
        return len(digests) == 1 and None not in digests

    def document(self, *, interrupted: bool = False) -> dict[str, Any]:
        """Return the content of --json: the result and the measurements of every run.

        Args:
            interrupted: Whether the user interrupted the comparison.
        """
        sides = [
            {
                "label": side.label,
                "command": side.text,
                "failed_visits": len(self.failures(number)),
                "values": self.values(number),
                "cpu_seconds": self.cpu_seconds(number),
            }
            for number, side in enumerate(self.sides)
        ]
        for side, loaded in zip(sides, self.loaded, strict=False):
            side["code_digest"] = loaded.digest
            side["code_files"] = len(loaded.files)
        estimate = self.estimate
        return self.answer() | {
            "log_ratios": self.logs,
            "sides": sides,
            "metric": self.protocol.metric.pattern or "seconds",
            "interrupted": interrupted,
            "visible_difference": estimate.visible if estimate else None,
            "equivalence": self.rule.margin,
        }

    def values(self, side: int) -> list[float]:
        """Return the wall times in seconds, or the values of the metric, of successful runs.

        Args:
            side: Number of the command, 0 or 1.
        """
        return [run.measured for run in self._successful_runs(side)]

    def cpu_seconds(self, side: int) -> list[float]:
        """Return the processor times of successful runs, in seconds.

        Runs whose processor time is unknown are omitted.

        Args:
            side: Number of the command, 0 or 1.
        """
        runs = self._successful_runs(side)
        return [run.cpu_seconds for run in runs if run.cpu_seconds is not None]

    def failures(self, side: int) -> list[str]:
        """Return the reason of each failed visit of a command.

        A visit is a series of consecutive runs in one round. It fails if one of the runs fails.

        Args:
            side: Number of the command, 0 or 1.
        """
        return [visit[-1].failure for visit in self.visits[side] if visit and visit[-1].failure]

    def notes(self) -> list[str]:
        """Return sentences about failed rounds and about the code that the commands loaded."""
        lines = []
        for side, label in enumerate(self.labels):
            failures = self.failures(side)
            if failures and not self.problem:
                rounds = counted(len(self.visits[side]), "round")
                lines.append(
                    f"{label} failed in {len(failures)} of {rounds} ({failures[-1]}); "
                    "the verdict uses the rounds in which both sides succeeded."
                )
        problems = [loaded.problem for loaded in self.loaded if loaded.problem]
        if problems:
            lines.append(f"The code that the sides loaded could not be checked: {problems[0]}.")
        elif self.runs_same_code:
            files = counted(len(self.loaded[0].files), "file")
            lines.append(
                f"Both sides ran the same code: they loaded the same {files} "
                f"(digest {str(self.loaded[0].digest)[:12]})."
            )
        return lines

    def follow(
        self,
        *,
        shows_progress: bool = False,
        skips_same_code: bool = False,
        is_timed: bool = True,
    ) -> bool:
        """Run the comparison until the rule is satisfied or the time is used up.

        Args:
            shows_progress: Whether to print the state after each round, if standard error is a
                terminal.
            skips_same_code: Whether to run no rounds if both commands load the same code.
            is_timed: Whether to run rounds after the warm-up and the check of the loaded code.

        Returns:
            Whether the user interrupted the comparison.

        Raises:
            ConfigError: If a command cannot be started, or loads code of the wrong commit. In a
                comparison for `paradnn gate`, also if the base commit fails in the warm-up.
        """
        shows_progress = shows_progress and sys.stderr.isatty()
        begun = time.monotonic()
        prepared = time.time()
        try:
            with self._guard:
                self._warm_up()
                if not self.problem:
                    self._check_code(prepared)
                if is_timed and not (skips_same_code and self.runs_same_code):
                    seconds_left = 60 * self.protocol.minutes - (time.monotonic() - begun)
                    self._run_rounds(seconds_left, shows_progress=shows_progress)
        except KeyboardInterrupt:
            return True
        finally:
            self.seconds = time.monotonic() - begun
            if shows_progress:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        return False

    def _run_rounds(self, limit: float, *, shows_progress: bool) -> None:
        """Run rounds for at most `limit` seconds."""
        begun = time.monotonic()
        elapsed = 0.0
        while not (self.problem or self._is_over(elapsed, limit)):
            self._round(next(self._orders))
            self._give_up_on_failures()
            elapsed = time.monotonic() - begun
            if shows_progress:
                progress = self._progress(elapsed, limit)
                print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)

    def _is_over(self, elapsed: float, limit: float) -> bool:
        estimate = self.estimate
        if estimate and self.rule.looks(self.rounds) and self.rule.is_enough(estimate):
            self.last = False
            return True
        self.last = self.rule.is_over(len(self.visits[0]), elapsed, limit)
        return self.last

    def _progress(self, elapsed: float, limit: float) -> str:
        """Return the state: `12 rounds, ratio 1.051 (1.020 .. 1.083), at most 40 s left`."""
        share = max(self.rounds / self.rule.most, 1e-3)
        remaining = max(0.0, min(limit - elapsed, elapsed * (1 - share) / share))
        parts = [counted(self.rounds, "round")]
        estimate = self.estimate
        if estimate:
            parts.append(f"ratio {estimate.ratio:.3f} ({estimate.low:.3f} .. {estimate.high:.3f})")
        parts.append(f"at most {in_seconds(remaining)} left")
        return ", ".join(parts)

    def _warm_up(self) -> None:
        """Run and discard warm-up rounds, and set the number of runs per command and round.

        Raises:
            ConfigError: If this is a comparison for `paradnn gate`, and the base commit failed.
        """
        order = (1, 0) if self.protocol.base_first else (0, 1)
        successes = 0
        failed_attempts = 0
        longest = 0.0
        while successes < self.protocol.warmup:
            self._round(order)
            failures = [self.failures(side) for side in (0, 1)]
            last_runs = [run for visits in self.visits for run in visits[-1][-1:]]
            longest = max((run.measured for run in last_runs), default=0.0)
            for discarded in (*self.visits, self.logs, self.numbers, self.measured):
                discarded.clear()
            if not any(failures):
                successes += 1
                continue
            failed_attempts += 1
            if failed_attempts == MIN_FAILURES:
                self._end_warm_up(failures)
                return
        if self.unit == "seconds" and not self.protocol.prepare:
            runs = math.ceil(VISIT_SECONDS / max(longest, 1e-6))
            self._runs_per_visit = min(MAX_RUNS, max(1, runs))

    def _end_warm_up(self, failures: Sequence[Sequence[str]]) -> None:
        """Record that the comparison ended because warm-up rounds failed.

        Args:
            failures: For each command, the reasons of its failures in the last warm-up round.

        Raises:
            ConfigError: If this is a comparison for `paradnn gate`, and the base commit failed.
                Nothing can be compared with it.
        """
        if self.protocol.base_first and failures[1]:
            base = self.sides[1]
            raise ConfigError(
                "command",
                base.text,
                f"fails at the base {base.label} ({failures[1][-1]}), "
                "so there is nothing to compare with",
                "give a command that succeeds there within --timeout, "
                "or prepare the folder of each commit with --setup",
            )
        side = 0 if failures[0] else 1
        self._set_problem(side, f"failed: {failures[side][-1]}")

    def _check_code(self, prepared: float) -> None:
        """List the files that each command loads, if both commands run in checkouts of commits.

        Args:
            prepared: Time at which the commits were checked out and set up, in seconds since the
                epoch.

        Raises:
            ConfigError: If a command loads code of the wrong commit.
        """
        checkouts = [side.checkout for side in self.sides if side.checkout]
        if len(checkouts) < 2:
            return
        self.loaded = [
            load_trace(self._trace_words(side), checkout, self._guard, self.protocol.timeout)
            for side, checkout in zip(self.sides, checkouts, strict=True)
        ]
        reason = foreign_code(self.loaded, checkouts, self.sides[0].text, prepared)
        if reason:
            text = self.sides[0].text
            raise ConfigError("command", text, reason, _separation_remedy(text))

    def _trace_words(self, side: Command) -> list[str]:
        """Return the words of the command that is traced to find which files a side loads."""
        return command_line(side.text, side.folder)

    def _round(self, order: tuple[int, int]) -> None:
        for side in order:
            self.visits[side].append(self._visit(side))
        first, second = (visits[-1] for visits in self.visits)
        if first[-1].failure or second[-1].failure:
            return
        measured = (_mean(first), _mean(second))
        log_ratio = math.log(measured[0] / measured[1])
        if not self.protocol.metric.higher:
            log_ratio = -log_ratio
        self.add(len(self.visits[0]), log_ratio, measured)

    def _visit(self, side: int) -> Visit:
        """Run a command `_runs_per_visit` times, or until a run fails, and return the runs.

        Args:
            side: Number of the command, 0 or 1.
        """
        command = self.sides[side]
        reason = prepare_run(command, self.protocol, self._guard)
        if reason:
            return [CommandRun(0.0, failure=reason)]
        runs: Visit = []
        for _ in range(self._runs_per_visit):
            runs.append(run_once(command, self.protocol, self._guard))
            if runs[-1].failure:
                break
        return runs

    def _give_up_on_failures(self) -> None:
        """Set `problem`, which ends the comparison, if a command fails too often."""
        for side, visits in enumerate(self.visits):
            failures = self.failures(side)
            if len(failures) >= MIN_FAILURES and len(failures) > MAX_FAILURE_SHARE * len(visits):
                self._set_problem(
                    side, f"failed in {len(failures)} of {len(visits)} rounds: {failures[-1]}"
                )

    def _set_problem(self, side: int, text: str) -> None:
        self.failed_side = side
        self.problem = f"{self.labels[side]} {text}"

    def _successful_runs(self, side: int) -> list[CommandRun]:
        return [run for visit in self.visits[side] for run in visit if not run.failure]


def _separation_remedy(command: str) -> str:
    """Return what the user can do so that each commit runs its own code.

    Args:
        command: The command line that runs at both commits.
    """

    def is_set(variable: str) -> bool:
        return bool(os.environ.get(variable)) or f"{variable}=" in command

    if is_set("CARGO_TARGET_DIR"):
        return "unset CARGO_TARGET_DIR, so that each side builds in its own folder"
    environments = _SEPARATE_ENVIRONMENTS[""]
    for program in _programs(command):
        if program in _SEPARATE_ENVIRONMENTS:
            environments = _SEPARATE_ENVIRONMENTS[program]
    remedy = f"give each side a separate environment: {environments}"
    for variable in _PACKAGE_PATHS:
        if is_set(variable):
            remedy = (
                f"write the folders of {variable} relative to the current folder, "
                f"or unset it and {remedy}"
            )
    return remedy


def _programs(command: str) -> list[str]:
    """Return the names of the programs that a shell command line starts, without their folders."""
    programs = []
    for part in re.split(r"&&|\|\||[;|&\n]", command):
        words = [word for word in part.split() if "=" not in word and word != "env"]
        if words:
            programs.append(Path(words[0]).name)
    return programs


def _mean(visit: Visit) -> float:
    return statistics.fmean(run.measured for run in visit)
