"""Two commands, or one at two commits, by turns: which is faster, by how much, and how sure that
is.

Each round runs both commands, one right after the other, each in a fresh process; which goes first
is random in one round and the other way round in the next. A round's value is the logarithm of the
ratio of speeds, so what both sides meet (a session, a drift, a slow neighbour) cancels in it
(`paradnn.statistics.paired_rounds`).
"""

import contextlib
import json
import math
import os
import re
import select
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from paradnn.compare.text import Paired
from paradnn.core.errors import ConfigError
from paradnn.core.words import counted, in_seconds
from paradnn.statistics.paired_rounds import Rule, orders

#: Runs of a short command that make one visit last this long, so that neither clock nor start-up
#: luck decides it.
VISIT_SECONDS = 0.1
MOST_RUNS = 50
_LONGEST = 1e6  # seconds that a run is waited for
#: A side that fails in this share of its visits and thrice at least, or thrice in the warm-up, has
#: no speed to tell.
FAILING = 0.2
_TRIES = 3
#: Characters that only a shell understands; a command without them is started directly, which saves
#: the shell's time.
_SHELL = set("|&;<>()$`*?[]#~!{}\n")
#: The metric of the processor time that a run and its children take together.
CPU = "cpu"
#: What a machine does against itself where no command is named: some tenths of a second of products
#: in NumPy.
_PRODUCTS = "import numpy as n; a = n.ones((384, 384), 'f'); [a @ a for _ in range(100)]"
NULL_COMMAND = shlex.join([sys.executable, "-c", _PRODUCTS])


@dataclass(frozen=True)
class OutputMetric:
    """What a run is judged by: its wall time, its processor time, or a number that it prints.

    `pattern` is a regular expression whose only group is the number (the last match counts),
    json:a.b for a field of the JSON object that is printed last, or `CPU`; None: the wall time.
    `higher`: more of it is faster.
    """

    pattern: str | None = None
    higher: bool = False

    def __post_init__(self) -> None:
        if self.pattern in (None, CPU) or self.pattern.startswith("json:"):
            return
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise ConfigError(
                "--metric", self.pattern, f"is no regular expression ({error})", "mend it"
            ) from None
        if groups != 1:
            remedy = "put the number, and only it, in parentheses"
            raise ConfigError("--metric", self.pattern, f"has {groups} groups", remedy)

    @property
    def is_printed(self) -> bool:
        """Whether it stands in what a command prints."""
        return self.pattern not in (None, CPU)

    def value(self, text: str) -> float | None:
        """The number in what a command printed; None where there is none, or none above zero."""
        pattern = self.pattern or "()"
        try:
            if pattern.startswith("json:"):
                begin = max(text.rfind("\n{") + 1, 0 if text.startswith("{") else text.find("{"))
                found: Any = json.loads(text[begin:])
                for name in pattern.removeprefix("json:").split("."):
                    found = found[int(name)] if isinstance(found, list) else found[name]
            else:
                found = re.findall(pattern, text)[-1]
            number = float(found)
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
        return number if math.isfinite(number) and number > 0 else None


class Command(NamedTuple):
    """One side: what it is called, a command line, and the folder that it runs in."""

    label: str
    text: str
    folder: Path | None = None


@dataclass(frozen=True)
class CommandProtocol:
    """How two commands are run and judged: for how long at most, by what, how many runs of each do
    not count, what is run before each visit, how long a run may take, and exit codes of success.
    """

    minutes: float = 10.0
    metric: OutputMetric = OutputMetric()
    warmup: int = 1
    prepare: str | None = None
    timeout: float = 600.0
    exit_codes: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class CommandRun:
    """One process: its wall seconds or the number it was asked for, processor seconds, and why it
    failed if it did.
    """

    measured: float
    cpu_seconds: float | None = None
    failure: str | None = None


#: One side's part of a round: runs one after the other, of which the last may have failed.
Visit = list[CommandRun]


def program_of(text: str) -> list[str]:
    """The words to start: those of the command itself, or a shell with it where only a shell
    understands it.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            "command", text, f"cannot be split ({error})", "close the quotation"
        ) from None
    if not words:
        raise ConfigError("command", text, "is empty", "name a program")
    # Quoted characters are the program's own.
    bare = re.sub(r"'[^']*'|\"[^\"$`]*\"", "", text)
    if _SHELL & set(bare) or "=" in bare.partition(" ")[0]:
        return ["/bin/sh", "-c", text]
    if shutil.which(words[0]) is None:
        raise ConfigError(
            "command",
            text,
            f"{words[0]} cannot be found",
            "give an override (key=value) or a program",
        )
    return words


def run_once(command: Command, terms: CommandProtocol) -> CommandRun:
    """Start a process, wait for its end and account for it; what takes longer than it may is
    stopped with all that it started. ConfigError where it cannot be started.
    """
    words = program_of(command.text)
    metric = terms.metric
    timeout = terms.timeout
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        nothing = subprocess.DEVNULL
        keeps = out if metric.is_printed else subprocess.DEVNULL
        begun = time.perf_counter()
        late = False
        try:
            process = subprocess.Popen(
                words,
                stdin=nothing,
                stdout=keeps,
                stderr=err,
                start_new_session=True,
                cwd=command.folder,
            )
        except OSError as error:
            raise ConfigError(
                "command", command.text, error.strerror or str(error), "give another"
            ) from error
        try:
            with open(os.pidfd_open(process.pid), "rb", buffering=0) as handle:
                waiting = select.poll()
                waiting.register(handle, select.POLLIN)
                late = not waiting.poll(1e3 * min(timeout, _LONGEST))
            seconds = time.perf_counter() - begun
        finally:
            if late or sys.exc_info()[0]:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        cpu = max(usage.ru_utime + usage.ru_stime, 1e-6)
        if metric.is_printed:
            value = metric.value(_text(out))
        elif metric.pattern:
            value = cpu
        else:
            value = seconds
        if late:
            failure = f"took longer than {timeout:g} s"
        else:
            failure = failure_of(process.returncode, terms.exit_codes, err)
        if not failure and value is None:
            failure = f"printed no number above zero that --metric {metric.pattern} finds"
    return CommandRun(value or 0.0, cpu, failure)


def _text(source: IO[bytes]) -> str:
    source.seek(0)
    return source.read(10_000_000).decode(errors="replace")


def failure_of(code: int, good: Sequence[int], err: IO[bytes]) -> str | None:
    """Why a process failed, with the last line that it said; None where its exit code is one of the
    good ones.
    """
    if code in good:
        return None
    if code < 0:
        how = f"killed by {signal.Signals(-code).name}"
    else:
        how = f"exit code {code}"
    lines = [line.strip() for line in _text(err).splitlines() if line.strip()]
    return f"{how} ({lines[-1][:200]})" if lines else how


class Turns(Paired):
    """Two commands, run by turns until the rule says enough or the time is over.

    `visits` holds all of each side, failures among them; `failed` says which side is the problem.
    """

    def __init__(
        self,
        sides: Sequence[Command],
        rule: Rule,
        terms: CommandProtocol = CommandProtocol(),
        seed: object = None,
    ) -> None:
        self.sides = sides
        self.terms = terms
        unit = "metric" if terms.metric.is_printed else "seconds"
        super().__init__((sides[0].label, sides[1].label), rule, unit=unit)
        self.visits: tuple[list[Visit], list[Visit]] = ([], [])
        self.failed: int | None = None
        self._orders = orders(time.time_ns() if seed is None else seed)
        self._repeats = 1

    def document(self, interrupted: bool = False) -> dict[str, Any]:
        """What --json holds: the answer and every run."""
        sides = [
            {"label": side.label, "command": side.text, "failed_visits": len(self.failures(number))}
            | {"values": self.values(number), "cpu_seconds": self.cpu_seconds(number)}
            for number, side in enumerate(self.sides)
        ]
        visible = self.estimate and self.estimate.visible
        metric = self.terms.metric.pattern or "seconds"
        runs = {
            "log_ratios": self.logs,
            "sides": sides,
            "metric": metric,
            "interrupted": interrupted,
        }
        return (
            self.answer() | runs | {"visible_difference": visible, "equivalence": self.rule.margin}
        )

    def values(self, side: int) -> list[float]:
        """What the successful runs of a side took in s, or what its metric was."""
        return [run.measured for run in self._runs(side)]

    def cpu_seconds(self, side: int) -> list[float]:
        """Those of the successful runs of a side."""
        return [run.cpu_seconds for run in self._runs(side) if run.cpu_seconds is not None]

    def _runs(self, side: int) -> list[CommandRun]:
        return [run for visit in self.visits[side] for run in visit if not run.failure]

    def failures(self, side: int) -> list[str]:
        """Why visits failed."""
        return [visit[-1].failure for visit in self.visits[side] if visit and visit[-1].failure]

    def said_of_failures(self) -> list[str]:
        """How often sides failed that have a verdict all the same."""
        counted_in = "the verdict is about rounds in which both succeeded."
        return [
            f"{label} failed in {len(found)} of {len(self.visits[side])} rounds ({found[-1]}); {counted_in}"
            for side, label in enumerate(self.labels)
            if (found := self.failures(side)) and not self.problem
        ]

    def follow(self, shows: bool = False) -> bool:
        """Run round after round until it is enough; whether it was interrupted. `shows`: how far it
        is, on a terminal, once a round, which lasts a tenth of a second or longer.
        """
        shows = shows and sys.stderr.isatty()
        begun = time.monotonic()
        try:
            self._warm_up()
            while not (self.problem or self._is_over(time.monotonic() - begun)):
                self._round(next(self._orders))
                self._give_up()
                self.seconds = time.monotonic() - begun
                if shows:
                    print(f"\r\x1b[K{self._progress()}", end="", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            return True
        finally:
            self.seconds = time.monotonic() - begun
            if shows:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        return False

    def _is_over(self, elapsed: float) -> bool:
        enough = self.rule.looks(self.rounds) and bool(
            self.estimate and self.rule.is_enough(self.estimate)
        )
        self.last = not enough and self.rule.is_over(
            len(self.visits[0]), elapsed, 60 * self.terms.minutes
        )
        return enough or self.last

    def _progress(self) -> str:
        found = self.estimate
        limit = 60 * self.terms.minutes
        share = max(self.rounds / self.rule.most, self.seconds / limit, 1e-3)
        if found:
            ratio = f", ratio {found.ratio:.3f} ({found.low:.3f} .. {found.high:.3f})"
        else:
            ratio = ""
        left = max(0.0, min(limit - self.seconds, self.seconds * (1 - share) / share))
        return f"{counted(self.rounds, 'round')}{ratio}, at most {in_seconds(left)} left"

    def _warm_up(self) -> None:
        """Rounds that do not count: what fails in three of them fails always. They say how many
        runs a visit has.
        """
        wanted = self.terms.warmup
        tries = 0
        while wanted:
            self._round((0, 1))
            failures = [self.failures(side) for side in (0, 1)]
            longest = max(
                (run.measured for visits in self.visits for run in visits[-1][-1:]), default=0.0
            )
            for kept in (*self.visits, self.logs, self.numbers, self.measured):
                kept.clear()
            if not any(failures):
                wanted -= 1
            elif (tries := tries + 1) == _TRIES:
                side = 0 if failures[0] else 1
                self._end(side, f"failed: {failures[side][-1]}")
                return
        if self.unit == "seconds" and not self.terms.prepare:
            self._repeats = min(MOST_RUNS, max(1, math.ceil(VISIT_SECONDS / max(longest, 1e-6))))

    def _round(self, order: tuple[int, int]) -> None:
        for side in order:
            self.visits[side].append(self._visit(side))
        visits = self.visits[0][-1], self.visits[1][-1]
        if not any(visit[-1].failure for visit in visits):
            first, second = (statistics.fmean(run.measured for run in visit) for visit in visits)
            sign = 1 if self.terms.metric.higher else -1
            self.add(len(self.visits[0]), sign * math.log(first / second), (first, second))

    def _give_up(self) -> None:
        """Note why there will be no verdict where a side fails too often."""
        for side, visits in enumerate(self.visits):
            failures = self.failures(side)
            if len(failures) >= 3 and len(failures) > FAILING * len(visits):
                self._end(side, f"failed {len(failures)} times of {len(visits)}: {failures[-1]}")

    def _end(self, side: int, words: str) -> None:
        self.failed = side
        self.problem = f"{self.labels[side]} {words}"

    def _visit(self, side: int) -> Visit:
        command = self.sides[side]
        prepare = self.terms.prepare
        if prepare:
            nothing = subprocess.DEVNULL
            how = subprocess.run(
                prepare,
                shell=True,
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                cwd=command.folder,
            )
            if how.returncode:
                return [CommandRun(0.0, failure=f"--prepare ended with exit code {how.returncode}")]
        runs: Visit = []
        while len(runs) < self._repeats and not (runs and runs[-1].failure):
            runs.append(run_once(command, self.terms))
        return runs
