"""Sets of files that several processes want at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from paradnn.worker.input import generated as made_sets
from tests.processes import exit_code, fresh, wait_for


def _make(number: int, witness: Path) -> None:
    def write(folder: Path) -> None:
        with (witness / "makers").open("a") as file:
            file.write("x")
        assert wait_for(lambda: (witness / "go").exists())
        (folder / "file").write_text("content")

    (witness / f"asks-{number}").touch()
    [file] = made_sets.ready("raced", write)
    assert file.read_text() == "content"


def test_two_processes_make_a_set_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second asks while the first makes it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with fresh(_make, 1, tmp_path) as first, fresh(_make, 2, tmp_path) as second:
        assert wait_for(lambda: len(list(tmp_path.glob("asks-*"))) == 2 and (tmp_path / "makers").exists())
        (tmp_path / "go").touch()
        assert (exit_code(first), exit_code(second)) == (0, 0)
    assert (tmp_path / "makers").read_text() == "x"
