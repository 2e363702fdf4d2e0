"""The commands of README and of the tutorial work in their order, in a shell, with one store."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, Store, environment

#: Overrides that shorten points. `measure=quick` and the standard protocol still differ.
SHORT = [
    "measure.min_seconds=0.02",
    "measure.block_seconds=0.002",
    "measure.warmup_seconds=0.2",
    "measure.processes=1",
]
#: Beginnings of commands that tests skip, because these install, never end, or need a network,
#: another host, a server or a repository.
_SKIPPED = (
    "make test|make tour|make ui|python -m paradnn.watch|git |source |cd |eval |export |mlflow "
    "|xdg-open "
)
SKIPPED = (*_SKIPPED.split("|"), "paradnn gate", "python -m paradnn.train -m model=endpoint")


def blocks(page: str) -> Iterator[list[str]]:
    """Yield the commands of every shell block of a page."""
    text = (ROOT / page).read_text()
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        yield [line for line in block.splitlines() if line and not line.startswith("#")]


def recipe(target: str) -> list[str]:
    """Return the commands of a Makefile target that run this suite."""
    [text] = re.findall(
        rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    return [
        line.replace("$(BIN)/", "").strip()
        for line in text.splitlines()
        if line.startswith("\t$(BIN)/python")
    ]


def commands_of(page: str) -> list[list[str]]:
    """Return every command of a page as a list of arguments, shortened for a test."""
    commands = []
    for line in (line for block in blocks(page) for line in block):
        lines = recipe("demo") if line.startswith("make demo") else [line]
        commands += [
            shlex.split(each, comments=True) for each in lines if not each.startswith(SKIPPED)
        ]
    return [shorten(words) for words in commands]


def shorten(words: list[str]) -> list[str]:
    """Return a command with overrides that shorten it."""
    for index, word in enumerate(words):
        key = word.partition("=")[0]
        if key in ("sweep.sample", "sweep.points"):
            words = [*words[:index], f"{key}=2", *words[index + 1 :]]
    if "paradnn.train" in words and "--help" not in words:
        if "experiment=paper_fc" in words:
            small = ["model.layers=4", "model.nodes=32"]
        else:
            small = []
        return [*words, *SHORT, *small]
    if "paradnn.compare" in words:
        return [*words, *(word for word in SHORT if "processes" not in word), "--most", "5"]
    if words[:2] == ["paradnn", "best"]:
        return [*words, *(word for word in SHORT if "processes" not in word), "--minutes", "0.3"]
    if words[:2] == ["paradnn", "compare"]:
        return [*words, "--minutes", "0.1"]
    return words


@pytest.mark.pages
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_a_page_works_from_top_to_bottom(page: str, store: Store, tmp_path: Path) -> None:
    commands = commands_of(page)
    assert len(commands) >= 8
    environ = environment(store)
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    for name in ("old.py", "new.py"):  # files of the reader
        (tmp_path / name).write_text("sum(range(100_000))")
    for words in commands:
        line = shlex.join(words)
        completed = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        # After this short time, a comparison or a race may be undecided. A check may find noise.
        is_race = words[:2] == ["paradnn", "best"]
        if is_race or {"paradnn.compare", "paradnn.check"} & set(words):
            expected = (0, 1)
        else:
            expected = (0,)
        assert completed.returncode in expected, (
            f"{line}\n{completed.stdout[-1000:]}\n{completed.stderr[-1000:]}"
        )


def test_the_citation_names_this_version() -> None:
    from paradnn import __version__

    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text().replace('"', "")
    assert "END OF TERMS AND CONDITIONS" in (ROOT / "LICENSE").read_text()
