"""The built and installed wheel, whose commands work in an empty folder without the checkout."""

import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, TINY, Store, environment

#: Requirements of `paradnn` that only measurements need.
MEASURING = {"grpcio", "keras", "tensorflow"}


def build(project: Path, folder: Path) -> Path:
    """Build the wheel of a project in `folder`; return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


def uv(*command: str | Path) -> None:
    program = Path(sys.executable).parent / "uv"
    subprocess.run(
        [program, *command, "--offline", "--no-cache"],
        check=True,
        capture_output=True,
        env=environment(),
    )


def environment_of(folder: Path) -> Path:
    """Create an environment that sees the installed packages; return its folder of programs.

    The environment does not see the checkout. A `.pth` file of the test environment names the
    checkout, and Python ignores such files in a folder that another `.pth` file adds.
    """
    uv("venv", "--python", sys.executable, folder)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment with the installed wheel."""
    programs = environment_of(tmp_path_factory.mktemp("installed") / "venv")
    uv("pip", "install", "--python", programs / "python", "--no-deps", wheel)
    return programs


def run(installed: Path, folder: Path, *command: str) -> str:
    """Run an installed program in a folder; return its output, and fail the test if it fails."""
    environ = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    completed = subprocess.run(
        [installed / command[0], *command[1:]],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def files_in_docker_image() -> set[str]:
    """Return the names that the Dockerfile copies from the checkout."""
    names: set[str] = set()
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY "):
            names.update(line.split()[1:-1])
    return {name for name in names if not name.startswith(("--", "/"))}


def test_both_container_recipes_copy_the_same_files() -> None:
    ignore_lines = (ROOT / ".dockerignore").read_text().splitlines()
    recipe = (ROOT / "apptainer.def").read_text()

    unignored = {line[1:] for line in ignore_lines if line.startswith("!")}
    in_apptainer_image = set(recipe.split("%files")[1].split("%post")[0].split()[::2])

    assert files_in_docker_image() == unignored == in_apptainer_image


def test_the_files_of_a_container_image_build_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    for name in files_in_docker_image():
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)

    path = build(tmp_path, tmp_path / "dist")

    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(path) as other:
        assert other.namelist() == whole.namelist()


def test_the_analysis_wheel_has_the_same_code_without_frameworks(
    wheel: Path, tmp_path: Path
) -> None:
    project = ROOT / "packaging" / "analysis"

    path = build(project, tmp_path)

    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(path) as alone:
        files = [
            {name for name in archive.namelist() if ".dist-info/" not in name}
            for archive in (whole, alone)
        ]
    assert files[0] == files[1]
    required = [
        {
            re.split(r"[<>=]", line)[0]: line
            for line in tomllib.loads((folder / "pyproject.toml").read_text())["project"][
                "dependencies"
            ]
        }
        for folder in (ROOT, project)
    ]
    assert required[0].keys() >= MEASURING
    assert required[1] == {
        name: line for name, line in required[0].items() if name not in MEASURING
    }


def test_the_configuration_is_inside_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {"analysis", "hydra_plugins", "paradnn"}
    files = {name.removeprefix("paradnn/") for name in names if name.startswith("paradnn/conf/")}
    assert files == {str(path.relative_to(ROOT)) for path in (ROOT / "conf").rglob("*.yaml")}


def test_every_command_has_help(installed: Path, tmp_path: Path) -> None:
    assert "model.nodes=" in run(installed, tmp_path, "paradnn", "train", "--help")
    for command in ("plan", "ceilings", "stacks", "sync", "analysis"):
        assert run(installed, tmp_path, "paradnn", command, "--help").strip()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.framework
def test_results_are_in_the_current_folder(installed: Path, tmp_path: Path) -> None:
    """Measure with another interpreter that has its own framework.

    It must not find the driver's framework first.
    """
    [packages] = installed.parent.glob("lib/python*/site-packages")
    other = environment_of(tmp_path / "other")
    work = tmp_path / "work"
    work.mkdir()
    wrong = packages / "keras.py"
    wrong.write_text("raise ImportError('the Keras of the driver')\n")
    try:
        assert ": ok\n" in run(
            installed, work, "paradnn", "train", *TINY, f"software.python={other / 'python'}"
        )
    finally:
        wrong.unlink()  # other tests share the environment
    assert [path.name for path in work.iterdir()] == ["mlruns"]
    [point] = Store(work / "mlruns").runs()
    assert (point["outcome"], point["git_commit"]) == ("ok", "unknown")
    listed = run(installed, work, "paradnn", "analysis", "runs")
    assert re.match("1 run of fc on .*, all measured", listed)


@pytest.mark.pages
@pytest.mark.framework
def test_a_user_model_is_swept_as_documented(installed: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/own-models.md").read_text()
    [source] = re.findall(r"```python\n(.*?)```", page, re.S)
    (tmp_path / "my_models.py").write_text(source)
    _, *blocks = re.findall(r"```bash\n(.*?)```", page, re.S)  # the first block installs
    short = [word for word in TINY if word.startswith(("measure", "ceilings"))]
    lines = "".join(blocks).splitlines()[:3]  # the rest takes minutes

    outputs = [run(installed, tmp_path, *shlex.split(line), *short) for line in lines]

    plan, sweep, _ = outputs
    assert "4 points" in plan
    assert "4 ok" in sweep, sweep
    assert {run["outcome"] for run in Store(tmp_path / "mlruns").runs()} == {"ok"}
