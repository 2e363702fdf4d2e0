"""The picture of one measured run: `overview.svg`, and `overview.html` with readouts.

Both files show the result as text, the roofline, the step time of each block and of the warm-up,
the operations, and the phases. A block is a number of steps that are timed together. A kind of work
adds its own charts (`RunRecords.charts`). Both files are self-contained and drawn in a few
milliseconds.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from paradnn.cli.console import si
from paradnn.core.messages import OperationTable, Profile, Timing
from paradnn.core.words import in_seconds, rounded
from paradnn.session.overview.drawing import (
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    PALETTE,
    Bar,
    BarChart,
    Chart,
    ChartAxis,
    page,
)
from paradnn.session.run_records import RunRecords, has_valid_steps
from paradnn.session.run_series import warmup_step_times

if TYPE_CHECKING:
    from paradnn.session.measured import Measured
    from paradnn.store.runs import Record

_FOLDER = Path(__file__).parent
#: Maximum number of rows of a bar chart.
_MAX_BARS = 9
#: Share of the total wall time below which a phase is not shown.
_MIN_PHASE_SHARE = 0.002
#: Factor by which the x axis of a roofline extends beyond the ridge and the point.
_ROOFLINE_MARGIN = 6.0
#: Warm-up blocks slower than this multiple of the median do not widen the axis of step times.
_WARMUP_RATIO = 2.0
#: Labels of a distribution's axis, by 1 / (1 - share).
_PERCENTILES = {
    2: "50%",
    10: "90%",
    100: "99%",
    1000: "99.9%",
    10_000: "99.99%",
    100_000: "99.999%",
}
_MAX_QUANTILES = 80


def overview_files(measured: Measured, record: Record) -> dict[str, str]:
    """Return the overview of a run as an SVG and an HTML file: file name -> content.

    Args:
        measured: The measured configuration with the results of its processes.
        record: Metrics, tags and description of its run.
    """
    title = record.name
    lines = [line.replace("**", "") for line in record.description.split("\n\n")]
    picture = page(title, lines, list(_charts(measured, record)))
    return {"overview.svg": picture, "overview.html": _interactive(title, picture)}


def _interactive(title: str, picture: str) -> str:
    """Return an HTML page with the picture, and with a script that shows values at the pointer.

    The page's security policy allows only this script, which it identifies by a hash. The policy
    forbids the page to load anything.
    """
    script = (_FOLDER / "readouts.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = (_FOLDER / "page.html").read_text(encoding="utf-8")
    parts = {"digest": digest, "title": escape(title), "picture": picture, "script": script}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _charts(measured: Measured, record: Record) -> Iterator[Chart | BarChart]:
    metrics = record.metrics
    yield from measured.point.workload.role(RunRecords).charts(measured, metrics)
    if record.outcome.startswith("oom"):
        yield _memory_chart(metrics)
    if has_valid_steps(measured):
        if "flops_per_second" in metrics and "peak_bytes_per_second" in metrics:
            yield roofline_chart(metrics)
        yield _block_chart([entry.timing for entry in measured.timed], metrics)
        profile = measured.answers[0].profile
        if isinstance(profile, Profile):
            yield _operation_chart(profile.operation_types)
    phases = _phase_chart(metrics)
    if phases.bars:
        yield phases


def roofline_chart(metrics: Mapping[str, float]) -> Chart:
    """Return a chart of a platform's roofline with the position of one measured configuration.

    The roofline model is that of Williams et al., CACM 2009.

    Args:
        metrics: Metrics of the configuration by name. The required metrics are `flops_per_second`,
            `arithmetic_intensity`, `peak_flops_per_second` and `peak_bytes_per_second`. If
            `step_time_low_ms` and `step_time_high_ms` are present, the chart shows the interval.
            `step_time_ms` is then required, too.
    """
    rate = metrics["flops_per_second"]
    intensity = metrics["arithmetic_intensity"]
    peak = metrics["peak_flops_per_second"]
    bandwidth = metrics["peak_bytes_per_second"]
    ridge = peak / bandwidth
    first = min(ridge, intensity) / _ROOFLINE_MARGIN
    last = max(ridge, intensity) * _ROOFLINE_MARGIN
    roof = min(peak, intensity * bandwidth)
    x = ChartAxis.log("arithmetic intensity (FLOP/byte)", [first, last])
    y = ChartAxis.log("FLOP/s", [rate, first * bandwidth, peak], si)
    chart = Chart("Roofline", x, y)
    tip = f"measured peaks: {si(peak)}FLOP/s, {si(bandwidth)}B/s, ridge at {rounded(ridge)} FLOP/B"
    chart.line([(first, first * bandwidth), (ridge, peak), (last, peak)], GRAY, tip=tip)
    chart.note(last, peak, f"{si(peak)}FLOP/s", anchor="end")
    chart.note(first * 1.3, first * bandwidth, f"{si(bandwidth)}B/s")
    chart.line([(intensity, rate), (intensity, roof)], ORANGE, dashes="3 3")
    low = metrics.get("step_time_low_ms")
    high = metrics.get("step_time_high_ms")
    if low and high:
        middle = metrics["step_time_ms"]
        chart.interval(intensity, rate * middle / high, rate * middle / low, ORANGE)
    share = f"{rate / roof:.0%} of the roof"
    tip = f"{si(rate)}FLOP/s at {rounded(intensity)} FLOP/byte, {share}"
    chart.dots([(intensity, rate)], ORANGE, [tip], radius=5)
    side = "end" if intensity > ridge else "start"
    offset = 0.92 if side == "end" else 1.08
    chart.note(intensity * offset, rate, share, ORANGE, side)
    return chart


def _block_chart(timings: Sequence[Timing], metrics: Mapping[str, float]) -> Chart:
    """Return a chart of the step time of each block, with the 95% interval if it is known.

    A block is a number of steps that are timed together. The warm-up of the first process has
    negative block numbers.

    Args:
        timings: Timing of each process.
        metrics: Metrics of the run, including `step_time_ms`.
    """
    warmup = [1e3 * seconds for seconds in warmup_step_times(timings[0])]
    middle = metrics["step_time_ms"]
    ends = [metrics[name] for name in ("step_time_low_ms", "step_time_high_ms") if name in metrics]
    measured = [1e3 * seconds for timing in timings for seconds in timing.step_times]
    ordinary = [value for value in warmup if value < _WARMUP_RATIO * middle]
    y = ChartAxis.linear("step time (ms)", [*measured, *ends, *ordinary])
    x = ChartAxis.linear("block", [-len(warmup), len(measured) - 1], "{:,.0f}".format)
    chart = Chart("Step time of each block", x, y)
    if len(ends) == 2:
        tip = f"95% interval: {ends[0]:.4g} to {ends[1]:.4g} ms"
        chart.band(ends[0], ends[1], BLUE, tip)
    chart.line([(x.low, middle), (x.high, middle)], BLUE, dashes="6 4", tip=f"{middle:.4g} ms")
    if warmup:
        chart.legend.append(("warm-up", GRAY))
        points = [(number - len(warmup), value) for number, value in enumerate(warmup)]
        tips = [f"warm-up {number:.0f}: {value:.4g} ms" for number, value in points]
        chart.dots(points, GRAY, tips)
    first = 0
    for process, timing in enumerate(timings):
        color = PALETTE[process % len(PALETTE)]
        points = [(first + number, 1e3 * value) for number, value in enumerate(timing.step_times)]
        first += len(points)
        chart.dots(points, color, [f"block {n:.0f}: {value:.4g} ms" for n, value in points])
        if len(timings) <= len(PALETTE):
            name = "measured" if len(timings) == 1 else f"process {process + 1}"
            chart.legend.append((name, color))
    return chart


def _operation_chart(types: OperationTable) -> BarChart:
    """Return a chart of how the time of a profiled step divides among operation types.

    Bars are colored by the category of the operation.
    """
    rows = types.rows()
    categories = list(dict.fromkeys(row["category"] for row in rows[:-1]))
    colors = dict(zip(categories, chain(PALETTE, [GRAY] * len(categories)), strict=False))
    shown = rows[:-1][: _MAX_BARS - 2]
    bars = [
        Bar(row["type"], row["share"], f"{row['share']:.1%}", colors[row["category"]])
        for row in shown
    ]
    rest = sum(row["share"] for row in rows[:-1][len(shown) :])
    if rest > 0:
        count = len(rows) - 1 - len(shown)
        bars.append(Bar(f"{count} other types", rest, f"{rest:.1%}", GRAY))
    idle = rows[-1]["share"]
    bars.append(Bar("no operation", idle, f"{idle:.1%}", GRAY))
    used = dict.fromkeys(row["category"] for row in shown)
    legend = [(category, colors[category]) for category in used][: len(PALETTE)]
    return BarChart("Share of the profiled step", bars, legend)


def _phase_chart(metrics: Mapping[str, float]) -> BarChart:
    """Return a chart of the wall time of the phases, in their order."""
    seconds = {
        found[1]: value
        for name, value in metrics.items()
        if (found := re.fullmatch("phase_(.*)_seconds", name))
    }
    total = sum(seconds.values())
    bars = [
        Bar(name, value, in_seconds(value), GREEN)
        for name, value in seconds.items()
        if value > _MIN_PHASE_SHARE * total
    ]
    return BarChart(f"Wall time of the phases, {in_seconds(total)} in total", bars)


def _memory_chart(metrics: Mapping[str, float]) -> BarChart:
    """Return a chart of the known memory metrics: estimated lower bound, peaks, and limit."""
    known = {
        "analytic lower bound": ("memory_lower_bound_bytes", BLUE),
        "peak until the end": ("peak_memory_bytes", ORANGE),
        "peak on the device": ("peak_device_memory_bytes", ORANGE),
        "limit": ("memory_limit_bytes", GRAY),
    }
    bars = [
        Bar(name, metrics[metric], f"{si(metrics[metric])}B", color)
        for name, (metric, color) in known.items()
        if metric in metrics
    ]
    return BarChart("Memory against the limit", bars)


def distribution_chart(
    title: str, processes: Sequence[Sequence[float]], limit: float | None = None
) -> Chart:
    """Return a chart of latency quantiles, with one curve per process.

    The x axis shows the quantile q, on a logarithmic scale of 1 / (1 - q).

    Args:
        title: Title of the chart.
        processes: Latencies in milliseconds of each process; at least one process, each with at
            least one latency.
        limit: Latency limit in milliseconds, drawn as a line; None draws no line.
    """
    largest_count = max(map(len, processes))
    values = [value for process in processes for value in process]
    x = ChartAxis.log("percentile", [1.0, max(10.0, float(largest_count))], _percentile)
    shown = values if limit is None else [*values, limit]
    chart = Chart(title, x, ChartAxis.linear("latency (ms)", shown, has_zero=True))
    for number, process in enumerate(processes):
        ordered = sorted(process)
        count = len(ordered)
        slower = sorted({*_log_spaced_counts(count)}, reverse=True)
        points = [(count / slow, ordered[count - slow]) for slow in slower]
        tips = [f"{1 - 1 / inverse:.4%} within {value:.4g} ms" for inverse, value in points]
        color = PALETTE[number % len(PALETTE)]
        chart.line(points, color)
        chart.dots(points, color, tips, radius=2)
        if 1 < len(processes) <= len(PALETTE):
            chart.legend.append((f"process {number + 1}", color))
    if limit is not None:
        chart.line(
            [(x.low, limit), (x.high, limit)], ORANGE, dashes="6 4", tip=f"limit {limit:g} ms"
        )
        chart.note(x.low * 1.05, limit, f"limit {limit:g} ms", ORANGE)
    return chart


def _log_spaced_counts(count: int) -> Iterator[int]:
    """Yield integers from `count` down to 1, evenly spaced on a logarithmic axis."""
    for step in range(_MAX_QUANTILES):
        yield max(1, round(count ** (1 - step / (_MAX_QUANTILES - 1))))


def _percentile(inverse: float) -> str:
    return _PERCENTILES.get(round(inverse), "")
