"""The host-device balance of a run with real input: metrics from what the worker measured beside its blocks.

Sources: the paper, section 4.4, for the share of the step spent waiting; the rest is defined in docs/input.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from paradnn.record.statistics import median_interval

__all__ = ["balance_checks", "balance_metrics"]


def balance_metrics(result: Mapping[str, Any], batch_size: int, platform: str) -> dict[str, float]:
    """Metrics of `result["input"]`; none of a run whose batch is on the device.

    On a CPU a step ends before the next batch is asked for, so what is waited for a batch is time in which nothing is
    computed. Elsewhere the host runs ahead of the device: there the share is what the fed step takes longer than the
    one whose batch stays.
    """
    given = result.get("input")
    if not given:
        return {}
    free, fed, alone = given["free_step_seconds"], given["fed_step_seconds"], given["alone"]
    gains = [slow / fast - 1 for slow, fast in zip(fed, free, strict=True)]
    found = {
        "infeed_fraction": sum(given["waits"]) / sum(result["blocks"]),
        "input_threads": float(given["threads"]),
        "input_damaged": float(given["damaged"]),
        **_estimate("input_cpu_ms_per_example", [1e3 * part["cpu_seconds"] / part["examples"] for part in alone]),
        **_estimate("infeed_gain", gains),
        **_estimate("input_free_examples_per_second", [batch_size / seconds for seconds in free]),
        **_estimate("input_examples_per_second", [part["examples"] / part["seconds"] for part in alone]),
        **{f"input_stage_ms.{name}": 1e3 * seconds for name, seconds in given["stages"].items()},
    }
    if platform != "cpu":
        found["infeed_fraction"] = max(0.0, 1 - 1 / (1 + found["infeed_gain"]))
    if given["memory_bytes"] is not None:
        found["input_memory_bytes"] = float(given["memory_bytes"])
    return found


def balance_checks(metrics: Mapping[str, float], result: Mapping[str, Any]) -> list[str]:
    """Contradictions among what was measured of the input."""
    given = result.get("input")
    if not given:
        return []
    problems = []
    if not 0 <= metrics["infeed_fraction"] <= 1:
        problems.append(f"the step waited for {metrics['infeed_fraction']:.3f} of its time")
    if len(given["waits"]) != len(result["blocks"]):
        problems.append(f"{len(given['waits'])} waits of {len(result['blocks'])} blocks")
    if not 0 <= given["damaged"] <= given["read"]:
        problems.append(f"{given['damaged']} of {given['read']} examples read were damaged")
    return problems


def _estimate(name: str, values: Sequence[float]) -> dict[str, float]:
    """The median, and its 95% interval where there are enough values."""
    found = {name: statistics.median(values)}
    if interval := median_interval(values):
        found |= {f"{name}_low": interval[0], f"{name}_high": interval[1]}
    return found
