"""A generation as a user measures it: swept beside forward passes, recorded, resumed, refused in one line."""

from __future__ import annotations

import pytest

from tests.conftest import TINY, Store, run

pytestmark = pytest.mark.framework

GPT = [
    "model=gpt",
    "model.layers=1",
    "model.width=8",
    "model.heads=2",
    "model.sequence_length=12",
    "model.vocab_size=20",
]
ASK = ["paradnn.train", "-m", *GPT, *(key for key in TINY if not key.startswith("model.")), "generate.prompt=5"]


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


def test_lengths_of_another_mode_are_one_line(store: Store) -> None:
    done = run([*ASK, "mode=inference"], store)
    assert done.returncode == 2
    assert "generate.prompt=5: is for mode=generate; add mode=generate, or leave it out" in done.stderr
    assert "Traceback" not in done.stderr
