"""`audit` counts what GuideLLM measured, and excludes rates that its own totals contradict."""

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.audit import read_results
from analysis.audit.series import Results


def report(**rates: float) -> dict[str, Any]:
    """Return a report of 4 requests of 99 prompt tokens and 1,024 output tokens each, in 25 s."""
    metrics: dict[str, Any] = {
        "request_totals": {"successful": 4, "errored": 0, "incomplete": 0, "total": 4},
        "prompt_token_count": {"successful": {"count": 4, "total_sum": 396.0}},
        "output_token_count": {"successful": {"count": 4, "total_sum": 4096.0}},
        "inter_token_latency_ms": {"successful": {"median": 24.2, "std_dev": 0.1, "count": 4092}},
    }
    for name, mean in rates.items():
        metrics[name] = {"successful": {"mean": mean, "median": 0.1, "count": 3}}
    entry = {
        "config": {"strategy": {"type_": "concurrent", "streams": 4}},
        "scheduler_metrics": {"measure_start_time": 100.0, "measure_end_time": 125.0},
        "metrics": metrics,
    }
    return {"metadata": {"version": 1}, "benchmarks": [entry]}


def read_one(folder: Path, document: dict[str, Any]) -> Results:
    path = folder / "benchmarks.json"
    path.write_text(json.dumps(document))
    [results] = read_results(path)
    return results


def test_latencies_between_tokens_count_requests(tmp_path: Path) -> None:
    """GuideLLM weights the mean of each request by its tokens and reports the sum of weights."""
    [series] = read_one(tmp_path, report()).series

    assert (series.name, series.count) == ("inter_token_latency_ms (concurrent, 4 streams)", 4)
    assert series.observation == "request"


@pytest.mark.parametrize(
    ("rates", "note"),
    [
        pytest.param(
            {"prompt_tokens_per_second": 1_411_168.0},
            "prompt_tokens_per_second (concurrent, 4 streams): 1.41M/s is excluded, because "
            "396 prompt tokens in 25 s are 15.8/s",
            id="prompt tokens",
        ),
        pytest.param(
            {"output_tokens_per_second": 40.0},
            "output_tokens_per_second (concurrent, 4 streams): 40/s is excluded, because "
            "4,096 output tokens in 25 s are 164/s",
            id="output tokens",
        ),
        pytest.param(
            {"requests_per_second": 0.06},
            "requests_per_second (concurrent, 4 streams): 0.06/s is excluded, because "
            "4 requests in 25 s are 0.16/s",
            id="requests",
        ),
    ],
)
def test_rates_that_contradict_the_totals_are_excluded(
    rates: dict[str, float], note: str, tmp_path: Path
) -> None:
    results = read_one(tmp_path, report(**rates))

    assert results.notes == (note,)
    assert [series.name for series in results.series] == [
        "inter_token_latency_ms (concurrent, 4 streams)"
    ]


def test_rates_within_a_factor_of_two_of_the_totals_are_kept(tmp_path: Path) -> None:
    rates = {"requests_per_second": 0.12, "output_tokens_per_second": 165.6}

    results = read_one(tmp_path, report(**rates))

    assert results.notes == ()
    assert [series.center for series in results.series[1:]] == [0.12, 165.6]


def test_rates_of_reports_without_times_are_kept(tmp_path: Path) -> None:
    document = report(prompt_tokens_per_second=1_411_168.0)
    del document["benchmarks"][0]["scheduler_metrics"]

    results = read_one(tmp_path, document)

    assert results.notes == ()
    assert results.series[-1].center == 1_411_168.0
