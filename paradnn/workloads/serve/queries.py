"""What a load gave: when each query was to come, was issued, began and ended; and the probes before."""

from __future__ import annotations

import base64
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from paradnn.core.workload import Part

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


@dataclass(frozen=True)
class Probe:
    """A look at one rate (queries/s) in the search of the highest: how many were served, how many later than the limit.

    latency: seconds, at the percentile of the limit. held: None where neither verdict was sure; reason: why the load
    was not what was asked for.
    """

    rate: float
    queries: int
    late: int
    seconds: float
    latency: float
    held: bool | None
    reason: str | None


@dataclass(frozen=True)
class Load(Part):
    """What a scenario gave: the queries (`QueryLog.packed`), and the probes before them, in their order.

    rate: queries/s that were asked for; None where no schedule asks. single_seconds: what one query takes alone.
    joules: energy while they were served, None where it is not counted.
    """

    of: ClassVar[str] = "load"

    rate: float | None
    single_seconds: float
    queries: str
    probes: list[Probe]
    joules: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where the queries cannot be read."""
        self.log()

    def log(self) -> QueryLog:
        """The queries that were served."""
        return QueryLog.unpacked(self.queries)
