"""Two Python functions by finer turns: both alive, blocks of some 50 ms by turns, a fresh pair of processes each round.

What a machine does to one block it does to its neighbour a twentieth of a second later, so most of what differs
between whole processes cancels (duet benchmarking: Bulej et al., ICPE 2020). The process stays the unit of replication:
a round is one pair of processes, and its value the mean logarithm of the ratio over its pairs of blocks, without the
fifth of them that are largest and the fifth that are smallest. The side that waits is stopped (SIGSTOP), so that no
pool of threads of its own spins while the other computes.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from paradnn.compare.commands import Command, Metric, Progress, Run, Turns, Visit, checkouts, follow
from paradnn.compare.verdict import Rule, orders, trimmed
from paradnn.errors import ConfigError

BLOCK_SECONDS = 0.05
#: Pairs of blocks in a round.
BLOCKS = 10
_FUNCTION = re.compile(r"[\w./~-]+:[A-Za-z_]\w*")


def is_function(word: str) -> bool:
    """Whether a word of the command line names a function: file.py:name or package.module:name."""
    return bool(_FUNCTION.fullmatch(word))


def named(function: Callable[[], Any] | str) -> str:
    """The word that names a function of the top level of a file; ConfigError for another."""
    if isinstance(function, str):
        return function
    source = inspect.getsourcefile(function)
    name = getattr(function, "__qualname__", "")
    if source is None or not name.isidentifier() or not Path(source).is_file():
        remedy = "define it at the top level of a file: fresh processes import it from there"
        raise ConfigError("function", name or function, "cannot be imported by another process", remedy)
    return f"{source}:{name}"


def _load(word: str) -> Callable[[], Any]:
    """The function that a word names, in this process."""
    place, _, name = word.rpartition(":")
    path = Path(place).expanduser()
    sys.path.insert(0, str(path.resolve().parent) if path.suffix == ".py" else os.getcwd())
    if path.suffix == ".py":
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    found: Callable[[], Any] = getattr(module, name)
    return found


def serve(word: str, asked: int, answers: int) -> None:
    """One side, in a process of its own: a block for each line of the pipe `asked`, its seconds into `answers`.

    The first line is a warm-up, whose answer is how many calls last BLOCK_SECONDS.
    """
    with os.fdopen(asked) as requests, os.fdopen(answers, "w", buffering=1) as replies:
        try:
            try:
                call = _load(word)
            except (ImportError, AttributeError, OSError, SyntaxError) as error:
                print(json.dumps({"missing": str(error)[:300]}), file=replies)
                return
            for request in requests:
                calls = int(request)
                if not calls:
                    print(json.dumps({"calls": _calibrate(call)}), file=replies)
                    continue
                cpu, begun = time.process_time(), time.perf_counter()
                for _ in range(calls):
                    call()
                seconds = time.perf_counter() - begun
                print(json.dumps({"seconds": seconds, "cpu": time.process_time() - cpu}), file=replies)
        except Exception as error:
            print(json.dumps({"failure": f"{type(error).__name__}: {error}"[:300]}), file=replies)


def _calibrate(call: Callable[[], Any]) -> int:
    """How many calls make a block: doubled until a block is long enough, which warms up as well."""
    calls = 1
    while True:
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        seconds = time.perf_counter() - begun
        if seconds >= BLOCK_SECONDS:
            return max(1, round(calls * BLOCK_SECONDS / seconds))
        calls *= 2


class _Side:
    """A side's process as the other end of its pipes; it runs only while it is asked."""

    def __init__(self, command: Command, opened: ExitStack, timeout: float) -> None:
        read_asked, self._ask = os.pipe()
        self._answers, write_answers = os.pipe()
        program = "import sys; from paradnn.compare.duet import serve; serve(sys.argv[1], *map(int, sys.argv[2:]))"
        words = [sys.executable, "-c", program, command.text, str(read_asked), str(write_answers)]
        self._timeout = timeout
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=command.folder,
            pass_fds=(read_asked, write_answers),
            start_new_session=True,
        )
        os.close(read_asked)
        os.close(write_answers)
        opened.callback(self._end)

    def ask(self, calls: int) -> dict[str, Any]:
        """Let it run so many calls, 0 for the warm-up, then stop it again; its answer, with `failure` if it failed."""
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # one that has ended has said why
            os.write(self._ask, f"{calls}\n".encode())
        text, until = b"", time.monotonic() + self._timeout
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return {"failure": f"took longer than {self._timeout:g} s"}
            part = os.read(self._answers, 65536)
            if not part:
                code = self.process.wait()
                return {"failure": f"ended with exit code {code}" if code >= 0 else f"killed by signal {-code}"}
            text += part
        self._signal(signal.SIGSTOP)
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def _end(self) -> None:
        os.close(self._ask)
        os.close(self._answers)
        self._signal(signal.SIGKILL)
        self.process.wait()


class Duet(Turns):
    """Two functions, each named as `is_function` says; everything else is as for commands."""

    def _programs(self) -> tuple[list[str], list[str]]:
        for side in self.sides:
            if not is_function(side.text):
                raise ConfigError("function", side.text, "names no function", "write file.py:name")
        return [], []

    def _warm_up(self) -> None:
        """A round that does not count: what fails in it fails always."""
        self._round()
        for side in (0, 1):
            if failure := self.visits[side][-1].failure:
                self.failed, self.problem = side, f"{self.sides[side].label} failed: {failure}"
            self.visits[side].clear()
        self.rounds.clear()

    def _round(self) -> None:
        with self._pair() as sides:
            calls: list[int] = [0, 0]
            failures: list[str | None] = [None, None]
            for number in next(self._orders):
                answer = sides[number].ask(0)
                if missing := answer.get("missing"):
                    raise ConfigError("function", self.sides[number].text, missing, "name one of a file's top level")
                calls[number], failures[number] = answer.get("calls", 0), answer.get("failure")
            blocks: tuple[list[Run], list[Run]] = ([], [])
            # The order within a pair of blocks is random in one and the other way round in the next, as in rounds.
            order = orders(time.time_ns())
            while not any(failures) and len(blocks[0]) < BLOCKS:
                for number in next(order):
                    answer = sides[number].ask(calls[number])
                    if failure := answer.get("failure"):
                        failures[number] = failure
                        break
                    blocks[number].append(Run(*(answer[key] / calls[number] for key in ("seconds", "cpu"))))
        if not any(failures):
            self.rounds.append(trimmed([(one.seconds, two.seconds) for one, two in zip(*blocks, strict=True)]))
        for number in (0, 1):
            runs = () if failures[number] else tuple(blocks[number])
            speed = len(runs) / sum(run.seconds for run in runs) if runs else None
            self.visits[number].append(Visit(runs, speed, failures[number]))
        self._give_up()

    @contextmanager
    def _pair(self) -> Iterator[tuple[_Side, _Side]]:
        with ExitStack() as opened:
            yield _Side(self.sides[0], opened, self._timeout), _Side(self.sides[1], opened, self._timeout)


def take_turns(
    given: argparse.Namespace,
    labels: Sequence[str],
    texts: Sequence[str],
    commits: tuple[str, str] | None,
    rule: Rule,
    enough: Callable[[Sequence[float]], bool] | None = None,
) -> tuple[Turns, bool]:
    """Two commands or functions as a command line asks for them, to their end; and whether that was an interruption."""
    kind = Duet if all(map(is_function, texts)) else Turns
    metric = Metric(given.metric, given.higher)
    with ExitStack() as opened:
        places = opened.enter_context(checkouts(commits, given.setup)) if commits else [None, None]
        named = zip(labels, texts, places, strict=True)
        one, two = (Command(label, text, place, given.prepare, given.exit_codes) for label, text, place in named)
        limits = {"minutes": given.minutes, "timeout": given.timeout, "warmup": given.warmup}
        turns = kind((one, two), rule, metric, **limits, enough=enough)
        return turns, follow(turns, Progress(given.minutes))
