"""The phase `compile`: steps are run until one compiles nothing, each timed and its compilations counted.

The first step does not say it all: PyTorch compiles again where a value it took for constant has changed, JAX where the
state that comes out of a step is placed otherwise than the one that went in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from paradnn.core.messages import Compilation, Contention
from paradnn.worker.meters import ContentionWatch

if TYPE_CHECKING:
    from paradnn.worker.frameworks import Step

#: A step that compiles again every time ends the phase all the same.
MOST_STEPS = 8


def compile_steps(step: Step, clock: Callable[[], float] = time.perf_counter) -> tuple[Compilation, float | None]:
    """Run `step` until it compiles nothing, or for the eighth time; what that took, and the very first loss."""
    seconds: list[float] = []
    programs: list[int] = []
    losses: list[float | None] = []
    watch = ContentionWatch()
    watch.start()
    while len(programs) < MOST_STEPS and (not programs or programs[-1]):
        before, start = step.compilations(), clock()
        losses.append(step.run(1))
        seconds.append(clock() - start)
        programs.append(step.compilations() - before)
    notes = [note] if (note := step.compile_note()) else []
    if programs[-1]:
        notes.append(f"step {len(programs)} still compiled {programs[-1]} program(s)")
    return Compilation(seconds, programs, "; ".join(notes) or None, watch.stop()), losses[0]


# Latency of single steps, each synchronised, one after the other.

#: Synchronised steps for the latency quantiles: at least so many (p99 needs a hundred), at most so long.
_LATENCY_STEPS = 200
_LATENCY_SECONDS = 10.0


def single_latencies(
    run: Callable[[int], float | None],
    longest: float,
    clock: Callable[[], float] = time.perf_counter,
    watch: ContentionWatch | None = None,
) -> tuple[list[float], Contention | None]:
    """Seconds of single synchronised steps, for no longer than `longest` seconds, the cap of the measurement; and what
    disturbed them. Where something did they are timed once more, and those that were disturbed less count."""
    watch, longest = watch or ContentionWatch(), min(_LATENCY_SECONDS, longest)
    tries: list[tuple[list[float], Contention | None]] = []
    for _ in range(2):
        seconds: list[float] = []
        watch.start()
        begin = now = clock()
        while len(seconds) < _LATENCY_STEPS and now - begin < longest:
            run(1)
            end = clock()
            seconds.append(end - now)
            now = end
        seen = watch.stop()
        if not seen or not seen.reason:
            return seconds, seen
        tries.append((seconds, seen))
    return min(reversed(tries), key=lambda each: each[1].taken if each[1] else 0.0)
