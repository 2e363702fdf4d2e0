"""The server: queries wait in one queue, and each free instance takes a batch of them.

An instance takes as many queries as the policy allows at most; fewer once the oldest has waited for `delay`. Instances
are threads over one model: one of them, at rest, waits for queries, and hands the waiting over when it has a batch.
Queries come from a process that keeps a schedule, one after the other, or all at once. Nothing here knows a framework,
nor what the time is: a test turns the clock.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
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
    """How queries are served: at most so many at once, after so long a wait for more (ns), by so many instances.

    A query that has waited for `patience` ns ends the run: queries come faster than they are served. No batch begins
    after `until`, on the server's clock.
    """

    batch: int
    delay: int = 0
    instances: int = 1
    patience: int | None = None
    until: int | None = None


class Server:
    """Serves what comes, until none comes any more, one waits for too long, the time is up, or `enough` is true.

    `overloaded` and `cut` say that one waited for too long, or that the time was up with queries yet to come.

    `run(queries)` serves so many at once and returns when they are done. `enough(scheduled, ended)` is called with
    every batch when its queries were to come, and its end, ns.
    Before `begin` lets queries come, each instance beyond the first calls `prepare` in its thread.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        run: Callable[[int], object],
        policy: Policy,
        clock: Callable[[], int],
        enough: Callable[[list[int], int], bool] | None = None,
        begin: Callable[[], None] | None = None,
        prepare: Callable[[], object] | None = None,
    ) -> None:
        self._arrivals, self._run, self._policy, self._clock, self._enough = arrivals, run, policy, clock, enough
        self._begin, self._prepare = begin, prepare
        self._queue: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()
        self._stopped = False
        self._error: BaseException | None = None
        self.overloaded = self.cut = False

    @property
    def waiting(self) -> int:
        """Queries that have come and were not served."""
        return len(self._queue)

    def serve(self) -> QueryLog:
        """Serve; the queries that were served, in the order in which they were to come."""
        logs = [QueryLog() for _ in range(self._policy.instances)]
        ready = threading.Semaphore(0)
        others = [threading.Thread(target=self._other, args=(log, ready), daemon=True) for log in logs[1:]]
        with self._lock:
            for thread in others:  # one by one: two that compile at once would take each other's time
                thread.start()
                ready.acquire()
            if self._begin and not self._error:
                self._begin()
        self._instance(logs[0])
        for thread in others:
            thread.join()
        if self._error:
            raise self._error
        return QueryLog.merged(logs)

    def _other(self, log: QueryLog, ready: threading.Semaphore) -> None:
        """An instance in a thread of its own."""
        try:
            if self._prepare:
                self._prepare()
        except BaseException as error:  # raised again where the server was asked to serve
            self._error, self._stopped = error, True
        ready.release()
        self._instance(log)

    def _instance(self, log: QueryLog) -> None:
        try:
            while True:
                with self._lock:
                    batch = self._next_batch()
                if not batch:
                    return
                started = self._clock()
                self._run(len(batch))
                ended = self._clock()
                log.add(batch, started, ended)
                if self._enough:
                    with self._lock:
                        self._stopped |= self._enough([scheduled for scheduled, _ in batch], ended)
        except BaseException as error:  # raised again where the server was asked to serve
            self._error, self._stopped = error, True

    def _next_batch(self) -> list[tuple[int, int]]:
        """The queries to be served next, waiting for them; none where the run has ended."""
        queue, policy = self._queue, self._policy
        while not self._stopped:
            queue.extend(self._arrivals.take())
            now = self._clock()
            if not queue and self._arrivals.ended:
                break
            if policy.until is not None and now >= policy.until:
                self.cut = self._stopped = True
                break
            if not queue:
                self._arrivals.wait(policy.until)
                continue
            oldest = queue[0][0]
            if policy.patience is not None and now - oldest > policy.patience:
                self.overloaded = self._stopped = True
                break
            if len(queue) >= policy.batch or now >= oldest + policy.delay:
                return [queue.popleft() for _ in range(min(len(queue), policy.batch))]
            self._arrivals.wait(oldest + policy.delay)
        return []


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
