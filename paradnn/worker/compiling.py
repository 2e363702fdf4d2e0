"""The phase `compile`: steps are run until one compiles nothing, each timed and its compilations counted.

The first step does not say it all: PyTorch compiles again where a value it took for constant has changed, JAX where the
state that comes out of a step is placed otherwise than the one that went in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from paradnn.worker.contention import ContentionWatch
from paradnn.worker.messages import Compilation

__all__ = ["MOST_STEPS", "CompilationCounter", "Compiling", "compile_steps"]

#: A step that compiles again every time ends the phase all the same.
MOST_STEPS = 8


class Compiling(Protocol):
    """What is asked of a step here, and so of anything that runs one."""

    def run(self, steps: int) -> float | None:
        """As `paradnn.worker.frameworks.Step.run`."""

    def compilations(self) -> int:
        """As `Step.compilations`."""

    def compile_note(self) -> str | None:
        """As `Step.compile_note`."""


def compile_steps(step: Compiling, clock: Callable[[], float] = time.perf_counter) -> tuple[Compilation, float | None]:
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


class CompilationCounter:
    """Whether anything was compiled while blocks were measured: then they time more than steps."""

    def __init__(self, step: Compiling) -> None:
        self._step = step
        self._before = 0

    def start(self) -> None:
        """What is compiled from now on counts."""
        self._before = self._step.compilations()

    def count(self) -> int:
        """Programs that were compiled since `start`."""
        return self._step.compilations() - self._before
