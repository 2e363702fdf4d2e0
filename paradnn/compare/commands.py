"""Two commands, or one at two commits, by turns: which is faster, by how much, and how sure that is.

Each round runs both commands, one right after the other, each in a fresh process; which goes first is random in one
round and the other way round in the next. A round's value is the logarithm of the ratio of speeds, so what both sides
meet (a session, a drift, a slow neighbour) cancels in it (`paradnn.compare.verdict`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from paradnn.compare.text import Paired
from paradnn.compare.verdict import FEWEST, Rule, estimate, orders
from paradnn.core.errors import ConfigError, ParadnnError
from paradnn.core.words import counted, in_seconds

#: Runs of a short command that make one visit last this long, so that neither clock nor start-up luck decides it.
VISIT_SECONDS = 0.1
MOST_RUNS = 50
_LONGEST = 1e6  # seconds that a run is waited for
#: A side that fails in this share of its visits, and thrice at least, has no speed to compare.
FAILING = 0.2
#: Characters that only a shell understands; a command without them is started directly, which saves the shell's time.
_SHELL = set("|&;<>()$`*?[]#~!{}\n")
#: What a machine does against itself where no command is named: some tenths of a second of products in NumPy.
_PRODUCTS = "import numpy as n; a = n.ones((384, 384), 'f'); [a @ a for _ in range(100)]"
NULL_COMMAND = shlex.join([sys.executable, "-c", _PRODUCTS])


@dataclass(frozen=True)
class OutputMetric:
    """What a run is judged by: its wall time, or a number that it prints.

    `pattern` is a regular expression whose only group is the number (the last match counts), or json:a.b for a field
    of the JSON object that is printed last; None: the wall time. `higher`: more of it is faster.
    """

    pattern: str | None = None
    higher: bool = False

    def __post_init__(self) -> None:
        if (self.pattern or "").startswith("json:"):
            return
        try:
            groups = re.compile(self.pattern or "()").groups
        except re.error as error:
            raise ConfigError("--metric", self.pattern, f"is no regular expression ({error})", "mend it") from None
        if groups != 1:
            problem = f"has {groups} groups"
            raise ConfigError("--metric", self.pattern, problem, "put the number, and only it, in parentheses")

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


@dataclass(frozen=True)
class Command:
    """One side: a command line, the folder it runs in, what is run before each visit, exit codes of success."""

    label: str
    text: str
    folder: Path | None = None
    prepare: str | None = None
    good: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class CommandRun:
    """One process: wall and processor seconds, the number it was asked for, and why it failed if it did."""

    seconds: float
    cpu_seconds: float
    value: float | None = None
    failure: str | None = None


#: One side's part of a round: runs one after the other, of which the last may have failed.
Visit = list[CommandRun]


def program_of(text: str) -> list[str]:
    """The words to start: those of the command itself, or a shell with it where only a shell understands it."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError("command", text, f"cannot be split ({error})", "close the quotation") from None
    if not words:
        raise ConfigError("command", text, "is empty", "name a program")
    # Quoted characters are the program's own.
    bare = re.sub(r"'[^']*'|\"[^\"$`]*\"", "", text)
    if _SHELL & set(bare) or "=" in bare.partition(" ")[0]:
        return ["/bin/sh", "-c", text]
    if shutil.which(words[0]) is None:
        raise ConfigError("command", text, f"{words[0]} cannot be found", "give an override (key=value) or a program")
    return words


def run_once(command: Command, words: Sequence[str], metric: OutputMetric, timeout: float) -> CommandRun:
    """Start a process, wait for its end and account for it; a run that takes longer than `timeout` s is stopped."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        nothing, keeps = subprocess.DEVNULL, out if metric.pattern else subprocess.DEVNULL
        begun, late = time.perf_counter(), False
        try:
            process = subprocess.Popen(
                words, stdout=keeps, stderr=err, stdin=nothing, start_new_session=True, cwd=command.folder
            )
        except OSError as error:
            raise ConfigError("command", command.text, error.strerror or str(error), "give another") from error
        try:
            with open(os.pidfd_open(process.pid), "rb", buffering=0) as handle:
                waiting = select.poll()
                waiting.register(handle, select.POLLIN)
                late = not waiting.poll(1e3 * min(timeout, _LONGEST))
            seconds = time.perf_counter() - begun
        finally:
            if late or sys.exc_info()[0]:  # with all that it started
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        value = metric.value(_text(out)) if metric.pattern else None
        failure = f"took longer than {timeout:g} s" if late else failure_of(process.returncode, command.good, err)
        if metric.pattern and not failure and value is None:
            failure = f"printed no number above zero that --metric {metric.pattern} finds"
    return CommandRun(seconds, usage.ru_utime + usage.ru_stime, value, failure)


def _text(source: IO[bytes]) -> str:
    source.seek(0)
    return source.read(10_000_000).decode(errors="replace")


def failure_of(code: int, good: Sequence[int], err: IO[bytes]) -> str | None:
    """Why a process failed, with the last line that it said; None where its exit code is one of the good ones."""
    if code in good:
        return None
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    lines = [line.strip() for line in _text(err).splitlines() if line.strip()]
    return f"{how} ({lines[-1][:200]})" if lines else how


class Turns(Paired):
    """Two commands, run by turns until the rule says enough or the time is over.

    `visits` holds all of each side, failures among them; `failed` says which side is the problem.
    """

    def __init__(
        self,
        sides: tuple[Command, Command],
        rule: Rule,
        metric: OutputMetric | None = None,
        *,
        minutes: float,
        timeout: float = 600.0,
        warmup: int = 1,
        seed: object = None,
        enough: Callable[[Sequence[float]], bool] | None = None,
    ) -> None:
        super().__init__((sides[0].label, sides[1].label), rule.margin)
        self.sides, self.rule, self.metric = sides, rule, metric or OutputMetric()
        self.visits: tuple[list[Visit], list[Visit]] = ([], [])
        self.failed: int | None = None
        self._words = self._programs()
        self._limit, self._timeout, self._warmup = 60 * minutes, timeout, warmup
        self._orders = orders(time.time_ns() if seed is None else seed)
        self._enough = enough or (lambda logs: rule.is_enough(estimate(logs)))
        self._repeats = 1

    def document(self, interrupted: bool = False) -> dict[str, Any]:
        """What --json holds: the answer and every run."""
        found = self.estimate
        return self.answer() | {
            "visible_difference": found.visible if found else None,
            "equivalence": self.margin,
            "interrupted": interrupted,
            "metric": self.metric.pattern or "seconds",
            "log_ratios": self.logs,
            "sides": [
                {
                    "label": side.label,
                    "command": side.text,
                    "failed_visits": len(self.failures(number)),
                    "values": self.values(number),
                    "cpu_seconds": [run.cpu_seconds for visit in self.visits[number] for run in visit],
                }
                for number, side in enumerate(self.sides)
            ],
        }

    def values(self, side: int) -> list[float]:
        """What the successful runs of a side took in s, or what its metric was."""
        runs = (run for visit in self.visits[side] for run in visit if not run.failure)
        return [run.seconds if run.value is None else run.value for run in runs]

    def failures(self, side: int) -> list[str]:
        """Why visits failed."""
        return [visit[-1].failure for visit in self.visits[side] if visit and visit[-1].failure]

    def follow(self, shows: bool = False) -> bool:
        """Run round after round until it is enough; whether it was interrupted. `shows`: how far it is, on a terminal,
        seldom enough not to disturb what is measured."""
        shows, begun = shows and sys.stderr.isatty(), time.monotonic()
        shown = begun
        try:
            self._warm_up()
            while not (self.problem or self._is_over(time.monotonic() - begun)):
                self._round()
                self.seconds = time.monotonic() - begun
                if shows and time.monotonic() - shown >= 0.2:
                    shown = time.monotonic()
                    print(f"\r\x1b[K{self._progress()}", end="", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            return True
        finally:
            self.seconds = time.monotonic() - begun
            if shows:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        return False

    def _is_over(self, elapsed: float) -> bool:
        begun = len(self.visits[0])
        if self.rounds >= self.rule.most or (begun and elapsed * (1 + 1 / begun) > self._limit):
            return True
        return self.rounds >= FEWEST and self.rule.looks(self.rounds) and self._enough(self.logs)

    def _progress(self) -> str:
        found, share = self.estimate, max(self.rounds / self.rule.most, self.seconds / self._limit, 1e-3)
        ratio = f", ratio {found.ratio:.3f} ({found.low:.3f} .. {found.high:.3f})" if found else ""
        left = max(0.0, min(self._limit - self.seconds, self.seconds * (1 - share) / share))
        return f"{counted(self.rounds, 'round')}{ratio}, at most {in_seconds(left)} left"

    def _programs(self) -> tuple[list[str], list[str]]:
        """What is started for each side; ConfigError where it cannot be."""
        return program_of(self.sides[0].text), program_of(self.sides[1].text)

    def _warm_up(self) -> None:
        """Runs of each side that do not count; the last says how many a visit has."""
        for _ in range(self._warmup):
            visits = self._visit(0), self._visit(1)
            for side, visit in enumerate(visits):
                if failure := visit[-1].failure:
                    self._end(side, f"failed: {failure}")
                    return
        longest = max(visit[-1].seconds for visit in visits)
        if self.metric.pattern is None and not any(side.prepare for side in self.sides):
            self._repeats = min(MOST_RUNS, max(1, math.ceil(VISIT_SECONDS / max(longest, 1e-6))))

    def _round(self) -> None:
        for side in next(self._orders):
            self.visits[side].append(self._visit(side))
        first, second = (visits[-1] for visits in self.visits)
        if not (first[-1].failure or second[-1].failure):
            self.logs.append(math.log(self._speed(first) / self._speed(second)))
        self._give_up()

    def _give_up(self) -> None:
        """Note why there will be no verdict where a side fails too often."""
        for side, visits in enumerate(self.visits):
            failures = self.failures(side)
            if len(failures) >= 3 and len(failures) > FAILING * len(visits):
                self._end(side, f"failed {len(failures)} times of {len(visits)}: {failures[-1]}")

    def _end(self, side: int, words: str) -> None:
        self.failed, self.problem = side, f"{self.labels[side]} {words}"

    def _visit(self, side: int) -> Visit:
        command = self.sides[side]
        if command.prepare and (code := _shell(command.prepare, command.folder, subprocess.DEVNULL).returncode):
            return [CommandRun(0.0, 0.0, failure=f"--prepare ended with exit code {code}")]
        runs: Visit = []
        while len(runs) < self._repeats and not (runs and runs[-1].failure):
            runs.append(run_once(command, self._words[side], self.metric, self._timeout))
        return runs

    def _speed(self, visit: Visit) -> float:
        """Runs a second, or the metric."""
        if (value := visit[0].value) is None:
            return len(visit) / sum(run.seconds for run in visit)
        return value if self.metric.higher else 1 / value


#: The files as they lie in the current folder, committed or not.
WORKING_TREE = "."


@contextlib.contextmanager
def checkouts(references: tuple[str, str], setup: str | None = None) -> Iterator[list[Path]]:
    """The folder for each reference, a branch, tag, commit or WORKING_TREE; gone afterwards.

    The folder is the one in the worktree that corresponds to the current one; `setup` is run in it once. ParadnnError
    where git knows no such commit, or the set-up fails.
    """
    top = Path(_git("rev-parse", "--show-toplevel"))
    inner = Path.cwd().resolve().relative_to(top.resolve())
    with tempfile.TemporaryDirectory(prefix="paradnn-commits-") as scratch, contextlib.ExitStack() as made:
        found: list[Path] = []
        for number, reference in enumerate(references):
            tree = top
            if reference != WORKING_TREE:
                tree, commit = Path(scratch) / f"tree{number}", _commit(reference)
                made.callback(_remove, tree)
                _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
            found.append(tree / inner)
            if not found[-1].is_dir():
                raise ConfigError("--commits", reference, f"has no folder {inner}", "run it where both have one")
            if setup:
                print(f"setting up {reference}: {setup}", file=sys.stderr)
                done = _shell(setup, found[-1])
                if done.returncode:
                    last = ((done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"])[-1]
                    reason = f"failed for {reference} ({last[:200]})"
                    raise ConfigError("--setup", setup, reason, "try it there by hand")
        yield found


def _remove(tree: Path) -> None:
    with contextlib.suppress(ParadnnError):  # that was not made
        _git("worktree", "remove", "--force", str(tree))


def _commit(reference: str) -> str:
    try:
        return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}")
    except ParadnnError:
        remedy = "give a branch, tag or commit; a shallow clone has few (git fetch --unshallow)"
        raise ConfigError("commit", reference, "git knows no such commit", remedy) from None


def commit_of(reference: str) -> str:
    """What a commit is called, of the files as they lie here with a mark where they are changed."""
    of = "--dirty" if reference == WORKING_TREE else reference
    return _git("describe", "--always", "--abbrev=12", "--exclude=*", of)


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ParadnnError("git cannot be found; install it, or compare commands") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ParadnnError(f"git {words[0]} failed: {last}; run this in a checkout")
    return done.stdout.strip()


def _shell(text: str, folder: Path | None, out: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    words, nothing = ["/bin/sh", "-c", text], subprocess.DEVNULL
    return subprocess.run(
        words, stdin=nothing, stdout=out, stderr=out, cwd=folder, text=True, errors="replace", check=False
    )
