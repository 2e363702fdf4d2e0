"""A Python function that takes turns with another: one side of `paradnn compare bench.py:old bench.py:new`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paradnn.worker.fork_server import die_with_parent
from paradnn.worker.turns import Turn

BLOCK_SECONDS = 0.05
#: The exit code where there is no such function.
MISSING = 66


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


def serve(word: str, path: str, driver: str) -> None:
    """One side, in a process of its own: calls until they last a block, then a block of so many each turn."""
    die_with_parent(driver=int(driver))
    try:
        call = _load(word)
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
