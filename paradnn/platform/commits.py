"""Commits of a git repository: their hashes, and checkouts in separate folders."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from paradnn.core.errors import ConfigError, ParadnnError
from paradnn.core.scratch import Scratch, remove_leftovers
from paradnn.platform.process_guard import ProcessGuard

#: The reference that means the working tree, including uncommitted changes.
WORKING_TREE = "."
#: Prefix of the names of worktrees. It identifies worktrees that a killed run left registered.
_TREE_PREFIX = "paradnn-commit-"
#: Part of git's message if it rejects a submodule whose URL is a local path.
_FILE_PROTOCOL = "transport 'file' not allowed"
_ALLOW_LOCAL_SUBMODULES = (
    "by default, git does not clone submodules from a path of this machine; to allow it: "
    "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=protocol.file.allow GIT_CONFIG_VALUE_0=always"
)


@dataclass(frozen=True)
class Checkout:
    """A folder with the files of one commit, or the working tree of the user.

    Attributes:
        label: The name of the commit or working tree in messages.
        tree: The top folder of the checkout, resolved.
        folder: The folder in the checkout that corresponds to the current folder.
        created: Time of the checkout, before any setup, in Unix seconds.
    """

    label: str
    tree: Path
    folder: Path
    created: float = field(default_factory=time.time)

    @cached_property
    def files(self) -> frozenset[str]:
        """Paths of the files that git tracks or would add, relative to `tree`."""
        listed = _git(
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
            folder=self.tree,
        )
        return frozenset(filter(None, listed.split("\0")))


def label_of(reference: str) -> str:
    """Return the name of a branch, tag, commit or of WORKING_TREE for messages."""
    return "the working tree" if reference == WORKING_TREE else reference


@contextlib.contextmanager
def checkouts(
    references: tuple[str, str], setup: str | None = None, guard: ProcessGuard | None = None
) -> Iterator[list[Checkout]]:
    """Check out references into separate worktrees, which are removed afterwards.

    Args:
        references: Two references, each a branch, tag or commit, or WORKING_TREE.
        setup: A shell command that is run once in each checkout.
        guard: Ends the setup command if this process is killed; None for a new guard.

    Yields:
        The checkouts, in the order of the references.

    Raises:
        ConfigError: If git does not find a commit, a commit lacks the current folder, or the setup
            command fails.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without_repository_variables())
        top = Path(_git("rev-parse", "--show-toplevel")).resolve()
        inner = Path.cwd().resolve().relative_to(top)
        remove_leftovers()
        _remove_stale_worktrees()
        guard = guard or stack.enter_context(ProcessGuard())
        scratch = stack.enter_context(Scratch()).resolve()
        found: list[Checkout] = []
        for number, reference in enumerate(references):
            if reference == WORKING_TREE:
                tree = top
            else:
                tree = scratch / f"{_TREE_PREFIX}{number}"
                stack.callback(_remove_worktree, tree)
                _add_worktree(tree, reference)
            checkout = Checkout(label_of(reference), tree, tree / inner)
            if not checkout.folder.is_dir():
                raise ConfigError(
                    "--commits",
                    reference,
                    f"has no folder {inner}",
                    "run the command in a folder that both commits have",
                )
            if setup:
                _set_up(setup, checkout, guard)
            found.append(checkout)
        yield found


@contextlib.contextmanager
def _without_repository_variables() -> Iterator[None]:
    """Remove, in the context, the variables by which git passes repository and index to hooks.

    With these variables, a git command in a worktree would use the repository and index of the
    user's own checkout.
    """
    names = [
        name
        for name in _git("rev-parse", "--local-env-vars").split()
        # Keep configuration variables, such as credentials, which also apply to worktrees.
        if not name.startswith("GIT_CONFIG")
    ]
    removed = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(removed)


def _add_worktree(tree: Path, reference: str) -> None:
    # Hooks of the user's checkout, which may for example install packages, must not run here.
    without_hooks = ("-c", f"core.hooksPath={os.devnull}")
    add = ("worktree", "add", "--quiet", "--detach")
    try:
        _git(*without_hooks, *add, "--", str(tree), reference)
    except _GitError as error:
        remedy = "give a branch, tag or commit"
        if _git("rev-parse", "--is-shallow-repository") == "true":
            remedy += "; this clone is shallow: git fetch --unshallow gets the other commits"
        raise ConfigError(
            "commit", reference, f"git does not find this commit ({error.reason})", remedy
        ) from None
    if (tree / ".gitmodules").exists():
        _add_submodules(tree, reference)


def _add_submodules(tree: Path, reference: str) -> None:
    """Check out the submodules of a worktree that are initialized in the repository."""
    try:
        _git("submodule", "update", "--quiet", "--recursive", folder=tree)
    except _GitError as error:
        reason = error.reason
        if _FILE_PROTOCOL in error.output:
            reason = _ALLOW_LOCAL_SUBMODULES
        print(f"{reference} is measured without its submodules: {reason}", file=sys.stderr)


def _remove_worktree(tree: Path) -> None:
    """Remove a worktree and its registration, if they exist."""
    subprocess.run(
        ["git", "worktree", "remove", "--force", tree],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def _remove_stale_worktrees() -> None:
    """Remove the registrations of worktrees of killed runs whose folder no longer exists."""
    for line in _git("worktree", "list", "--porcelain").splitlines():
        tree = Path(line.removeprefix("worktree "))
        if tree.name.startswith(_TREE_PREFIX) and not tree.exists():
            _remove_worktree(tree)


def _set_up(setup: str, checkout: Checkout, guard: ProcessGuard) -> None:
    print(f"setting up {checkout.label}: {setup}", file=sys.stderr)
    done = guard.run(["/bin/sh", "-c", setup], cwd=checkout.folder)
    if done.returncode:
        raise ConfigError(
            "--setup",
            setup,
            f"failed for {checkout.label} ({_last_line(done)})",
            "run it by hand in a checkout to find the cause",
        )


def commit_of(reference: str = WORKING_TREE, folder: Path | None = None) -> str:
    """Return the abbreviated hash of a commit.

    For WORKING_TREE, the suffix -dirty is added if files are modified.

    Args:
        reference: A branch, tag or commit, or WORKING_TREE.
        folder: A folder of the repository; None for the current folder.

    Raises:
        ParadnnError: If the folder is not in a repository, or git is not installed.
    """
    described = "--dirty" if reference == WORKING_TREE else reference
    return _git("describe", "--always", "--abbrev=12", "--exclude=*", described, folder=folder)


class _GitError(ParadnnError):
    """A git command failed; `reason` is the last line of its `output`."""

    def __init__(self, command: str, reason: str, output: str) -> None:
        super().__init__(f"git {command} failed: {reason}; run this command in a git checkout")
        self.reason = reason
        self.output = output


def _git(*words: str, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(
            ["git", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            cwd=folder,
        )
    except FileNotFoundError:
        raise ParadnnError("git is not installed; install it, or compare two commands") from None
    if done.returncode:
        raise _GitError(words[0], _last_line(done), done.stderr)
    return done.stdout.strip()


def _last_line(done: "subprocess.CompletedProcess[str]") -> str:
    """Return the last line that a failed process printed, or its exit code if it printed none."""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1][:200] if lines else f"exit code {done.returncode}"
