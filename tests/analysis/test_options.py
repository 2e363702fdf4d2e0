"""Options as dataclasses and as command lines; tables on terminals and as CSV."""

import csv
import dataclasses
import io
import shlex
from typing import Any

import pandas as pd
import pytest

from analysis.analyses.boxplot import BoxplotOptions
from analysis.analyses.roofline import RooflineOptions
from analysis.cli import COMMANDS, make_parser, output
from analysis.cli.commands import SubCommand
from analysis.options import Argument, Arguments, Selection, arguments, command_line, read_arguments
from analysis.result import Result
from paradnn.cli.console import SafeConsole


def sample(argument: Argument) -> Any:
    """Return a value that is not the default; text contains special shell characters."""
    if argument.choices:
        return next(choice for choice in argument.choices if choice != argument.default)
    if argument.pairs:
        return (("key", "a=b"), ("other", "two words"))
    value: Any = {bool: True, int: 7, float: 0.25, str: "-device=TPU v2, 'x'"}[argument.kind]
    if argument.several == "commas":
        return ("model.nodes", "batch_size")
    if argument.several:
        return (value, -value if argument.kind is int else value)
    return value


def sample_options(cls: type[Arguments]) -> Arguments:
    return cls(**{argument.name: sample(argument) for argument in arguments(cls)})


def parse(command: SubCommand, words: list[str]) -> tuple[Arguments, Selection]:
    namespace = make_parser().parse_args([command.name, *words])
    assert namespace.sub_command.name == command.name
    return read_arguments(command.options, namespace), read_arguments(Selection, namespace)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_options_survive_conversion_to_a_command_line_and_back(command: SubCommand) -> None:
    options = sample_options(command.options)
    words = shlex.split(shlex.join(command_line(options)))

    assert parse(command, words)[0] == options


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_line_omits_defaults(command: SubCommand) -> None:
    required = {
        entry.name: sample(entry) for entry in arguments(command.options) if _required(entry)
    }
    minimal = command.options(**required)

    assert parse(command, command_line(minimal))[0] == minimal
    assert len(command_line(minimal)) <= 2 * len(required)


def _required(argument: Argument) -> bool:
    return argument.default is dataclasses.MISSING


@pytest.mark.parametrize("flag", ["--color", "--colour"])
def test_both_spellings_of_color_name_one_option(flag: str) -> None:
    (roofline,) = (command for command in COMMANDS if command.name == "roofline")

    options, _ = parse(roofline, [flag, "nodes"])

    assert options == RooflineOptions(color="nodes")


def test_a_selection_and_options_share_one_command_line() -> None:
    selection = sample_options(Selection)
    assert isinstance(selection, Selection)

    (boxplot,) = (command for command in COMMANDS if command.name == "boxplot")
    options, parsed_selection = parse(
        boxplot, [*command_line(BoxplotOptions(pool=True)), *command_line(selection)]
    )

    assert parsed_selection == selection
    assert options == BoxplotOptions(pool=True, store=selection.store), (
        "the options of an analysis contain the selected store"
    )


def printed_lines(
    monkeypatch: pytest.MonkeyPatch, width: int, rows: pd.DataFrame, **tables: pd.DataFrame
) -> list[str]:
    out = io.StringIO()
    terminal = SafeConsole(
        file=out, width=width, force_terminal=True, no_color=True, color_system=None
    )
    monkeypatch.setattr(output, "standard_output", lambda: terminal)
    output.print_result(
        Result(
            sources=(), numbers=rows, rows=[*tables.items()], sentences=["said \x1b]0;owned\x07"]
        )
    )
    return [line.rstrip() for line in out.getvalue().splitlines()]


ROWS = pd.DataFrame(
    {
        "family": ["fc", "lstm"],
        "batch_size": [16384, 64],
        "device": ["GPU"] * 2,
        "rate": [19_490.5, float("nan")],
        "count": pd.array([3, pd.NA], dtype="Int64"),
        "empty": [None, None],
        "share": [0.123456, 1.0],
        "parameters": [25_600_000, 7],
    }
)


def test_a_table_has_few_digits_and_only_columns_that_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert printed_lines(monkeypatch, 100, ROWS) == [
        "said \\x1b]0;owned",
        "",
        "family  batch_size    rate  count  share  parameters",
        "fc           16384  19.5 k      3  0.123      25.6 M",
        "lstm            64       -      -      1           7",
        "The same in all rows: device GPU",
    ]


def test_a_narrow_terminal_names_the_columns_that_it_omits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = printed_lines(monkeypatch, 40, ROWS)
    assert max(map(len, lines[:5])) <= 40
    assert lines[2].split() == ["family", "batch_size", "rate", "count", "share"]
    assert lines[5:] == [
        "The same in all rows: device GPU",
        "1 more column (parameters): --all prints them, --csv FILE writes them",
    ]


def test_csv_cells_that_look_like_formulas_are_quoted() -> None:
    words = ["=1+1", "+cmd", "-2e5", "-1+1", "@x", "\tx", "fine", "-inf", "+5%"]
    out = io.StringIO()
    output.write_csv(pd.DataFrame({"=name": words, "n": range(-4, 5), "x": [-0.5] * 9}), out)
    first, *rows = csv.reader(io.StringIO(out.getvalue()))

    assert first == ["'=name", "n", "x"]
    assert [row[0] for row in rows] == [
        "'=1+1",
        "'+cmd",
        "-2e5",
        "'-1+1",
        "'@x",
        "'\tx",
        "fine",
        "-inf",
        "+5%",
    ]
    assert [row[1:] for row in rows] == [[str(n), "-0.5"] for n in range(-4, 5)]


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        pytest.param(io.StringIO, "name\nred \x1b[31m\n", id="pipe"),
        pytest.param(Terminal, "name\nred \\x1b[31m\n", id="terminal"),
    ],
)
def test_csv_on_a_terminal_shows_control_characters(
    stream: type[io.StringIO], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = stream()
    monkeypatch.setattr("sys.stdout", out)
    result = Result(sources=(), numbers=pd.DataFrame({"name": ["red \x1b[31m"]}))
    output.emit_result(
        "runs",
        result,
        frame=pd.DataFrame(),
        selection=Selection(),
        output=output.FigureOutput(csv="-"),
        command_line=[],
    )

    assert out.getvalue() == expected
