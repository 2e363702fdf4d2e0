"""The server: queries wait in one queue, and the model takes a batch of them as soon as it is free.

It takes as many queries as the policy allows at most; fewer once the oldest has waited for `delay`. Queries come from a
process that keeps a schedule, one after the other, or all at once. Nothing here knows a framework, nor what the time
is: a test turns the clock.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from paradnn.workloads.serve.queries import QueryLog
from paradnn.workloads.serve.schedule import RECORD


class Arrivals(Protocol):
    """Where queries come from; times are nanoseconds on the server's clock."""

    @property
    def ended(self) -> bool:
        """Whether none comes any more."""

    def take(self) -> list[tuple[int, int]]:
        """Those that have come since: when each was to come, and when it was issued."""

    def wait(self, until: int | None) -> None:
        """Sleep until one comes, none comes any more, or the clock shows `until`."""


@dataclass(frozen=True)
class Policy:
    """How queries are served: at most so many at once, after so long a wait for more (ns).

    A query that has waited for `patience` ns ends the run: queries come faster than they are served. No batch begins
    after `until`, on the server's clock.
    """

    batch: int
    delay: int = 0
    patience: int | None = None
    until: int | None = None


@dataclass(frozen=True)
class Served:
    """The queries that were served, in the order in which they were to come, and how many waited at the end.

    overloaded, cut: one waited for too long, or the time was up, with queries yet to come.
    """

    log: QueryLog
    waiting: int = 0
    overloaded: bool = False
    cut: bool = False


def serve(
    arrivals: Arrivals,
    run: Callable[[int], object],
    policy: Policy,
    clock: Callable[[], int],
    enough: Callable[[list[int], int], bool] | None = None,
) -> Served:
    """Serve what comes, until none comes any more, one waits for too long, the time is up, or `enough` is true.

    `run(queries)` serves so many at once and returns when they are done. `enough(scheduled, ended)` is called with
    every batch when its queries were to come, and its end, ns.
    """
    log, queue = QueryLog(), deque[tuple[int, int]]()
    while True:
        queue.extend(arrivals.take())
        now = clock()
        if not queue and arrivals.ended:
            return Served(log)
        if policy.until is not None and now >= policy.until:
            return Served(log, len(queue), cut=True)
        if not queue:
            arrivals.wait(policy.until)
            continue
        oldest = queue[0][0]
        if policy.patience is not None and now - oldest > policy.patience:
            return Served(log, len(queue), overloaded=True)
        if len(queue) < policy.batch and now < oldest + policy.delay:
            arrivals.wait(oldest + policy.delay)
            continue
        batch = [queue.popleft() for _ in range(min(len(queue), policy.batch))]
        started = clock()
        run(len(batch))
        ended = clock()
        log.add(batch, started, ended)
        if enough and enough([scheduled for scheduled, _ in batch], ended):
            return Served(log)


_READ = 1 << 16
_NAME = "paradnn.workloads.serve.generator"


class Generated:
    """Queries of a process of its own (`paradnn.workloads.serve.generator`), by a schedule that nothing here can delay.

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
        """See `paradnn.workloads.serve.server.Arrivals`."""
        data = self._rest
        with contextlib.suppress(BlockingIOError):
            while new := os.read(self._output, _READ):
                data += new
            self.ended = True
        whole = len(data) - len(data) % RECORD.size
        self._rest = data[whole:]
        return list(RECORD.iter_unpack(data[:whole]))

    def wait(self, until: int | None) -> None:
        """See `paradnn.workloads.serve.server.Arrivals`."""
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
        """See `paradnn.workloads.serve.server.Arrivals`; it is called when nothing is being served."""
        now = self._clock()
        self.ended = self._left <= 0 and now >= self._end
        self._left -= 1
        return [] if self.ended else [(now, now)]

    def wait(self, until: int | None) -> None:
        """See `paradnn.workloads.serve.server.Arrivals`: there is always one."""


class AllAtOnce:
    """So many queries that have all come at the beginning."""

    def __init__(self, clock: Callable[[], int], queries: int) -> None:
        self._queries, self._clock = queries, clock
        self.ended = False

    def take(self) -> list[tuple[int, int]]:
        """See `paradnn.workloads.serve.server.Arrivals`."""
        now, count = self._clock(), 0 if self.ended else self._queries
        self.ended = True
        return [(now, now)] * count

    def wait(self, until: int | None) -> None:
        """See `paradnn.workloads.serve.server.Arrivals`: there is nothing to wait for."""
