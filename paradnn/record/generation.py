"""A generation's phases as metrics of a run: docs/generation.md says what each means.

A timed step is one decode step: a token of each example. So the step's metrics are those of a token, under the names by
which servers of language models call them too; what reading the prompts took stands beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from paradnn.config.point import Point
from paradnn.costs import Costs
from paradnn.costs.point import prefill_costs_of
from paradnn.record.statistics import summarise
from paradnn.worker.channel import plain
from paradnn.worker.messages import Answer, Generation, Timing

__all__ = ["generation_artifacts", "generation_checks", "generation_metrics", "generation_tags", "generation_words"]


def generation_metrics(
    point: Point, costs: Costs, answers: Sequence[Answer], metrics: Mapping[str, float]
) -> dict[str, float]:
    """What follows from prefill and decode; `metrics` are those of the decode step. Nothing for another mode."""
    given = _generations(answers)
    if not given or point.generate is None:
        return {}
    found = _token_metrics(point, metrics) | _prefill_metrics(point, [entry.prefill for entry in given], metrics)
    found |= {
        "cache_bytes": costs.cache_bytes,
        "decode_flops": costs.flops_per_step,
        "decode_bytes": costs.bytes_per_step,
        "prefill_compile_seconds": statistics.median(sum(entry.compilation.seconds) for entry in given),
    }
    if bandwidth := metrics.get("peak_bytes_per_second"):
        found["decode_bandwidth_fraction"] = costs.bytes_per_step / (metrics["step_time_ms"] / 1e3) / bandwidth
    others = (point.generate.tokens - 1) * metrics["step_time_ms"]
    return found | {"generation_ms": found["time_to_first_token_ms"] + others}


def _generations(answers: Sequence[Answer]) -> list[Generation]:
    return [answer.generation for answer in answers if answer.generation]


def _token_metrics(point: Point, metrics: Mapping[str, float]) -> dict[str, float]:
    """The decode step as time and rate of a token; an interval where the step has one."""
    found = {}
    for end, other in (("", ""), ("_low", "_high"), ("_high", "_low")):
        if f"step_time{end}_ms" in metrics:
            milliseconds = metrics[f"step_time{end}_ms"]
            found[f"time_per_output_token{end}_ms"] = milliseconds
            found[f"tokens_per_second_per_user{other}"] = 1e3 / milliseconds
            found[f"tokens_per_second{other}"] = point.batch_size * 1e3 / milliseconds
    return found


def _prefill_metrics(point: Point, timings: Sequence[Timing], metrics: Mapping[str, float]) -> dict[str, float]:
    """Time to the first token with its interval, and what reading the prompts comes to."""
    assert point.generate
    costs = prefill_costs_of(point)
    times = summarise([[seconds / timing.steps_per_block for seconds in timing.blocks] for timing in timings])
    found = {
        "time_to_first_token_ms": times.value * 1e3,
        "prompt_tokens_per_second": point.batch_size * point.generate.prompt / times.value,
        "prefill_flops": costs.flops_per_step,
        "prefill_bytes": costs.bytes_per_step,
        "prefill_intensity": costs.flops_per_step / costs.bytes_per_step,
        "prefill_flops_per_second": costs.flops_per_step / times.value,
    }
    if times.low is not None and times.high is not None:
        found |= {"time_to_first_token_low_ms": times.low * 1e3, "time_to_first_token_high_ms": times.high * 1e3}
    if peak := metrics.get("peak_flops_per_second"):
        found["prefill_flops_utilization"] = found["prefill_flops_per_second"] / peak
    return found


def generation_tags(answers: Sequence[Answer]) -> dict[str, str]:
    """Whether reading the prompts was steady in every process, and what says so."""
    timings = [entry.prefill for entry in _generations(answers)]
    if not timings:
        return {}
    reasons = dict.fromkeys(timing.steady_reason for timing in timings if not timing.steady)
    return {
        "prefill_steady": str(not reasons).lower(),
        "prefill_steady_reason": "; ".join(reasons) or timings[0].steady_reason,
    }


def generation_artifacts(answers: Sequence[Answer]) -> dict[str, Any]:
    """Raw times of reading the prompts, of each process."""
    given = _generations(answers)
    return {"prefill.json": {"unit": "s", "processes": [plain(entry) for entry in given]}} if given else {}


def generation_checks(costs: Costs, answer: Answer) -> list[str]:
    """What contradicts the arithmetic; nothing where all agrees."""
    given = answer.generation
    if given is None or given.cache_bytes == costs.cache_bytes:
        return []
    return [f"the cache has {given.cache_bytes} bytes, the analytic count is {costs.cache_bytes}"]


def generation_words(metrics: Mapping[str, float]) -> str:
    """The phases in a line; empty where nothing was generated."""
    if "time_to_first_token_ms" not in metrics:
        return ""
    words = (
        f"first token after {metrics['time_to_first_token_ms']:.3f} ms, "
        f"then {metrics['time_per_output_token_ms']:.3f} ms a token; "
        f"{metrics['tokens_per_second']:,.1f} tokens/s, {metrics['tokens_per_second_per_user']:,.1f} for each user"
    )
    if "decode_bandwidth_fraction" in metrics:
        words += f"; {metrics['decode_bandwidth_fraction']:.1%} of the measured bandwidth at what a token must move"
    return words
