"""Latency of single steps, each synchronised, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable

from paradnn.worker.contention import ContentionWatch
from paradnn.worker.messages import Contention

__all__ = ["single_latencies"]

#: Synchronised steps for the latency quantiles: at least so many (p99 needs a hundred), at most so long.
_LATENCY_STEPS = 200
_LATENCY_SECONDS = 10.0

_Taken = tuple[list[float], Contention | None]


def single_latencies(
    run: Callable[[int], float | None],
    longest: float,
    before: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    watch: ContentionWatch | None = None,
) -> tuple[list[float], Contention | None]:
    """Seconds of single synchronised steps, for no longer than `longest` seconds, the cap of the measurement; and what
    disturbed them.

    `before` is called before each of them, outside what is timed. Where something disturbed them they are timed once
    more, and those that were disturbed less count.
    """
    watch, longest = watch or ContentionWatch(), min(_LATENCY_SECONDS, longest)
    first = _take(run, longest, before, clock, watch)
    if not first[1] or not first[1].reason:
        return first
    return min(_take(run, longest, before, clock, watch), first, key=_disturbance)


def _take(
    run: Callable[[int], float | None],
    longest: float,
    before: Callable[[], None] | None,
    clock: Callable[[], float],
    watch: ContentionWatch,
) -> _Taken:
    seconds: list[float] = []
    watch.start()
    begin = now = clock()
    while len(seconds) < _LATENCY_STEPS and now - begin < longest:
        if before:
            before()
            now = clock()
        run(1)
        end = clock()
        seconds.append(end - now)
        now = end
    return seconds, watch.stop()


def _disturbance(taken: _Taken) -> float:
    return taken[1].taken if taken[1] and taken[1].reason else 0.0
