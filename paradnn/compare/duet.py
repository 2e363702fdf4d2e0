"""Two Python functions by finer turns: both alive, blocks of some 50 ms by turns, a fresh pair of processes each round.

The turns are those of two models (`paradnn.session.turns`). The process stays the unit of replication: a round is one
pair of processes, and its value that of its pairs of blocks (`paradnn.compare.verdict.trimmed`).
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from paradnn.compare.commands import Command, CommandRun, OutputMetric, Turns, checkouts, failure_of
from paradnn.compare.verdict import Rule, orders, trimmed
from paradnn.core.errors import ConfigError
from paradnn.session.turns import BlockTurns

#: Pairs of blocks in a round.
BLOCKS = 10
#: The exit code of a process that does not find its function (`paradnn.worker.turns`).
_MISSING = 66
#: file.py:name or package.module:name.
_FUNCTION = re.compile(r"[\w./~-]+:[A-Za-z_]\w*")


def command_of(function: Callable[[], Any] | str) -> Command:
    """A side that is a function of the top level of a file, or a command line; ConfigError for another."""
    if isinstance(function, str):
        return Command(function, function)
    source = inspect.getsourcefile(function)
    name = getattr(function, "__qualname__", "")
    if source is None or not name.isidentifier() or not Path(source).is_file():
        remedy = "define it at the top level of a file: fresh processes import it from there"
        raise ConfigError("function", name or function, "cannot be imported by another process", remedy)
    return Command(f"{source}:{name}", f"{source}:{name}")


def turns_of(sides: tuple[Command, Command], rule: Rule, metric: OutputMetric | None = None, **how: Any) -> Turns:
    """Two functions by finer turns, or two commands one after the other; `how` as in `Turns`."""
    kind = Duet if all(_FUNCTION.fullmatch(side.text) for side in sides) else Turns
    return kind(sides, rule, metric, **how)


class Duet(Turns):
    """Two functions; everything else is as for commands."""

    def _programs(self) -> tuple[list[str], list[str]]:
        return [], []

    def _warm_up(self) -> None:
        """A round that does not count: what fails in it fails always."""
        self._round()
        for side, visits in enumerate(self.visits):
            if failures := self.failures(side):
                self._end(side, f"failed: {failures[-1]}")
            visits.clear()
        self.logs.clear()

    def _round(self) -> None:
        # The order within a pair of blocks is random in one and the other way round in the next, as in rounds.
        turns = BlockTurns(orders(time.time_ns()), 0.0, BLOCKS, self._timeout)
        with turns, ExitStack() as opened:
            started = [opened.enter_context(_started(side, turns.path(k))) for k, side in enumerate(self.sides)]
            (first, _), (second, _) = started
            turns.play([lambda: first.poll() is not None, lambda: second.poll() is not None])
            failures = [self._failure(number, *one) for number, one in enumerate(started)]
        if not any(failures):
            self.logs.append(trimmed(turns.pairs))
        for number, failure in enumerate(failures):
            runs = [CommandRun(pair[number], 0.0) for pair in turns.pairs]
            self.visits[number].append([CommandRun(0.0, 0.0, failure=failure)] if failure else runs)
        self._give_up()

    def _failure(self, number: int, process: subprocess.Popen[bytes], err: IO[bytes]) -> str | None:
        """Why a side's process did not come to its end; None where it did. ConfigError where there is no function."""
        code = process.poll()
        if code is None:
            return f"took longer than {self._timeout:g} s"
        failure = failure_of(code, (0,), err)
        if code == _MISSING:
            raise ConfigError("function", self.sides[number].text, str(failure), "name one of a file's top level")
        return failure


@contextmanager
def _started(side: Command, path: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A side's process, and what it says of errors; gone in the end."""
    program = "import sys; from paradnn.worker.turns import serve; serve(*sys.argv[1:])"
    words, nothing = [sys.executable, "-c", program, side.text, path, str(os.getpid())], subprocess.DEVNULL
    with (
        tempfile.TemporaryFile() as err,
        subprocess.Popen(
            words, stdin=nothing, stdout=nothing, stderr=err, cwd=side.folder, start_new_session=True
        ) as process,
    ):
        try:
            yield process, err
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def take_turns(
    given: argparse.Namespace,
    labels: Sequence[str],
    texts: Sequence[str],
    commits: tuple[str, str] | None,
    rule: Rule,
    enough: Callable[[Sequence[float]], bool] | None = None,
) -> tuple[Turns, bool]:
    """Two commands or functions as a command line asks for them, to their end; and whether that was an interruption."""
    with ExitStack() as opened:
        places = opened.enter_context(checkouts(commits, given.setup)) if commits else [None, None]
        described = zip(labels, texts, places, strict=True)
        one, two = (Command(label, text, place, given.prepare, given.exit_codes) for label, text, place in described)
        limits = {"minutes": given.minutes, "timeout": given.timeout, "warmup": given.warmup}
        turns = turns_of((one, two), rule, OutputMetric(given.metric, given.higher), **limits, enough=enough)
        return turns, turns.follow(shows=True)
