"""Compare two Python functions in interleaved blocks (duet benchmarking).

Each function runs in a separate process. Blocks of calls of one function, about 50 ms each,
alternate with blocks of the other function (`paradnn.session.turns`). Replicates are pairs of
processes, not blocks: each round starts a new pair of processes, and its value is the trimmed mean
over its pairs of blocks (`paradnn.statistics.paired_rounds.trimmed`).
"""

import inspect
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from paradnn.compare.commands import CommandComparison, Visit
from paradnn.compare.processes import Command, CommandProtocol, CommandRun, failure_reason
from paradnn.core.errors import ConfigError
from paradnn.session.turns import BlockTurns
from paradnn.statistics.paired_rounds import Rule, orders, trimmed

#: Pairs of blocks in a round.
BLOCKS = 10
#: Exit code of a process that cannot find its function (`paradnn.worker.turns`).
_MISSING = 66
#: Maximum time in seconds from the last block of a process to its exit.
_EXIT_SECONDS = 30.0
#: Pattern of a side that names a function: file.py:name or package.module:name.
_FUNCTION = re.compile(r"[\w./~-]+:[A-Za-z_]\w*")
_SERVE = "import sys; from paradnn.worker.turns import serve; serve(*sys.argv[1:])"
_CALL_ONCE = "import sys; from paradnn.worker.turns import load; load(sys.argv[1])()"


def command_of(function: Callable[[], Any] | str) -> Command:
    """Return the `Command` that runs a function or a command line, for a comparison.

    Args:
        function: A function without arguments at the top level of a file, or a command line.

    Raises:
        ConfigError: If other processes cannot import the function.
    """
    if isinstance(function, str):
        return Command(function, function)
    source = inspect.getsourcefile(function)
    name = getattr(function, "__qualname__", "")
    if source is None or not name.isidentifier() or not Path(source).is_file():
        raise ConfigError(
            "function",
            name or function,
            "cannot be imported by other processes",
            "define it at the top level of a file, from which fresh processes can import it",
        )
    return Command(f"{source}:{name}", f"{source}:{name}")


def is_function(text: str) -> bool:
    """Return whether a text names a function: file.py:name or package.module:name.

    Args:
        text: One of the two sides of a comparison, as the user typed it. A text that names no
            function is a command.
    """
    return _FUNCTION.fullmatch(text) is not None


def comparison_of(
    sides: Sequence[Command], rule: Rule, protocol: CommandProtocol
) -> CommandComparison:
    """Return a comparison of two functions (interleaved blocks) or two commands (alternating runs).

    The comparison has not started; its method `follow` runs it.

    Args:
        sides: The two commands. They are compared as functions if the texts of both name a function
            (`is_function`).
        rule: Decides when the comparison ends.
        protocol: How the commands or functions are run: metric, timeout, warm-up and so on.

    Raises:
        ConfigError: If functions are compared, and the protocol sets an option that only commands
            support: --metric, --prepare or --exit-codes.
    """
    if not all(is_function(side.text) for side in sides):
        return CommandComparison(sides, rule, protocol)
    command_options = {
        "--metric": protocol.metric.pattern,
        "--prepare": protocol.prepare,
        "--exit-codes": protocol.exit_codes if protocol.exit_codes != (0,) else None,
    }
    for option, value in command_options.items():
        if value:
            raise ConfigError(option, value, "applies to commands, not to functions", "omit it")
    return InterleavedFunctions(sides, rule, protocol)


class InterleavedFunctions(CommandComparison):
    """Comparison of two functions in interleaved blocks of calls.

    It differs from a comparison of commands only in its rounds. Each round starts one new process
    per function. Blocks of calls in these two processes alternate.
    """

    def _round(self, order: tuple[int, int]) -> None:
        # `order` is ignored, because BlockTurns orders the blocks: at random in one pair, and
        # reversed in the next.
        turns = BlockTurns(orders(time.time_ns()), 0.0, BLOCKS, self.protocol.timeout)
        with turns, ExitStack() as stack:
            started = [
                stack.enter_context(self._started(side, turns.path(number)))
                for number, side in enumerate(self.sides)
            ]
            (first, _), (second, _) = started
            turns.play([lambda: first.poll() is not None, lambda: second.poll() is not None])
            failures = [
                self._failure(number, process, errors)
                for number, (process, errors) in enumerate(started)
            ]
        for side, failure in enumerate(failures):
            if failure:
                visit: Visit = [CommandRun(0.0, failure=failure)]
            else:
                visit = [CommandRun(pair[side]) for pair in turns.pairs]
            self.visits[side].append(visit)
        if not any(failures):
            medians = [statistics.median(seconds) for seconds in zip(*turns.pairs, strict=True)]
            self.add(len(self.visits[0]), trimmed(turns.pairs), (medians[0], medians[1]))

    def _trace_words(self, side: Command) -> list[str]:
        return [sys.executable, "-c", _CALL_ONCE, side.text]

    def _failure(
        self, number: int, process: "subprocess.Popen[bytes]", errors: IO[bytes]
    ) -> str | None:
        """Wait for the process of a function, and return why it failed; None if it succeeded.

        Args:
            number: 0 for the first function, 1 for the second.
            process: The process, after its last block.
            errors: Its standard error.

        Raises:
            ConfigError: If the process could not find its function.
        """
        try:
            # A process may close its socket some time before it exits.
            code = process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return f"took longer than {self.protocol.timeout:g} s"
        failure = failure_reason(code, (0,), errors)
        if code == _MISSING:
            raise ConfigError(
                "function",
                self.sides[number].text,
                str(failure),
                "name a function at the top level of a file",
            )
        return failure

    @contextmanager
    def _started(
        self, side: Command, path: str
    ) -> "Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]":
        """Start the process of a function, and kill it at the end of the context.

        Args:
            side: The command whose text names the function.
            path: Path of the socket over which the process receives its turns to run a block.

        Yields:
            The process, and its standard error.
        """
        with tempfile.TemporaryFile() as errors:
            process = self._guard.start(
                [sys.executable, "-c", _SERVE, side.text, path, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=side.folder,
            )
            try:
                yield process, errors
            finally:
                self._guard.kill(process)
                process.wait()
                self._guard.release(process)
