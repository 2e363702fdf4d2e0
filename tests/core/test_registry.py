"""What a registry finds in a folder and behind entry points of other packages; counts and reasons
in words.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from paradnn.core.errors import UnavailableError, reraise_as_unavailable
from paradnn.core.registry import Registry
from paradnn.core.words import counted, rounded

THING = "from tests.core.test_registry import Thing\n"


@dataclass(frozen=True)
class Thing:
    name: str
    order: int = 0


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a package of things; `other` is another distribution's."""
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "__init__.py").write_text("")
    (tmp_path / "things" / "late.py").write_text(f"{THING}LATE = Thing('late', 7)\n")
    (tmp_path / "things" / "many.py").write_text(
        f"{THING}MANY = (Thing('b', 1), Thing('a', 1))\nfrom .late import LATE\n"
    )
    (tmp_path / "other-1.dist-info").mkdir()
    (tmp_path / "other-1.dist-info" / "METADATA").write_text("Name: other\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("thing")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def offer(packages: Path, lines: str) -> None:
    (packages / "other-1.dist-info" / "entry_points.txt").write_text(f"[things]\n{lines}\n")


def test_modules_and_entry_points_in_their_order(packages: Path) -> None:
    (packages / "thing_of_others.py").write_text(
        f"{THING}FOREIGN = Thing('foreign')\nMORE = Thing('more', -1)\n"
    )
    offer(packages, "x = thing_of_others")
    found = Registry(Thing, "things")
    assert list(found) == ["a", "b", "late", "more", "foreign"]
    assert found["foreign"] == Thing("foreign")
    assert "nothing" not in found


def test_a_package_that_is_unusable_is_left_out_in_a_line(
    packages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (packages / "thing_broken.py").write_text("import nothing_of_that_name\n")
    (packages / "thing_twice.py").write_text(f"{THING}A = Thing('a')\nNEW = Thing('new')\n")
    offer(
        packages,
        "broken = thing_broken\none = thing_twice:NEW\ntwice = thing_twice\nwrong = thing_twice:Thing",
    )
    assert list(Registry(Thing, "things")) == ["a", "b", "late", "new"]
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "paradnn: things: thing_broken is left out: ModuleNotFoundError: No module named 'nothing_of_that_name'",
        "paradnn: things: thing_twice is left out: the name a is taken",
        "paradnn: things: thing_twice:Thing is left out: no Thing",
    ]


def test_a_name_twice_in_one_folder_is_a_fault(packages: Path) -> None:
    (packages / "things" / "again.py").write_text(f"{THING}AGAIN = Thing('a')\n")
    with pytest.raises(ValueError, match="things has two of the name a"):
        len(Registry(Thing, "things"))


def test_one_is_no_plural() -> None:
    assert [counted(count, "point") for count in (0, 1, 2, 1200)] == [
        "0 points",
        "1 point",
        "2 points",
        "1,200 points",
    ]


def test_numbers_are_rounded_without_exponents() -> None:
    said = {
        33_706.7: "33,710",
        12_345_678: "12,350,000",
        652.34: "652.3",
        9_999.6: "10,000",
        0.012345: "0.01235",
    }
    assert {each: rounded(each) for each in said} == said


@pytest.mark.parametrize(
    ("said", "reason"),
    [("no such file\nin ...", "it: no such file; try"), ("", "it: OSError; try")],
)
def test_a_reason_is_the_first_line_or_the_kind_of_fault(said: str, reason: str) -> None:
    with (
        pytest.raises(UnavailableError) as caught,
        reraise_as_unavailable("it", OSError, remedy="; try"),
    ):
        raise OSError(said)
    assert str(caught.value) == reason
