"""Commits in separate worktrees, and one command at two commits."""

import os
import subprocess
from pathlib import Path

import pytest

from paradnn.compare import __main__ as command
from paradnn.core.errors import ConfigError
from paradnn.platform.commits import checkouts
from tests.compare.conftest import Call, git


def test_commits_are_checked_out_and_removed_afterwards(repository: Path) -> None:
    with checkouts(("main~1", "."), setup="echo ready > set_up") as found:
        programs = [(checkout.folder / "program.sh").read_text() for checkout in found]
        assert programs == ["echo speed: 100\n", "echo speed: 50\n"]
        assert all((checkout.folder / "set_up").exists() for checkout in found)
        assert [checkout.label for checkout in found] == ["main~1", "the working tree"]
        assert found[0].tree != repository
        assert found[1].tree == repository
    listed = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True)

    assert len(listed.stdout.splitlines()) == 1


def test_a_commit_without_the_current_folder_is_rejected(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "new").mkdir()
    monkeypatch.chdir(repository / "new")

    with (
        pytest.raises(ConfigError, match="--commits=main: has no folder new"),
        checkouts(("main", ".")),
    ):
        pass


@pytest.mark.parametrize(
    ("reference", "setup", "message"),
    [
        pytest.param(
            "nowhere", None, "commit=nowhere: git does not find this commit", id="unknown commit"
        ),
        pytest.param(
            "--upload-pack=x",
            None,
            "git does not find this commit",
            id="option instead of a commit",
        ),
        pytest.param(
            "main",
            "echo broken >&2; exit 1",
            r"--setup=.*: failed for main \(broken\)",
            id="setup fails",
        ),
    ],
)
def test_a_commit_that_cannot_be_checked_out_is_rejected(
    repository: Path, reference: str, setup: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message), checkouts((reference, "."), setup):
        pass


@pytest.mark.parametrize(
    ("file_protocol", "content"),
    [
        pytest.param("always", {"module.txt"}, id="submodule allowed"),
        pytest.param("never", set(), id="submodule forbidden"),
    ],
)
def test_a_commit_is_checked_out_with_its_submodules_if_git_allows_it(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file_protocol: str,
    content: set[str],
) -> None:
    add_submodule(repository, tmp_path)
    # By default, Git clones no submodule from this machine (CVE-2022-39253).
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", file_protocol)

    with checkouts(("HEAD", ".")) as (commit, _):
        found = {path.name for path in (commit.tree / "module").iterdir()} - {".git"}

    assert found == content

    warning = "HEAD is measured without its submodules"
    assert (warning in capsys.readouterr().err) == (not content)

    listed = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == 1


def test_the_proposed_remedy_for_local_submodules_works(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    add_submodule(repository, tmp_path)
    with checkouts(("HEAD", ".")):
        pass
    [message] = capsys.readouterr().err.splitlines()
    for assignment in message.partition(": export ")[2].split():
        monkeypatch.setenv(*assignment.split("="))

    with checkouts(("HEAD", ".")) as (commit, _):
        content = (commit.tree / "module" / "module.txt").read_text()

    assert content == "1"
    assert not capsys.readouterr().err


def add_submodule(repository: Path, tmp_path: Path) -> None:
    """Create a second repository with the file module.txt, and add it as the submodule `module`."""
    module = tmp_path / "module"
    allowed = ["-c", "protocol.file.allow=always"]
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", module], check=True)
    (module / "module.txt").write_text("1")
    for folder, words in (
        (module, ["add", "."]),
        (module, ["commit", "-qm", "module"]),
        (repository, ["submodule", "--quiet", "add", str(module), "module"]),
        (repository, ["commit", "-qm", "add module"]),
    ):
        subprocess.run(["git", *allowed, *identity, *words], cwd=folder, check=True)


def test_a_missing_commit_is_explained_by_a_shallow_clone_only_if_it_is_one(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{repository}", clone], check=True)

    with pytest.raises(ConfigError) as error_of_full_clone, checkouts(("main~9", ".")):
        pass

    monkeypatch.chdir(clone)
    with pytest.raises(ConfigError) as error_of_shallow_clone, checkouts(("HEAD~1", ".")):
        pass

    assert str(error_of_full_clone.value).endswith("; give a branch, tag or commit")
    assert str(error_of_shallow_clone.value).endswith(
        "shallow: git fetch --unshallow gets the other commits"
    )


def test_one_command_is_compared_at_two_commits(repository: Path, call: Call) -> None:
    outcome = call(
        command.main,
        ["--metric", "speed: (.*)", "--commits", "main", "main~1", "--", "sh", "program.sh"],
    )
    assert outcome.code == 0
    assert "main~1 is 1.2500 times as fast as main" in outcome.output


def test_two_commits_with_the_same_code_are_reported(repository: Path, call: Call) -> None:
    outcome = call(
        command.main,
        ["--metric", "speed: (.*)", "--commits", "main", "HEAD", "--", "sh", "program.sh"],
    )
    assert "Both sides ran the same code: they loaded the same" in outcome.output


def test_a_checkout_inside_a_git_hook_leaves_the_index_unchanged(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git("add", "program.sh")
    staged = git_status()
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository / ".git" / "index"))

    with checkouts(("HEAD~1", ".")) as (base, _):
        # A build in --setup may query Git for the version of its folder.
        top = subprocess.run(
            ["git", "rev-parse", "--show-toplevel"],
            cwd=base.folder,
            capture_output=True,
            text=True,
            check=True,
        )

    assert Path(top.stdout.strip()).resolve() == base.tree
    assert git_status() == staged
    assert os.environ["GIT_DIR"] == str(repository / ".git")


def test_git_hooks_do_not_run_in_the_folders_of_commits(repository: Path) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    with checkouts(("HEAD~1", ".")) as (base, _):
        assert (base.folder / "program.sh").read_text() == "echo speed: 100\n"


def git_status() -> str:
    done = subprocess.run(
        ["git", "status", "--porcelain"], capture_output=True, text=True, check=True
    )
    return done.stdout
