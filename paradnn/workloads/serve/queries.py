"""Served queries: their log, the message to the driver, and the artifacts of a run."""

from __future__ import annotations

import base64
import io
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paradnn.core.channel import pack_bytes, plain, unpack_bytes
from paradnn.core.messages import Answer, WorkloadMessage, messages_of_kind
from paradnn.worker.peak_search import Probe

#: Columns of a query log: times of a query in ns of one clock, and `together`, the number of
#: queries in its batch.
COLUMNS = ("scheduled", "issued", "started", "ended", "together")
#: Range and significant digits of the latency histogram: 1 us to one hour, three digits.
_MAX_MICROSECONDS = 3_600_000_000
_DIGITS = 3


class QueryLog:
    """A log of all served queries, in order.

    For each name in `COLUMNS`, such as "scheduled", an attribute contains the column's values.

    Args:
        content: The queries as rows of 64-bit integers, one integer per column; empty for a new
            log.

    Raises:
        ValueError: If the content is not a whole number of rows.
    """

    def __init__(self, content: bytes = b"") -> None:
        self._values = array("q", content)
        if len(self._values) % len(COLUMNS):
            raise ValueError(
                f"the query log is truncated: it has {len(content)} bytes, which is not a "
                f"multiple of {8 * len(COLUMNS)}, the size of a row of {len(COLUMNS)} integers"
            )

    def __len__(self) -> int:
        return len(self._values) // len(COLUMNS)

    def __getattr__(self, name: str) -> array[int]:
        if name not in COLUMNS:
            raise AttributeError(name)
        return self._values[COLUMNS.index(name) :: len(COLUMNS)]

    def add(self, batch: Sequence[tuple[int, int]], started: int, ended: int) -> None:
        """Add the queries of one batch.

        Args:
            batch: For each query, the times at which it was scheduled and issued, in ns.
            started: When the batch started, in ns.
            ended: When the batch ended, in ns.
        """
        for scheduled, issued in batch:
            self._values.extend((scheduled, issued, started, ended, len(batch)))

    def latencies(self) -> list[int]:
        """Return each query's latency, from its scheduled time to the end of its batch, in ns."""
        return [
            ended - scheduled for scheduled, ended in zip(self.scheduled, self.ended, strict=True)
        ]

    def parts(self) -> dict[str, list[float]]:
        """Return the latency, the queue time and the service time of each query, in ms.

        The keys are "latency", "queue" and "service". Latency is queue time plus service time.
        """
        spans = {
            "latency": (self.scheduled, self.ended),
            "queue": (self.scheduled, self.started),
            "service": (self.started, self.ended),
        }
        return {
            name: [(end - begin) / 1e6 for begin, end in zip(begins, ends, strict=True)]
            for name, (begins, ends) in spans.items()
        }

    def delays(self) -> list[int]:
        """Return each query's delay, from its scheduled time to its actual issue, in ns."""
        return [issued - due for due, issued in zip(self.scheduled, self.issued, strict=True)]

    def seconds(self) -> float:
        """Return the time from the first scheduled query to the end of the last batch, in s."""
        if not self:
            return 0.0
        return (max(self.ended) - min(self.scheduled)) / 1e9

    def packed(self) -> str:
        """Return the log as text for a message; `unpack_bytes` reverses it."""
        return pack_bytes(self._values.tobytes())


@dataclass(frozen=True)
class Load(WorkloadMessage):
    """The message that reports the queries of one process to the driver.

    Attributes:
        rate: Scheduled queries per second; None without a schedule.
        single_seconds: Service time of a single query without other load, in seconds.
        queries: The queries as text, packed by `QueryLog.packed`.
        probes: Results of all rates that a search for the highest rate tried.
        joules: Energy during the load in J; None if it is not measured.
    """

    wire_name: ClassVar[str] = "load"

    rate: float | None
    single_seconds: float
    queries: str
    probes: list[Probe]
    joules: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the queries cannot be unpacked."""
        self.log()

    def log(self) -> QueryLog:
        """Return the unpacked queries.

        Raises:
            ValueError: If they cannot be unpacked.
        """
        return QueryLog(unpack_bytes(self.queries))


def load_artifacts(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the contents of the files that describe a measurement's queries, by file name.

    - probes.json: the tried rates, if the highest rate was searched;
    - queries.parquet: all queries;
    - latency.hgrm and latency.hdr: the latency histogram in microseconds, as text and in
      HdrHistogram's encoded form.

    Args:
        answers: Answers of all processes.
    """
    loads = messages_of_kind(answers, Load)
    artifacts: dict[str, Any] = {}
    probes = [plain(probe) for load in loads for probe in load.probes]
    if probes:
        artifacts["probes.json"] = {"unit": "s", "probes": probes}
    logs = [log for log in (load.log() for load in loads) if log]
    if logs:
        artifacts["queries.parquet"] = {"base64": base64.b64encode(_parquet(logs)).decode()}
        artifacts |= _histogram_files(logs)
    return artifacts


def _parquet(logs: Sequence[QueryLog]) -> bytes:
    """Return the queries of all processes as the bytes of a Parquet file.

    Its columns are `process`, which counts from 1, and those in `COLUMNS`.

    Args:
        logs: The served queries of each process.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"process": [number for number, log in enumerate(logs, 1) for _ in range(len(log))]}
    for name in COLUMNS:
        columns[name] = [value for log in logs for value in getattr(log, name)]
    table = io.BytesIO()
    pq.write_table(pa.table(columns), table, compression="zstd")
    return table.getvalue()


def _histogram_files(logs: Sequence[QueryLog]) -> dict[str, str]:
    from hdrh.histogram import HdrHistogram

    histogram = HdrHistogram(1, _MAX_MICROSECONDS, _DIGITS)
    for log in logs:
        for latency in log.latencies():
            histogram.record_value(min(latency // 1000, _MAX_MICROSECONDS))
    text = io.BytesIO()
    histogram.output_percentile_distribution(text, 1000)
    return {
        "latency.hgrm": text.getvalue().decode(),
        "latency.hdr": histogram.encode().decode(),
    }
