"""Queries that were served: when each was to come, was issued, began and ended."""

from __future__ import annotations

import base64
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["COLUMNS", "QueryLog"]

COLUMNS = ("scheduled", "issued", "started", "ended", "together")


@dataclass
class QueryLog:
    """A column for each of `COLUMNS`: nanoseconds on one clock, and how many queries were served in one batch."""

    scheduled: array[int] = field(default_factory=lambda: array("q"))
    issued: array[int] = field(default_factory=lambda: array("q"))
    started: array[int] = field(default_factory=lambda: array("q"))
    ended: array[int] = field(default_factory=lambda: array("q"))
    together: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.ended)

    def add(self, batch: Sequence[tuple[int, int]], started: int, ended: int) -> None:
        """A batch of queries, (scheduled, issued) each, was served."""
        for scheduled, issued in batch:
            self.scheduled.append(scheduled)
            self.issued.append(issued)
            self.started.append(started)
            self.ended.append(ended)
            self.together.append(len(batch))

    @classmethod
    def merged(cls, logs: Iterable[QueryLog]) -> QueryLog:
        """All queries of several logs, in the order in which they were to come."""
        rows = sorted(row for log in logs for row in zip(*log.columns(), strict=True))
        return cls(*(array("q", column) for column in zip(*rows, strict=True))) if rows else cls()

    def columns(self) -> list[array[int]]:
        """In the order of `COLUMNS`."""
        return [self.scheduled, self.issued, self.started, self.ended, self.together]

    def latencies(self) -> list[int]:
        """Nanoseconds from the moment at which each was to come until its end."""
        return [ended - scheduled for scheduled, ended in zip(self.scheduled, self.ended, strict=True)]

    def parts(self) -> dict[str, list[float]]:
        """Milliseconds of every query: its latency, and what of that was waiting in the queue and being served."""
        rows = list(zip(self.scheduled, self.started, self.ended, strict=True))
        return {
            "latency": [(ended - due) / 1e6 for due, _, ended in rows],
            "queue": [(started - due) / 1e6 for due, started, _ in rows],
            "service": [(ended - started) / 1e6 for _, started, ended in rows],
        }

    def seconds(self) -> float:
        """From the first query's scheduled time until the last end."""
        return (max(self.ended) - min(self.scheduled)) / 1e9 if self.ended else 0.0

    def packed(self) -> str:
        """The columns as text; `unpacked` reads it."""
        content = b"".join(column.tobytes() for column in self.columns())
        return base64.b64encode(zlib.compress(content, 1)).decode()

    @classmethod
    def unpacked(cls, text: str) -> QueryLog:
        """What `packed` gave; raises ValueError for anything else."""
        try:
            content = zlib.decompress(base64.b64decode(text, validate=True))
        except zlib.error as error:
            raise ValueError(f"the columns of queries cannot be read: {error}") from error
        if len(content) % (8 * len(COLUMNS)):
            raise ValueError(f"{len(content)} bytes are no {len(COLUMNS)} columns")
        size = len(content) // len(COLUMNS)
        return cls(*(array("q", content[place : place + size]) for place in range(0, len(content), size or 1)))
