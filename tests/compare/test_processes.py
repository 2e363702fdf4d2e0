"""One run of a command: how it starts, and which runs count as failures."""

import os
import shutil
from pathlib import Path

import pytest

from paradnn.compare import processes
from paradnn.compare.metric import OutputMetric
from paradnn.compare.processes import Command, CommandProtocol, CommandRun, command_line, run_once
from paradnn.core.errors import ConfigError
from paradnn.platform.process_guard import ProcessGuard


def run(text: str, protocol: CommandProtocol | None = None) -> CommandRun:
    with ProcessGuard() as guard:
        return run_once(Command("side", text), protocol or CommandProtocol(), guard)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("ls -l 'a b'", ["ls", "-l", "a b"], id="quoted argument"),
        pytest.param(
            "python3 -c 'print(1 > 0)'", ["python3", "-c", "print(1 > 0)"], id="quoted operator"
        ),
        pytest.param("A=1 ls", ["/bin/sh", "-c", "A=1 ls"], id="variable assignment"),
        pytest.param("ls $HOME", ["/bin/sh", "-c", "ls $HOME"], id="variable"),
        pytest.param('ls "$HOME"', ["/bin/sh", "-c", 'ls "$HOME"'], id="quoted variable"),
        pytest.param("ls || ls", ["/bin/sh", "-c", "ls || ls"], id="alternative"),
        pytest.param("type ls", ["/bin/sh", "-c", "type ls"], id="builtin of the shell"),
        pytest.param("exec 'a b'", ["/bin/sh", "-c", "exec 'a b'"], id="builtin with arguments"),
    ],
)
def test_a_shell_is_started_only_if_needed(text: str, words: list[str]) -> None:
    assert command_line(text) == words


def test_a_missing_program_is_rejected_before_a_shell_starts(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    for name in ("no-such-program", "'no such program'", str(tmp_path / "data")):
        with pytest.raises(ConfigError, match="not found"):
            command_line(f"{name} ls", tmp_path)


def test_a_relative_program_is_found_in_the_folder_of_its_commit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"program bin/tool not found; .* correct its name$"):
        command_line("bin/tool", tmp_path)
    with pytest.raises(ConfigError, match=r"not found; .* settings of this suite, write key=value"):
        command_line("bin/tool")

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "tool").chmod(0o755)

    assert command_line("bin/tool", tmp_path) == ["bin/tool"]


@pytest.mark.parametrize(
    "text",
    [
        "python3 missing.py | cat",
        "python3 missing.py | cat | cat",
        "true && false | cat",
        "false|cat",
    ],
)
def test_a_pipeline_fails_if_any_of_its_commands_fails(text: str) -> None:
    assert shutil.which("bash"), "these tests need bash, whose pipelines support pipefail"

    failure = run(text).failure
    assert failure is not None
    assert failure.startswith("exit code")


@pytest.mark.parametrize("text", ["echo a | cat", "yes | head -1", "false || echo a | cat"])
def test_a_pipeline_whose_reader_ends_early_succeeds(text: str) -> None:
    assert run(text).failure is None


def test_a_shell_without_pipefail_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(
        processes.subprocess,
        "run",
        lambda words, **_: processes.subprocess.CompletedProcess(words, 2),
    )
    shell = processes._pipeline_shell.__wrapped__()

    assert shell == ("/bin/sh", "-c")
    assert "only the last command of a pipeline can fail" in capsys.readouterr().err


def test_processor_time_can_be_the_metric() -> None:
    measured = run("sleep 0.1", CommandProtocol(metric=OutputMetric("cpu")))
    assert measured.measured == measured.cpu_seconds


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("sleep 300", id="same session"),
        pytest.param("setsid sleep 300", id="new session"),
    ],
)
def test_a_run_beyond_its_timeout_is_killed_with_its_processes(tmp_path: Path, start: str) -> None:
    late = tmp_path / "late"
    pids = tmp_path / "pids"
    measured = run(f"{start} & echo $! >{pids}; wait; touch {late}", CommandProtocol(timeout=1.0))

    assert measured.failure == "took longer than 1 s"
    assert not late.exists()
    with pytest.raises(ProcessLookupError):
        _signal_until_reaped(int(pids.read_text()))


def _signal_until_reaped(pid: int) -> None:
    """Raise ProcessLookupError once an orphan is a zombie or init has reaped it."""
    for _ in range(2000):
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            raise ProcessLookupError
        os.sched_yield()


def test_the_reason_of_a_failure_ends_with_the_last_line_of_standard_error() -> None:
    measured = run("sh -c 'echo one >&2; echo two >&2; exit 7'")
    assert measured.failure == "exit code 7 (two)"


def test_the_reason_of_a_failure_names_the_signal() -> None:
    assert run("sh -c 'kill -9 $$'").failure == "killed by SIGKILL"


@pytest.mark.parametrize(
    ("errors", "line"),
    [
        pytest.param("loading\\nbroken", "broken", id="last line"),
        pytest.param(
            "Error: Cannot find module\\n    at index.js\\nNode.js v20.20.2",
            "Error: Cannot find module",
            id="Node.js",
        ),
        pytest.param(
            "ValueError: first\\nModuleNotFoundError: second",
            "ModuleNotFoundError: second",
            id="chained exceptions",
        ),
        pytest.param(
            "error: could not compile\\n  --> main.rs", "error: could not compile", id="Cargo"
        ),
    ],
)
def test_the_reason_of_a_failure_is_the_line_that_names_an_error(errors: str, line: str) -> None:
    failed = run(f"printf '{errors}\\n' >&2; exit 1")

    assert failed.failure == f"exit code 1 ({line})"
