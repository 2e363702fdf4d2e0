"""Samples of system metrics: their values, number and interval, and MLflow's variables."""

import time

import pytest

from paradnn.session.system_metrics import SystemSampler, is_requested, sampling_seconds


def test_samples_are_taken_until_the_end_of_a_block_of_code() -> None:
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


def test_an_empty_block_of_code_has_one_sample() -> None:
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
    ("value", "expected"),
    [
        pytest.param("2.5", 2.5, id="seconds"),
        pytest.param("", 1.0, id="empty"),
        pytest.param("0", 1.0, id="zero"),
        pytest.param("nan", 1.0, id="not a number"),
        pytest.param("often", 1.0, id="text"),
    ],
)
def test_the_interval_follows_the_variable_of_mlflow(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: float
) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", value)
    assert sampling_seconds() == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("true", True, id="true"),
        pytest.param("1", True, id="one"),
        pytest.param("false", False, id="false"),
        pytest.param("", False, id="empty"),
    ],
)
def test_sampling_is_off_unless_requested(
    monkeypatch: pytest.MonkeyPatch, value: str, *, expected: bool
) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", value)
    assert is_requested() is expected
