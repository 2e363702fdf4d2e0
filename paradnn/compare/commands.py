"""Two commands, or one at two commits, by turns: which is faster, by how much, and how sure that is.

    paradnn compare 'python old.py' 'python new.py'
    paradnn compare --commits main HEAD -- python benchmark.py
    paradnn compare --null --minutes 1

Each round runs both commands, one right after the other, each in a fresh process; which goes first is random in one
round and the other way round in the next. A round's value is the logarithm of the ratio of speeds, so what both sides
meet (a session, a drift, a slow neighbour) cancels in it. The statistics and the rule that ends it are those of every
comparison (`paradnn.compare.verdict`).
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

from paradnn.compare.text import answer, in_seconds, sentence
from paradnn.compare.verdict import FEWEST, Estimate, Rule, estimate, orders
from paradnn.core.errors import ConfigError, ParadnnError
from paradnn.core.words import counted

#: Runs of a short command that make one visit last this long, so that neither clock nor start-up luck decides it.
VISIT_SECONDS = 0.1
MOST_RUNS = 50
#: A side that fails in this share of its visits, and thrice at least, has no speed to compare.
FAILING = 0.2
#: Characters that only a shell understands; a command without them is started directly, which saves the shell's time.
_SHELL = set("|&;<>()$`*?[]#~!{}\n")
#: What a machine does against itself where no command is named: products of matrices in NumPy.
_NULL = "import numpy as n; a = n.ones((384, 384), 'f'); [a @ a for _ in range(100)]"


@dataclass(frozen=True)
class Metric:
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
                found: Any = json.loads(
                    text[max(text.rfind("\n{") + 1, 0 if text.startswith("{") else text.find("{")) :]
                )
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
class Run:
    """One process: wall and processor seconds, the number it was asked for, and why it failed if it did."""

    seconds: float
    cpu_seconds: float
    value: float | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Visit:
    """One side's part of a round: its speed (visits a second, or the metric), and the runs behind it."""

    runs: tuple[Run, ...]
    speed: float | None
    failure: str | None = None


def null_command() -> str:
    """A command that computes for some tenths of a second in this interpreter."""
    return shlex.join([sys.executable, "-c", _NULL])


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


def run_once(command: Command, words: Sequence[str], metric: Metric, timeout: float) -> Run:
    """Start a process, wait for its end and account for it; a run that takes longer than `timeout` s is stopped."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        keeps: int | IO[bytes] = out if metric.pattern else subprocess.DEVNULL
        begun = time.perf_counter()
        try:
            process = subprocess.Popen(
                words, stdout=keeps, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True, cwd=command.folder
            )
        except OSError as error:
            raise ConfigError("command", command.text, error.strerror or str(error), "give another") from error
        late = False
        try:
            handle = os.pidfd_open(process.pid)
            try:
                poll = select.poll()
                poll.register(handle, select.POLLIN)
                late = not poll.poll(min(1e3 * timeout, 2**31 - 1))
            finally:
                os.close(handle)
            seconds = time.perf_counter() - begun
        finally:
            if late or sys.exc_info()[0]:
                _stop(process)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        value = metric.value(_text(out)) if metric.pattern else None
        failure = f"took longer than {timeout:g} s" if late else failure_of(process.returncode, command.good, err)
        if metric.pattern and not failure and value is None:
            failure = f"printed no number above zero that --metric {metric.pattern} finds"
    return Run(seconds, usage.ru_utime + usage.ru_stime, value, failure)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


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


class Turns:
    """Two commands, run by turns until the rule says enough or the time is over.

    `rounds` are logarithms of the first side's speed over the second's, of the rounds in which both succeeded; `visits`
    holds all of each side, failures among them. `problem` says why there can be no verdict, `failed` of which side.
    """

    def __init__(
        self,
        sides: tuple[Command, Command],
        rule: Rule,
        metric: Metric,
        *,
        minutes: float,
        timeout: float = 600.0,
        seed: object = None,
        enough: Callable[[Sequence[float]], bool] | None = None,
        warmup: int = 1,
    ) -> None:
        self._warmup = warmup
        self.sides, self.rule, self.metric = sides, rule, metric
        self.rounds: list[float] = []
        self.visits: tuple[list[Visit], list[Visit]] = ([], [])
        self.failed: int | None = None
        self.problem: str | None = None
        self.seconds = 0.0
        self._words = self._programs()
        self._limit, self._timeout = 60 * minutes, timeout
        self._orders = orders(seed if seed is not None else time.time_ns())
        self._enough = enough or (lambda logs: rule.is_enough(estimate(logs)))
        self._repeats = 1

    @property
    def estimate(self) -> Estimate | None:
        """The ratio of speeds with its interval; None after fewer than `FEWEST` rounds."""
        return estimate(self.rounds) if len(self.rounds) >= FEWEST else None

    def sentence(self) -> str:
        """Which is faster, by how much and how sure that is; or why there is no verdict."""
        labels = self.sides[0].label, self.sides[1].label
        return sentence(self.estimate, labels, self.rule.margin, len(self.rounds), self.problem)

    def document(self, interrupted: bool = False) -> dict[str, Any]:
        """What --json holds: the answer and every run."""
        found = self.estimate
        return answer(found, self.rule.margin, len(self.rounds), self.seconds, self.problem) | {
            "visible_difference": found.visible if found else None,
            "equivalence": self.rule.margin,
            "interrupted": interrupted,
            "metric": self.metric.pattern or "seconds",
            "log_ratios": self.rounds,
            "sides": [
                {
                    "label": side.label,
                    "command": side.text,
                    "failed_visits": self.failures(number),
                    "values": self.values(number),
                    "cpu_seconds": [run.cpu_seconds for visit in self.visits[number] for run in visit.runs],
                }
                for number, side in enumerate(self.sides)
            ],
        }

    def values(self, side: int) -> list[float]:
        """What the successful runs of a side took in s, or what its metric was."""
        runs = (run for visit in self.visits[side] for run in visit.runs if not run.failure)
        return [run.seconds if run.value is None else run.value for run in runs]

    def failures(self, side: int) -> int:
        """Visits that failed."""
        return sum(visit.failure is not None for visit in self.visits[side])

    def rounds_until_enough(self) -> Iterator[float]:
        """Run round after round, each time with the share of the comparison that is done; ends when it is enough."""
        begun = time.monotonic()
        try:
            self._warm_up()
            while not self.problem and not self._is_over(time.monotonic() - begun):
                self._round()
                self.seconds = time.monotonic() - begun
                yield min(1.0, max(len(self.rounds) / self.rule.most, self.seconds / self._limit))
        finally:
            self.seconds = time.monotonic() - begun

    def _programs(self) -> tuple[list[str], list[str]]:
        """What is started for each side; ConfigError where it cannot be."""
        return program_of(self.sides[0].text), program_of(self.sides[1].text)

    def _warm_up(self) -> None:
        """Runs of each side that do not count; the last says how many a visit has."""
        for _ in range(self._warmup):
            visits = self._visit(0), self._visit(1)
            for side, visit in enumerate(visits):
                if visit.failure:
                    self.failed, self.problem = side, f"{self.sides[side].label} failed: {visit.failure}"
                    return
        longest = max(visit.runs[-1].seconds for visit in visits)
        if self.metric.pattern is None and not any(side.prepare for side in self.sides):
            self._repeats = min(MOST_RUNS, max(1, math.ceil(VISIT_SECONDS / max(longest, 1e-6))))

    def _round(self) -> None:
        speeds: dict[int, float] = {}
        for side in next(self._orders):
            visit = self._visit(side)
            self.visits[side].append(visit)
            if visit.speed is not None:
                speeds[side] = visit.speed
        if len(speeds) == 2:
            self.rounds.append(math.log(speeds[0] / speeds[1]))
        self._give_up()

    def _give_up(self) -> None:
        """Note why there will be no verdict where a side fails too often."""
        for side in (0, 1):
            count = self.failures(side)
            if count >= 3 and count > FAILING * len(self.visits[side]):
                last = next(visit.failure for visit in reversed(self.visits[side]) if visit.failure)
                words = f"failed {count} times of {len(self.visits[side])}: {last}"
                self.failed, self.problem = side, f"{self.sides[side].label} {words}"

    def _visit(self, side: int) -> Visit:
        command = self.sides[side]
        if command.prepare and (code := _shell(command.prepare, command.folder, subprocess.DEVNULL).returncode):
            return Visit((), None, f"--prepare ended with exit code {code}")
        runs: list[Run] = []
        for _ in range(self._repeats):
            runs.append(run_once(command, self._words[side], self.metric, self._timeout))
            if runs[-1].failure:
                return Visit(tuple(runs), None, runs[-1].failure)
        value = runs[0].value
        if value is None:
            return Visit(tuple(runs), len(runs) / sum(run.seconds for run in runs))
        return Visit(tuple(runs), value if self.metric.higher else 1 / value)

    def _is_over(self, elapsed: float) -> bool:
        count = len(self.visits[0])
        if count and elapsed * (1 + 1 / count) > self._limit:
            return True
        if len(self.rounds) >= self.rule.most:
            return True
        return len(self.rounds) >= FEWEST and self.rule.looks(len(self.rounds)) and self._enough(self.rounds)


class Progress:
    """A line that says how far it is, rewritten on a terminal."""

    def __init__(self, minutes: float) -> None:
        self._limit, self._last = 60 * minutes, time.monotonic()

    def show(self, share: float, turns: Turns) -> None:
        """Show it, seldom enough not to disturb what is measured."""
        if sys.stderr.isatty() and (now := time.monotonic()) - self._last >= 0.2:
            self._last, found = now, turns.estimate
            ratio = f", ratio {found.ratio:.3f} ({found.low:.3f} .. {found.high:.3f})" if found else ""
            left = min(self._limit - turns.seconds, turns.seconds * (1 - share) / max(share, 1e-3))
            rounds = counted(len(turns.rounds), "round")
            self._print(f"{rounds}{ratio}, at most {in_seconds(max(left, 0))} left")

    def close(self) -> None:
        """Take the line away."""
        if sys.stderr.isatty():
            self._print("")

    @staticmethod
    def _print(line: str) -> None:
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def follow(turns: Turns, progress: Progress | None = None) -> bool:
    """Follow `turns` to its end, showing the progress after each round; whether it was interrupted."""
    try:
        for share in turns.rounds_until_enough():
            if progress:
                progress.show(share, turns)
    except KeyboardInterrupt:
        return True
    finally:
        if progress:
            progress.close()
    return False


#: The files as they lie in the current folder, committed or not.
WORKING_TREE = "."


@contextlib.contextmanager
def checkouts(references: tuple[str, str], setup: str | None = None) -> Iterator[list[Path]]:
    """The folder for each reference, a branch, tag, commit or WORKING_TREE; gone afterwards.

    The folder is the one in the worktree that corresponds to the current one; `setup` is run in it once. ParadnnError
    where git knows no such commit, or the set-up fails.
    """
    top = Path(_git(Path.cwd(), "rev-parse", "--show-toplevel"))
    inner = Path.cwd().resolve().relative_to(top.resolve())
    with tempfile.TemporaryDirectory(prefix="paradnn-commits-") as scratch:
        made: list[Path] = []
        try:
            found: list[Path] = []
            for number, reference in enumerate(references):
                folder = top
                if reference != WORKING_TREE:
                    folder = Path(scratch) / f"tree{number}"
                    commit = _commit(top, reference)
                    made.append(folder)
                    _git(top, "worktree", "add", "--quiet", "--detach", str(folder), commit)
                found.append(folder / inner)
                if not found[-1].is_dir():
                    raise ConfigError("--commits", reference, f"has no folder {inner}", "run it where both have one")
                if setup:
                    _set_up(setup, reference, found[-1])
            yield found
        finally:
            for folder in made:
                with contextlib.suppress(ParadnnError):
                    _git(top, "worktree", "remove", "--force", str(folder))


def _commit(top: Path, reference: str) -> str:
    try:
        return _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}")
    except ParadnnError:
        remedy = "give a branch, tag or commit; a shallow clone has few (git fetch --unshallow)"
        raise ConfigError("commit", reference, "git knows no such commit", remedy) from None


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ParadnnError("git cannot be found; install it, or compare commands") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ParadnnError(f"git {words[0]} failed: {last}; run this in a checkout")
    return done.stdout.strip()


def _set_up(setup: str, reference: str, folder: Path) -> None:
    print(f"setting up {reference}: {setup}", file=sys.stderr)
    done = _shell(setup, folder)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise ConfigError("--setup", setup, f"failed for {reference} ({lines[-1][:200]})", "try it there by hand")


def _shell(text: str, folder: Path | None, out: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    words, nothing = ["/bin/sh", "-c", text], subprocess.DEVNULL
    return subprocess.run(
        words, stdin=nothing, stdout=out, stderr=out, cwd=folder, text=True, errors="replace", check=False
    )
