"""A gate must load the code of both commits: planted projects whose base is faster.

In each project the last commit makes `work` slower. Unless the gate checks it, both sides load the
same files, which hides the regression.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from paradnn.compare import __main__ as command
from paradnn.compare import commands, gate, trace_opens
from tests.compare.conftest import Call, Outcome, commit, git

FAST = "def work(): return 100\n"
SLOW = "def work(): return 50\n"
FAST_PROGRAM = '#include <stdio.h>\nint main(void) { puts("speed: 100"); }\n'
SLOW_PROGRAM = '#include <stdio.h>\nint main(void) { puts("speed: 50"); }\n'
BENCHMARK = "from package import work\nprint('speed:', work())\n"
SPEED = ["--metric", "speed: ([0-9.]+)"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a repository without commits, make it the current folder, and return it."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    git("init", "-q", "-b", "main")
    (folder / ".gitignore").write_text("environment/\nbuild/\n__pycache__/\n*.so\nnode_modules\n")
    (folder / "bench.py").write_text(BENCHMARK)
    (folder / "pyproject.toml").write_text("[project]\nname = 'package'\nversion = '1'\n")
    return folder


def commit_regression(project: Path, file: str, fast: str = FAST, slow: str = SLOW) -> None:
    """Commit a file, and then a slower version of it."""
    path = project / file
    path.parent.mkdir(parents=True, exist_ok=True)
    for message, content in (("fast", fast), ("slow", slow)):
        path.write_text(content)
        commit(message)


def create_environment(folder: Path, path_line: str = "") -> str:
    """Create a virtual environment in a folder and return the path of its interpreter.

    Args:
        folder: Folder of the environment.
        path_line: Line of a path file, like that of `pip install -e .`; empty writes no path file.
    """
    venv.create(folder, symlinks=True)
    if path_line:
        (site_packages(folder) / "_package.pth").write_text(f"{path_line}\n")
    return str(folder / "bin" / "python")


def site_packages(folder: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))


def run_gate(call: Call, *words: str) -> Outcome:
    return call(gate.main, ["--base", "HEAD~1", "--slower", "5%", *SPEED, *words])


def assert_rejected(outcome: Outcome, reason: str) -> None:
    assert outcome.code == 2, outcome.output
    assert reason in outcome.errors
    assert "give each side a separate environment: --setup" in outcome.errors


def test_an_editable_install_is_rejected(project: Path, call: Call) -> None:
    commit_regression(project, "src/package/__init__.py")
    python = create_environment(project / "environment", str(project / "src"))
    outcome = run_gate(call, "--", python, "bench.py")

    assert_rejected(outcome, "HEAD~1 loads files of the working tree: ")
    assert str(project / "src" / "package" / "__init__.py") in outcome.errors


def test_an_editable_install_is_rejected_when_two_commits_are_compared(
    project: Path, call: Call
) -> None:
    commit_regression(project, "src/package/__init__.py")
    python = create_environment(project / "environment", str(project / "src"))
    words = [*SPEED, "--commits", "HEAD~1", ".", "--", python, "bench.py"]

    assert_rejected(call(command.main, words), "HEAD~1 loads files of the working tree: ")


def test_a_namespace_package_is_rejected(project: Path, call: Call) -> None:
    (project / "bench.py").write_text(BENCHMARK.replace("package", "space.package"))
    commit_regression(project, "src/space/package.py")
    python = create_environment(project / "environment", str(project / "src"))
    outcome = run_gate(call, "--", python, "bench.py")

    assert_rejected(outcome, "HEAD~1 loads files of the working tree: ")


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("PYTHONPATH={project}/src python3 bench.py", id="assignment"),
        pytest.param("env PYTHONPATH={project}/src python3 bench.py", id="env"),
    ],
)
def test_an_absolute_python_path_is_rejected_and_a_relative_one_works(
    project: Path, call: Call, line: str
) -> None:
    commit_regression(project, "src/package/__init__.py")
    outcome = run_gate(call, "--", line.format(project=project))

    assert_rejected(outcome, "HEAD~1 loads files of the working tree: ")
    assert "write the folders of PYTHONPATH relative to the current folder" in outcome.errors

    relative = line.replace("{project}/", "")
    corrected = run_gate(call, "--minutes", "0.001", "--", relative)

    assert corrected.code != 2


def test_byte_code_of_the_working_tree_is_rejected_like_its_source(
    project: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_regression(project, "src/package/__init__.py")
    monkeypatch.setenv("PYTHONPATH", str(project / "src"))
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([sys.executable, "bench.py"], check=True, env=environ)

    assert list(project.glob("src/package/__pycache__/*.pyc"))

    outcome = run_gate(call, "--", "python3", "bench.py")
    assert_rejected(outcome, "HEAD~1 loads files of the working tree: ")


def test_a_function_of_an_editable_install_is_rejected(
    project: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "bench.py").write_text("from package import work\n")
    commit_regression(project, "src/package/__init__.py")
    monkeypatch.setenv("PYTHONPATH", str(project / "src"))
    outcome = call(gate.main, ["--base", "HEAD~1", "--", "bench.py:work"])

    assert_rejected(outcome, "HEAD~1 loads files of the working tree: ")


def test_an_installed_copy_is_rejected(project: Path, call: Call) -> None:
    commit_regression(project, "src/package/__init__.py")
    folder = project / "environment"
    python = create_environment(folder)
    copy = site_packages(folder) / "package" / "__init__.py"
    copy.parent.mkdir()
    copy.write_text(SLOW)
    outcome = run_gate(call, "--", python, "bench.py")

    assert_rejected(outcome, "HEAD~1 loads an installed copy of this project: ")


def test_an_installed_copy_outside_of_the_project_is_rejected(
    project: Path, call: Call, tmp_path: Path
) -> None:
    commit_regression(project, "src/package/__init__.py")
    folder = tmp_path / "elsewhere"
    python = create_environment(folder)
    copy = site_packages(folder) / "package" / "__init__.py"
    copy.parent.mkdir()
    copy.write_text(SLOW)
    outcome = run_gate(call, "--", python, "bench.py")

    assert_rejected(outcome, "loads an installed copy of this project: ")


def test_a_compiled_extension_built_in_place_is_rejected(project: Path, call: Call) -> None:
    (project / "bench.py").write_text(
        "import ctypes, os\n"
        "work = ctypes.CDLL(os.environ['EXTENSION']).work\n"
        "print('speed:', work())\n"
    )
    commit_regression(
        project, "work.c", "int work(void) { return 100; }\n", "int work(void) { return 50; }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "extension.so", "work.c"], check=True)
    line = f"EXTENSION={project}/extension.so python3 bench.py"
    outcome = run_gate(call, "--", line)

    assert_rejected(outcome, "HEAD~1 loads files of the working tree: ")
    assert "extension.so" in outcome.errors


def test_a_linked_node_module_is_rejected(
    project: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "bench.js").write_text("console.log('speed: ' + require('inner'))\n")
    commit_regression(
        project, "packages/inner/index.js", "module.exports = 100\n", "module.exports = 50\n"
    )
    (project / "node_modules").mkdir()
    (project / "node_modules" / "inner").symlink_to(project / "packages" / "inner")
    monkeypatch.setenv("NODE_PATH", str(project / "node_modules"))
    outcome = run_gate(call, "--", "node", "bench.js")

    assert_rejected(outcome, "HEAD~1 loads files of the working tree: ")
    assert "write the folders of NODE_PATH relative to the current folder" in outcome.errors
    assert "--setup 'npm ci' -- node ..." in outcome.errors


def test_a_shared_folder_of_builds_is_rejected(project: Path, call: Call, tmp_path: Path) -> None:
    """Both commits build the same program, as with CARGO_TARGET_DIR; the last build is used."""
    commit_regression(project, "main.c", FAST_PROGRAM, SLOW_PROGRAM)
    built = tmp_path / "target" / "program"
    built.parent.mkdir()
    outcome = run_gate(call, "--setup", f"cc -o {built} main.c", "--", str(built))
    assert_rejected(outcome, "both sides load files that only one of them built: ")


def test_a_shared_target_folder_of_cargo_names_the_variable(
    project: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_regression(project, "main.c", FAST_PROGRAM, SLOW_PROGRAM)
    built = tmp_path / "target" / "program"
    built.parent.mkdir()
    monkeypatch.setenv("CARGO_TARGET_DIR", str(built.parent))

    outcome = run_gate(call, "--setup", f"cc -o {built} main.c", "--", str(built))

    assert outcome.code == 2, outcome.output
    assert "unset CARGO_TARGET_DIR, so that each side builds in its own folder" in outcome.errors


def test_a_shared_folder_of_packages_that_setup_writes_is_rejected(
    project: Path, call: Call, tmp_path: Path
) -> None:
    """Each setup writes the same file, as `pip install --target` or a code generator does."""
    commit_regression(project, "package/__init__.py")
    shared = tmp_path / "shared" / "package"
    shared.mkdir(parents=True)
    setup = f"sed s/return/return\\ 1*/ package/__init__.py >{shared}/__init__.py"
    line = f"PYTHONPATH={shared.parent} {sys.executable} -P bench.py"
    outcome = run_gate(call, "--setup", setup, "--", line)

    assert_rejected(outcome, "both sides load files that only one of them built: ")
    assert f"{shared}/__init__.py" in outcome.errors


def test_a_shared_script_without_extension_is_rejected(
    project: Path, call: Call, tmp_path: Path
) -> None:
    commit_regression(project, "program.py", "print('speed: 100')\n", "print('speed: 50')\n")
    script = tmp_path / "bin" / "program"
    script.parent.mkdir()
    setup = f"(echo '#!{sys.executable}'; cat program.py) >{script}; chmod +x {script}"
    outcome = run_gate(call, "--setup", setup, "--", f"PATH={script.parent}:$PATH program")

    assert_rejected(outcome, "both sides load files that only one of them built: ")


def test_an_old_copy_of_the_candidate_is_rejected(
    project: Path, call: Call, tmp_path: Path
) -> None:
    commit_regression(project, "package/__init__.py")
    copy = tmp_path / "copy" / "package"
    shutil.copytree(project / "package", copy)
    outcome = run_gate(call, "--", f"PYTHONPATH={copy.parent} {sys.executable} -P bench.py")

    assert_rejected(outcome, "both sides load copies of files of the working tree: ")
    assert f"{copy}/__init__.py" in outcome.errors


def test_a_copy_of_an_unchanged_file_may_be_shared(
    project: Path, call: Call, tmp_path: Path
) -> None:
    (project / "vendored.py").write_text("VERSION = 1\n")
    (project / "bench.py").write_text(f"import vendored\n{BENCHMARK}")
    commit_regression(project, "package/__init__.py")
    folder = tmp_path / "copy"
    folder.mkdir()
    shutil.copy(project / "vendored.py", folder)
    outcome = run_gate(call, "--", f"PYTHONPATH={folder}:. {sys.executable} -P bench.py")

    assert outcome.code == 1, outcome.errors
    assert "REGRESSED" in outcome.output


def test_a_requirement_that_setup_installs_may_be_shared(
    project: Path, call: Call, tmp_path: Path
) -> None:
    (project / "bench.py").write_text(f"import requirement\n{BENCHMARK}")
    commit_regression(project, "package/__init__.py")
    python = create_environment(tmp_path / "environment")
    setup = f"echo VALUE = 1 >{site_packages(tmp_path / 'environment')}/requirement.py"
    outcome = run_gate(call, "--setup", setup, "--", python, "bench.py")

    assert outcome.code == 1, outcome.errors


def test_a_module_that_each_run_writes_may_be_shared(
    project: Path, call: Call, tmp_path: Path
) -> None:
    """Some libraries write the code that they generate to a cache, and import it from there."""
    (project / "bench.py").write_text(
        f"open('{tmp_path}/generated.py', 'w').write('VALUE = 1')\nimport generated\n{BENCHMARK}"
    )
    commit_regression(project, "package/__init__.py")
    outcome = run_gate(call, "--", f"PYTHONPATH={tmp_path}:. {sys.executable} -P bench.py")

    assert outcome.code == 1, outcome.errors


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("MODE=fast node bench.js", id="assignment"),
        pytest.param("env MODE=fast node bench.js", id="env"),
        pytest.param("true && node bench.js", id="second-command"),
    ],
)
def test_the_remedy_suits_the_program_behind_a_prefix(line: str) -> None:
    assert "--setup 'npm ci' -- node ..." in commands._separation_remedy(line)


def test_the_proposed_remedy_finds_the_regression(project: Path, call: Call) -> None:
    """The setup of each side creates an environment; a path file replaces an installation."""
    commit_regression(project, "src/package/__init__.py")
    setup = (
        f"{sys.executable} -m venv --without-pip environment && "
        "echo $PWD/src >$(echo environment/lib/python*/site-packages)/_package.pth"
    )
    words = ["--setup", setup, "--json", "gate.json", "--", "environment/bin/python", "bench.py"]
    outcome = run_gate(call, *words)

    assert outcome.code == 1, outcome.errors

    content = json.loads((project / "gate.json").read_text())
    assert content["ratio"] == pytest.approx(0.5)
    assert content["sides"][0]["code_digest"] != content["sides"][1]["code_digest"]


def test_separate_environments_of_the_same_commit_have_the_same_digest(
    project: Path, call: Call
) -> None:
    commit_regression(project, "src/package/__init__.py")
    setup = (
        f"{sys.executable} -m venv --without-pip environment && "
        "echo $PWD/src >$(echo environment/lib/python*/site-packages)/_package.pth"
    )
    words = ["--base", "HEAD", *SPEED, "--setup", setup, "--", "environment/bin/python", "bench.py"]
    outcome = call(gate.main, words)

    assert outcome.code == 0
    assert outcome.output.startswith("passed: both sides ran the same code")


def test_a_file_that_the_command_names_may_be_shared(project: Path, call: Call) -> None:
    """The base lacks the benchmark, which loads the package of each commit."""
    commit_regression(project, "package/__init__.py")
    script = project / "new_bench.py"
    script.write_text(f"import sys; sys.path.insert(0, '.')\n{BENCHMARK}")
    outcome = run_gate(call, "--", "python3", str(script))

    assert outcome.code == 1, outcome.errors
    assert "REGRESSED" in outcome.output


def test_data_that_both_sides_read_may_be_shared(project: Path, call: Call) -> None:
    (project / ".gitignore").write_text("data/\n")
    (project / "bench.py").write_text(
        "from package import work\nimport os\n"
        "open(os.environ['DATA']).read()\nprint('speed:', work())\n"
    )
    commit_regression(project, "package/__init__.py")
    (project / "data").mkdir()
    (project / "data" / "input.bin").write_text("1")
    outcome = run_gate(call, "--", f"DATA={project}/data/input.bin python3 bench.py")

    assert outcome.code == 1, outcome.errors


def test_a_trace_names_an_unsupported_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_opens.platform, "machine", lambda: "riscv64")

    with pytest.raises(OSError, match="only on x86_64 and aarch64 processors, not on riscv64"):
        trace_opens.trace(["true"])
