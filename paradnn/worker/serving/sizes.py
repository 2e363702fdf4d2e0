"""The batch sizes that a server has compiled: powers of two up to the largest; a batch between two is padded.

A size of its own for every batch would have each compiled, since no shape is left open (a program of open shapes is
another program than the one that is timed): under XLA, JAX and torch.compile minutes for a hundred sizes. Padding to
powers of two wastes less than half of a batch, and nothing of a full one. All are compiled before the first query.
"""

from __future__ import annotations

import bisect
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from paradnn.worker.compiling import compile_steps
from paradnn.worker.frameworks import Step
from paradnn.worker.serving.load import Service

__all__ = ["batch_sizes", "compile_service"]

#: Runs of a single query that say what it takes alone, and for how long they may go on.
_SINGLE_RUNS, _SINGLE_SECONDS = 30, 2.0


def batch_sizes(largest: int) -> list[int]:
    """1, 2, 4 and so on, and the largest."""
    return sorted({largest} | {2**power for power in range(largest.bit_length()) if 2**power < largest})


def compile_service(
    scenario: str, settings: Mapping[str, Any], batch_size: int, step: Step, make: Callable[[int], Step]
) -> Callable[[float], Service]:
    """What serves the queries of `scenario`, all compiled, once it knows how long `step` takes, of `batch_size`.

    `make(size)` makes the step of another size. A query of a stream is the whole batch; offline, all batches but the
    last are full, and that one is padded.
    """
    sizes = batch_sizes(batch_size) if scenario == "server" else [batch_size]
    steps = [step if size == batch_size else make(size) for size in sizes]
    for other in steps[:-1]:
        compile_steps(other)
    if scenario in ("single_stream", "multi_stream"):
        sizes = [1]

    def run(queries: int) -> object:
        return steps[bisect.bisect_left(sizes, queries)].run(1)

    known = _keras_state()

    def prepare() -> None:
        # Steps were compiled for what Keras knows: PyTorch would compile again where a thread knows less.
        for name, value in known.items():
            _keras_state().setdefault(name, list(value) if isinstance(value, list) else value)
        for each in steps:
            compile_steps(each)

    def service(step_seconds: float) -> Service:
        return Service(run, sizes[-1], sizes[-1] / step_seconds, _single_seconds(lambda: run(1)), prepare)

    return service


def _keras_state() -> dict[str, Any]:
    """What Keras keeps for this thread alone, by name: the policy of types, the open scopes. It has no public name."""
    from keras.src.backend.common import global_state

    state: dict[str, Any] = vars(global_state.GLOBAL_STATE_TRACKER)
    return state


def _single_seconds(run: Callable[[], object]) -> float:
    """The median of a query that comes alone."""
    seconds: list[float] = []
    end = time.perf_counter() + _SINGLE_SECONDS
    while len(seconds) < _SINGLE_RUNS and (not seconds or time.perf_counter() < end):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
