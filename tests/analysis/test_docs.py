"""What the documentation says to type is what the command line takes."""

import re
import shlex

import pytest

from analysis.claims.load import parse_claims
from analysis.cli import COMMANDS, make_parser
from tests.conftest import ROOT

PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("analysis.md", "claims.md", "compare.md")}
EVERY = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(*pages: str) -> list[str]:
    """The commands of the analysis in shell blocks."""
    blocks = (block for page in pages for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    return [line for block in blocks for line in block.splitlines() if line.startswith("python -m analysis")]


TYPED = commands(*PAGES.values())


@pytest.mark.parametrize("line", sorted(set(commands(*(page.read_text() for page in EVERY)))))
def test_commands_are_taken(line: str) -> None:
    assert make_parser().parse_args(shlex.split(line, comments=True)[3:]).sub_command


def test_every_command_is_documented() -> None:
    assert {command.name for command in COMMANDS} == {shlex.split(line)[3] for line in TYPED}


def test_the_example_of_a_claims_file_is_one() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGES["claims.md"], re.DOTALL)
    (claim,) = parse_claims(text, "docs/claims.md")
    assert [check.kind for check in claim.checks] == ["trend", "ratio"]


def test_images_exist_and_are_small() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", "".join(PAGES.values()))
    assert len(shown) == 5
    assert all((ROOT / "docs" / name).stat().st_size < 120_000 for name in shown)
