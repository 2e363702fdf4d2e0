"""`python -m paradnn.workloads.serve.generator RATE SEED SECONDS QUERIES`: a process that issues queries by schedule.

A byte on standard input starts it, and it writes two 64-bit numbers to standard output for each query: when
it was to come and when it was issued, nanoseconds on the monotonic clock, which all processes of a host share. It
never waits for its reader: what the pipe does not take is written with a later query.

Between queries it sleeps: a process that spins would have a core of the machine that is measured. How late it was is in
the record, and in the latency, which counts from the scheduled time.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence

from paradnn.worker.fork_server import die_with_parent
from paradnn.workloads.serve.schedule import RECORD, arrivals

_PR_SET_TIMERSLACK = 29
#: From reading the word to begin until the first query.
_LEAD = 2_000_000


def issue(
    times: Sequence[int],
    write: Callable[[bytearray], int],
    begin: int,
    clock: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Issue a query at each of `times`, ns after `begin`; `write` takes bytes and says how many it took."""
    pending = bytearray()
    for after in times:
        due = begin + after
        while (early := due - clock()) > 0:
            sleep(early / 1e9)
        pending += RECORD.pack(due, clock())
        del pending[: write(pending)]
    while pending:
        del pending[: write(pending)]
        if pending:
            sleep(0.001)


def _write(data: bytearray) -> int:
    try:
        return os.write(1, data)
    except BlockingIOError:
        return 0


def main() -> None:
    """Make the schedule, say so, wait for the word, issue."""
    rate, seed, seconds, queries = sys.argv[1:]
    die_with_parent()
    _be_prompt()
    times = arrivals(float(rate), int(seed), float(seconds), int(queries))
    gc.disable()
    os.write(1, b"\n")
    if os.read(0, 1):
        os.set_blocking(1, False)
        issue(times, _write, time.monotonic_ns() + _LEAD)


def _be_prompt() -> None:
    """Wake without slack, and before others: in real time where that is allowed, as queries come from elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)


if __name__ == "__main__":
    main()
