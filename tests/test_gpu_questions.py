"""`make test-gpu` without a GPU: what it reads of a board, and a question that is really asked of a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import process
from tests.gpu.board import read_board, sampled_power, throttled
from tests.gpu.questions import QUESTIONS

#: An older driver: it knows throttle reasons under their first name, and cannot tell a limit of power.
SMI = """#!/bin/sh
case "$2" in
  --query-gpu=name) echo "NVIDIA H200";;
  --query-gpu=power.draw) echo 77.25;;
  --query-gpu=power.limit) echo "[N/A]";;
  --query-gpu=clocks_throttle_reasons.active) echo 0x0000000000000044;;
  *) echo "Field is not a valid field to query."; exit 2;;
esac
"""


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@pytest.mark.usefixtures("board")
def test_a_board_tells_what_its_driver_knows() -> None:
    found = read_board()
    assert found == {"name": "NVIDIA H200", "power_w": "77.25", "throttle_bits": "0x0000000000000044"}
    assert throttled(found["throttle_bits"]) == ["software power cap", "hardware thermal slowdown"]
    assert throttled("0x0000000000000001") == []  # idle


@pytest.mark.usefixtures("board")
def test_power_is_sampled_while_something_runs() -> None:
    with sampled_power(seconds=0.01) as power:
        while len(power.samples) < 3:
            pass
    assert {watts for _, watts in power.samples} == {77.25}
    assert power.above_idle(70.0)
    assert power.above_idle(80.0) == []


def test_without_a_board_nothing_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_board() == {}


def test_every_question_has_a_name_of_its_own() -> None:
    names = [question.name for question in QUESTIONS]
    assert len(set(names)) == len(names)


@pytest.mark.framework
def test_what_needs_no_gpu_is_really_asked(tmp_path: Path) -> None:
    """In the environment of these tests: TensorFlow is there, and what needs a GPU is skipped with the reason."""
    out = tmp_path / "result.json"
    asked = ("out of memory, TensorFlow", "energy and clocks")
    answers = []
    for name in asked:
        arguments = ["tests.gpu", "--platform", "cpu", "--out", str(out), "--only", name]
        done = process(arguments, PARADNN_GPU_TESTS="1")
        assert done.returncode == 0, done.stdout + done.stderr
        answers += json.loads(out.read_text())["answers"]
    assert [(answer["question"], answer["verdict"], answer["line"]) for answer in answers] == [
        ("out of memory, TensorFlow", "ok", "oom_host, then ok"),
        ("energy and clocks", "skipped", "needs a GPU"),
    ]
