"""`make test-gpu` without a GPU: the output of `nvidia-smi`, and some checks on a CPU."""

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


@pytest.fixture
def fake_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace nvidia-smi by a script that reports a board at 77.25 W."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program = tmp_path / "nvidia-smi"
    shutil.copy(ROOT / "tests" / "gpu" / "nvidia-smi.sh", program)
    program.chmod(0o755)


@pytest.mark.usefixtures("fake_board")
def test_a_board_reports_its_properties() -> None:
    assert read_board() == {
        "name": "NVIDIA H200",
        "power_w": "77.25",
        "throttle_bits": "0x0000000000000044",
    }


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        pytest.param(
            "0x0000000000000044",
            ["software power cap", "hardware thermal slowdown"],
            id="two reasons",
        ),
        pytest.param("0x0000000000000001", [], id="idle"),
    ],
)
def test_reasons_of_throttling_are_named(bits: str, reasons: list[str]) -> None:
    assert throttled(bits) == reasons


@pytest.mark.usefixtures("fake_board")
def test_the_power_of_a_board_is_sampled_under_load() -> None:
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


def run_checks(
    tmp_path: Path, platform: str, *options: str, **variables: str
) -> tuple[int, str, dict[str, str]]:
    """Run some GPU checks.

    Returns the exit code, the output, and the outcome of each check in the result file.
    """
    out = tmp_path / "result.xml"
    completed = process(
        ["tests.gpu", "--platform", platform, "--out", str(out), *options],
        PARADNN_GPU_TESTS="1",
        **variables,
    )
    return completed.returncode, completed.stdout + completed.stderr, outcomes(out)


def outcomes(file: Path) -> dict[str, str]:
    cases = ElementTree.parse(file).iter("testcase")
    return {
        str(case.get("name")): next(
            (each.tag for each in case if each.tag in ("failure", "skipped", "error")), "ok"
        )
        for case in cases
    }


def test_checks_skip_frameworks_that_see_no_gpu(tmp_path: Path) -> None:
    """Replace the frameworks by fakes, and check which checks fail or are skipped."""
    (tmp_path / "jax.py").write_text("__version__ = '1'\ndef devices(): return []\n")
    (tmp_path / "torch.py").write_text(
        "raise ImportError('libcuda.so.1: cannot open shared object file')\n"
    )
    (tmp_path / "tensorflow.py").write_text("raise ImportError('none')\n")
    (tmp_path / "keras.py").write_text("__version__ = '3'\n")
    options = [
        "-k",
        "see_the_device or ceilings or two_processes or other_families",
        "--seconds",
        "60",
    ]
    code, output, outcome_by_check = run_checks(tmp_path, "gpu", *options, PYTHONPATH=str(tmp_path))
    assert code == 1, output
    assert "jax 1, Keras 3, no GPU; torch FAILS: ImportError: libcuda.so.1: cannot open" in output
    assert "jax sees no GPU" in output
    assert "no framework sees a GPU" in output
    assert "takes about 80 s, but " in output
    assert [name for name, ending in outcome_by_check.items() if ending == "failure"] == [
        "test_frameworks_see_the_device"
    ]
    assert list(outcome_by_check.values()).count("skipped") == len(outcome_by_check) - 1


@pytest.mark.long
def test_environments_see_the_packages_of_the_machine_and_are_created_once(
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
    imported = subprocess.run(
        [python, "-c", "import hydra, psutil"], capture_output=True, text=True, check=False
    )
    assert imported.returncode == 0, imported.stderr
    (folder / "kept").touch()
    assert make_environment(folder, wheels) == python
    assert (folder / "kept").exists()
    monkeypatch.setattr("platform.node", lambda: "another-machine")
    make_environment(folder, wheels)
    assert not (folder / "kept").exists()


@pytest.mark.long
@pytest.mark.framework
def test_checks_run_without_a_gpu(tmp_path: Path) -> None:
    """Run two checks in the environment of these tests, which has TensorFlow.

    Checks that need a GPU are skipped with a reason.
    """
    code, output, outcome_by_check = run_checks(
        tmp_path, "cpu", "-k", "(out_of_memory and tensorflow) or energy"
    )
    assert code == 0, output
    memory = "test_out_of_memory_is_an_outcome[tensorflow]"
    energy = "test_energy_agrees_with_the_power_of_nvidia_smi"
    assert outcome_by_check == {memory: "ok", energy: "skipped"}
    assert "needs a GPU" in output
