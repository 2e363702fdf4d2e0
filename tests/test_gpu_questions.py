"""`make test-gpu` without a GPU.

Covers the parsing of a board's output, and one question that is run on a CPU.
"""

import ensurepip
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from tests.conftest import ROOT, process
from tests.gpu.board import above_idle, read_board, sampled_power, throttled
from tests.gpu.commands import Session
from tests.gpu.environment import make_environment


def test_a_board_reports_its_properties_and_its_power_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program = tmp_path / "nvidia-smi"
    shutil.copy(ROOT / "tests" / "gpu" / "nvidia-smi.sh", program)
    program.chmod(0o755)
    found = read_board()
    assert found == {
        "name": "NVIDIA H200",
        "power_w": "77.25",
        "throttle_bits": "0x0000000000000044",
    }
    assert throttled(found["throttle_bits"]) == ["software power cap", "hardware thermal slowdown"]
    assert throttled("0x0000000000000001") == []  # idle
    with sampled_power(seconds=0.01) as power:
        while len(power) < 3:
            pass
    assert set(power) == {77.25}
    assert above_idle(power, 70.0)
    assert above_idle(power, 80.0) == []


def test_a_session_that_ends_leaves_no_process(tmp_path: Path) -> None:
    before = set(psutil.Process().children())  # other tests keep workers alive
    with Session("cpu", ["jax"], tmp_path, seconds=60) as session:
        session.fidelity("jax", ["fc"])
        (child,) = set(psutil.Process().children()) - before
    assert not child.is_running()


def asked(
    tmp_path: Path, platform: str, *words: str, **variables: str
) -> tuple[int, str, dict[str, str]]:
    """Run some questions.

    Returns the exit code, the output, and the outcome of each question in the result file.
    """
    out = tmp_path / "result.xml"
    done = process(
        ["tests.gpu", "--platform", platform, "--out", str(out), *words],
        PARADNN_GPU_TESTS="1",
        **variables,
    )
    return done.returncode, done.stdout + done.stderr, endings(out)


def endings(file: Path) -> dict[str, str]:
    cases = ElementTree.parse(file).iter("testcase")
    return {
        str(case.get("name")): next(
            (each.tag for each in case if each.tag in ("failure", "skipped", "error")), "ok"
        )
        for case in cases
    }


def test_frameworks_that_see_no_gpu_are_not_asked_again(tmp_path: Path) -> None:
    """Stand-ins replace the packages; the test covers the conclusions from their reports."""
    (tmp_path / "jax.py").write_text("__version__ = '1'\ndef devices(): return []\n")
    (tmp_path / "torch.py").write_text(
        "raise ImportError('libcuda.so.1: cannot open shared object file')\n"
    )
    (tmp_path / "tensorflow.py").write_text("raise ImportError('none')\n")
    (tmp_path / "keras.py").write_text("__version__ = '3'\n")
    words = [
        "-k",
        "see_the_device or ceilings or two_processes or other_families",
        "--seconds",
        "60",
    ]
    code, said, found = asked(tmp_path, "gpu", *words, PYTHONPATH=str(tmp_path))
    assert code == 1, said
    assert "jax 1, Keras 3, no GPU; torch FAILS: ImportError: libcuda.so.1: cannot open" in said
    assert "jax sees no GPU" in said
    assert "no framework sees a GPU" in said
    assert "takes about 80 s, " in said
    assert [name for name, ending in found.items() if ending == "failure"] == [
        "test_frameworks_see_the_device"
    ]
    assert list(found.values()).count("skipped") == len(found) - 1


@pytest.mark.long
def test_environments_see_the_machine_and_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    folder = tmp_path / "venv"
    wheels.mkdir()
    with pytest.raises(
        SystemExit, match=rf"no wheels in {wheels}: run\n    make gpu-wheels GPU_PYTHONS=3\.\d+\n"
    ):
        make_environment(folder, wheels)
    # The test environment lacks only pip.
    (wheel,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    shutil.copy(wheel, wheels)
    monkeypatch.setattr("tests.gpu.environment.REQUIREMENTS", ("hydra-core>=99",))
    with pytest.raises(
        SystemExit, match=r"(?s)No matching distribution found for hydra-core>=99.*make gpu-wheels"
    ):
        make_environment(folder, wheels)
    monkeypatch.setattr("tests.gpu.environment.REQUIREMENTS", ("hydra-core>=1.3.8,<1.4", "psutil"))
    python = make_environment(folder, wheels)
    seen = subprocess.run(
        [python, "-c", "import hydra, psutil"], capture_output=True, text=True, check=False
    )
    assert seen.returncode == 0, seen.stderr
    (folder / "kept").touch()
    assert make_environment(folder, wheels) == python
    assert (folder / "kept").exists()
    monkeypatch.setattr("platform.node", lambda: "another-machine")
    make_environment(folder, wheels)
    assert not (folder / "kept").exists()


@pytest.mark.long
@pytest.mark.framework
def test_checks_without_a_gpu_run(tmp_path: Path) -> None:
    """Run in the environment of these tests.

    TensorFlow is installed. Questions that need a GPU are skipped with the reason.
    """
    code, said, found = asked(tmp_path, "cpu", "-k", "(out_of_memory and tensorflow) or energy")
    assert code == 0, said
    memory = "test_out_of_memory_is_an_outcome[tensorflow]"
    energy = "test_energy_is_that_which_nvidia_smi_shows"
    assert found == {memory: "ok", energy: "skipped"}
    assert "needs a GPU" in said
