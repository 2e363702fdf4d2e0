"""Registries of items from their own package and from entry points of other packages."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from paradnn.core.registry import Registry

IMPORT_THING = "from tests.core.test_registry import Thing\n"


@dataclass(frozen=True)
class Thing:
    name: str
    order: int = 0


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on the path with the package `things` and the distribution `other`."""
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "__init__.py").write_text("")
    (tmp_path / "things" / "late.py").write_text(f"{IMPORT_THING}LATE = Thing('late', 7)\n")
    (tmp_path / "things" / "many.py").write_text(
        f"{IMPORT_THING}MANY = (Thing('b', 1), Thing('a', 1))\nfrom .late import LATE\n"
    )
    (tmp_path / "other-1.dist-info").mkdir()
    (tmp_path / "other-1.dist-info" / "METADATA").write_text("Name: other\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("thing")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def add_entry_points(packages: Path, lines: str) -> None:
    """Let the distribution `other` declare entry points of the group `things`."""
    (packages / "other-1.dist-info" / "entry_points.txt").write_text(f"[things]\n{lines}\n")


def test_items_of_other_packages_follow_those_of_the_own_package(packages: Path) -> None:
    (packages / "thing_plugin.py").write_text(
        f"{IMPORT_THING}FOREIGN = Thing('foreign')\nMORE = Thing('more', -1)\n"
    )
    add_entry_points(packages, "x = thing_plugin")

    registry = Registry(Thing, "things")

    assert list(registry) == ["a", "b", "late", "more", "foreign"]
    assert registry["foreign"] == Thing("foreign")
    assert "nothing" not in registry


def test_an_unusable_entry_point_is_skipped_with_a_message(
    packages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (packages / "thing_broken.py").write_text("import a_missing_module\n")
    (packages / "thing_twice.py").write_text(f"{IMPORT_THING}A = Thing('a')\nNEW = Thing('new')\n")
    add_entry_points(
        packages,
        "broken = thing_broken\n"
        "one = thing_twice:NEW\n"
        "twice = thing_twice\n"
        "wrong = thing_twice:Thing",
    )

    names = list(Registry(Thing, "things"))

    assert names == ["a", "b", "late", "new"]
    assert capsys.readouterr().err.splitlines() == [
        "paradnn: things: thing_broken is skipped: "
        "ModuleNotFoundError: No module named 'a_missing_module'",
        "paradnn: things: thing_twice is skipped: the name a is taken",
        "paradnn: things: thing_twice:Thing is skipped: it contains no Thing",
    ]


def test_two_items_with_one_name_in_the_own_package_raise_an_error(packages: Path) -> None:
    (packages / "things" / "again.py").write_text(f"{IMPORT_THING}AGAIN = Thing('a')\n")

    with pytest.raises(ValueError, match="things has two items with the name a"):
        len(Registry(Thing, "things"))
