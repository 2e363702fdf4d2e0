"""A point, or a Python function, that takes turns with another one.

A point computes only while its driver allows it (`paradnn.session.turns`): first while it is built
and warmed up, then for one block per turn. `serve` does the same for a Python function, which is
one side of `paradnn compare bench.py:old bench.py:new`.
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
#: The exit code if the function does not exist.
MISSING = 66


class Turn:
    """The turns of one side.

    Args:
        path: The socket of the driver.
    """

    def __init__(self, path: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(path)
        self._lines = self._connection.makefile("rw")
        self.end(os.getpgrp())

    def wait(self) -> bool:
        """Sleep until it is the turn of this side; return False if there are no more turns."""
        if self._lines.readline():
            return True
        self.close()
        return False

    def end(self, seconds: float = 0.0) -> None:
        """End the turn, and report the seconds of a step of its block."""
        self._lines.write(f"{seconds!r}\n")
        self._lines.flush()

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._connection.close()


def load(name: str) -> Callable[[], Any]:
    """Import a function.

    Args:
        name: Its address, `file.py:function` or `package.module:function`.
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
    """Run one side in this process: a block of calls per turn, after a calibration.

    Args:
        name: The function, as for `load`.
        path: The socket of the driver.
        driver: The process that must stay alive.
    """
    die_with_parent(driver=int(driver))
    try:
        call = load(name)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        print(error, file=sys.stderr)
        sys.exit(MISSING)
    turn = Turn(path)
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
    """Return how many calls make a block; doubling them until one is long enough also warms up."""
    calls = 1
    seconds = _block_seconds(call, calls)
    while seconds < BLOCK_SECONDS:
        calls *= 2
        seconds = _block_seconds(call, calls)
    return max(1, round(calls * BLOCK_SECONDS / seconds))
