"""What a run keeps of a load: every query, the histogram of latencies, and a picture of them.

The picture shows their distribution, and how they went over time.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paradnn.worker.channel import plain
from paradnn.worker.messages import Answer
from paradnn.workloads.serve.load import percentile
from paradnn.workloads.serve.queries import COLUMNS, Load, QueryLog

if TYPE_CHECKING:
    from hdrh.histogram import HdrHistogram
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from paradnn.workloads.serve import Server

#: The histogram counts microseconds, up to an hour, to three digits.
_MOST, _DIGITS = 3_600_000_000, 3
#: Windows of time of which each has its quantiles.
_WINDOWS = 60


def load_artifacts(title: str, limit: Server | None, answers: Sequence[Answer]) -> dict[str, Any]:
    """All queries as a table, the histogram of their latency with its encoded form, the probes, the picture."""
    from paradnn.record.record import image

    given = [load for answer in answers if isinstance(load := answer.work, Load) and load.log()]
    artifacts: dict[str, Any] = {}
    probes = [plain(probe) for answer in answers if isinstance(answer.work, Load) for probe in answer.work.probes]
    if probes:
        artifacts["probes.json"] = {"unit": "s", "probes": probes}
    if given:
        logs = [load.log() for load in given]
        artifacts["queries.parquet"] = _table(logs)
        text, counts = io.BytesIO(), histogram(logs)
        counts.output_percentile_distribution(text, 1000)
        artifacts["latency.hgrm"], artifacts["latency.hdr"] = text.getvalue().decode(), counts.encode().decode()
        artifacts["latency.png"] = image(load_figure(title, limit, given))
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


def load_figure(title: str, limit: Server | None, given: Sequence[Load]) -> Figure:
    """Distribution of latency, queue and service of all processes; latency over time in the first one."""
    from paradnn.plotting import figure

    drawn, axes = figure(11.0, 4.4, columns=2)
    drawn.suptitle(title, x=0.01, ha="left", fontsize=12)
    _distribution(axes[0, 0], given)
    _over_time(axes[0, 1], given[0].log())
    if limit:
        for draw in (axes[0, 0].axvline, axes[0, 1].axhline):
            draw(limit.latency_ms, color="#777777", linewidth=1, linestyle="--", label=f"limit {limit.latency_ms:g} ms")
    for each in axes[0]:
        each.legend(frameon=False, fontsize=8)
    return drawn


def _distribution(axes: Axes, given: Sequence[Load]) -> None:
    """Shares that took longer, on an axis that gives each further nine as much room."""
    from paradnn.plotting import COLOURS, finish

    parts = [load.log().parts() for load in given]
    for colour, name in zip(COLOURS, ("latency", "queue", "service"), strict=False):
        values = sorted(value for process in parts for value in process[name])
        axes.ecdf(values, complementary=True, color=colour, label=name)
    axes.set(xscale="log", yscale="log", ylim=(0.5 / len(values), 1), xlim=(max(1e-3, values[0] / 20), None))
    finish(axes, "Distribution", "ms", "share of the queries that took longer")


def _over_time(axes: Axes, log: QueryLog) -> None:
    from paradnn.plotting import COLOURS, finish

    first = min(log.scheduled)
    width = (max(log.scheduled) - first) // _WINDOWS + 1
    windows: dict[int, list[float]] = {}
    for due, ended in zip(log.scheduled, log.ended, strict=True):
        windows.setdefault((due - first) // width, []).append((ended - due) / 1e6)
    times = [(window + 0.5) * width / 1e9 for window in windows]
    for colour, share, label in ((COLOURS[0], 0.5, "median"), (COLOURS[1], 0.99, "p99")):
        axes.plot(times, [percentile(values, share) for values in windows.values()], color=colour, label=label)
    axes.set_ylim(bottom=0)
    finish(axes, "Over time", "s, of the scheduled arrival", "latency (ms)")
