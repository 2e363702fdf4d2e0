"""`audit` draws correct conclusions from result files of other harnesses, some of them damaged."""

import copy
import gzip
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.audit import (
    READERS,
    AuditFinding,
    AuditOptions,
    audit,
    draw_conclusions,
    read_results,
)
from analysis.audit.conclusions import format_value
from analysis.audit.series import Results, Series
from analysis.options import Selection
from paradnn.core.errors import ConfigError, DataError

TIMES = [0.101, 0.099, 0.1, 0.102, 0.098]


def write_file(folder: Path, name: str, document: Any) -> Path:
    path = folder / name
    text = document if isinstance(document, str) else json.dumps(document)
    path.write_text(text)
    return path


def read_one(folder: Path, document: Any, name: str = "file") -> Results:
    [results] = read_results(write_file(folder, name, document))
    return results


def series_by_name(results: Results) -> dict[str, Series]:
    return {series.name: series for series in results.series}


def comparisons(findings: Sequence[AuditFinding]) -> list[AuditFinding]:
    return [finding for finding in findings if not math.isnan(finding.ratio)]


# Excerpts of published files; docs/validation/audit.md has their addresses and commits.

#: xxrjun/nccl-tests-cluster (Apache-2.0): two collectives in one log.
NCCL_CLUSTER = """\
# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: alltoall_perf
# Using devices
#  Rank  0 Group  0 Pid 436734 on cnode2-009 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 436735 on cnode2-009 device  1 [0000:43:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
    33554432        524288    double    none      -1  1326.34   25.30   22.14       0  1314.14   25.53   22.34    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 22.8666
# Collective test concluded: alltoall_perf

# Collective test starting: sendrecv_perf
# Using devices
#  Rank  0 Group  0 Pid 437068 on cnode2-009 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 437069 on cnode2-009 device  1 [0000:43:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
    33554432       4194304    double    none      -1  2406.98   13.94   13.94       0  2399.02   13.99   13.99    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 14.0482
# Collective test concluded: sendrecv_perf
"""
#: Layout of nccl-tests 2.17.6 with --report_cputime 1 and --report_timestamps 1; planted values.
NCCL_PROCESSOR_TIMES = """\
#       size         count      type   redop    root  cputime   algbw   busbw  #wrong  cputime   algbw   busbw  #wrong            timestamp
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)        %Y-%m-%d %H:%M:%S
        1024           256     float     sum      -1     3.25    0.32    0.55       0     3.50    0.29    0.51       2  2026-11-24 10:00:00
"""
#: From the same repository as NCCL_CLUSTER: a run whose second host failed.
NCCL_FAILED = """\
# Collective test starting: alltoall_perf
#  Rank  0 Group  0 Pid 357365 on cnode2-007 device  0 [0000:43:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
cnode2-016: Test NCCL failure alltoall.cu:274 'remote process exited or there was a network error / '
 .. cnode2-016 pid 338131: Test failure common.cu:484
"""
#: mlcommons/training_results_v4.0 (Apache-2.0): the log of one node's power meter.
MLPERF_POWER = "\n".join(
    f':::MLLOG {{"namespace": "", "time_ms": {time}, "event_type": "POINT_IN_TIME", '
    f'"key": "power_reading", "value": {watts}, "metadata": ""}}'
    for time, watts in ((1715877013683, 4926), (1715877015674, 3138), (1715877017701, 2667))
)
#: Keys of SGLang's bench_serving as in TonyLi15/sglang-benchmark; the values are planted.
SGLANG = {
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": math.inf,
    "max_concurrency": 32,
    "random_input_len": 512,
    "random_output_len": 128,
    "server_info": {"model_path": "Qwen/Qwen2.5-3B-Instruct"},
    "completed": 100,
    "total_input_tokens": 26218,
    "request_throughput": 9.5,
    "median_ttft_ms": 60.0,
}
#: ajcasagrande/aiperf (Apache-2.0): settings as AIPerf 0.3 stores them.
AIPERF_LOADGEN = {
    "endpoint": {"model_names": ["Qwen/Qwen3-0.6B"], "streaming": True},
    "loadgen": {"concurrency": 2, "request_count": 64, "warmup_request_count": 1},
}
#: Keys of AIPerf 0.10 as in anud18/qwen36-vllm-aiperf-benchmark; the values are planted.
AIPERF_PHASES = {
    "models": {"items": [{"name": "qwen3.6-nvfp4"}]},
    "phases": [
        {"name": "warmup", "exclude_from_results": True, "requests": 16, "concurrency": 16},
        {"name": "profiling", "type": "concurrency", "requests": 96, "concurrency": 32},
    ],
}


# Documents in the formats of the harnesses. `scale` multiplies every time and divides every rate.


def hyperfine(*commands: str, times: Sequence[float] = TIMES, failed: int = 0) -> dict[str, Any]:
    exit_codes = [1] * failed + [0] * (len(times) - failed)
    entry = {"mean": 9.0, "median": 9.0, "times": list(times), "exit_codes": exit_codes}
    return {"results": [{"command": command, **entry} for command in commands]}


def pytest_benchmark(scale: float) -> dict[str, Any]:
    stats = {"median": 0.1 * scale, "stddev": 0.001, "rounds": 5}
    entry = {"name": "test_a", "fullname": "t.py::test_a", "stats": stats}
    return {"machine_info": {"node": "host"}, "version": "5.1.0", "benchmarks": [entry]}


def google_benchmark(scale: float) -> dict[str, Any]:
    entries = [
        {
            "name": f"BM_a/{repetition}",
            "run_name": "BM_a",
            "run_type": "iteration",
            "real_time": time * scale,
            "time_unit": "ns",
        }
        for repetition, time in enumerate((100.0, 101.0, 99.0))
    ]
    mean = {
        "name": "BM_a_mean",
        "run_name": "BM_a",
        "run_type": "aggregate",
        "aggregate_name": "mean",
        "real_time": 1e9,
        "time_unit": "ns",
    }
    return {"context": {"cpu_scaling_enabled": True}, "benchmarks": [*entries, mean]}


def asv(results: dict[str, Any]) -> dict[str, Any]:
    columns = ["result", "params", "version", "started_at", "duration"]
    return {"commit_hash": "abc", "result_columns": columns, "results": results}


def guidellm(scale: float) -> dict[str, Any]:
    latency = {"successful": {"median": 30.0 * scale, "std_dev": 3.0, "count": 95}}
    metrics = {
        "request_totals": {"successful": 95, "errored": 5, "incomplete": 1, "total": 101},
        "time_to_first_token_ms": latency,
    }
    return {"metadata": {"version": 2}, "benchmarks": [{"metrics": metrics}]}


def llama_bench(scale: float, **settings: Any) -> list[dict[str, Any]]:
    """Return a prompt test and a generation test in the layout of llama.cpp (MIT)."""
    common = {"build_commit": "8cf427ff", "model_type": "qwen2 7B", "n_threads": 8, **settings}
    prompt = [7000.0 / scale, 7100.0 / scale, 7300.0 / scale]
    return [
        {**common, "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 1.0, "samples_ts": prompt},
        {**common, "n_prompt": 0, "n_gen": 128, "n_depth": 512, "avg_ts": 119.0 / scale},
    ]


def aiperf(scale: float) -> dict[str, Any]:
    latency = {"unit": "ms", "avg": 510.0, "p50": 500.0 * scale, "std": 50.0, "count": 100}
    rate = {"unit": "requests/sec", "avg": 2.5 / scale}
    return {"request_latency": latency, "request_throughput": rate, "was_cancelled": False}


def vllm_bench(scale: float) -> dict[str, Any]:
    return {
        "request_throughput": 10.0 / scale,
        "completed": 100,
        "failed": 2,
        "median_ttft_ms": 20.0 * scale,
        "std_ttft_ms": 2.0,
    }


def loadgen(scale: float = 1, result: str = "VALID", early_stopping: str = "Yes") -> str:
    return f"""\
================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : Server
Mode     : PerformanceOnly
Completed samples per second    : {81.68 / scale}
Completed tokens per second: {24593.77 / scale}
Result is : {result}
  Performance constraints satisfied : Yes
  Early stopping satisfied: {early_stopping}
TTFT Early Stopping Result:
 * Run successful.

================================================
Additional Stats
================================================
Scheduled samples per second : 83.90
99.00 percentile latency (ns)   : {136069232834 * scale}

Completed tokens per second                 : {24593.77 / scale}
99.00 percentile first token latency (ns)   : {1914647645 * scale}

Mean Time to Output Token (ns)                : {144594078 * scale}
99.00 percentile time to output token (ns)   : {193380124 * scale}

================================================
Test Parameters Used
================================================
target_qps : 83.5
ttft_latency (ns): 2000000000
tpot_latency (ns): 200000000
min_duration (ms): 600000

No warnings encountered during test.

2 errors encountered. See detailed log.
"""


def pyperf(scale: float) -> dict[str, Any]:
    calibration = {"metadata": {"calibrate_loops": 4}, "warmups": [[1, 9.0], [2, 9.0]]}
    run = {"warmups": [[4, 9.0]], "values": [time * scale for time in TIMES]}
    entry = {"metadata": {"name": "telco"}, "runs": [calibration, run, run]}
    metadata = {"hostname": "host", "unit": "second", "loops": 4}
    return {"version": "1.0", "metadata": metadata, "benchmarks": [entry]}


def jmh(scale: float) -> list[dict[str, Any]]:
    def entry(mode: str, unit: str, values: list[float]) -> dict[str, Any]:
        metric = {"score": 9.0, "scoreError": "NaN", "scoreUnit": unit, "rawData": [values]}
        return {"benchmark": "p.B.run", "mode": mode, "threads": 1, "primaryMetric": metric}

    return [
        entry("avgt", "us/op", [100 * scale, 102 * scale]),
        entry("thrpt", "ops/ms", [10 / scale, 9.8 / scale]),
    ]


def go(scale: float) -> str:
    lines = [
        f"BenchmarkFib-8 \t 100\t {time * scale} ns/op\t {16 * scale} B/op"
        for time in (99, 100, 101)
    ]
    return "\n".join(["goos: linux", "pkg: p", *lines, "--- FAIL: BenchmarkBad-8", "PASS"])


def criterion_sample(scale: float) -> dict[str, Any]:
    times = [10 * scale, 22 * scale, 33 * scale]
    return {"sampling_mode": "Linear", "iters": [1.0, 2.0, 3.0], "times": times}


def mllog(key: str, time: float, value: Any = None, **metadata: Any) -> str:
    event = {"namespace": "", "time_ms": time, "key": key, "value": value, "metadata": metadata}
    return f"0: :::MLLOG {json.dumps(event)}"


def mlperf_training(scale: float, status: str = "success") -> str:
    return "\n".join(
        [
            "Epoch 1",
            mllog("submission_benchmark", 1, "resnet"),
            mllog("run_start", 1000),
            mllog("run_stop", 1000 + 1_600_000 * scale, status=status),
        ]
    )


def nccl_tests(scale: float, prefix: str = "") -> str:
    rows = [
        "# nThread 1 nGpus 8 minBytes 8 maxBytes 8",
        "#       size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong",
        "#        (B)  (elements)                (us)  (GB/s) (GB/s)        (us)  (GB/s) (GB/s)",
        f"   8  2  float  sum  -1  {34 * scale}  0.00  0.00  0  {33 * scale}  0.00  0.00  N/A",
        f" 1024  256  float      {70 * scale}  1.00  2.00  0  {71 * scale}  1.00  2.00  3",
        f"# Avg bus bandwidth    : {115.4 / scale}",
    ]
    return "\n".join(prefix + row for row in rows)


DOCUMENTS = {
    "hyperfine": lambda scale: hyperfine("a", times=[time * scale for time in TIMES]),
    "pytest-benchmark": pytest_benchmark,
    "Google Benchmark": google_benchmark,
    "asv": lambda scale: asv({"suite.time_a": [[0.1 * scale], [], "v", 1, 2]}),
    "pyperf": pyperf,
    "JMH": jmh,
    "Go": go,
    "Criterion.rs": criterion_sample,
    "llama-bench": llama_bench,
    "GuideLLM": guidellm,
    "AIPerf": aiperf,
    "vllm bench": vllm_bench,
    "LoadGen": loadgen,
    "MLPerf Training": mlperf_training,
    "nccl-tests": nccl_tests,
}


@pytest.mark.parametrize("harness", READERS)
def test_two_files_of_a_harness_are_two_sessions(tmp_path: Path, harness: str) -> None:
    first = read_one(tmp_path, DOCUMENTS[harness](1), "first")
    second = read_one(tmp_path, DOCUMENTS[harness](2), "second")

    compared = comparisons(list(draw_conclusions([first], [second])))

    assert (first.harness, second.harness) == (harness, harness)

    with_direction = [finding for finding in compared if "offered load" not in finding.about]
    assert [finding.ratio for finding in with_direction] == pytest.approx(
        [2.0] * len(with_direction)
    )
    assert with_direction
    # The prior scatter of sessions is 7.5%, so a factor of 2 is decisive.
    assert {finding.verdict for finding in with_direction} == {"faster"}
    assert all(
        "one session each, assumed to scatter by 7.5%" in finding.sentence for finding in compared
    )


@pytest.mark.parametrize(
    ("document", "note"),
    [
        pytest.param(
            hyperfine("a", failed=2),
            "a: 2 of 5 runs failed and are excluded",
            id="hyperfine-exit-codes",
        ),
        pytest.param(
            hyperfine("a", failed=5),
            "a: 5 of 5 runs failed; the times include failed runs",
            id="hyperfine-all-failed",
        ),
        pytest.param(
            google_benchmark(1),
            "CPU frequency scaling was enabled, as the harness itself warns",
            id="google-frequency-scaling",
        ),
        pytest.param(
            {
                "benchmarks": [
                    {"name": "BM_a", "real_time": 1.0},
                    {"name": "BM_b", "error_occurred": True, "error_message": "no file"},
                ]
            },
            "BM_b failed: no file",
            id="google-error",
        ),
        pytest.param(
            {"context": {"library_build_type": "debug"}, "benchmarks": [{"real_time": 1.0}]},
            "the benchmark library was a debug build, so its overhead is large",
            id="google-debug-build",
        ),
        pytest.param(
            asv({"s.time_a": [[0.1, None], [["1", "2"]]], "s.time_b": None}),
            "2 of 3 results failed: s.time_a(2), s.time_b",
            id="asv-null-is-a-failure",
        ),
        pytest.param(guidellm(1), "load 1: 5 requests failed", id="guidellm-errored"),
        pytest.param(
            guidellm(1),
            "load 1: 1 request cut off at the end of the load, excluded from the numbers",
            id="guidellm-incomplete",
        ),
        pytest.param(vllm_bench(1), "2 requests failed", id="vllm-failed"),
        pytest.param(
            {"request_throughput": 10.0, "completed": 97, "num_prompts": 100},
            "3 requests failed",
            id="vllm-before-it-counted-failures",
        ),
        pytest.param(
            {**aiperf(1), "was_cancelled": True},
            "the run was canceled before its end",
            id="aiperf-canceled",
        ),
        pytest.param(
            {**aiperf(1), "is_complete": False}, "the run is incomplete", id="aiperf-incomplete"
        ),
        pytest.param(
            {
                **aiperf(1),
                "error_request_count": {"unit": "requests", "avg": 7.0},
                "error_summary": [
                    {"error_details": {"message": "timeout"}, "count": 4},
                    {"error_details": {"type": "BadRequest"}, "count": 3},
                ],
            },
            "7 requests failed: timeout; BadRequest",
            id="aiperf-errors-are-counted-once",
        ),
        pytest.param(
            {**aiperf(1), "osl_mismatch_count": {"unit": "requests", "avg": 96.0}},
            "96 of 100 requests returned a different number of tokens than requested, "
            "so latencies and token rates are for different work than requested",
            id="aiperf-short-answers",
        ),
        pytest.param(
            loadgen(result="INVALID", early_stopping="NO"),
            "LoadGen's own rules call the result INVALID (not met: Early stopping satisfied)",
            id="loadgen-invalid",
        ),
        pytest.param(loadgen(), "LoadGen reports 2 errors", id="loadgen-errors"),
        pytest.param(
            hyperfine("true", times=[0.0, 0.001, 0.0]),
            "true: 2 of 3 times are zero and excluded, because the command takes no longer than "
            "the shell that starts it; measure it with hyperfine --shell=none",
            id="hyperfine-zero-times",
        ),
        pytest.param(go(1), "BenchmarkBad-8 failed or was skipped", id="go-failure"),
        pytest.param(
            "\n".join([mllog("tracked_stats", 2, {"throughput": 9.0}), mllog("run_start", 1)]),
            "the log has no event run_stop, so the time to train is unknown",
            id="mlperf-training-cut-off",
        ),
        pytest.param(
            "\n".join(
                [
                    mlperf_training(1, status="aborted"),
                    mllog("tracked_stats", 2, {"throughput": 9.0}),
                ]
            ),
            "the run ended with the status 'aborted', so it did not reach its target",
            id="mlperf-training-aborted",
        ),
        pytest.param(
            nccl_tests(1), "1,024 B float, in place: 3 values were wrong", id="nccl-wrong-values"
        ),
        pytest.param(
            {
                "metadata": {"num_profile_runs": 5, "num_successful_runs": 4},
                "metrics": {"request_latency": {"mean": 500.0, "std": 5.0, "unit": "ms"}},
            },
            "1 of 5 runs failed",
            id="aiperf-aggregate",
        ),
        pytest.param(
            loadgen().replace("PerformanceOnly", "AccuracyOnly"),
            "the run checked accuracy, so its times are not a performance result",
            id="loadgen-accuracy-run",
        ),
    ],
)
def test_failures_that_a_harness_reports_are_findings(
    tmp_path: Path, document: Any, note: str
) -> None:
    results = read_one(tmp_path, document)

    findings = list(draw_conclusions([results]))

    assert note in results.notes
    assert f"{note}." in [finding.sentence for finding in findings]


def rows(results: Results) -> dict[str, tuple[float, str, str, int]]:
    """Return the value, unit, better direction and sample count of each series, by name."""
    return {
        series.name: (pytest.approx(series.center), series.unit, series.better, series.count)
        for series in results.series
    }


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(pyperf(1), {"telco": (0.1, "s", "lower", 10)}, id="pyperf"),
        pytest.param(
            {
                "metadata": {"name": "m", "unit": "byte"},
                "benchmarks": [{"runs": [{"values": [4096]}]}],
            },
            {"m": (4096, "B", "lower", 1)},
            id="pyperf-memory",
        ),
        pytest.param(
            jmh(1),
            {
                "p.B.run [avgt]": (101e-6, "s", "lower", 2),
                "p.B.run [thrpt]": (9900, "1/s", "higher", 2),
            },
            id="jmh",
        ),
        pytest.param(
            [
                {
                    "benchmark": "p.B.run",
                    "mode": "sample",
                    "params": {"n": "10"},
                    "threads": 4,
                    "primaryMetric": {
                        "score": 11.0,
                        "scoreUnit": "ns/op",
                        "scorePercentiles": {"50.0": 10.0},
                        "rawDataHistogram": [[[[10.0, 100], [12.0, 50]]]],
                    },
                }
            ],
            {"p.B.run (n=10, 4 threads)": (10e-9, "s", "lower", 150)},
            id="jmh-histogram",
        ),
        pytest.param(
            go(1),
            {
                "BenchmarkFib-8": (100e-9, "s", "lower", 3),
                "BenchmarkFib-8 B/op": (16, "B", "lower", 3),
            },
            id="go",
        ),
        pytest.param(
            "pkg: a\nBenchmarkX 1 5 ns/op 2 MB/s 7 widgets\nUnit widgets better=higher\n"
            "pkg: b\nBenchmarkX 1 6 ns/op",
            {
                "a BenchmarkX": (5e-9, "s", "lower", 1),
                "a BenchmarkX MB/s": (2e6, "B/s", "higher", 1),
                "a BenchmarkX widgets": (7, "widgets", "higher", 1),
                "b BenchmarkX": (6e-9, "s", "lower", 1),
            },
            id="go-packages-and-units",
        ),
        pytest.param(
            "\n".join(
                json.dumps({"Action": "output", "Output": text})
                for text in ("BenchmarkA-8 \t", "100\t 12.5 ns/op\n", "PASS\n")
            ),
            {"BenchmarkA-8": (12.5e-9, "s", "lower", 1)},
            id="go-test-json",
        ),
        pytest.param(
            "fib 20                  time:   [26.0 µs 26.5 µs 27.0 µs]\n"
            "group/a_long_name/12345\n"
            "                        time:   [1.5 ms 1.6 ms 1.7 ms]\n"
            "test old::bench ... bench:       1,234 ns/iter (+/- 56)\n",
            {
                "fib 20": (26.5e-6, "s", "lower", 1),
                "group/a_long_name/12345": (1.6e-3, "s", "lower", 1),
                "old::bench": (1234e-9, "s", "lower", 1),
            },
            id="cargo-bench",
        ),
        pytest.param(
            "\n".join(
                json.dumps(message)
                for message in (
                    {
                        "reason": "benchmark-complete",
                        "id": "norm",
                        "iteration_count": [10, 20],
                        "measured_values": [100.0, 220.0],
                        "unit": "ns",
                    },
                    {"reason": "group-complete", "group_name": "norm"},
                )
            ),
            {"norm": (10.5e-9, "s", "lower", 2)},
            id="cargo-criterion",
        ),
        pytest.param(mlperf_training(1), {"time to train": (1600, "s", "lower", 1)}, id="mllog"),
        pytest.param(
            nccl_tests(1, prefix="[1,0]<stdout>:"),
            {
                "8 B float sum, out of place": (34e-6, "s", "lower", 1),
                "8 B float sum, in place": (33e-6, "s", "lower", 1),
                "1,024 B float, out of place": (70e-6, "s", "lower", 1),
                "1,024 B float, in place": (71e-6, "s", "lower", 1),
                "average bus bandwidth": (115.4e9, "B/s", "higher", 1),
            },
            id="nccl-tests-under-mpi",
        ),
        pytest.param(
            "\n".join(
                json.dumps(
                    {
                        "metadata": {},
                        "metrics": {"request_latency": {"value": value, "unit": "ms"}},
                        "error": None,
                    }
                )
                for value in (500.0, 510.0, 520.0)
            ),
            {"request_latency": (0.51, "s", "lower", 3)},
            id="aiperf-requests",
        ),
        pytest.param(
            {"median_e2e_latency_ms": 490.0, "completed": 9, "input_throughput": 5.0},
            {
                "input_throughput": (5, "1/s", "higher", 1),
                "e2e_latency_ms": (0.49, "s", "lower", 9),
            },
            id="sglang",
        ),
        pytest.param(
            {"request_goodput:": 2.5}, {"request_goodput": (2.5, "1/s", "higher", 1)}, id="goodput"
        ),
        pytest.param(
            {
                "benchmarks": [
                    {"name": "BM_a", "family_index": family, "real_time": time}
                    for family, time in enumerate((10.0, 20.0))
                ]
            },
            {"BM_a": (10e-9, "s", "lower", 1), "BM_a #2": (20e-9, "s", "lower", 1)},
            id="google-registered-twice",
        ),
    ],
)
def test_series_have_the_units_directions_and_counts_of_the_harness(
    tmp_path: Path, document: Any, expected: dict[str, tuple[float, str, str, int]]
) -> None:
    assert expected == rows(read_one(tmp_path, document))


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        pytest.param("target/criterion/fib 20/new", "fib 20", id="function"),
        pytest.param("target/criterion/group/fib/20/base", "group/fib/20", id="group"),
        pytest.param("somewhere/fib", "fib", id="copied"),
    ],
)
def test_a_criterion_series_is_named_after_its_folder(
    tmp_path: Path, folder: str, name: str
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    estimates = {"median": {"point_estimate": 26.0}, "std_dev": {"point_estimate": 0.3}}

    sample = read_one(tmp_path / folder, criterion_sample(1), "sample.json")
    summary = read_one(tmp_path / folder, estimates, "estimates.json")

    assert rows(sample) == {name: (11e-9, "s", "lower", 3)}
    assert rows(summary) == {name: (26e-9, "s", "lower", 1)}


def test_a_relative_change_of_criterion_is_not_read_as_a_time(tmp_path: Path) -> None:
    change = {"mean": {"point_estimate": 0.02}, "median": {"point_estimate": 0.02}}

    with pytest.raises(DataError, match="contains no measurement above zero in a known format"):
        read_one(tmp_path, change)


#: Model and data settings in the layouts of three GuideLLM versions: 0.2 as in
#: neuralmagic/guidellm, 0.5 as in nirjhar17/guidellm-pd-disaggregation, and 0.7 as in
#: big-yellow-duck/vllm-bench-collection.
GUIDELLM_SETTINGS = {
    "0.2": {
        "benchmarks": [
            {
                "worker": {"backend_model": "Qwen/Qwen3-0.6B"},
                "request_loader": {"data": "prompt_tokens=256,output_tokens=128"},
            }
        ]
    },
    "0.5": {
        "args": {"data": ['{"prompt_tokens":256,"output_tokens":128}'], "model": None},
        "benchmarks": [{"config": {"backend": {"model": "Qwen/Qwen3-0.6B"}}}],
    },
    "0.7": {
        "config": {
            "spec": {
                "data": [
                    {
                        "kind": "synthetic_text",
                        "load_kwargs": {},
                        "prompt_tokens": 2048,
                        "prompt_tokens_stdev": None,
                        "output_tokens": 512,
                    }
                ]
            }
        },
        "benchmarks": [{"config": {"backend": {"model": "Qwen/Qwen3-0.6B"}}}],
    },
}


@pytest.mark.parametrize(
    ("version", "data"),
    [
        pytest.param("0.2", "prompt_tokens=256,output_tokens=128", id="0.2"),
        pytest.param("0.5", json.dumps(['{"prompt_tokens":256,"output_tokens":128}']), id="0.5"),
        pytest.param(
            "0.7",
            '[{"kind": "synthetic_text", "prompt_tokens": 2048, "output_tokens": 512}]',
            id="0.7",
        ),
    ],
)
def test_the_model_and_data_of_a_guidellm_file_are_conditions(
    tmp_path: Path, version: str, data: str
) -> None:
    document = copy.deepcopy(GUIDELLM_SETTINGS[version])
    document["benchmarks"][0]["metrics"] = guidellm(1)["benchmarks"][0]["metrics"]

    assert read_one(tmp_path, document).conditions == {"model": "Qwen/Qwen3-0.6B", "data": data}


def test_llama_bench_settings_that_vary_are_part_of_the_series_names(tmp_path: Path) -> None:
    tests = [*llama_bench(1, flash_attn=0), *llama_bench(1, flash_attn=1)]

    results = read_one(tmp_path, tests)

    assert rows(results) == {
        "pp512 (flash_attn=0)": (7100.0, "tokens/s", "higher", 3),
        "tg128 @ d512 (flash_attn=0)": (119.0, "tokens/s", "higher", 1),
        "pp512 (flash_attn=1)": (7100.0, "tokens/s", "higher", 3),
        "tg128 @ d512 (flash_attn=1)": (119.0, "tokens/s", "higher", 1),
    }
    assert results.conditions == {"model_type": "qwen2 7B", "n_threads": "8"}


def test_the_json_lines_of_a_llama_bench_file_are_one_session(tmp_path: Path) -> None:
    text = "\n".join(json.dumps(test) for test in llama_bench(1))

    assert list(rows(read_one(tmp_path, text))) == ["pp512", "tg128 @ d512"]


def test_an_aiperf_sweep_has_one_trial_per_combination(tmp_path: Path) -> None:
    """In this layout of akamaslabs/vllm-benchmark, `count` counts requests, not trials."""
    metrics = {
        "request_throughput": {"mean": 6.815, "std": 0.0, "unit": "requests/sec"},
        "request_latency": {"mean": 2334.8, "std": 0.0, "p50": 2191.5, "count": 2044, "unit": "ms"},
    }
    document = {
        "num_profile_runs": 2,
        "num_successful_runs": 1,
        "metadata": {"num_trials_per_value": 1},
        "per_combination_metrics": [{"parameters": {"concurrency": 16}, "metrics": metrics}],
    }

    results = read_one(tmp_path, document)

    assert rows(results) == {
        "request_throughput (concurrency=16)": (6.815, "requests/sec", "higher", 1),
        "request_latency (concurrency=16)": (2.3348, "s", "lower", 1),
    }
    assert results.notes == ("1 of 2 runs failed",)


def test_aiperf_chunk_latencies_are_not_counted_as_requests(tmp_path: Path) -> None:
    latency = {"unit": "ms", "avg": 8.85, "p50": 8.57, "std": 1.79, "count": 532759}

    results = read_one(tmp_path, {"inter_chunk_latency": latency, **aiperf(1)})

    observations = {name: series.observation for name, series in series_by_name(results).items()}

    assert observations["inter_chunk_latency"] == "chunk"
    assert observations["request_latency"] == "request"


def test_the_collectives_in_one_log_have_different_series_names(tmp_path: Path) -> None:
    results = read_one(tmp_path, NCCL_CLUSTER)

    assert rows(results) == {
        "alltoall_perf 33,554,432 B double none, out of place": (1326.34e-6, "s", "lower", 1),
        "alltoall_perf 33,554,432 B double none, in place": (1314.14e-6, "s", "lower", 1),
        "alltoall_perf average bus bandwidth": (22.8666e9, "B/s", "higher", 1),
        "sendrecv_perf 33,554,432 B double none, out of place": (2406.98e-6, "s", "lower", 1),
        "sendrecv_perf 33,554,432 B double none, in place": (2399.02e-6, "s", "lower", 1),
        "sendrecv_perf average bus bandwidth": (14.0482e9, "B/s", "higher", 1),
    }


def test_processor_times_of_collectives_are_named_as_such(tmp_path: Path) -> None:
    results = read_one(tmp_path, NCCL_PROCESSOR_TIMES)

    assert rows(results) == {
        "1,024 B float sum, out of place, processor time": (3.25e-6, "s", "lower", 1),
        "1,024 B float sum, in place, processor time": (3.5e-6, "s", "lower", 1),
    }
    assert "1,024 B float sum, in place: 2 values were wrong" in results.notes


def test_the_error_of_a_failed_collective_names_host_and_reason(tmp_path: Path) -> None:
    path = write_file(tmp_path, "log", NCCL_FAILED)

    with pytest.raises(
        DataError, match="alltoall_perf failed on cnode2-016: remote process exited"
    ):
        read_results(path)


def test_the_error_of_a_loadgen_detail_log_names_the_summary_file(tmp_path: Path) -> None:
    """The lines are like the first ones in mlcommons/inference_results_v2.0 (Apache-2.0)."""
    lines = [
        mllog("loadgen_version", 0.005, "4.0 @ fa4fe53e53", is_error=False),
        mllog("result_samples_per_second", 9.1, 23.9, is_error=False),
    ]
    path = write_file(tmp_path, "mlperf_log_detail.txt", "\n".join(lines))

    with pytest.raises(DataError, match=r"give the mlperf_log_summary\.txt next to it"):
        read_results(path)


def test_a_power_meter_log_is_read_in_watts(tmp_path: Path) -> None:
    results = read_one(tmp_path, MLPERF_POWER)

    assert rows(results) == {"power": (3138.0, "W", "lower", 3)}
    assert results.notes == ()


def test_warm_up_requests_of_aiperf_are_excluded(tmp_path: Path) -> None:
    """The lines have the layout of profile_export.jsonl in ajcasagrande/aiperf."""
    lines = [
        {
            "metadata": {"benchmark_phase": phase},
            "metrics": {"request_latency": {"value": value, "unit": "ms"}},
            "error": None,
        }
        for phase, value in (("warmup", 9000.0), ("profiling", 3644.0), ("profiling", 3646.0))
    ]

    results = read_one(tmp_path, "\n".join(json.dumps(line) for line in lines))

    assert rows(results) == {"request_latency": (3.645, "s", "lower", 2)}


@pytest.mark.parametrize(
    ("document", "conditions"),
    [
        pytest.param(
            {**aiperf(1), "input_config": AIPERF_LOADGEN},
            {"model": "Qwen/Qwen3-0.6B", "concurrency": "2"},
            id="AIPerf 0.3",
        ),
        pytest.param(
            {**aiperf(1), "input_config": AIPERF_PHASES},
            {"model": "qwen3.6-nvfp4", "concurrency": "32"},
            id="AIPerf 0.10",
        ),
        pytest.param(
            SGLANG,
            {
                "model": "Qwen/Qwen2.5-3B-Instruct",
                "request rate": "inf",
                "maximum concurrency": "32",
                "input tokens": "26218",
                "output length": "128",
            },
            id="SGLang",
        ),
        pytest.param(NCCL_CLUSTER, {"devices": "2 x NVIDIA H100 80GB HBM3"}, id="nccl-tests"),
    ],
)
def test_the_settings_of_a_published_file_are_conditions(
    tmp_path: Path, document: Any, conditions: dict[str, str]
) -> None:
    assert read_one(tmp_path, document).conditions == conditions


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(999.7, "1,000 s", id="four digits"),
        pytest.param(99.96, "100 s", id="three digits"),
        pytest.param(0.99968, "1 s", id="rounds up to a second"),
        pytest.param(0.9996e-3, "1 ms", id="rounds up to a millisecond"),
        pytest.param(0.9994, "999 ms", id="stays below a second"),
        pytest.param(4.2e-10, "0.42 ns", id="below a nanosecond"),
    ],
)
def test_times_have_three_digits_and_no_exponent(seconds: float, text: str) -> None:
    """Regression: a mean latency of 0.99968 s from LoadGen was printed as 1e+03 ms."""
    assert format_value(seconds, "s") == text


def test_a_loadgen_field_without_a_value_does_not_read_the_next_line(tmp_path: Path) -> None:
    text = loadgen().replace("SUT name : PySUT", "SUT name : ")
    text = text.replace(
        "Scheduled samples", "Per-query latency:  \nMin latency (ns)   : 5\nScheduled samples"
    )

    results = read_one(tmp_path, text)

    assert results.conditions["scenario"] == "Server"
    assert series_by_name(results)["Min latency"].center == pytest.approx(5e-9)


def test_compressed_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "suite.json.gz"
    path.write_bytes(gzip.compress(json.dumps(pyperf(1)).encode()))

    [results] = read_results(path)

    assert results.harness == "pyperf"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(gzip.compress(b"{}" * 99)[:-9], "is a damaged gzip file", id="cut-off"),
        pytest.param(b"\x1f\x8bxx", "is a damaged gzip file", id="not-gzip"),
        pytest.param(
            gzip.compress(b"[" + bytes(65 * 2**20)), "larger than 64 MiB", id="decompression-bomb"
        ),
    ],
)
def test_damaged_or_oversized_compressed_files_are_rejected(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(content)

    with pytest.raises(DataError, match=message):
        read_results(path)


def test_json_surrounded_by_other_lines_is_read(tmp_path: Path) -> None:
    text = f"Running ./bench\n{json.dumps(google_benchmark(1), indent=1)}\nbye\n"

    results = read_one(tmp_path, text)

    assert results.harness == "Google Benchmark"
    assert results.notes[-1] == "a part of the file is not JSON and was not read"


def test_the_error_of_an_unknown_file_lists_the_known_formats(tmp_path: Path) -> None:
    text = "command,mean\nsleep 1,1.0\n"

    with pytest.raises(DataError) as raised:
        read_one(tmp_path, text)

    assert "give results of hyperfine --export-json, pytest --benchmark-json," in str(raised.value)


def test_loadgen_limits_are_not_read_as_measurements(tmp_path: Path) -> None:
    series = series_by_name(read_one(tmp_path, loadgen()))

    assert set(series) == {
        "Completed samples per second",
        "Completed tokens per second",
        "Scheduled samples per second (offered load)",
        "99.00 percentile latency",
        "99.00 percentile first token latency",
        "Mean Time to Output Token",
        "99.00 percentile time to output token",
    }
    assert series["Mean Time to Output Token"].center == pytest.approx(0.144594078)
    assert series["Scheduled samples per second (offered load)"].better == "unknown"


@pytest.mark.parametrize(
    ("name", "unit", "better"),
    [
        pytest.param("suite.time_a", "s", "lower", id="time"),
        pytest.param("suite.timeraw_a", "s", "lower", id="timeraw"),
        pytest.param("suite.TimeSuite.time_a", "s", "lower", id="method"),
        pytest.param("time_units.mem_unit", "B", "lower", id="mem"),
        pytest.param("suite.peakmem_a", "B", "lower", id="peakmem"),
        pytest.param("suite.MemSuite.time_a", "s", "lower", id="the-method-decides"),
        pytest.param("suite.track_a", "", "unknown", id="track"),
        pytest.param("suite.track_time_a", "", "unknown", id="only-the-prefix-counts"),
    ],
)
def test_the_prefix_of_an_asv_benchmark_determines_its_unit(
    tmp_path: Path, name: str, unit: str, better: str
) -> None:
    [series] = read_one(tmp_path, asv({name: [[8859701248.0]]})).series

    assert (series.unit, series.better) == (unit, better)


def test_asv_series_names_contain_the_parameters(tmp_path: Path) -> None:
    parameters = [["1", "2"], ["'x'", "'y'"]]
    document = asv({"s.time_a": [[0.1, 0.2, 0.3, math.nan], parameters, "v1"]})

    series = series_by_name(read_one(tmp_path, document))

    # The last parameter varies fastest. NaN marks a benchmark that its suite skips.
    assert {name: entry.center for name, entry in series.items()} == {
        "s.time_a(1, 'x')": 0.1,
        "s.time_a(1, 'y')": 0.2,
        "s.time_a(2, 'x')": 0.3,
    }


def test_different_versions_of_an_asv_benchmark_are_not_compared(tmp_path: Path) -> None:
    first = asv({"s.time_x": [[0.1, 0.2], [["'10'", "'20'"]], "v1"]})
    second = asv({"s.time_x": [[0.05, 0.1, 0.2], [["'5'", "'10'", "'20'"]], "v2"]})

    findings = list(
        draw_conclusions(
            [read_one(tmp_path, first, "first")], [read_one(tmp_path, second, "second")]
        )
    )

    assert comparisons(findings) == []
    assert [(finding.about, finding.sentence) for finding in findings] == [
        (
            "s.time_x('10')",
            "Not compared: the files are from different versions of the benchmark's code.",
        ),
        (
            "s.time_x('20')",
            "Not compared: the files are from different versions of the benchmark's code.",
        ),
        ("", "Only on the second side: s.time_x('5')."),
    ]


def test_times_are_compared_in_seconds(tmp_path: Path) -> None:
    first = {"benchmarks": [{"name": "BM_a", "real_time": 1, "time_unit": "s"}]}
    second = {"benchmarks": [{"name": "BM_a", "real_time": 1, "time_unit": "ns"}]}

    [finding] = draw_conclusions(
        [read_one(tmp_path, first, "first")], [read_one(tmp_path, second, "second")]
    )

    assert finding.ratio == pytest.approx(1e-9)
    assert "1 s against 1 ns, differing by a factor of 1e+09: the second" in finding.sentence


@pytest.mark.parametrize(
    ("second_ns", "difference"),
    [
        pytest.param(99.999, "100%", id="just under a factor of 2"),
        pytest.param(55.0, "10%", id="two digits"),
        pytest.param(50.6, "1.2%", id="below ten percent"),
    ],
)
def test_differences_are_plain_percentages(
    second_ns: float, difference: str, tmp_path: Path
) -> None:
    first = {"benchmarks": [{"name": "BM_a", "real_time": 50.0, "time_unit": "ns"}]}
    second = {"benchmarks": [{"name": "BM_a", "real_time": second_ns, "time_unit": "ns"}]}

    [finding] = draw_conclusions(
        [read_one(tmp_path, first, "first")], [read_one(tmp_path, second, "second")]
    )

    assert f"differing by {difference}:" in finding.sentence


def test_series_with_different_units_are_not_compared(tmp_path: Path) -> None:
    first = aiperf(1)
    second = aiperf(1)
    second["request_throughput"]["unit"] = "requests/min"

    findings = list(
        draw_conclusions(
            [read_one(tmp_path, first, "first")], [read_one(tmp_path, second, "second")]
        )
    )

    sentences = {finding.about: finding.sentence for finding in findings}

    assert sentences["request_throughput"] == (
        "Not compared: the units differ (requests/min, requests/sec)."
    )


def test_google_aggregates_replace_missing_repetitions(tmp_path: Path) -> None:
    """With --benchmark_report_aggregates_only, old and new layouts contain aggregates alone."""
    aggregates = {"mean": 3.0, "median": 2.0, "stddev": 0.5, "cv": 0.25}
    entries = [
        {
            "name": f"BM_a_{name}",
            "run_name": "BM_a",
            "run_type": "aggregate",
            "aggregate_name": name,
            "aggregate_unit": "percentage" if name == "cv" else "time",
            "repetitions": 8,
            "real_time": value,
            "time_unit": "ms",
        }
        for name, value in aggregates.items()
    ]
    old_entries = [
        {"name": entry["name"], "real_time": entry["real_time"], "time_unit": "ms"}
        for entry in entries
    ]

    [series] = read_one(tmp_path, {"benchmarks": entries}).series
    [old_series] = read_one(tmp_path, {"benchmarks": old_entries}).series

    assert (series.name, series.center, series.stddev) == ("BM_a", 0.002, 0.0005)
    assert (series.statistic, series.count) == ("median", 8)
    assert (old_series.name, old_series.center) == ("BM_a", 0.002)


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        pytest.param({"type_": "synchronous"}, "synchronous", id="synchronous"),
        pytest.param({"type_": "constant", "rate": 2.5}, "constant, 2.5 requests/s", id="rate"),
        pytest.param({"kind": "concurrent", "streams": 32}, "concurrent, 32 streams", id="streams"),
    ],
)
def test_guidellm_series_names_contain_the_load_strategy(
    tmp_path: Path, strategy: dict[str, Any], name: str
) -> None:
    document = guidellm(1)
    document["benchmarks"][0]["config"] = {"strategy": strategy}

    [series] = read_one(tmp_path, document).series

    assert series.name == f"time_to_first_token_ms ({name})"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-le"])
@pytest.mark.parametrize("harness", ["hyperfine", "LoadGen"])
def test_unicode_encodings_of_windows_are_read(tmp_path: Path, harness: str, encoding: str) -> None:
    document = DOCUMENTS[harness](1)
    text = document if isinstance(document, str) else json.dumps(document)
    path = tmp_path / "file"
    path.write_bytes(text.encode(encoding))

    [results] = read_results(path)

    assert results.harness == harness


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("\n".join(json.dumps(vllm_bench(n)) for n in (1, 2, 3)), id="json-lines"),
        pytest.param(json.dumps([vllm_bench(n) for n in (1, 2, 3)]), id="list"),
        pytest.param(
            "\n".join(json.dumps(vllm_bench(n), indent=1) for n in (1, 2, 3)), id="concatenated"
        ),
    ],
)
def test_each_run_appended_to_a_file_is_a_session(tmp_path: Path, text: str) -> None:
    sessions = read_results(write_file(tmp_path, "file", text))

    assert [session.file for session in sessions] == [
        f"{tmp_path / 'file'} (entry {n})" for n in (1, 2, 3)
    ]
    assert [series_by_name(session)["ttft_ms"].center for session in sessions] == pytest.approx(
        [0.02, 0.04, 0.06]
    )


def test_a_cut_off_line_is_reported(tmp_path: Path) -> None:
    text = f'{json.dumps(vllm_bench(1))}\n{{"request_throughput": 1'

    [results] = read_results(write_file(tmp_path, "file", text))

    assert results.notes[-1] == "a part of the file is not JSON and was not read"


def test_repeated_series_names_in_a_file_are_numbered(tmp_path: Path) -> None:
    results = read_one(tmp_path, hyperfine("a", "a", "a"))

    assert [series.name for series in results.series] == ["a", "a #2", "a #3"]


def test_equal_hyperfine_commands_are_distinguished_by_their_parameters(tmp_path: Path) -> None:
    document = hyperfine("sleep", "sleep")
    for seconds, entry in enumerate(document["results"], 1):
        entry["parameters"] = {"seconds": str(seconds)}

    results = read_one(tmp_path, document)

    assert [series.name for series in results.series] == [
        "sleep (seconds=1)",
        "sleep (seconds=2)",
    ]


def hyperfine_sessions(folder: Path, name: str, medians: Sequence[float]) -> list[Results]:
    return [
        read_one(folder, hyperfine("a", times=[median * time for time in TIMES]), f"{name}{n}")
        for n, median in enumerate(medians)
    ]


def test_three_sessions_per_side_give_a_verdict(tmp_path: Path) -> None:
    side = hyperfine_sessions(tmp_path, "a", [1, 1.01, 0.99])
    other_side = hyperfine_sessions(tmp_path, "b", [2, 2.02, 1.98])

    [finding] = draw_conclusions(side, other_side)

    assert (finding.verdict, finding.ratio) == ("faster", pytest.approx(2.0, rel=1e-3))
    assert finding.low < 2 < finding.high
    assert "This holds if the sessions of both sides alternated in time." in finding.sentence


def test_failed_runs_are_excluded(tmp_path: Path) -> None:
    results = read_one(tmp_path, hyperfine("a", times=[9.0, 0.1, 0.102, 0.098], failed=1))

    assert series_by_name(results)["a"].values == (0.1, 0.102, 0.098)


@pytest.mark.parametrize(
    ("ratio", "sessions", "verdict"),
    [
        # With one session per side, the log ratio has a standard error of sqrt(2) x 7.5% = 10.6%
        # and 8 degrees of freedom. The half-width is 2.306 x 10.6% = 24.5%: a factor of 1.277.
        pytest.param(1.25, 1, "undecided", id="inside the interval of one session per side"),
        pytest.param(1.3, 1, "faster", id="faster, outside that interval"),
        pytest.param(1 / 1.3, 1, "slower", id="slower, outside that interval"),
    ],
)
def test_single_sessions_get_the_scatter_of_the_prior(
    tmp_path: Path, ratio: float, sessions: int, verdict: str
) -> None:
    side = hyperfine_sessions(tmp_path, "a", [1.0] * sessions)
    other_side = hyperfine_sessions(tmp_path, "b", [ratio] * sessions)

    [finding] = draw_conclusions(side, other_side)

    assert finding.verdict == verdict
    assert finding.low == pytest.approx(ratio / math.exp(2.306 * 0.075 * math.sqrt(2)), rel=1e-3)
    assert finding.high == pytest.approx(ratio**2 / finding.low)


def test_copied_sessions_count_as_one(tmp_path: Path) -> None:
    findings_of_one = draw_conclusions(
        hyperfine_sessions(tmp_path, "a", [1.0]), hyperfine_sessions(tmp_path, "b", [1.5])
    )
    findings_of_copies = draw_conclusions(
        hyperfine_sessions(tmp_path, "c", [1.0] * 4),
        hyperfine_sessions(tmp_path, "d", [1.5] * 4),
    )

    [of_one] = findings_of_one
    [of_copies] = findings_of_copies

    assert (of_copies.low, of_copies.high) == pytest.approx((of_one.low, of_one.high))
    assert "copies of each other and count as one" in of_copies.sentence


def test_a_tracked_number_is_neither_better_nor_worse(tmp_path: Path) -> None:
    side, other_side = (
        [
            read_one(tmp_path, asv({"s.track_a": [[value]]}), f"{side}{n}")
            for n, value in enumerate(values)
        ]
        for side, values in (("a", [1, 1.01, 0.99]), ("b", [2, 2.02, 1.98]))
    )

    [finding] = draw_conclusions(side, other_side)

    assert finding.verdict == "different"
    assert "the file does not say whether more is better" in finding.sentence


def test_equal_sides_get_a_verdict_in_at_most_five_percent_of_draws(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    false_verdicts = 0
    for draw in range(100):
        folder = tmp_path / str(draw)
        folder.mkdir()
        side, other_side = (
            hyperfine_sessions(folder, name, list(np.exp(random.normal(0, 0.05, 4))))
            for name in "ab"
        )

        [finding] = draw_conclusions(side, other_side)

        false_verdicts += finding.verdict != "undecided"

    # At a false-positive rate of 5%, more than 11 of 100 draws are false in about 1% of tests.
    assert false_verdicts <= 11


@pytest.mark.parametrize(
    ("first", "second", "condition"),
    [
        pytest.param(
            {**pytest_benchmark(1), "machine_info": {"node": "x"}},
            {**pytest_benchmark(1), "machine_info": {"node": "y"}},
            "machine (x against y)",
            id="machine",
        ),
        pytest.param(
            {**vllm_bench(1), "request_rate": "inf"},
            {**vllm_bench(1), "request_rate": 4.0},
            "request rate (inf against 4.0)",
            id="load",
        ),
        pytest.param(
            loadgen(),
            loadgen().replace("Scenario : Server", "Scenario : Offline"),
            "scenario (Server against Offline)",
            id="scenario",
        ),
    ],
)
def test_conditions_that_differ_between_the_sides_are_stated(
    tmp_path: Path, first: Any, second: Any, condition: str
) -> None:
    findings = draw_conclusions(
        [read_one(tmp_path, first, "first")], [read_one(tmp_path, second, "second")]
    )

    sentences = [finding.sentence for finding in findings]

    assert f"The sides differ in {condition}, which may explain a difference." in sentences


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(("a", "b"), id="plain"),
        pytest.param(("python -c 'import a'", 'echo "$HOME"'), id="quotes"),
    ],
)
def test_commands_of_one_file_get_the_advice_to_alternate_them(
    tmp_path: Path, commands: tuple[str, str]
) -> None:
    results = read_one(tmp_path, hyperfine(*commands))

    [finding] = comparisons(list(draw_conclusions([results])))

    statement, _, suggested = finding.sentence.partition("To decide, measure them alternately: ")

    assert "differing by 0%: undecided" in statement
    assert "They were measured one after the other" in statement
    assert shlex.split(suggested) == ["paradnn", "compare", *commands]


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(("x" * 600, "b"), id="long"),
        pytest.param(("echo 1\necho 2", "b"), id="several-lines"),
        pytest.param(("a", "a"), id="equal"),
    ],
)
def test_the_advice_omits_commands_that_cannot_be_compared_on_one_line(
    tmp_path: Path, commands: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_file(tmp_path, "file", hyperfine(*commands))

    audit(AuditOptions(files=(str(path),)), Selection())

    lines = capsys.readouterr().out.splitlines()

    assert "To decide, measure them alternately with paradnn compare." in lines[0]
    assert len(lines) == 5
    assert max(map(len, lines)) < 500


def test_different_benchmarks_of_one_suite_are_not_compared(tmp_path: Path) -> None:
    results = read_one(tmp_path, go(1) + "\nBenchmarkSort-8 10 900 ns/op")

    assert comparisons(list(draw_conclusions([results]))) == []


@pytest.mark.parametrize(
    ("times", "statement"),
    [
        pytest.param(
            [0.1 + 0.001 * n for n in range(20)],
            "Not steady: the second half differs by +9.6% from the first.",
            id="trend",
        ),
        pytest.param(
            [0.1, 0.101, 0.099] * 6 + [0.9],
            "The slowest run took 9 times the median",
            id="outlier",
        ),
        pytest.param([0.1], "100 ms, a single number: its repeatability is unknown.", id="single"),
        pytest.param(
            TIMES,
            "100 ms, median over 5 runs, standard deviation 1.6%, one session.",
            id="steady",
        ),
    ],
)
def test_a_single_session_is_described(tmp_path: Path, times: list[float], statement: str) -> None:
    [finding] = draw_conclusions([read_one(tmp_path, hyperfine("a", times=times))])

    assert statement in finding.sentence


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="cut-off"),
        pytest.param("null", id="null"),
        pytest.param("[]", id="empty-list"),
        pytest.param("{}", id="empty-object"),
        pytest.param('{"results": 3}', id="number-for-list"),
        pytest.param(
            '{"results": [{"command": "a", "times": ["x", null, -1, 1e999, true]}]}',
            id="no-positive-number",
        ),
        pytest.param(
            '{"benchmarks": [{"metrics": {"x_ms": {"successful": {"median": NaN}}}}]}', id="nan"
        ),
        pytest.param('{"machine_info": {}, "benchmarks": [{"stats": [1]}, 4]}', id="wrong-types"),
        pytest.param('{"context": [], "benchmarks": {"a": 1}}', id="object-for-list"),
        pytest.param(
            '{"results": {"a": {"b": 1}, "c": [[null]]}, "result_columns": 5}', id="no-columns"
        ),
        pytest.param('{"request_throughput": "fast", "completed": []}', id="text-for-number"),
        pytest.param(
            "===\nMLPerf Results Summary\n===\n : \n=:=\n99.00 percentile latency (ns) : nan",
            id="loadgen-without-a-number",
        ),
        pytest.param(
            json.dumps({"request_throughput": 0.0, "completed": 0, "failed": 8}),
            id="all-requests-failed",
        ),
        pytest.param("[" * 100_000, id="deeply-nested-list"),
        pytest.param(
            '{"results": [{"command": "a", "times": {"a": 1}, "median": ' + "9" * 400 + "}]}",
            id="overflow",
        ),
    ],
)
def test_a_file_without_measurements_raises_a_one_line_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"^\S+file contains no measurement above zero.*$"):
        read_results(write_file(tmp_path, "file", text))


def test_files_that_cannot_be_compared_are_rejected(tmp_path: Path) -> None:
    file = str(write_file(tmp_path, "f", hyperfine("a")))
    other_file = str(write_file(tmp_path, "g", hyperfine("b")))

    with pytest.raises(ConfigError, match="is on both sides"):
        audit(AuditOptions(files=(file,), against=(file,)), Selection())
    with pytest.raises(DataError, match="cannot be read"):
        audit(AuditOptions(files=(str(tmp_path / "nowhere"),)), Selection())
    with pytest.raises(DataError, match="no benchmark is on both sides: a against b"):
        audit(AuditOptions(files=(file,), against=(other_file,)), Selection())


def test_the_audit_command_prints_findings_and_writes_them_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(write_file(tmp_path, name, hyperfine("a\x1b[31m", "b"))) for name in ("f", "g")]
    written = tmp_path / "findings.json"

    audit(AuditOptions(files=tuple(files), json=str(written)), Selection())

    out = capsys.readouterr().out

    assert f"{files[0]}: hyperfine, 2 series" in out
    assert "\x1b" not in out

    found = json.loads(written.read_text())
    assert out.splitlines()[0] == found["answer"] == "Of 2 comparisons: 2 undecided."
    assert len(found["rows"]) == found["points"] + 4 == 6
    assert found["rows"][2]["verdict"] == "undecided"
    assert found["rows"][0]["ratio"] is None
