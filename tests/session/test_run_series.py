"""Series of a run for MLflow's charts: block times with the warm-up, and latencies over time."""

from dataclasses import replace

import numpy as np
import pytest

from paradnn.config.reading import read_point
from paradnn.core.messages import Trial
from paradnn.core.metric import MetricSnapshot
from paradnn.session.run_series import latency_series
from paradnn.store.runs import Record
from tests.session.records import answered, recorded, timing

POINT = read_point({"model": {"name": "fc"}})


def series(record: Record) -> list[tuple[int, float]]:
    return [(moment.step, moment.metrics["block_step_time_ms"]) for moment in record.history]


def test_each_block_is_a_step_and_the_warmup_has_negative_steps() -> None:
    blocks = timing(
        [0.5, 0.75, 1.0], steps=2, warmup=[2.0, 1.0], calibration=[Trial(1, 3.0), Trial(2, 2.0)]
    )
    record = recorded(POINT, replace(answered(blocks), begun=1000.0, phases={"build": 5.0}))
    assert series(record) == [(-3, 3000), (-2, 1000), (-1, 500), (0, 250), (1, 375), (2, 500)]
    assert {moment.time for moment in record.history} == {1_005_000, 1_008_000}
    # The median of the blocks, not the last value of the series.
    assert record.metrics["step_time_ms"] == 375


def test_blocks_of_a_second_process_follow_without_its_warmup() -> None:
    first = answered(timing([0.5, 0.6], warmup=[1.0]))
    second = answered(timing([0.7, 0.8], warmup=[9.0]))
    record = recorded(POINT, first, second)
    assert series(record) == [(-1, 1000), (0, 500), (1, 600), (2, 700), (3, 800)]


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(198, id="all kept"),
        pytest.param(500, id="groups of three"),
        pytest.param(10_000, id="large groups"),
    ],
)
def test_many_blocks_are_reduced_to_at_most_200_means(count: int) -> None:
    times = np.random.default_rng(1).uniform(0.1, 0.2, count)
    record = recorded(POINT, answered(timing(list(times), warmup=[1.0])))
    points = [entry for entry in series(record) if entry[0] >= 0]
    assert len(record.history) <= 200
    sizes = np.diff([step for step, _ in points] + [count])
    expected = [1e3 * part.mean() for part in np.split(times, np.cumsum(sizes)[:-1])]
    assert [value for _, value in points] == pytest.approx(expected)


def test_the_latency_series_has_median_and_maximum_of_equal_windows() -> None:
    draws = np.random.default_rng(2)
    due = np.sort(draws.integers(0, 10**10, 5_000))
    latency = draws.integers(10**6, 10**8, 5_000)
    points = latency_series(list(zip(due.tolist(), latency.tolist(), strict=True)), 1000)
    assert 0 < len(points) <= 50
    begins = [*(moment.step for moment in points), np.inf]
    since = (due - due[0]) / 1e6
    for moment, begin, end in zip(points, begins[:-1], begins[1:], strict=True):
        # Steps are whole milliseconds, so a request at a border may belong to either side.
        inside = latency[(since >= begin + 1) & (since < end - 1)] / 1e6
        assert moment.metrics["window_latency_max_ms"] >= inside.max()
        assert moment.metrics["window_latency_p50_ms"] == pytest.approx(np.median(inside), rel=0.1)
        assert moment.time == 1000 + begin


def test_a_single_request_is_one_window() -> None:
    metrics = {"window_latency_p50_ms": 2.0, "window_latency_max_ms": 2.0}
    assert latency_series([(7, 2_000_000)], 5) == [MetricSnapshot(0, 5, metrics)]
