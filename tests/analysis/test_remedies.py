"""Remedies can be carried out.

Every option and command in a message exists in the place where the reader would type it.
"""

import argparse
import ast
import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from analysis.cli import COMMANDS as ANALYSES
from analysis.cli import make_parser
from analysis.options import read_arguments
from analysis.store.step_inputs import points_from_words
from paradnn.cli.commands import COMMANDS
from paradnn.cli.parser import options, sub_commands
from paradnn.core.errors import ParadnnError
from tests.structure import ROOT


def parsers() -> Iterator[argparse.ArgumentParser]:
    """Yield the parser of every command of the suite, and those of its sub-commands."""
    for module, _ in COMMANDS.values():
        make = getattr(importlib.import_module(module), "make_parser", None)
        if make is not None:
            parser = make()
            yield from (parser, *sub_commands(parser).values())


PARSER = make_parser()
PARSERS = sub_commands(PARSER)
ALL = {"--help", "--version", "--multirun"} | {
    option for parser in parsers() for option in options(parser)
}
#: Options of other programs that messages name, by program.
OTHER_PROGRAMS = {
    "hyperfine": {"--export-json", "--shell"},
    "pytest": {"--benchmark-json"},
    "Google Benchmark": {"--benchmark"},  # of --benchmark_format
    "vllm bench": {"--save-result"},
}
#: Options without a value.
FLAGS = {"-m", "--help", "--unfinished", "--version"}
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+[a-z]")
_COMMAND = re.compile(r"(?:python -m |(?<![\w./-]))(paradnn|analysis)((?:\.\w+)*) ([a-z][a-z-]+)?")


def options_of_analysis(name: str) -> set[str]:
    return set(options(PARSERS[name]))


@cache
def texts(path: Path) -> tuple[str, ...]:
    """Return a file's string literals without docstrings; an f-string is one text with gaps."""
    return tuple(_literals(path))


def _literals(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(value) for value in node.values}
            yield "".join(
                str(value.value) if isinstance(value, ast.Constant) else "\0"
                for value in node.values
            )
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def analysis_files() -> list[Path]:
    return sorted((ROOT / "analysis").rglob("*.py"))


@pytest.mark.parametrize("path", analysis_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_options_in_messages_exist(path: Path) -> None:
    name = path.stem.replace("_", "-")
    own = options_of_analysis(name) if path.parent.name == "analyses" and name in PARSERS else ALL
    for text in texts(path):
        known = ALL if _COMMAND.search(text) else own
        for program, foreign in OTHER_PROGRAMS.items():
            if program in text:
                known = known | foreign
        assert set(_OPTION.findall(text)) <= known, text


@pytest.mark.parametrize(
    "path",
    [*analysis_files(), *sorted((ROOT / "paradnn").rglob("*.py"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_commands_in_messages_exist(path: Path) -> None:
    known = {command.name for command in ANALYSES} | {"COMMAND"}
    for text in texts(path):
        for package, module, command in re.findall(
            r"python -m (paradnn|analysis)((?:\.\w+)*)(?: ([a-z][a-z-]+\b))?(?!-)", text
        ):
            assert importlib.util.find_spec(f"{package}{module}"), text
            if package == "analysis" and command:
                assert command in known, text


@cache
def proposed_commands(package: str) -> list[str]:
    """Return the command lines with options or overrides that messages and help propose.

    A line ends at punctuation. Lines with a gap are filled at run time and omitted.
    """
    pattern = re.compile(rf"python -m {package} ([^\n;()`\0]*?)(?:, |[\n;()`]|$)")
    files = [*analysis_files(), *sorted((ROOT / "paradnn").rglob("*.py"))]
    found = {
        match[1].strip(" .")
        for path in files
        if "python -m " in path.read_text(encoding="utf-8")
        for text in texts(path)
        for match in pattern.finditer(text)
    }
    return sorted(
        line for line in found if re.search(r"(^| )--?\w|=", line) and "COMMAND" not in line
    )


def without_prose(line: str) -> list[str]:
    """Return the words of a command line up to the value of its last option or override.

    A message may go on after the command: "python -m paradnn.train --help lists keys".
    """
    words = shlex.split(line)
    last = max(n for n, word in enumerate(words) if word.startswith("-") or "=" in word)
    takes_value = words[last].startswith("-") and words[last] not in FLAGS
    return words[: last + 1 + takes_value]


@pytest.mark.parametrize("line", proposed_commands("analysis"))
def test_proposed_analyses_are_valid(line: str) -> None:
    given = PARSER.parse_args(without_prose(line))

    if given.sub_command.options:
        read_arguments(given.sub_command.options, given)


@pytest.mark.parametrize("line", proposed_commands(r"paradnn\.train"))
def test_proposed_sweeps_are_valid(line: str) -> None:
    overrides = [word for word in without_prose(line) if not word.startswith("-")]

    points = points_from_words(overrides, "test")

    assert overrides == [] or len(points) > 0


@pytest.mark.parametrize("command", sorted(PARSERS))
def test_hints_name_options_of_the_command(command: str) -> None:
    own = options_of_analysis(command)
    others = set().union(*map(options_of_analysis, PARSERS)) - own
    for option in sorted(others):
        required = [
            word
            for action in PARSERS[command]._actions
            if action.required
            for word in (*action.option_strings[:1], *["x"] * (action.nargs != 0))
        ]
        with pytest.raises(ParadnnError) as error:
            PARSER.parse_args([command, *required, option])
        assert "unrecognized arguments" in str(error.value)
        proposed = set(_OPTION.findall(str(error.value))) - {option, "--help"}
        assert proposed <= own, error.value
