"""The phase `compile`: steps are run until one compiles nothing, each timed and its compilations counted.

The first step does not say it all: PyTorch compiles again where a value it took for constant has changed, JAX where the
state that comes out of a step is placed otherwise than the one that went in.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paradnn.worker.affinity import core_list
from paradnn.worker.messages import Compilation, Contention
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


# Latency of single steps, each synchronised, one after the other; on cold caches if so asked for.
#
# Caches are emptied before a step, so that its latency is that of a model which lay in memory meanwhile: each core that
# may be used writes a part of a buffer of its own, more than its private caches hold, and together more than the last
# level that it shares. Writing is enough: a line that is written takes the place of another.

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


#: So many times what a cache holds: its replacement is not quite that of the least recently used.
_TIMES = 2
#: Where the system does not say how large its caches are.
_USUAL = 64 * 2**20
_CPUS = Path("/sys/devices/system/cpu")


class Caches:
    """The caches of the cores that this process may use."""

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
        sizes = part_bytes(self._cores)
        import numpy as np  # not before it is needed: what only times steps is bare Python

        ends = np.cumsum(sizes or [_TIMES * _USUAL])
        self._parts = np.split(np.zeros(int(ends[-1]), np.uint8), ends[:-1])
        self._value = 0

    def empty(self) -> None:
        """Replace what they hold; leaves this thread on the cores that it may use."""
        self._value = (self._value + 1) % 256
        if not self._cores:
            self._parts[0].fill(self._value)
            return
        try:
            for core, part in zip(self._cores, self._parts, strict=True):
                os.sched_setaffinity(0, {core})
                part.fill(self._value)
        finally:
            os.sched_setaffinity(0, self._cores)


def part_bytes(cores: list[int], root: Path = _CPUS) -> list[int]:
    """How much each of `cores` must write: its share of every cache that it shares with others of them, doubled."""
    sizes = []
    for core in cores:
        shares = [0]
        for entry in (root / f"cpu{core}/cache").glob("index*"):
            try:
                size = int((entry / "size").read_text().strip().removesuffix("K")) * 1024
                sharing = set(core_list((entry / "shared_cpu_list").read_text())) & set(cores)
            except (OSError, ValueError):
                continue
            shares.append(size // max(1, len(sharing)))
        sizes.append(_TIMES * (max(shares) or _USUAL // len(cores)))
    return sizes
