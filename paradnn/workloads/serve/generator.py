"""Issue queries on a schedule, from a separate process that the serving process cannot delay.

A byte on standard input starts the schedule. For each query, the process writes two 64-bit numbers:
when the query was due and when it was issued, in ns of the monotonic clock. It sleeps between
queries, because a spinning process would take a core from the measured process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from paradnn.worker.arrivals import arrivals
from paradnn.worker.fork_server import die_with_parent

#: Record of a query: when it was due, and when it was issued, in ns of the monotonic clock.
RECORD = struct.Struct("<qq")
_PR_SET_TIMERSLACK = 29
#: Time from the start byte to the first query, in ns.
_LEAD_NS = 2_000_000
_READ_BYTES = 1 << 16


def issue(
    times: Sequence[int],
    write: Callable[[bytearray], int],
    begin: int,
    clock: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Issue the queries of a schedule: write a `RECORD` when a query is due.

    Args:
        times: When the queries are due, in ns after `begin`, ascending.
        write: Writes bytes and returns the number of written bytes, which may be smaller. The
            remaining bytes are written with the next query.
        begin: Start of the schedule, in ns of `clock`.
        clock: Returns the time in ns.
        sleep: Sleeps for a given number of seconds.
    """
    pending = bytearray()
    for offset in times:
        due = begin + offset
        while (early := due - clock()) > 0:
            sleep(early / 1e9)
        pending += RECORD.pack(due, clock())
        del pending[: write(pending)]
    while pending:
        sleep(0.001)
        del pending[: write(pending)]


def _write(data: bytearray) -> int:
    try:
        return os.write(1, data)
    except BlockingIOError:
        return 0


def main() -> None:
    """Compute the schedule, write a newline, wait for the start byte, and issue the queries.

    In production, queries come from other machines. The generator should therefore not be delayed
    by other processes of this machine: its timers have no slack, and it has real-time priority if
    that is permitted.
    """
    rate, seed, seconds, queries = sys.argv[1:]
    die_with_parent()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    times = arrivals(float(rate), int(seed), float(seconds), int(queries))
    gc.disable()
    os.write(1, b"\n")
    if os.read(0, 1):
        os.set_blocking(1, False)
        issue(times, _write, time.monotonic_ns() + _LEAD_NS)


class QueryGenerator(contextlib.AbstractContextManager["QueryGenerator"]):
    """Context manager that starts a process that issues queries; the process ends with the context.

    Args:
        rate: Mean queries per second.
        seed: Seed of the schedule.
        seconds: Minimum duration of the schedule in seconds.
        queries: Minimum number of queries.

    Attributes:
        ended: Whether `take` has returned the last query.
    """

    def __init__(self, rate: float, seed: int, seconds: float, queries: int) -> None:
        program = f"from {__name__} import main; main()"
        arguments = [repr(rate), str(seed), repr(seconds), str(queries)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin.fileno()
        self._output = self._process.stdout.fileno()
        self._partial_record = b""
        self.ended = False
        # Run on cores outside the point's affinity mask but inside its parent's, if there are any.
        with contextlib.suppress(AttributeError, OSError):
            free_cores = os.sched_getaffinity(os.getppid()) - os.sched_getaffinity(0)
            os.sched_setaffinity(self._process.pid, free_cores)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self) -> None:
        """Wait until the process has computed the schedule, and start it. It begins 2 ms later.

        Raises:
            RuntimeError: If the process has exited.
        """
        if not os.read(self._output, 1):
            raise RuntimeError(f"the load generator exited with code {self._process.wait()}")
        os.set_blocking(self._output, False)
        os.write(self._input, b"\n")

    def take(self) -> list[tuple[int, int]]:
        """Return the queries issued since the last call.

        Returns:
            For each query: when it was due and when it was issued, in ns of `time.monotonic_ns()`.
        """
        data = self._partial_record
        with contextlib.suppress(BlockingIOError):
            while new := os.read(self._output, _READ_BYTES):
                data += new
            self.ended = True
        whole = len(data) - len(data) % RECORD.size
        self._partial_record = data[whole:]
        return list(RECORD.iter_unpack(data[:whole]))

    def wait(self, until: int | None) -> None:
        """Sleep until a query arrives, the generator ends, or the time `until` is reached.

        Args:
            until: Time of `time.monotonic_ns()`; None for no time limit.
        """
        seconds = None
        if until is not None:
            seconds = max(0.0, (until - time.monotonic_ns()) / 1e9)
        if not self.ended:
            select.select([self._output], [], [], seconds)
        elif seconds:
            time.sleep(seconds)
