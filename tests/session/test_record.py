"""A record of a planted answer, and summaries of raw values against SciPy and the standard library."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np
import pytest

from paradnn.config.point import read_point
from paradnn.core.messages import Compilation, Contention, InputMeasurement, Measurement, PipelinePart, Timing
from paradnn.session.measured import Summarised, compiling_metrics, narrow_enough, summarise
from paradnn.session.record import precision_tags
from paradnn.store.runs import Record
from tests.session.records import answered, recorded, timing

QUIET = Contention(2, 0.75, 0.01, 0.0, 40.0, None, None)


def record(
    *contention: Contention, beside: dict[str, Contention] | None = None, latencies: Sequence[float] = ()
) -> Record:
    """Of a process for each of `contention`; `beside` is that of their other phases.

    Each takes 500 ms a step; the single steps of each take all as long as one of `latencies`.
    """
    point = read_point({"model": {"name": "fc"}, "mode": "inference" if latencies else "train"})
    results = []
    for entry, one in zip_longest(contention, latencies):
        singles = [one] * 200 if one else None
        results.append(answered(timing([0.5] * 6), {"contention": entry}, contention=beside or {}, latencies=singles))
    return recorded(point, *results)


def test_what_disturbed_a_point_is_recorded_with_a_verdict() -> None:
    quiet = record(QUIET)
    assert quiet.tags["contended"] == "false"
    assert "contended_reason" not in quiet.tags
    assert quiet.metrics["own_cpu_fraction"] == 0.75
    assert "throttled_fraction" not in quiet.metrics
    busy = record(replace(QUIET, foreign_cpu_fraction=0.5, reason="other processes took 1.0 of 2 cores"))
    assert (busy.tags["contended"], busy.tags["contended_reason"]) == ("true", "other processes took 1.0 of 2 cores")


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


# Compile time from the seconds of steps, by hand.

#: Ten steps a block: an ordinary step takes 0.1 s.
TIMING = Timing(10, [], [], [0.9, 1.0, 1.1], True, "", None)
FED = InputMeasurement([0.1], [0.05], [0.1], [PipelinePart(8, 0.5, 0.25)], 2)


@pytest.mark.parametrize(
    ("seconds", "programs", "fed", "expected"),
    [
        ([3.0, 0.2], [1, 0], None, (2.9, 1, 1)),
        ([3.0, 0.1, 1.0, 0.2], [2, 0, 1, 0], None, (3.8, 3, 3)),
        ([0.5], [0], None, (0.4, 1, 0)),  # what a first step costs that compiles nothing
        ([0.05], [0], None, (0.0, 1, 0)),
        ([3.0, 0.2], [1, 0], FED, (2.95, 1, 1)),  # of a step that waits for its input only what it computes
    ],
)
def test_compile_time_is_what_compiling_steps_take_beyond_ordinary_ones(
    seconds: list[float], programs: list[int], fed: InputMeasurement | None, expected: tuple[float, int, int]
) -> None:
    measurement = Measurement(1, Compilation(seconds, programs, None), {}, None, TIMING, None, "none")
    metrics = compiling_metrics(measurement, fed)
    assert tuple(metrics.values()) == pytest.approx(expected)


def test_precision_is_that_of_the_operands() -> None:
    assert precision_tags({"bfloat16": 1.0}, "bfloat16") == {"matmul_types": "bfloat16 100.0%"}
    assert precision_tags({}, "bfloat16") == {}
    mixed = precision_tags({"bfloat16": 0.75, "float32": 0.25}, "bfloat16")
    assert mixed["matmul_types"] == "bfloat16 75.0%, float32 25.0%"
    assert mixed["precision_note"] == "25% of the products have operands of another type than bfloat16"


def holds(found: Summarised, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def test_an_interval_ends_at_the_extremes_or_is_none_and_says_why() -> None:
    """A value that no block came near cannot be: of a drift, of two processes that lie apart."""
    drift = [1.0 + 0.05 * index for index in range(20)]
    assert summarise([drift]).low is None
    assert str(summarise([drift]).reason).startswith("20 blocks resemble their neighbours so much that they say less")
    assert str(summarise([[1.0] * 5]).reason).startswith("5 of the 6 blocks that it takes")
    apart = summarise([[1.0, 1.1] * 5, [2.0, 2.1] * 5])
    assert (apart.low, apart.high) == (None, None)
    assert str(apart.reason).startswith("2 processes lie 95% apart, which says too little of further ones")
    near = summarise([[1.0, 1.5] * 5, [1.01, 1.5] * 5])
    assert near.reason is None
    random = np.random.default_rng(0)
    for _ in range(300):
        blocks = np.exp(0.1 * random.standard_normal(24).cumsum())
        found = summarise([blocks.tolist()])
        assert found.low is None or blocks.min() <= found.low <= found.high <= blocks.max()


@pytest.mark.parametrize("first", [2, 5])
@pytest.mark.parametrize("goal", [0.02, 0.01])
def test_an_interval_that_decides_how_many_processes_there_are_holds_as_it_says(first: int, goal: float) -> None:
    """Processes 1% apart, thirty at most; 95% of 600 within three standard deviations and the method's own 1%."""
    random, held = np.random.default_rng(7), 0
    for _ in range(600):
        drawn = [[value] for value in np.exp(random.normal(0, 0.01, 30)).tolist()]
        count = next((n for n in range(first, 31) if narrow_enough(drawn[:n], goal)), 30)
        held += holds(summarise(drawn[:count], looked=True), 1.0)
    assert 0.91 < held / 600 < 0.99


def test_the_interval_of_processes_covers_where_that_of_one_does_not() -> None:
    """Planted: 2% between processes, 1% within, three of ten blocks; the blocks of one know nothing of the others."""
    random = np.random.default_rng(0)
    several, single, between = 0, 0, []
    for _ in range(2000):
        middles = random.normal(0, 0.02, 3)
        blocks = np.exp(middles[:, None] + random.normal(0, 0.01, (3, 10))).tolist()
        found, one = summarise(blocks), summarise(blocks[:1])
        several += holds(found, 1.0)
        single += holds(one, 1.0)
        between.append(found.between_cv)
    assert 1870 <= several <= 1930  # 95% within three standard deviations
    assert single < 1000
    assert np.sqrt(np.mean(np.square(between))) == pytest.approx(0.02, rel=0.1)
