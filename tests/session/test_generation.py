"""A generation as a user measures it: swept, recorded, resumed, refused in one line; and of planted phases."""

import pytest

from paradnn.config.point import Point, costs_of, prefill_costs_of, read_point
from paradnn.core.messages import Compilation, Timing
from paradnn.store.runs import Record
from paradnn.workloads.generate import Generation
from tests.conftest import TINY, Store, run
from tests.session.records import answered, recorded, timing

GPT = [
    "model=gpt",
    "model.layers=1",
    "model.width=8",
    "model.heads=2",
    "model.sequence_length=12",
    "model.vocab_size=20",
]
ASK = ["paradnn.train", "-m", *GPT, *(key for key in TINY if not key.startswith("model.")), "generate.prompt=5"]


@pytest.mark.framework
def test_lengths_are_swept_recorded_and_resumed(store: Store) -> None:
    command = [*ASK, "mode=generate", "generate.tokens=3,7"]
    done = run(command, store)
    assert done.returncode == 0, done.stderr
    points = store.runs()
    assert [point["outcome"] for point in points] == ["ok", "ok"]
    assert all(point["checks"] == "passed" for point in points)
    for point in points:
        metrics, params = store.values("latest_metrics", point["run_id"]), store.values("params", point["run_id"])
        length = 5 + int(str(params["generate.tokens"]))
        assert metrics["cache_bytes"] == 4 * 4 * 2 * length * 8
        assert metrics["tokens_per_second"] == pytest.approx(metrics["examples_per_second"])
        assert metrics["time_to_first_token_ms"] > 0
        assert metrics["latency_steps"] == 200
    again = run(command, store)
    assert "2 skipped, the store holds their outcome already (2 ok)" in again.stdout
    assert len(store.runs()) == 2


BANDWIDTH, PEAK = 1e10, 1e11


def generator() -> Point:
    return read_point({"model": {"name": "gpt"}, "batch_size": 4, "mode": "generate", "generate": {"tokens": 11}})


def thirty(step: float, steps: int) -> Timing:
    """Blocks about a step of so many seconds."""
    return timing([steps * step * (1 + 0.01 * (number % 3 - 1)) for number in range(30)], steps)


def planted(point: Point, cache_bytes: int | None = None) -> Record:
    costs, compilation = costs_of(point), Compilation([0.5, 0.1], [1, 0], None)
    generation = Generation(thirty(0.2, 1), compilation, costs.cache_bytes if cache_bytes is None else cache_bytes)
    measured = {"parameters": costs.parameters, "compilation": compilation}
    result = answered(thirty(0.005, 20), measured, latencies=[0.006] * 200, work=generation)
    peaks = {"peak_bytes_per_second": BANDWIDTH, "peak_flops_per_second": PEAK}
    return recorded(point, result, peaks=peaks)


def test_a_step_is_a_token_of_each_example() -> None:
    point = generator()
    record, costs, first = planted(point), costs_of(point), prefill_costs_of(point)
    expected = {
        "time_to_first_token_ms": 200.0,
        "time_per_output_token_ms": 5.0,
        "tokens_per_second": 800.0,
        "tokens_per_second_per_user": 200.0,
        "examples_per_second": 800.0,
        "generation_ms": 250.0,
        "prompt_tokens_per_second": 4 * 64 / 0.2,
        "latency_p50_ms": 6.0,
        "cache_bytes": 4 * 4 * 2 * (64 + 11) * 256 * 4,
        "decode_bytes": costs.bytes_per_step,
        "decode_bandwidth_fraction": costs.bytes_per_step / 0.005 / BANDWIDTH,
        "prefill_intensity": first.flops_per_step / first.bytes_per_step,
        "prefill_flops_utilization": first.flops_per_step / 0.2 / PEAK,
        "prefill_compile_seconds": 0.6,
    }
    assert {name: record.metrics[name] for name in expected} == pytest.approx(expected)
    for name in ("time_to_first_token_ms", "time_per_output_token_ms"):
        low, high = (record.metrics[name.replace("_ms", f"_{end}_ms")] for end in ("low", "high"))
        assert low < record.metrics[name] < high
    for name in ("tokens_per_second", "tokens_per_second_per_user"):
        assert record.metrics[f"{name}_low"] < record.metrics[name] < record.metrics[f"{name}_high"]
    assert record.tags["checks"] == "passed"
    assert record.tags["prefill_steady"] == "true"
    assert len(record.artifacts["prefill.json"]["processes"][0]["prefill"]["blocks"]) == 30
    assert "token of each example of **gpt" in record.description
    assert "\n\nGeneration: first token after 200.000 ms, then 5.000 ms a token; " in record.description


def test_a_cache_of_another_size_contradicts() -> None:
    assert planted(generator(), cache_bytes=5).tags["checks"].startswith("failed: the cache has 5 bytes, the analytic")
