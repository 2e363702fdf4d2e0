"""Alternate two measured processes, so that drift of the machine affects both in the same way.

A process computes only during its turns, which its driver assigns (`paradnn.session.turns`). In its
first turn, it builds and warms up its model. In every further turn, it runs one block of steps.
`serve` does the same for a Python function in `paradnn compare bench.py:old bench.py:new`.
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

#: Approximate duration of a block of calls of a Python function.
BLOCK_SECONDS = 0.05
#: The exit code if the function cannot be imported.
MISSING = 66


class TurnConnection:
    """Connection to the driver that assigns the turns of this process.

    Args:
        path: Path of the Unix socket on which the driver listens.
    """

    def __init__(self, path: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(path)
        self._lines = self._connection.makefile("rw")
        # The driver stops and continues this process group. It expects the group on the first line.
        self._send(os.getpgrp())

    def wait(self) -> bool:
        """Sleep until the next turn of this process; return False if no turn remains."""
        if self._lines.readline():
            return True
        self.close()
        return False

    def end(self, seconds: float = 0.0) -> None:
        """End the turn of this process.

        Args:
            seconds: Mean seconds of a step in the block of the turn, which is reported to the
                driver; 0 if the turn had no block.
        """
        self._send(seconds)

    def _send(self, number: float) -> None:
        self._lines.write(f"{number!r}\n")
        self._lines.flush()

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._connection.close()


def load(name: str) -> Callable[[], Any]:
    """Import a Python function, and return it.

    Args:
        name: The function as `file.py:function` or `package.module:function`.
    """
    location, _, function_name = name.rpartition(":")
    path = Path(location).expanduser()
    if path.suffix == ".py":
        sys.path.insert(0, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        module = importlib.import_module(location)
    function: Callable[[], Any] = getattr(module, function_name)
    return function


def serve(name: str, path: str, driver: str) -> None:
    """Take turns with a second process, and time calls of a Python function in each turn.

    The first turn determines the number of calls per block. Each further turn times one block of
    calls. If the function cannot be imported, the process exits with the code `MISSING`.

    Args:
        name: The function as `file.py:function` or `package.module:function`.
        path: Path of the Unix socket on which the driver listens.
        driver: Process id of the driver, which assigns the turns. This process ends when the driver
            does.
    """
    die_with_parent(driver=int(driver))
    try:
        call = load(name)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        print(error, file=sys.stderr)
        sys.exit(MISSING)
    turn = TurnConnection(path)
    if turn.wait():
        calls = _calibrate(call)
        turn.end()
        while turn.wait():
            turn.end(_block_seconds(call, calls) / calls)


def _block_seconds(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - start


def _calibrate(call: Callable[[], Any]) -> int:
    """Return the number of calls that take about `BLOCK_SECONDS`. The trials are also a warm-up."""
    calls = 1
    seconds = _block_seconds(call, calls)
    while seconds < BLOCK_SECONDS:
        calls *= 2
        seconds = _block_seconds(call, calls)
    return max(1, round(calls * BLOCK_SECONDS / seconds))
