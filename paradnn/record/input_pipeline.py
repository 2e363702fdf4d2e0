"""The host-device balance of a run with real input: metrics from what the worker measured beside its blocks.

Sources: the paper, section 4.4, for the share of the step spent waiting; the rest is defined in docs/input.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from paradnn.worker.messages import InputMeasurement
from paradnn.worker.series import median_interval

__all__ = ["balance_checks", "balance_metrics"]


def balance_metrics(
    measured: InputMeasurement, blocks: Sequence[float], batch_size: int, platform: str
) -> dict[str, float]:
    """Metrics of the input of blocks that took so many seconds.

    On a CPU a step ends before the next batch is asked for, so what is waited for a batch is time in which nothing is
    computed. Elsewhere the host runs ahead of the device: there the share is what the fed step takes longer than the
    one whose batch stays.
    """
    free, fed, alone = measured.free_step_seconds, measured.fed_step_seconds, measured.alone
    gains = [slow / fast - 1 for slow, fast in zip(fed, free, strict=True)]
    metrics = {
        "infeed_fraction": sum(measured.waits) / sum(blocks),
        "input_threads": float(measured.threads),
        "input_damaged": float(measured.damaged),
        **_estimate("input_cpu_ms_per_example", [1e3 * part.cpu_seconds / part.examples for part in alone]),
        **_estimate("infeed_gain", gains),
        **_estimate("input_free_examples_per_second", [batch_size / seconds for seconds in free]),
        **_estimate("input_examples_per_second", [part.examples / part.seconds for part in alone]),
        **{f"input_stage_ms.{name}": 1e3 * seconds for name, seconds in measured.stages.items()},
    }
    if platform != "cpu":
        metrics["infeed_fraction"] = max(0.0, 1 - 1 / (1 + metrics["infeed_gain"]))
    if measured.memory_bytes is not None:
        metrics["input_memory_bytes"] = float(measured.memory_bytes)
    return metrics


def balance_checks(metrics: Mapping[str, float], measured: InputMeasurement, blocks: Sequence[float]) -> list[str]:
    """Contradictions among what was measured of the input."""
    problems = []
    if not 0 <= metrics["infeed_fraction"] <= 1:
        problems.append(f"the step waited for {metrics['infeed_fraction']:.3f} of its time")
    if len(measured.waits) != len(blocks):
        problems.append(f"{len(measured.waits)} waits of {len(blocks)} blocks")
    if not 0 <= measured.damaged <= measured.read:
        problems.append(f"{measured.damaged} of {measured.read} examples read were damaged")
    return problems


def _estimate(name: str, values: Sequence[float]) -> dict[str, float]:
    """The median, and its 95% interval where there are enough values."""
    estimate = {name: statistics.median(values)}
    if interval := median_interval(values):
        estimate |= {f"{name}_low": interval[0], f"{name}_high": interval[1]}
    return estimate
