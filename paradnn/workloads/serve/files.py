"""What a run keeps of a load: every query, the histogram of latencies, and the probes."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paradnn.worker.channel import plain
from paradnn.worker.messages import Answer
from paradnn.workloads.serve.queries import COLUMNS, Load, QueryLog

if TYPE_CHECKING:
    from hdrh.histogram import HdrHistogram

#: The histogram counts microseconds, up to an hour, to three digits.
_MOST, _DIGITS = 3_600_000_000, 3


def load_artifacts(answers: Sequence[Answer]) -> dict[str, Any]:
    """All queries as a table, the histogram of their latency with its encoded form, the probes."""
    given = [answer.work for answer in answers if isinstance(answer.work, Load)]
    artifacts: dict[str, Any] = {}
    if probes := [plain(probe) for load in given for probe in load.probes]:
        artifacts["probes.json"] = {"unit": "s", "probes": probes}
    if logs := [log for load in given if (log := load.log())]:
        artifacts["queries.parquet"] = _table(logs)
        text, counts = io.BytesIO(), histogram(logs)
        counts.output_percentile_distribution(text, 1000)
        artifacts["latency.hgrm"], artifacts["latency.hdr"] = text.getvalue().decode(), counts.encode().decode()
    return artifacts


def _table(logs: Sequence[QueryLog]) -> dict[str, str]:
    """A row for each query: the process, and its times in ns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    process = [number for number, log in enumerate(logs, 1) for _ in range(len(log))]
    columns = [pa.array([value for log in logs for value in getattr(log, name)]) for name in COLUMNS]
    target = io.BytesIO()
    pq.write_table(pa.table([pa.array(process), *columns], names=["process", *COLUMNS]), target, compression="zstd")
    return {"base64": base64.b64encode(target.getvalue()).decode()}


def histogram(logs: Sequence[QueryLog]) -> HdrHistogram:
    """The latencies of all queries, in microseconds."""
    from hdrh.histogram import HdrHistogram

    counts = HdrHistogram(1, _MOST, _DIGITS)
    for log in logs:
        for latency in log.latencies():
            counts.record_value(min(latency // 1000, _MOST))
    return counts
