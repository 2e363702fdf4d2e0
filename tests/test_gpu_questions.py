"""`make test-gpu` without a GPU: what it reads of a board, and a question that is really asked of a CPU."""

import ensurepip
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from tests.conftest import ROOT, environment, process
from tests.gpu.board import read_board, sampled_power, throttled
from tests.gpu.commands import Session
from tests.gpu.environment import make_environment
from tests.processes import PATIENCE, children_of, hearing_ctrl_c, started
from tests.session.test_faults import all_gone

#: An older driver: it knows throttle reasons under their first name, and cannot tell a limit of power.
SMI = """case "$2" in
  --query-gpu=name) echo "NVIDIA H200";;
  --query-gpu=power.draw) echo 77.25;;
  --query-gpu=power.limit) echo "[N/A]";;
  --query-gpu=clocks_throttle_reasons.active) echo 0x0000000000000044;;
  *) echo "Field is not a valid field to query."; exit 2;;
esac
"""


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a program in the place of `nvidia-smi`."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def put(script: str) -> Path:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program

    return put


def test_a_board_tells_what_its_driver_knows_and_its_power_while_something_runs(board: Callable[[str], Path]) -> None:
    board(SMI)
    found = read_board()
    assert found == {"name": "NVIDIA H200", "power_w": "77.25", "throttle_bits": "0x0000000000000044"}
    assert throttled(found["throttle_bits"]) == ["software power cap", "hardware thermal slowdown"]
    assert throttled("0x0000000000000001") == []  # idle
    with sampled_power(seconds=0.01) as power:
        while len(power.samples) < 3:
            pass
    assert {watts for _, watts in power.samples} == {77.25}
    assert power.above_idle(70.0)
    assert power.above_idle(80.0) == []


def test_one_of_several_boards_is_asked_once_for_all_that_it_knows(
    board: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5f,GPU-60")
    program = board('[ "$1" = --id=GPU-5f ] && [ "$2" = --query-gpu=power.draw ] && echo 80')
    assert read_board() == {"power_w": "80"}
    values = "NVIDIA H100, 580.1, 81559, 4, 345, 1980, 2619, 31, 69.5, 700.00, Disabled, Default, [N/A], Enabled, 0x1"
    asked = program.with_name("asked")
    board(f"echo asked >> {asked}\necho '{values}'")
    found = read_board()
    assert (found["memory_used_mib"], found["compute_mode"], found["throttle_bits"]) == ("4", "Default", "0x1")
    assert "mig" not in found
    assert asked.read_text() == "asked\n"
    program.unlink()
    assert read_board() == {}


def test_a_session_that_ends_leaves_no_process(tmp_path: Path) -> None:
    before = set(psutil.Process().children())  # other tests keep workers
    with Session("cpu", ["jax"], tmp_path, seconds=60) as session:
        session.fidelity("jax", ["fc"])
        (child,) = set(psutil.Process().children()) - before
    assert not child.is_running()


def asked(tmp_path: Path, platform: str, *words: str, **variables: str) -> tuple[int, str, dict[str, str]]:
    """The exit code of some questions, what is printed, and each question's ending in the file."""
    out = tmp_path / "result.xml"
    done = process(["tests.gpu", "--platform", platform, "--out", str(out), *words], PARADNN_GPU_TESTS="1", **variables)
    return done.returncode, done.stdout + done.stderr, endings(out)


def endings(file: Path) -> dict[str, str]:
    cases = ElementTree.parse(file).iter("testcase")
    return {
        str(case.get("name")): next((each.tag for each in case if each.tag in ("failure", "skipped", "error")), "ok")
        for case in cases
    }


def test_frameworks_that_see_no_gpu_are_not_asked_again(tmp_path: Path) -> None:
    """Stand-ins for the packages: what is tested is what follows from that they say."""
    (tmp_path / "jax.py").write_text("__version__ = '1'\ndef devices(): return []\n")
    (tmp_path / "torch.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')\n")
    (tmp_path / "tensorflow.py").write_text("raise ImportError('none')\n")
    (tmp_path / "keras.py").write_text("__version__ = '3'\n")
    words = ["-k", "see_the_device or ceilings or two_processes or other_families", "--seconds", "60"]
    code, said, found = asked(tmp_path, "gpu", *words, PYTHONPATH=str(tmp_path))
    assert code == 1, said
    assert "jax 1, Keras 3, no GPU; torch FAILS: ImportError: libcuda.so.1: cannot open" in said
    assert "jax sees no GPU" in said
    assert "no framework sees a GPU" in said
    assert "takes some 80 s, " in said
    assert [name for name, ending in found.items() if ending == "failure"] == ["test_frameworks_see_the_device"]
    assert list(found.values()).count("skipped") == len(found) - 1


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
    monkeypatch.setattr("tests.gpu.environment.REQUIREMENTS", ("hydra-core>=99",))
    with pytest.raises(SystemExit, match=r"(?s)No matching distribution found for hydra-core>=99.*make gpu-wheels"):
        make_environment(folder, wheels)
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


@pytest.mark.long
@pytest.mark.framework
def test_what_needs_no_gpu_is_really_asked(tmp_path: Path) -> None:
    """In the environment of these tests: TensorFlow is there, and what needs a GPU is skipped with the reason."""
    code, said, found = asked(tmp_path, "cpu", "-k", "(out_of_memory and tensorflow) or energy")
    assert code == 0, said
    assert found == {
        "test_out_of_memory_is_an_outcome[tensorflow]": "ok",
        "test_energy_is_that_which_nvidia_smi_shows": "skipped",
    }
    assert "needs a GPU" in said


@pytest.mark.long
@pytest.mark.framework
def test_who_interrupts_gets_the_answers_so_far_and_no_process_stays(tmp_path: Path) -> None:
    out = tmp_path / "result.xml"
    words = ["--platform", "cpu", "--out", str(out), "-k", "see_the_device or tensorflow"]
    environ = environment(PARADNN_GPU_TESTS="1")
    command = hearing_ctrl_c([sys.executable, "-m", "tests.gpu", *words])
    with started(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) as asking:
        # Until a worker of a driver of the first question that measures has begun; the one before it asks the machine.
        while asking.poll() is None and len(children := children_of(asking.pid)) < 2:
            time.sleep(0.1)
        asking.send_signal(signal.SIGINT)
        printed, _ = asking.communicate(timeout=PATIENCE)
    assert asking.returncode == 2, printed
    assert "KeyboardInterrupt" in printed
    assert endings(out)["test_frameworks_see_the_device"] == "ok"
    assert all_gone(children)
