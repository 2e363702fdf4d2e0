"""Remedies in messages are valid.

Every option and command in a message exists in the command for which the message proposes it.
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
    """Yield the parsers of all commands of the suite and of their sub-commands."""
    for module, _ in COMMANDS.values():
        make = getattr(importlib.import_module(module), "make_parser", None)
        if make is not None:
            parser = make()
            yield from (parser, *sub_commands(parser).values())


PARSER = make_parser()
PARSERS = sub_commands(PARSER)
ALL_OPTIONS = {"--help", "--version", "--multirun"} | {
    option for parser in parsers() for option in options(parser)
}
#: Options in messages that belong to other programs, by program.
OTHER_PROGRAMS = {
    "hyperfine": {"--export-json", "--shell"},
    "pytest": {"--benchmark-json"},
    "Google Benchmark": {"--benchmark"},  # of --benchmark_format
    "vllm bench": {"--save-result"},
}
#: Options that have no value.
FLAGS = {"-m", "--help", "--unfinished", "--version"}
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+[a-z]")
_COMMAND = re.compile(r"(?:python -m |(?<![\w./-]))(paradnn|analysis)((?:\.\w+)*) ([a-z][a-z-]+)?")


def options_of_analysis(name: str) -> set[str]:
    return set(options(PARSERS[name]))


@cache
def texts(path: Path) -> tuple[str, ...]:
    """Return the string literals of a file, without docstrings.

    An f-string is one text, with a NUL character for each replaced field.
    """
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
    if path.parent.name == "analyses" and name in PARSERS:
        own = options_of_analysis(name)
    else:
        own = ALL_OPTIONS
    for text in texts(path):
        known = ALL_OPTIONS if _COMMAND.search(text) else own
        for program, program_options in OTHER_PROGRAMS.items():
            if program in text:
                known = known | program_options
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
    """Return the command lines in messages and help that have options or overrides.

    A command line ends at punctuation. Lines with a field that is filled at run time are omitted.
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

    The message may continue after the command: "python -m paradnn.train --help lists them".
    """
    words = shlex.split(line)
    last = max(index for index, word in enumerate(words) if word.startswith("-") or "=" in word)
    has_value = words[last].startswith("-") and words[last] not in FLAGS
    return words[: last + 2] if has_value else words[: last + 1]


@pytest.mark.parametrize("line", proposed_commands("analysis"))
def test_proposed_analyses_are_valid(line: str) -> None:
    parsed = PARSER.parse_args(without_prose(line))

    if parsed.sub_command.options:
        read_arguments(parsed.sub_command.options, parsed)


@pytest.mark.parametrize("line", proposed_commands(r"paradnn\.train"))
def test_proposed_sweeps_are_valid(line: str) -> None:
    overrides = [word for word in without_prose(line) if not word.startswith("-")]

    points = points_from_words(overrides, "test")

    assert overrides == [] or len(points) > 0


@pytest.mark.parametrize("command", sorted(PARSERS))
def test_hints_propose_only_options_of_the_command(command: str) -> None:
    own = options_of_analysis(command)
    foreign_options = set().union(*map(options_of_analysis, PARSERS)) - own
    for option in sorted(foreign_options):
        required = []
        for action in PARSERS[command]._actions:
            if action.required:
                required += action.option_strings[:1]
                if action.nargs != 0:
                    required.append("x")
        with pytest.raises(ParadnnError) as caught:
            PARSER.parse_args([command, *required, option])
        assert "unrecognized arguments" in str(caught.value)
        proposed = set(_OPTION.findall(str(caught.value))) - {option, "--help"}
        assert proposed <= own, caught.value
