"""The number in the output of a command, and the direction that the name of a metric implies."""

import pytest

from paradnn.compare.metric import OutputMetric, is_higher_faster


@pytest.mark.parametrize(
    ("pattern", "printed", "value"),
    [
        pytest.param("speed: ([0-9.]+)", "speed: 3\nspeed: 4.5\n", 4.5, id="last match"),
        pytest.param("json:a.rate", 'log\n{"a": {"rate": 7}}\n', 7.0, id="nested field"),
        pytest.param("json:a", '{"a": 1}\n{"a": 2}\n', 2.0, id="last object"),
        pytest.param("json:rows.1", '{"rows": [1, 2]}', 2.0, id="item of a list"),
        pytest.param("json:a", '{"a": "fast"}', None, id="field that is not a number"),
        pytest.param("json:b", '{"a": 1}', None, id="missing field"),
        pytest.param("json:a", "{" * 100_000, None, id="nested too deeply"),
        pytest.param("speed: ([0-9.]+)", "nothing", None, id="no match"),
        pytest.param("speed: (.+)", "speed: nan", None, id="not a number"),
        pytest.param("speed: (.+)", "speed: -1", None, id="negative"),
    ],
)
def test_the_metric_is_the_last_positive_number(
    pattern: str, printed: str, value: float | None
) -> None:
    assert OutputMetric(pattern).value(printed) == value


@pytest.mark.parametrize(
    "pattern",
    [
        "json:rate",
        "json:results.throughput",
        "json:examplesPerSecond",
        "json:examples_per_second",
        "json:summary.output_tokens_per_s",
        "speed: ([0-9.]+)",
        r"([0-9.]+) images/s",
        r"([0-9.]+) MB/sec",
        r"Throughput: (\d+)",
        "json:QPS",
        r"(\d+) req per second",
    ],
)
def test_a_larger_rate_is_faster(pattern: str) -> None:
    assert is_higher_faster(pattern) is True


@pytest.mark.parametrize(
    "pattern",
    [
        None,
        "cpu",
        "json:seconds",
        "json:mean_time",
        "json:latency_p50_ms",
        "json:elapsedSeconds",
        r"took ([0-9.]+) ms",
        "json:rates.seconds",
        r"time: (\d+)",
        "Real time/s: (.*)",
        "json:seconds_per_image",
    ],
)
def test_a_smaller_time_is_faster(pattern: str | None) -> None:
    assert is_higher_faster(pattern) is False


@pytest.mark.parametrize("pattern", ["json:a", "([0-9]+)", "json:score", r"score:\s+(\d+)"])
def test_the_direction_of_other_names_is_unknown(pattern: str) -> None:
    assert is_higher_faster(pattern) is None
