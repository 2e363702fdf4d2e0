"""A record of a planted answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from paradnn.config.costs import costs_of
from paradnn.config.outcome import PointResult
from paradnn.config.point import read_point
from paradnn.platform.environment import Environment
from paradnn.record.measured import Measured
from paradnn.record.record import Record, make_record
from paradnn.worker.messages import Answer, Compilation, Contention, Measurement, Timing, Trial

QUIET = Contention(2, 0.75, 0.01, 0.0, 40.0, None, 2500.0, None)


def record(
    *contention: Contention | None,
    beside: dict[str, Contention] | None = None,
    compiling: Contention | None = None,
    latencies: Sequence[float] = (),
) -> Record:
    """Of a process for each of `contention`; `beside` is that of their other phases, `compiling` of their compilation.

    Each takes 500 ms a step; the single steps of each take all as long as one of `latencies`.
    """
    point = read_point({"model": {"name": "fc"}, "mode": "inference" if latencies else "train"})
    timing = Timing(1, [Trial(1, 0.5)], [0.5], [0.5] * 6, True, "", None)
    measured = [
        Measurement(1, Compilation([1.0], [1], None, compiling), {}, None, None, timing, None, "unavailable", entry)
        for entry in contention
    ]
    answers = [Answer("ok", None, {"compile": 1.0}, measurement=entry, contention=beside or {}) for entry in measured]
    answers = [
        replace(answer, latencies=[one] * 200) for answer, one in zip(answers, latencies, strict=False)
    ] or answers
    results = [PointResult("ok", None, answer, {}) for answer in answers]
    environment = Environment("a processor", {}, {}, {})
    return make_record(Measured(point, environment, costs_of(point), results, {}, {}, None, 0, 1))


def test_what_disturbed_a_point_is_recorded_with_a_verdict() -> None:
    quiet = record(QUIET)
    assert quiet.tags["contended"] == "false"
    assert "contended_reason" not in quiet.tags
    assert quiet.metrics["own_cpu_fraction"] == 0.75
    assert quiet.metrics["cpu_mhz"] == 2500.0
    assert "throttled_fraction" not in quiet.metrics
    busy = record(replace(QUIET, foreign_cpu_fraction=0.5, reason="other processes took 1.0 of 2 cores"))
    assert (busy.tags["contended"], busy.tags["contended_reason"]) == ("true", "other processes took 1.0 of 2 cores")


def test_one_process_that_was_disturbed_is_enough() -> None:
    both = record(QUIET, replace(QUIET, own_cpu_fraction=0.25, reason="it was busy"))
    assert (both.tags["contended"], both.tags["contended_reason"]) == ("true", "it was busy")
    assert both.metrics["own_cpu_fraction"] == 0.5


@pytest.mark.parametrize(
    ("phase", "when"),
    [("prefill", "while prompts were read"), ("load", "under load"), ("latency", "while single steps were timed")],
)
def test_a_phase_beside_the_blocks_is_contended_as_they_are(phase: str, when: str) -> None:
    assert record(QUIET, beside={phase: QUIET}).tags["contended"] == "false"
    made = record(QUIET, beside={phase: replace(QUIET, reason="it was busy")})
    assert (made.tags["contended"], made.tags["contended_reason"]) == ("true", f"{when}: it was busy")


def test_what_disturbed_the_compilation_is_a_note_on_it() -> None:
    assert "compile_note" not in record(QUIET, compiling=QUIET).tags
    made = record(QUIET, compiling=replace(QUIET, reason="it was busy"))
    assert (made.tags["compile_note"], made.tags["contended"]) == ("meanwhile it was busy", "false")


def test_the_processor_time_of_a_step_stands_beside_its_time() -> None:
    """Of 500 ms a step the processes took 75% of two cores; of one that was stopped for half of it, half as much."""
    assert record(QUIET).metrics["processor_time_ms"] == pytest.approx(750.0)
    assert record(replace(QUIET, own_cpu_fraction=0.375)).metrics["processor_time_ms"] == pytest.approx(375.0)


def test_a_median_of_single_steps_far_from_the_step_time_fails_a_check() -> None:
    problem = "the median of single steps is 1100 ms, a step of the blocks takes 500 ms"
    assert problem in record(QUIET, latencies=[1.1]).tags["checks"]
    assert "single steps" not in record(QUIET, latencies=[0.6]).tags["checks"]
    busy = {"latency": replace(QUIET, reason="it was busy")}
    assert "single steps" not in record(QUIET, latencies=[1.1], beside=busy).tags["checks"]


def test_quantiles_of_several_processes_have_the_interval_of_their_own() -> None:
    """Student's, by SciPy, of the logarithms of five processes that lie apart."""
    values = [0.45, 0.5, 0.52, 0.55, 0.6]
    metrics, logs = record(*[QUIET] * 5, latencies=values).metrics, np.log(values)
    low, high = stats.t.interval(0.95, 4, logs.mean(), stats.sem(logs))
    for share in (50, 90, 99):
        assert metrics[f"latency_p{share}_ms"] == pytest.approx(1e3 * np.exp(logs.mean()))
        found = metrics[f"latency_p{share}_low_ms"], metrics[f"latency_p{share}_high_ms"]
        assert found == pytest.approx((1e3 * np.exp(low), 1e3 * np.exp(high)), rel=1e-4)
    assert metrics["latency_steps"] == 1000


def test_where_nothing_is_known_nothing_is_said() -> None:
    nothing = record(None)
    assert not {"contended", "contended_reason"} & set(nothing.tags)
    assert not {name for name in nothing.metrics if "fraction" in name}
