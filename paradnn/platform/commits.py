"""Commits of a repository: what they are called, and their files in folders of their own."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paradnn.core.errors import ConfigError, ParadnnError

#: The files as they lie in the current folder, committed or not.
WORKING_TREE = "."


@contextlib.contextmanager
def checkouts(references: tuple[str, str], setup: str | None = None) -> Iterator[list[Path]]:
    """The folder for each reference, a branch, tag, commit or WORKING_TREE; gone afterwards.

    The folder is the one in the worktree that corresponds to the current one; `setup` is run in it
    once. ParadnnError where git knows no such commit, or the set-up fails.
    """
    top = Path(_git("rev-parse", "--show-toplevel"))
    inner = Path.cwd().resolve().relative_to(top.resolve())
    with (
        tempfile.TemporaryDirectory(prefix="paradnn-commits-") as scratch,
        contextlib.ExitStack() as made,
    ):
        found: list[Path] = []
        for number, reference in enumerate(references):
            tree = top
            if reference != WORKING_TREE:
                tree = Path(scratch) / f"tree{number}"
                made.callback(
                    subprocess.call,
                    ["git", "worktree", "remove", "--force", tree],
                    stderr=subprocess.DEVNULL,
                )
                try:
                    _git("worktree", "add", "--quiet", "--detach", "--", str(tree), reference)
                except ParadnnError as error:
                    remedy = "give a branch, tag or commit; a shallow clone has few (git fetch --unshallow)"
                    raise ConfigError(
                        "commit", reference, f"git knows no such commit ({error})", remedy
                    ) from None
            found.append(tree / inner)
            if not found[-1].is_dir():
                raise ConfigError(
                    "--commits", reference, f"has no folder {inner}", "run it where both have one"
                )
            if setup:
                print(f"setting up {reference}: {setup}", file=sys.stderr)
                how: dict[str, Any] = {"text": True, "errors": "replace", "capture_output": True}
                done = subprocess.run(
                    setup, shell=True, stdin=subprocess.DEVNULL, cwd=found[-1], **how
                )
                if done.returncode:
                    reason = f"failed for {reference} ({_last_line(done)})"
                    raise ConfigError("--setup", setup, reason, "try it there by hand")
        yield found


def commit_of(reference: str = WORKING_TREE, folder: Path | None = None) -> str:
    """What a commit is called, of the files as they lie there with a mark if changed; or
    ParadnnError.
    """
    of = "--dirty" if reference == WORKING_TREE else reference
    return _git("describe", "--always", "--abbrev=12", "--exclude=*", of, folder=folder)


def _git(*words: str, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, check=False, cwd=folder
        )
    except FileNotFoundError:
        raise ParadnnError("git cannot be found; install it, or compare commands") from None
    if done.returncode:
        raise ParadnnError(f"git {words[0]} failed: {_last_line(done)}; run this in a checkout")
    return done.stdout.strip()


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    """What a process that failed said last."""
    return [f"exit code {done.returncode}", *(done.stderr or done.stdout).strip().splitlines()][-1][
        :200
    ]
