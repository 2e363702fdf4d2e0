"""Two Python functions by finer turns: both alive, blocks of some 50 ms by turns, a fresh pair of
processes each round.

The turns are those of two models (`paradnn.session.turns`). The process stays the unit of
replication: a round is one pair of processes, and its value that of its pairs of blocks
(`paradnn.statistics.paired_rounds.trimmed`).
"""

import argparse
import inspect
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from paradnn.compare.commands import (
    Command,
    CommandProtocol,
    CommandRun,
    OutputMetric,
    Turns,
    failure_of,
)
from paradnn.core.errors import ConfigError
from paradnn.platform.commits import checkouts
from paradnn.session.turns import BlockTurns
from paradnn.statistics.paired_rounds import Rule, orders, trimmed

#: Pairs of blocks in a round.
BLOCKS = 10
#: The exit code of a process that does not find its function (`paradnn.worker.turns`).
_MISSING = 66
#: file.py:name or package.module:name.
_FUNCTION = re.compile(r"[\w./~-]+:[A-Za-z_]\w*")


def command_of(function: Callable[[], Any] | str) -> Command:
    """A side that is a function of the top level of a file, or a command line; ConfigError for
    another.
    """
    if isinstance(function, str):
        return Command(function, function)
    source = inspect.getsourcefile(function)
    name = getattr(function, "__qualname__", "")
    if source is None or not name.isidentifier() or not Path(source).is_file():
        remedy = "define it at the top level of a file: fresh processes import it from there"
        raise ConfigError(
            "function", name or function, "cannot be imported by another process", remedy
        )
    return Command(f"{source}:{name}", f"{source}:{name}")


def turns_of(sides: Sequence[Command], rule: Rule, terms: CommandProtocol) -> Turns:
    """Two functions by finer turns, or two commands one after the other; ConfigError for terms of
    commands alone.
    """
    if not all(_FUNCTION.fullmatch(side.text) for side in sides):
        return Turns(sides, rule, terms)
    given = {
        "--metric": terms.metric.pattern,
        "--prepare": terms.prepare,
        "--exit-codes": terms.exit_codes != (0,),
    }
    for option in (name for name, value in given.items() if value):
        raise ConfigError(
            option, given[option], "is for commands, not for functions", "leave it out"
        )
    return InterleavedFunctions(sides, rule, terms)


class InterleavedFunctions(Turns):
    """Two functions; everything else is as for commands."""

    def _round(self, order: tuple[int, int]) -> None:
        # The order within a pair of blocks is random in one and the other way round in the next, as
        # in rounds.
        turns = BlockTurns(orders(time.time_ns()), 0.0, BLOCKS, self.terms.timeout)
        with turns, ExitStack() as opened:
            started = [
                opened.enter_context(_started(side, turns.path(k)))
                for k, side in enumerate(self.sides)
            ]
            (first, _), (second, _) = started
            turns.play([lambda: first.poll() is not None, lambda: second.poll() is not None])
            failures = [self._failure(number, *one) for number, one in enumerate(started)]
        for side, failure in enumerate(failures):
            self.visits[side].append(
                [CommandRun(0.0, failure=failure)]
                if failure
                else [CommandRun(pair[side]) for pair in turns.pairs]
            )
        if not any(failures):
            one, other = map(statistics.median, zip(*turns.pairs, strict=True))
            self.add(len(self.visits[0]), trimmed(turns.pairs), (one, other))

    def _failure(self, number: int, process: subprocess.Popen[bytes], err: IO[bytes]) -> str | None:
        """Why a side's process did not come to its end; None where it did. ConfigError where there
        is no function.
        """
        code = process.poll()
        if code is None:
            return f"took longer than {self.terms.timeout:g} s"
        failure = failure_of(code, (0,), err)
        if code == _MISSING:
            raise ConfigError(
                "function", self.sides[number].text, str(failure), "name one of a file's top level"
            )
        return failure


@contextmanager
def _started(side: Command, path: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A side's process, and what it says of errors; gone in the end."""
    program = "import sys; from paradnn.worker.turns import serve; serve(*sys.argv[1:])"
    words = [sys.executable, "-c", program, side.text, path, str(os.getpid())]
    nothing = subprocess.DEVNULL
    with (
        tempfile.TemporaryFile() as err,
        subprocess.Popen(
            words,
            stdin=nothing,
            stdout=nothing,
            stderr=err,
            cwd=side.folder,
            start_new_session=True,
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
) -> tuple[Turns, bool]:
    """Two commands or functions as a command line asks for them, to their end; and whether that was
    an interruption.
    """
    metric = OutputMetric(given.metric, given.higher)
    terms = CommandProtocol(
        given.minutes, metric, given.warmup, given.prepare, given.timeout, given.exit_codes
    )
    with ExitStack() as opened:
        if commits:
            places = opened.enter_context(checkouts(commits, given.setup))
        else:
            places = [None, None]
        turns = turns_of(
            [Command(*side) for side in zip(labels, texts, places, strict=True)], rule, terms
        )
        return turns, turns.follow(shows=bool(given.detail))
