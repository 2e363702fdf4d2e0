"""Two commits of a repository as sides: each in a worktree of its own, where asked with an environment of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from paradnn.errors import ConfigError, ParadnnError

__all__ = ["WORKING_TREE", "checkouts"]

#: The files as they lie in the current folder, committed or not.
WORKING_TREE = "."


@contextlib.contextmanager
def checkouts(
    references: tuple[str, str], setup: str | None = None, environments: bool = False
) -> Iterator[list[tuple[Path | None, dict[str, str]]]]:
    """The folder and the variables for each reference, a branch, tag, commit or WORKING_TREE; gone afterwards.

    The folder is the one in the worktree that corresponds to the current one. `setup` is run in it once; with
    `environments` that and the commands see a virtual environment that is this commit's alone. ParadnnError where git
    knows no such commit, or the set-up fails.
    """
    top = Path(_git(Path.cwd(), "rev-parse", "--show-toplevel"))
    inner = Path.cwd().resolve().relative_to(top.resolve())
    with tempfile.TemporaryDirectory(prefix="paradnn-commits-") as scratch:
        made: list[Path] = []
        try:
            found: list[tuple[Path | None, dict[str, str]]] = []
            for number, reference in enumerate(references):
                folder = top
                if reference != WORKING_TREE:
                    folder = Path(scratch) / f"tree{number}"
                    commit = _commit(top, reference)
                    made.append(folder)
                    _git(top, "worktree", "add", "--quiet", "--detach", str(folder), commit)
                variables = _environment(Path(scratch) / f"venv{number}") if environments else {}
                place = folder / inner
                if not place.is_dir():
                    raise ConfigError("--commits", reference, f"has no folder {inner}", "run it where both have one")
                if setup:
                    _set_up(setup, reference, place, variables)
                found.append((place, variables))
            yield found
        finally:
            for folder in made:
                with contextlib.suppress(ParadnnError):
                    _git(top, "worktree", "remove", "--force", str(folder))


def _commit(top: Path, reference: str) -> str:
    try:
        return _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}")
    except ParadnnError:
        remedy = "give a branch, tag or commit; a shallow clone has few (git fetch --unshallow)"
        raise ConfigError("commit", reference, "git knows no such commit", remedy) from None


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ParadnnError("git cannot be found; install it, or compare commands") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ParadnnError(f"git {words[0]} failed: {last}; run this in a checkout")
    return done.stdout.strip()


def _environment(folder: Path) -> dict[str, str]:
    """A new virtual environment, as variables that activate it."""
    done = subprocess.run([sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ParadnnError(f"no virtual environment could be made: {(done.stderr or done.stdout).strip()[-200:]}")
    return {"VIRTUAL_ENV": str(folder), "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}


def _set_up(setup: str, reference: str, folder: Path, variables: Mapping[str, str]) -> None:
    print(f"setting up {reference}: {setup}", file=sys.stderr)
    done = subprocess.run(
        ["/bin/sh", "-c", setup],
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise ConfigError("--setup", setup, f"failed for {reference} ({lines[-1][:200]})", "try it there by hand")
