"""`make test-gpu` without a GPU: what it reads of a board, and a question that is really asked of a CPU."""

import ensurepip
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import ROOT, environment, process
from tests.gpu.__main__ import _answer
from tests.gpu.board import read_board, sampled_power, throttled
from tests.gpu.commands import Answer, Session, Skipped, Wrong
from tests.gpu.environment import make_environment
from tests.gpu.questions import QUESTIONS, Question, machine
from tests.gpu.sweeps import GRIDS, OTHERS, REAL, SMALL
from tests.processes import PATIENCE, children_of, hearing_ctrl_c, started
from tests.session.test_faults import all_gone

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


def test_a_queue_lends_one_of_several_boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\n[ "$1" = --id=GPU-5f ] && [ "$2" = --query-gpu=power.draw ] && echo 80\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5f,GPU-60")
    assert read_board() == {"power_w": "80"}


def test_a_driver_is_asked_once_for_all_that_it_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    values = "NVIDIA H100, 580.1, 81559, 4, 345, 1980, 2619, 31, 69.5, 700.00, Disabled, Default, [N/A], Enabled, 0x1"
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho '{values}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = read_board()
    assert (found["memory_used_mib"], found["compute_mode"], found["throttle_bits"]) == ("4", "Default", "0x1")
    assert "mig" not in found
    assert (tmp_path / "asked").read_text() == "asked\n"


def raising(error: Exception) -> Question:
    def ask(_: Session) -> Answer:
        raise error

    return Question("of a test", 5, ask)


def test_a_question_that_fails_is_an_answer_too(tmp_path: Path) -> None:
    session = Session("cpu", ["jax"], tmp_path, seconds=60)
    told = {
        error: tuple(_answer(raising(error), session)[key] for key in ("verdict", "line"))
        for error in (Wrong("half of it", {"share": 0.5}), Skipped("no board"), ValueError("a fault"))
    }
    assert list(told.values()) == [("FAILED", "half of it"), ("skipped", "no board"), ("FAILED", "ValueError: a fault")]


def test_what_there_is_no_time_for_is_skipped(tmp_path: Path) -> None:
    row = _answer(Question("long", 30, lambda _: Answer("")), Session("cpu", ["jax"], tmp_path, seconds=10))
    assert (row["verdict"], row["line"].partition(",")[0]) == ("skipped", "takes some 30 s")

    def interrupted(session: Session) -> Answer:
        while session.left > 0:
            pass
        raise Wrong("2 of 3 runs")

    row = _answer(Question("short", 0, interrupted), Session("cpu", ["jax"], tmp_path, seconds=0.01))
    assert (row["verdict"], row["line"]) == ("skipped", "the time was up: 2 of 3 runs")


def test_a_session_that_ends_leaves_no_process(tmp_path: Path) -> None:
    before = set(psutil.Process().children())  # other tests keep workers
    with Session("cpu", ["jax"], tmp_path, seconds=60) as session:
        session.fidelity("jax", ["fc"])
        (child,) = set(psutil.Process().children()) - before
    assert not child.is_running()


def test_frameworks_that_see_no_gpu_are_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Stand-ins for the packages: what is tested is what follows from that they say.
    (tmp_path / "jax.py").write_text("__version__ = '1'\ndef devices(): return []\n")
    (tmp_path / "torch.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')\n")
    (tmp_path / "keras.py").write_text("__version__ = '3'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    session = Session("gpu", ["jax", "torch"], tmp_path, seconds=60)
    with pytest.raises(Wrong, match=r"jax 1, Keras 3, no GPU; torch FAILS: ImportError: libcuda.so.1: cannot open"):
        machine(session)
    with pytest.raises(Skipped, match="jax sees no GPU"):
        session.need("jax")
    with pytest.raises(Skipped, match="no framework sees a GPU"):
        session.framework()


def test_an_environment_sees_the_machines_packages_and_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, folder = tmp_path / "wheels", tmp_path / "venv"
    wheels.mkdir()
    with pytest.raises(SystemExit, match=rf"no wheels in {wheels}: run\n    make gpu-wheels GPU_PYTHONS=3\.\d+\n"):
        make_environment(folder, wheels)
    # The machine of these tests lacks nothing but a pip of its own.
    (wheel,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    shutil.copy(wheel, wheels)
    monkeypatch.setattr("tests.gpu.environment.REQUIREMENTS", ("hydra-core>=1.3.8,<1.4", "psutil"))
    python = make_environment(folder, wheels)
    seen = subprocess.run([python, "-c", "import hydra, psutil"], capture_output=True, text=True, check=False)
    assert seen.returncode == 0, seen.stderr
    (folder / "kept").touch()
    assert make_environment(folder, wheels) == python
    assert (folder / "kept").exists()
    monkeypatch.setattr("platform.node", lambda: "another-machine")
    make_environment(folder, wheels)
    assert not (folder / "kept").exists()


def test_a_package_that_is_nowhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (wheel,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    monkeypatch.setattr("tests.gpu.environment.REQUIREMENTS", ("hydra-core>=99",))
    with pytest.raises(SystemExit, match=r"(?s)No matching distribution found for hydra-core>=99.*make gpu-wheels"):
        make_environment(tmp_path / "venv", wheel.parent)


def test_every_question_has_a_name_of_its_own() -> None:
    names = [question.name for question in QUESTIONS]
    assert len(set(names)) == len(names)
    assert {*SMALL, *OTHERS, *REAL} == set(GRIDS)


@pytest.mark.long
@pytest.mark.framework
def test_what_needs_no_gpu_is_really_asked(tmp_path: Path) -> None:
    """In the environment of these tests: TensorFlow is there, and what needs a GPU is skipped with the reason."""
    out = tmp_path / "result.json"
    arguments = ["tests.gpu", "--platform", "cpu", "--out", str(out), "--only", "out of memory, TensorFlow"]
    done = process(arguments, PARADNN_GPU_TESTS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    (energy,) = [question for question in QUESTIONS if question.name == "energy and clocks"]
    skipped = _answer(energy, Session("cpu", ["tensorflow"], tmp_path, seconds=60))
    answers = [*json.loads(out.read_text())["answers"], skipped]
    assert [(answer["question"], answer["verdict"], answer["line"]) for answer in answers] == [
        ("out of memory, TensorFlow", "ok", "oom_host, then ok"),
        ("energy and clocks", "skipped", "needs a GPU"),
    ]


@pytest.mark.framework
def test_who_interrupts_gets_the_answers_so_far_and_no_process_stays(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "tests.gpu", "--platform", "cpu", "--out", str(out), "--only", "o"]

    def answers() -> list[dict[str, Any]]:
        return list(json.loads(out.read_text())["answers"]) if out.exists() else []

    environ, pipe = environment(PARADNN_GPU_TESTS="1"), subprocess.PIPE
    with started(hearing_ctrl_c(command), cwd=ROOT, env=environ, stdout=pipe, text=True) as asking:
        # Until a worker of a driver of the first question that measures has begun; the one before it asks the machine.
        while not (answers() and len(children := children_of(asking.pid)) >= 2) and asking.poll() is None:
            time.sleep(0.1)
        asking.send_signal(signal.SIGINT)
        printed, _ = asking.communicate(timeout=PATIENCE)
    assert asking.returncode == 130, printed
    assert "interrupted after" in printed
    assert not json.loads(out.read_text())["complete"]
    assert [row["question"] for row in answers()][:1] == [QUESTIONS[0].name]
    assert all_gone(children)
