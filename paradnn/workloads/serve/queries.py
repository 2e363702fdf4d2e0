"""What a load gave: when each query was to come, was issued, began and ended; the probes before;
what a run keeps.
"""

from __future__ import annotations

import base64
import io
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from paradnn.core.channel import plain
from paradnn.core.messages import Answer, WorkloadMessage, messages_of_kind


def packed(content: bytes) -> str:
    """Bytes as a text that a message holds."""
    return base64.b64encode(zlib.compress(content, 1)).decode()


def unpacked(text: str) -> bytes:
    """What `packed` was given; raises ValueError for anything else."""
    try:
        return zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error as error:
        raise ValueError(f"what was sent cannot be read: {error}") from error


#: ns on one clock, and how many queries were served in one batch.
COLUMNS = ("scheduled", "issued", "started", "ended", "together")
#: The histogram counts microseconds, up to an hour, to three digits.
_MOST = 3_600_000_000
_DIGITS = 3
Number = TypeVar("Number", int, float)


def percentile(values: Iterable[Number], share: float) -> Number:
    """The value that LoadGen reports: of n in order the one at place n x share, from 0."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


class QueryLog:
    """All queries that were served, in their order; each of `COLUMNS` is an attribute."""

    def __init__(self, content: bytes = b"") -> None:
        """Of what `packed` holds; raises ValueError for what is no whole number of queries."""
        self._values = array("q", content)
        if len(self._values) % len(COLUMNS):
            raise ValueError(f"{len(content)} bytes are no rows of {len(COLUMNS)} columns")

    def __len__(self) -> int:
        return len(self._values) // len(COLUMNS)

    def __getattr__(self, name: str) -> array[int]:
        if name not in COLUMNS:
            raise AttributeError(name)
        return self._values[COLUMNS.index(name) :: len(COLUMNS)]

    def add(self, batch: Sequence[tuple[int, int]], started: int, ended: int) -> None:
        """A batch of queries, (scheduled, issued) each, was served."""
        for scheduled, issued in batch:
            self._values.extend((scheduled, issued, started, ended, len(batch)))

    def latencies(self) -> list[int]:
        """Nanoseconds from the moment at which each was to come until its end."""
        return [
            ended - scheduled for scheduled, ended in zip(self.scheduled, self.ended, strict=True)
        ]

    def parts(self) -> dict[str, list[float]]:
        """Milliseconds of every query: its latency, and what of that was waiting in the queue and
        being served.
        """
        ends = {"latency": (self.scheduled, self.ended), "queue": (self.scheduled, self.started)}
        ends["service"] = (self.started, self.ended)
        return {
            name: [(end - begin) / 1e6 for begin, end in zip(*pair, strict=True)]
            for name, pair in ends.items()
        }

    def late(self) -> list[int]:
        """Nanoseconds by which each was issued after its time."""
        return [issued - due for due, issued in zip(self.scheduled, self.issued, strict=True)]

    def seconds(self) -> float:
        """From the first query's scheduled time until the last end."""
        return (max(self.ended) - min(self.scheduled)) / 1e9 if self else 0.0

    def packed(self) -> str:
        """As a text."""
        return packed(self._values.tobytes())


@dataclass(frozen=True)
class Probe:
    """A look at one rate (queries/s) in the search of the highest: how many were served, how many
    later than the limit; latency: seconds, at the percentile of the limit; held: None where neither
    verdict was sure; reason: why the load was not what was asked for.
    """

    rate: float
    queries: int
    late: int
    seconds: float
    latency: float
    held: bool | None
    reason: str | None


@dataclass(frozen=True)
class Load(WorkloadMessage):
    """What a scenario gave: the queries (`QueryLog.packed`), and the probes before them; rate:
    queries/s asked, None where no schedule asks; single_seconds: what one query takes alone;
    joules: energy meanwhile, None: not counted.
    """

    wire_name: ClassVar[str] = "load"

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
        return QueryLog(unpacked(self.queries))


def load_artifacts(answers: Sequence[Answer]) -> dict[str, Any]:
    """All queries as a table, the histogram of their latency in us with its encoded form, the
    probes.
    """
    given = messages_of_kind(answers, Load)
    artifacts: dict[str, Any] = {}
    probes = [plain(probe) for load in given for probe in load.probes]
    if probes:
        artifacts["probes.json"] = {"unit": "s", "probes": probes}
    logs = [log for load in given if (log := load.log())]
    if not logs:
        return artifacts
    import pyarrow as pa
    import pyarrow.parquet as pq
    from hdrh.histogram import HdrHistogram

    columns = {"process": [number for number, log in enumerate(logs, 1) for _ in range(len(log))]}
    columns |= {name: [value for log in logs for value in getattr(log, name)] for name in COLUMNS}
    table = io.BytesIO()
    text = io.BytesIO()
    counts = HdrHistogram(1, _MOST, _DIGITS)
    pq.write_table(pa.table(columns), table, compression="zstd")
    for latency in (latency for log in logs for latency in log.latencies()):
        counts.record_value(min(latency // 1000, _MOST))
    counts.output_percentile_distribution(text, 1000)
    queries = {"base64": base64.b64encode(table.getvalue()).decode()}
    files = {"latency.hgrm": text.getvalue().decode(), "latency.hdr": counts.encode().decode()}
    return artifacts | {"queries.parquet": queries} | files
