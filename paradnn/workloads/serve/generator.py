"""Queries that come by a schedule, from a process of its own, which nothing in the process that
serves can delay.

A byte on the standard input of that process starts it, and it writes two 64-bit numbers for each
query: when it was to come and when it was issued, ns on the monotonic clock. It sleeps between
queries: a process that spins would have a core of what is measured.

The schedule is MLPerf LoadGen's, query for query, of the same seed: libstdc++'s
std::exponential_distribution from a std::mt19937. Python's generator is the same one seeded
otherwise, so its state is set here as C++ seeds it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import random
import select
import struct
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Sequence

from paradnn.worker.fork_server import die_with_parent

#: When a query was to come, and when it was issued.
RECORD = struct.Struct("<qq")
#: `schedule_rng_seed` of mlperf.conf, 16159082839903944936, as std::mt19937 takes it: modulo 2**32.
LOADGEN_SEED = 2023080168
_WORD = 2**32
_PR_SET_TIMERSLACK = 29
#: From reading the word to begin until the first query.
_LEAD = 2_000_000
_READ = 1 << 16


def arrivals(rate: float, seed: int, seconds: float, queries: int) -> array[int]:
    """Nanoseconds at which queries come, the first at 0, at `rate` a second in the mean: so many
    `queries` or more, the last of which comes `seconds` after the first or later.
    """
    state = [seed % _WORD]
    for index in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + index) % _WORD)
    generator = random.Random()
    generator.setstate((3, (*state, 624), None))
    draw = generator.getrandbits
    duration = seconds * 1e9
    times = array("q", [0])
    now = 0
    while now < duration or len(times) < queries:
        low = draw(32)
        high = draw(32)
        uniform = (low + float(high) * _WORD) / 2.0**64
        now += int(-math.log(1 - min(uniform, 1 - 2**-53)) / rate * 1e9)
        times.append(now)
    return times


def issue(
    times: Sequence[int],
    write: Callable[[bytearray], int],
    begin: int,
    clock: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Issue a query at each of `times`, ns after `begin`; `write` takes bytes and says how many it
    took.
    """
    pending = bytearray()
    for after in times:
        due = begin + after
        while (early := due - clock()) > 0:
            sleep(early / 1e9)
        pending += RECORD.pack(due, clock())
        del pending[: write(pending)]  # what the pipe does not take is written with a later query
    while pending:
        sleep(0.001)
        del pending[: write(pending)]


def _write(data: bytearray) -> int:
    try:
        return os.write(1, data)
    except BlockingIOError:
        return 0


def main() -> None:
    """Make the schedule, say so, wait for the word, issue: without slack, and before others, in
    real time where that is allowed, as queries come from elsewhere.
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
        issue(times, _write, time.monotonic_ns() + _LEAD)


class Generated(contextlib.AbstractContextManager["Generated"]):
    """The queries of such a process, which has made its schedule; a context: it is gone after it.
    ended: none comes.
    """

    def __init__(self, rate: float, seed: int, seconds: float, queries: int) -> None:
        command = [
            sys.executable,
            "-c",
            f"from {__name__} import main; main()",
            repr(rate),
            str(seed),
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen([*command, repr(seconds), str(queries)], **pipes)  # type: ignore[call-overload]
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._rest = b""
        self.ended = False
        with contextlib.suppress(AttributeError, OSError):
            # Cores that the point was bound away from, where there are any: those of the process
            # that forked it.
            os.sched_setaffinity(
                self._process.pid, os.sched_getaffinity(os.getppid()) - os.sched_getaffinity(0)
            )

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
        """The queries that have come since: when each was to come, and when it was issued."""
        data = self._rest
        with contextlib.suppress(BlockingIOError):
            while new := os.read(self._output, _READ):
                data += new
            self.ended = True
        whole = len(data) - len(data) % RECORD.size
        self._rest = data[whole:]
        return list(RECORD.iter_unpack(data[:whole]))

    def wait(self, until: int | None) -> None:
        """Sleep until one comes, none comes any more, or the clock shows `until`."""
        if until is None:
            left = None
        else:
            left = max(0.0, (until - time.monotonic_ns()) / 1e9)
        if not self.ended:
            select.select([self._output], [], [], left)
        elif left:
            time.sleep(left)
