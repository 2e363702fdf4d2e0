"""What is concluded from files of other harnesses: two of each kind as they write them, and files that are broken."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.audit import READERS, AuditFinding, AuditOptions, audit, conclusions, read_results
from analysis.options import Selection
from paradnn.core.errors import ConfigError, DataError

TIMES = [0.101, 0.099, 0.1, 0.102, 0.098]
LOADGEN = """================================================
MLPerf Results Summary
================================================
SUT name : {name}
Scenario : Server
Mode     : PerformanceOnly
Scheduled samples per second : 51.2
Result is : {result}
99.00 percentile latency (ns)   : {latency}
"""


def hyperfine(*commands: str, times: list[float] = TIMES, codes: int = 0) -> dict[str, Any]:
    entry = {"mean": 0.1, "stddev": 0.001, "median": 0.1, "times": times, "exit_codes": [codes] * len(times)}
    return {"results": [{"command": command, **entry} for command in commands]}


def pytest_benchmark(scale: float = 1.0) -> dict[str, Any]:
    stats = {"median": 0.1 * scale, "stddev": 0.001, "rounds": 5, "data": [scale * value for value in TIMES]}
    return {
        "machine_info": {},
        "version": "5.1.0",
        "benchmarks": [{"name": "test_a", "fullname": "t.py::test_a", "stats": stats}],
    }


def google(scale: float = 1.0) -> dict[str, Any]:
    rows = [
        {"name": f"BM_a/{n}", "run_name": "BM_a", "run_type": "iteration", "real_time": scale * n, "time_unit": "ns"}
        for n in (100, 101, 99)
    ]
    mean = {"name": "BM_a_mean", "run_name": "BM_a", "run_type": "aggregate", "real_time": 1e9, "time_unit": "ns"}
    return {"context": {"cpu_scaling_enabled": True}, "benchmarks": [*rows, mean]}


def asv(scale: float = 1.0) -> dict[str, Any]:
    columns = ["result", "params", "version", "started_at", "duration"]
    found = {"suite.time_a": [[0.1 * scale], [], "v", 1, 2], "suite.time_b": [[0.2, None], [["1", "2"]], "v", 1, 2]}
    return {"commit_hash": "abc", "result_columns": columns, "results": found}


def aiperf(scale: float = 1.0) -> dict[str, Any]:
    latency = {"unit": "ms", "avg": 510.0, "p50": 500 * scale, "p99": 900, "std": 50.0, "count": 100}
    return {"request_latency": latency, "request_throughput": {"unit": "requests/sec", "avg": 2.5 / scale}}


def guidellm(scale: float = 1.0) -> dict[str, Any]:
    metrics = {
        "request_totals": {"successful": 95, "errored": 5, "total": 100},
        "time_to_first_token_ms": {"successful": {"median": 30 * scale, "std_dev": 3.0, "count": 95}},
    }
    return {"metadata": {"version": 2}, "benchmarks": [{"metrics": metrics}]}


def vllm(scale: float = 1.0) -> dict[str, Any]:
    return {
        "request_throughput": 10 / scale,
        "completed": 100,
        "failed": 2,
        "median_ttft_ms": 20.0 * scale,
        "std_ttft_ms": 2.0,
    }


def loadgen(scale: float = 1.0) -> str:
    return LOADGEN.format(name="a", result="INVALID" if scale > 1 else "VALID", latency=int(15_000_000 * scale))


EXAMPLES = {
    "hyperfine": (hyperfine("a"), hyperfine("a", times=[2 * value for value in TIMES], codes=1)),
    "pytest-benchmark": (pytest_benchmark(), pytest_benchmark(2)),
    "Google Benchmark": (google(), google(2)),
    "asv": (asv(), asv(2)),
    "GuideLLM": (guidellm(), guidellm(2)),
    "AIPerf": (aiperf(), aiperf(2)),
    "vllm bench": (vllm(), vllm(2)),
    "LoadGen": (loadgen(), loadgen(2)),
}
NOTES = {
    "hyperfine": "a: 5 of 5 runs failed, and their times are among the others.",
    "Google Benchmark": "the processor's clock was scaled while this was measured (its own warning).",
    "GuideLLM": "load 1: 5 requests failed.",
    "vllm bench": "2 requests failed.",
    "LoadGen": "its own rules call it INVALID.",
}


def written(folder: Path, name: str, document: Any) -> Path:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize("kind", [*READERS])
def test_two_files_of_a_kind_are_two_sessions(tmp_path: Path, kind: str) -> None:
    first, second = (read_results(written(tmp_path, str(n), one)) for n, one in enumerate(EXAMPLES[kind]))
    assert (first.kind, second.kind) == (kind, kind)
    found = list(conclusions([[first], [second]]))
    assert NOTES.get(kind, "") in [finding.sentence for finding in found] or kind not in NOTES
    ratios = [finding for finding in found if not math.isnan(finding.ratio)]
    assert any(finding.ratio == pytest.approx(2.0) for finding in ratios)  # the second is half as good in each
    assert {finding.verdict for finding in ratios} == {"no verdict"}
    assert all("one session each, no verdict; 3 or more a side" in finding.sentence for finding in ratios)


def sessions(folder: Path, name: str, medians: list[float]) -> list[Any]:
    documents = [hyperfine("a", times=[median * value for value in TIMES]) for median in medians]
    return [read_results(written(folder, f"{name}{n}", one)) for n, one in enumerate(documents)]


def only(findings: Any) -> AuditFinding:
    [finding] = [finding for finding in findings if not math.isnan(finding.ratio)]
    return finding


def test_three_sessions_a_side_carry_a_verdict(tmp_path: Path) -> None:
    found = only(conclusions([sessions(tmp_path, "a", [1, 1.01, 0.99]), sessions(tmp_path, "b", [2, 2.02, 1.98])]))
    assert (found.verdict, found.ratio) == ("faster", pytest.approx(2.0, rel=1e-3))
    assert found.low < 2 < found.high
    assert "if the sessions of both sides alternated in time" in found.sentence


def test_equal_sides_differ_in_one_of_twenty_at_most(tmp_path: Path) -> None:
    random, wrong = np.random.default_rng(3), 0
    for draw in range(100):
        folder = tmp_path / str(draw)
        folder.mkdir()
        sides = [sessions(folder, side, list(np.exp(random.normal(0, 0.05, 4)))) for side in "ab"]
        wrong += only(conclusions(sides)).verdict != "undecided"
    assert wrong <= 11  # of 100 at 5%: more in one of a hundred


def test_commands_of_one_file_were_measured_one_after_the_other(tmp_path: Path) -> None:
    results = read_results(written(tmp_path, "f", hyperfine("a", "b")))
    found = only(conclusions([[results]]))
    assert "a drift of the machine looks the same" in found.sentence
    assert found.sentence.endswith("paradnn compare 'a' 'b' runs both by turns.")


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([0.1 + 0.001 * n for n in range(20)], "Not steady: the second half differs by +9.6% from the first."),
        ([0.1, 0.101, 0.099] * 6 + [0.9], "Its slowest run took 9 times the median"),
        ([0.1], "a single number; how it would repeat is not known"),
    ],
)
def test_what_a_session_shows_of_itself(tmp_path: Path, times: list[float], words: str) -> None:
    [finding] = conclusions([[read_results(written(tmp_path, "f", hyperfine("a", times=times)))]])
    assert words in finding.sentence


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "{}",
        "[" * 100_000,
        '{"results": 3}',
        '{"results": [{"command": "a", "times": ["x", null, -1, 1e999, true]}]}',
        '{"results": [{"command": "a", "times": {"a": 1}, "median": ' + "9" * 400 + "}]}",
        '{"benchmarks": [{"metrics": {"x_ms": {"successful": {"median": NaN}}}}]}',
        '{"machine_info": {}, "benchmarks": [{"stats": [1]}, 4]}',
        '{"context": [], "benchmarks": {"a": 1}}',
        '{"results": {"a": {"b": 1}, "c": [[null]]}, "result_columns": 5}',
        '{"request_throughput": "fast", "completed": []}',
        "MLPerf Results Summary\n : \n=:=\n99.00 percentile latency (ns) : nan",
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"^\S+f[ (]"):
        read_results(written(tmp_path, "f", text))


def test_wrong_files_are_wrong_input(tmp_path: Path) -> None:
    name = str(written(tmp_path, "f", hyperfine("a")))
    with pytest.raises(ConfigError, match="is on both sides"):
        audit(AuditOptions(files=(name,), against=(name,)), Selection())
    with pytest.raises(DataError, match="cannot be read"):
        audit(AuditOptions(files=(str(tmp_path / "nowhere"),)), Selection())
    other = str(written(tmp_path, "g", hyperfine("b")))
    with pytest.raises(DataError, match="no benchmark is in both: a against b"):
        audit(AuditOptions(files=(name,), against=(other,)), Selection())


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(written(tmp_path, name, hyperfine("a\x1b[31m", "b"))) for name in ("f", "g")]
    audit(AuditOptions(files=tuple(files), json=str(tmp_path / "found.json")), Selection())
    out = capsys.readouterr().out
    assert f"{files[0]}: hyperfine, 2 series" in out
    assert "\x1b" not in out
    assert len(json.loads((tmp_path / "found.json").read_text())) == 6
