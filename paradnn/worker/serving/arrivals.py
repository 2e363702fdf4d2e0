"""Where a scenario's queries come from: a process that keeps a schedule, one after the other, all at once."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable

from paradnn.worker.serving.generator import RECORD

__all__ = ["AllAtOnce", "Generated", "OneByOne"]

_READ = 1 << 16
_NAME = "paradnn.worker.serving.generator"


class Generated:
    """Queries of a process of its own (`paradnn.worker.serving.generator`), by a schedule that nothing here can delay.

    A context: the process is gone after it.
    """

    def __init__(self, rate: float, seed: int, seconds: float, queries: int) -> None:
        command = [sys.executable, "-m", _NAME, repr(rate), str(seed), repr(seconds), str(queries)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._rest = b""
        self.ended = False
        with contextlib.suppress(AttributeError, OSError):
            # Cores that the point was bound away from, where there are any: those of the process that forked it.
            os.sched_setaffinity(self._process.pid, os.sched_getaffinity(os.getppid()) - os.sched_getaffinity(0))

    def __enter__(self) -> Generated:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self) -> None:
        """Wait for the schedule to be made; the first query comes two milliseconds later."""
        if not os.read(self._output, 1):
            raise RuntimeError(f"the load generator exited with code {self._process.wait()}")
        os.set_blocking(self._output, False)
        os.write(self._input, b"\n")

    def take(self) -> list[tuple[int, int]]:
        """See `paradnn.worker.serving.server.Arrivals`."""
        data = self._rest
        with contextlib.suppress(BlockingIOError):
            while new := os.read(self._output, _READ):
                data += new
            self.ended = True
        whole = len(data) - len(data) % RECORD.size
        self._rest = data[whole:]
        return list(RECORD.iter_unpack(data[:whole]))

    def wait(self, until: int | None) -> None:
        """See `paradnn.worker.serving.server.Arrivals`."""
        left = None if until is None else max(0.0, (until - time.monotonic_ns()) / 1e9)
        if not self.ended:
            select.select([self._output], [], [], left)
        elif left:
            time.sleep(left)


class OneByOne:
    """A query as soon as the one before it was served, until there were so many and so much time has passed (ns)."""

    def __init__(self, clock: Callable[[], int], seconds: float, queries: int) -> None:
        self._clock, self._left = clock, queries
        self._end = clock() + int(seconds * 1e9)
        self.ended = False

    def take(self) -> list[tuple[int, int]]:
        """See `paradnn.worker.serving.server.Arrivals`; it is called when nothing is being served."""
        now = self._clock()
        self.ended = self._left <= 0 and now >= self._end
        self._left -= 1
        return [] if self.ended else [(now, now)]

    def wait(self, until: int | None) -> None:
        """See `paradnn.worker.serving.server.Arrivals`: there is always one."""


class AllAtOnce:
    """So many queries that have all come at the beginning."""

    def __init__(self, clock: Callable[[], int], queries: int) -> None:
        self._queries, self._clock = queries, clock
        self.ended = False

    def take(self) -> list[tuple[int, int]]:
        """See `paradnn.worker.serving.server.Arrivals`."""
        now, count = self._clock(), 0 if self.ended else self._queries
        self.ended = True
        return [(now, now)] * count

    def wait(self, until: int | None) -> None:
        """See `paradnn.worker.serving.server.Arrivals`: there is nothing to wait for."""
