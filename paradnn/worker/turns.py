"""A point that takes turns with another: it computes only while its driver lets it
(`paradnn.session.turns`), while it is built and warmed up, and then a block at a time. So does a
Python function (`serve`), one side of `paradnn compare bench.py:old bench.py:new`.
"""

import importlib
import importlib.util
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paradnn.worker.fork_server import die_with_parent

BLOCK_SECONDS = 0.05
#: The exit code where there is no such function.
MISSING = 66


class Turn:
    """The turns of one side, given at the socket `path`."""

    def __init__(self, path: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(path)
        self._lines = self._connection.makefile("rw")
        self.end(os.getpgrp())

    def wait(self) -> bool:
        """Sleep until it is this side's turn; False once there are no more."""
        if self._lines.readline():
            return True
        self.close()
        return False

    def end(self, seconds: float = 0.0) -> None:
        """The turn is over; `seconds` that a step of its block took."""
        self._lines.write(f"{seconds!r}\n")
        self._lines.flush()

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


def load(word: str) -> Callable[[], Any]:
    """Import the function that file.py:name or package.module:name names."""
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


def serve(word: str, path: str, driver: str) -> None:
    """One side, in a process of its own: calls until they last a block, then a block of so many
    each turn.
    """
    die_with_parent(driver=int(driver))
    try:
        call = load(word)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        print(error, file=sys.stderr)
        sys.exit(MISSING)
    turn = Turn(path)
    if turn.wait():
        calls = _calibrate(call)
        turn.end()
        while turn.wait():
            turn.end(_seconds(call, calls) / calls)


def _seconds(call: Callable[[], Any], calls: int) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - begun


def _calibrate(call: Callable[[], Any]) -> int:
    """How many calls make a block: doubled until a block is long enough, which warms up as well."""
    calls = 1
    while (seconds := _seconds(call, calls)) < BLOCK_SECONDS:
        calls *= 2
    return max(1, round(calls * BLOCK_SECONDS / seconds))
