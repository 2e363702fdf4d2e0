"""The phases of a request, as they are sent to the driver and timed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from paradnn.worker.fork_server import Report
from paradnn.worker.messages import Answer

__all__ = ["Phases"]


class Phases:
    """Says which phase the point is in, and how long each took."""

    def __init__(self, report: Report) -> None:
        self.current = "start"
        self.seconds: dict[str, float] = {}
        self.report = report

    @contextlib.contextmanager
    def __call__(self, name: str, answer: Answer | None = None) -> Iterator[None]:
        """What is done within belongs to phase `name`; `answer` counts if the process dies in it."""
        if name != self.current:
            self.current = name
            self.report(name, answer)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
