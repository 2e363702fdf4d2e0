"""Latency of single steps, each synchronised, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["single_latencies"]

#: Synchronised steps for the latency quantiles: at least so many (p99 needs a hundred), at most so long.
_LATENCY_STEPS = 200
_LATENCY_SECONDS = 10.0


def single_latencies(
    run: Callable[[int], float | None], longest: float, before: Callable[[], None] | None = None
) -> list[float]:
    """Seconds of single synchronised steps, for no longer than `longest` seconds, the cap of the measurement.

    `before` is called before each of them, outside what is timed.
    """
    seconds: list[float] = []
    begin = now = time.perf_counter()
    while len(seconds) < _LATENCY_STEPS and now - begin < min(_LATENCY_SECONDS, longest):
        if before:
            before()
            now = time.perf_counter()
        run(1)
        end = time.perf_counter()
        seconds.append(end - now)
        now = end
    return seconds
