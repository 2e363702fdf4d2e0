"""Samples of the system: values in range, bounded, and the interval that MLflow's variable sets."""

import time

import pytest

from paradnn.session.system_metrics import SystemSampler, is_requested, sampling_seconds


def test_a_block_of_code_is_sampled_until_its_end() -> None:
    begin = round(1e3 * time.time())
    with SystemSampler(0.001, begin) as sampler:
        deadline = time.monotonic() + 30
        while len(sampler.samples) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
    count = len(sampler.samples)

    times = [sample.time for sample in sampler.samples]
    assert count >= 4
    assert times == sorted(times)
    for sample in sampler.samples:
        assert sample.step == sample.time - begin
        assert 0 <= sample.metrics["system/cpu_utilization_percentage"] <= 100
        assert 0 < sample.metrics["system/system_memory_usage_percentage"] <= 100


def test_the_shortest_block_has_a_sample() -> None:
    with SystemSampler(3600.0, 0) as sampler:
        pass
    assert len(sampler.samples) == 1


def test_the_number_of_samples_is_bounded() -> None:
    sampler = SystemSampler(1.0, 0)
    for _ in range(1_000):
        sampler._sample()
    assert 100 <= len(sampler.samples) < 200
    assert sampler._interval > 1.0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param("2.5", 2.5, id="seconds"),
        pytest.param("", 1.0, id="absent"),
        pytest.param("0", 1.0, id="zero"),
        pytest.param("nan", 1.0, id="no number"),
        pytest.param("often", 1.0, id="text"),
    ],
)
def test_the_interval_is_that_of_mlflow(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: float
) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", given)
    assert sampling_seconds() == expected


@pytest.mark.parametrize(
    ("given", "expected"), [("true", True), ("1", True), ("false", False), ("", False)]
)
def test_sampling_is_off_unless_requested(
    monkeypatch: pytest.MonkeyPatch, given: str, *, expected: bool
) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", given)
    assert is_requested() is expected
