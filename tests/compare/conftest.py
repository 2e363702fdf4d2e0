"""Fixtures for tests of comparisons: commands run in this process, and a Git repository."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Outcome(NamedTuple):
    """Exit code and output of a command."""

    code: int
    output: str
    errors: str


#: Function that runs the `main` of a command with arguments and returns its outcome.
Call = Callable[[Any, Sequence[object]], Outcome]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs a command in this process."""

    def run(main: Any, words: Sequence[object]) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["paradnn", *map(str, words)])
        code = int(main())
        return Outcome(code, *capsys.readouterr())

    return run


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], check=True)


def commit(message: str) -> None:
    git("add", "--all")
    git("commit", "-q", "-m", message)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a repository, make it the current folder, and return it.

    The program of its two commits prints a speed of 100 and of 80. That of the working tree
    prints 50.
    """
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    git("init", "-q", "-b", "main")
    for speed in (100, 80):
        (folder / "program.sh").write_text(f"echo speed: {speed}\n")
        commit(str(speed))
    (folder / "program.sh").write_text("echo speed: 50\n")
    return folder
