"""What a run keeps of a load: every query, the histogram of latencies, and a picture of them.

The picture shows their distribution, how they went over time, and over the rates that a search tried.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paradnn.worker.channel import plain
from paradnn.worker.messages import Answer
from paradnn.workloads.serve.load import percentile
from paradnn.workloads.serve.queries import COLUMNS, Load, Probe, QueryLog

if TYPE_CHECKING:
    from hdrh.histogram import HdrHistogram
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from paradnn.workloads.serve import Server

#: The histogram counts microseconds, up to an hour, to three digits.
_MOST, _DIGITS = 3_600_000_000, 3
#: Windows of time of which each has its quantiles.
_WINDOWS = 60
_GREY = "#777777"


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
    """Distribution of latency, queue and service; latency over time; latency over rate, of a search of the peak.

    Of several processes time and probes are those of the first.
    """
    from paradnn.plotting import figure

    probes = [probe for probe in given[0].probes if probe.queries]
    drawn, axes = figure(15.0 if probes else 11.0, 4.4, columns=3 if probes else 2)
    drawn.suptitle(title, x=0.01, ha="left", fontsize=12)
    _distribution(axes[0, 0], given, limit)
    _over_time(axes[0, 1], given[0], limit)
    if probes and limit:
        _over_rate(axes[0, 2], probes, given[0].rate, limit)
    return drawn


def _distribution(axes: Axes, given: Sequence[Load], limit: Server | None) -> None:
    """Cumulative shares, on an axis that gives each further nine as much room."""
    from paradnn.plotting import COLOURS, finish

    each = [load.log().parts() for load in given]
    for colour, (name, label) in zip(
        COLOURS, (("latency", "latency"), ("queue", "of that waiting"), ("service", "being served")), strict=False
    ):
        values = sorted(value for process in each for value in process[name])
        count = len(values)
        # A few hundred places, dense where few values are: at both ends of the axis.
        last = set(range(max(0, count - 40), count))
        kept = sorted({int(count * (1 - 10 ** (-step / 60))) for step in range(600)} & set(range(count)) | last)
        axes.step([values[place] for place in kept], [1 - place / count for place in kept], color=colour, label=label)
    axes.set_yscale("log")
    axes.invert_yaxis()
    least = 1 / max(1, sum(len(load.log()) for load in given))
    ticks = [0.5, *(10.0**-power for power in range(1, 7) if 10.0**-power >= least)]
    axes.set_yticks(ticks, [f"{100 * (1 - tick):.6g}%" for tick in ticks])
    axes.minorticks_off()
    axes.set_xscale("log")
    # Who hardly waited at all is not what the picture is about.
    axes.set_xlim(left=min(value for process in each for value in process["latency"]) / 20)
    axes.xaxis.set_major_formatter(_plain)
    _mark(axes, limit, vertical=True)
    finish(axes, "Distribution", "ms", "share of the queries that took no longer")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _over_time(axes: Axes, load: Load, limit: Server | None) -> None:
    from paradnn.plotting import COLOURS, finish

    log = load.log()
    first, last = min(log.scheduled), max(log.scheduled)
    width = max(1, (last - first) // _WINDOWS + 1)
    windows: dict[int, list[float]] = {}
    for due, ended in zip(log.scheduled, log.ended, strict=True):
        windows.setdefault((due - first) // width, []).append((ended - due) / 1e6)
    times = [(window + 0.5) * width / 1e9 for window in windows]
    for colour, share, label in ((COLOURS[0], 0.5, "median"), (COLOURS[1], 0.99, "p99")):
        axes.plot(times, [percentile(values, share) for values in windows.values()], color=colour, label=label)
    axes.set_ylim(bottom=0)
    _mark(axes, limit)
    finish(axes, "Over time", "s, of the scheduled arrival", "latency (ms)")
    axes.legend(frameon=False, fontsize=8)


def _over_rate(axes: Axes, probes: Sequence[Probe], found: float | None, limit: Server) -> None:
    from paradnn.plotting import COLOURS, finish

    for held, colour, marker, label in (
        (True, COLOURS[2], "o", "held"),
        (False, COLOURS[1], "x", "failed"),
        (None, _GREY, "s", "not shown to hold"),
    ):
        some = [probe for probe in probes if probe.held is held]
        if some:
            rates, latencies = [probe.rate for probe in some], [1e3 * probe.latency for probe in some]
            axes.plot(rates, latencies, marker, color=colour, label=label)
    if found:
        axes.axvline(found, color=_GREY, linewidth=1, linestyle=":")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(_plain)
    axes.yaxis.set_minor_formatter(_plain)
    _mark(axes, limit)
    finish(axes, "Over the rate", "queries/s", f"latency, p{limit.percentile:g} (ms)")
    axes.legend(frameon=False, fontsize=8)


def _plain(value: float, _: object) -> str:
    return f"{value:g}"


def _mark(axes: Axes, limit: Server | None, vertical: bool = False) -> None:
    if limit:
        draw = axes.axvline if vertical else axes.axhline
        draw(limit.latency_ms, color=_GREY, linewidth=1, linestyle="--", label=f"limit {limit.latency_ms:g} ms")
