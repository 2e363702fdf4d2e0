"""Metrics of a search for the highest query rate that meets a latency limit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from paradnn.session.measured import mean_interval
from paradnn.worker.peak_search import Probe


def peak_metrics(peaks: Sequence[float], probes: Sequence[Sequence[Probe]]) -> dict[str, float]:
    """Return metrics of a search for the highest query rate that meets a latency limit.

    The true peak of each process lies between its highest rate that met the limit and its lowest
    rate that certainly failed. For a single process, these two rates are the ends of the interval.
    For several processes, each of the two rates has a mean with a 95% interval. The low end is the
    lower end for the first rate, and the high end is the upper end for the second rate.

    Args:
        peaks: For each process, the highest rate that met the limit, in queries per second.
        probes: For each process, all tried rates with their verdicts.

    Returns:
        Four metrics in queries per second: the highest rate that met the limit, the two ends of its
        interval, and the lowest rate that did not meet the limit. Unknown rates are omitted.
    """
    lowest_failed = _lowest_failed(peaks, probes, verdicts=(False, None))
    certainly_failed = _lowest_failed(peaks, probes, verdicts=(False,))
    low = peaks[0]
    high = certainly_failed[0]
    if len(peaks) > 1:
        low = mean_interval(peaks)[0]
        high = math.inf
        if max(certainly_failed) < math.inf:
            high = mean_interval(certainly_failed)[1]
    failed = math.inf
    if max(lowest_failed) < math.inf:
        failed = statistics.geometric_mean(lowest_failed)
    metrics = {
        "peak_queries_per_second": statistics.geometric_mean(peaks),
        "peak_queries_per_second_low": low,
        "peak_queries_per_second_high": high,
        "failed_queries_per_second": failed,
    }
    return {name: value for name, value in metrics.items() if value < math.inf}


def _lowest_failed(
    peaks: Sequence[float],
    probes: Sequence[Sequence[Probe]],
    verdicts: tuple[bool | None, ...],
) -> list[float]:
    """Return for each process the lowest rate above its peak that failed.

    Args:
        peaks: For each process, the highest rate that met the limit, in queries per second.
        probes: For each process, all tried rates with their verdicts.
        verdicts: Verdicts of a probe that count as failed: False if the rate exceeded the limit,
            None if the probe did not decide whether it met the limit.

    Returns:
        The rates in queries per second; infinite for a process in which no rate failed.
    """
    lowest = []
    for peak, tried in zip(peaks, probes, strict=True):
        rates = [probe.rate for probe in tried if probe.held in verdicts and probe.rate > peak]
        lowest.append(min(rates, default=math.inf))
    return lowest
