"""Workers of all that a sweep interleaves, kept alive: their imports are paid once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from paradnn.config.outcome import PointResult
from paradnn.core.scratch import remove_leftovers
from paradnn.core.workload import Part
from paradnn.execution.worker_key import WorkerKey
from paradnn.execution.worker_process import Limits, Worker
from paradnn.platform.environment import available_memory

__all__ = ["WorkerPool"]


class WorkerPool:
    """Live workers by key, so that interleaved software stacks do not pay the import again.

    An idle worker sleeps on its standard input, but it holds memory that a point may need: `limit` bounds how many are
    kept, `share` how much of the memory that is there they may hold together. The least recently used goes first.
    """

    def __init__(self, limit: int = 16, share: float = 0.25) -> None:
        remove_leftovers()
        self._limit = limit
        self._share = share
        self._workers: OrderedDict[WorkerKey, Worker] = OrderedDict()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prepare(self, key: WorkerKey) -> None:
        """Start the worker of `key` without waiting: its import runs while the driver does something else."""
        self._get(key)

    def measure(
        self, key: WorkerKey, point: Mapping[str, Any], limits: Limits, on_news: Callable[[str | Part], None]
    ) -> PointResult:
        """Measure one point; whatever happens to child or worker, a result with an outcome comes back."""
        try:
            worker = self._get(key)
        except OSError as error:  # the interpreter went away
            return PointResult("unavailable", f"{key.python} does not start: {error.strerror}")
        try:
            result = worker.measure(point, limits, on_news)
        except BaseException:
            self._drop(key)
            raise
        if worker.alive:
            return result
        self._drop(key)
        # A worker that was killed while it slept says nothing of this point: a new one measures it.
        return result if worker.reached_point else self._get(key).measure(point, limits, on_news)

    def close(self) -> None:
        """Kill every worker and its child."""
        for key in list(self._workers):
            self._drop(key)

    def _get(self, key: WorkerKey) -> Worker:
        if key not in self._workers:
            while self._workers and (len(self._workers) >= self._limit or self._too_heavy()):
                self._drop(next(iter(self._workers)))
            self._workers[key] = Worker(key)
        self._workers.move_to_end(key)
        return self._workers[key]

    def _too_heavy(self) -> bool:
        """Whether another worker like these would leave points too little memory."""
        held = [worker.resident_bytes() for worker in self._workers.values()]
        return sum(held) + max(held) > self._share * (available_memory() + sum(held))

    def _drop(self, key: WorkerKey) -> None:
        self._workers.pop(key).close()
