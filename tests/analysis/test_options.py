"""Options as dataclasses, as arguments and as a command line: each way says the same."""

import dataclasses
import shlex
from typing import Any

import pytest

from analysis.analyses.boxplot import BoxplotOptions
from analysis.analyses.compare import CompareOptions
from analysis.analyses.infeed import InfeedOptions
from analysis.analyses.speedup import SpeedupOptions
from analysis.cli import COMMANDS, make_parser
from analysis.cli.commands import SubCommand
from analysis.options import Argument, Arguments, Selection, arguments, command_line, read_arguments
from paradnn.core.errors import ConfigError


def sample(argument: Argument) -> Any:
    """A value that is not the default, with what is awkward on a command line."""
    if argument.choices:
        return next(choice for choice in argument.choices if choice != argument.default)
    if argument.pairs:
        return (("key", "a=b"), ("other", "two words"))
    one: Any = {bool: True, int: 7, float: 0.25, str: "device=TPU v2, 'x'"}[argument.kind]
    if argument.several == "commas":
        return ("model.nodes", "batch_size")
    return (one, -one if argument.kind is int else one) if argument.several else one


def filled(cls: type[Arguments]) -> Arguments:
    return cls(**{argument.name: sample(argument) for argument in arguments(cls)})


def parsed(command: SubCommand, words: list[str]) -> tuple[Arguments, Selection]:
    given = make_parser().parse_args([command.name, *words])
    assert given.sub_command.name == command.name
    return read_arguments(command.options, given), read_arguments(Selection, given)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_line_of_options_gives_the_options_again(command: SubCommand) -> None:
    options = filled(command.options)
    words = shlex.split(shlex.join(command_line(options)))
    assert parsed(command, words)[0] == options
    required = {entry.name: sample(entry) for entry in arguments(command.options) if _required(entry)}
    least = command.options(**required)
    assert parsed(command, command_line(least))[0] == least
    assert len(command_line(least)) <= 2 * len(required)


def _required(argument: Argument) -> bool:
    return argument.default is dataclasses.MISSING


def test_a_selection_is_given_again_beside_the_options() -> None:
    selection = filled(Selection)
    assert isinstance(selection, Selection)
    (boxplot,) = (command for command in COMMANDS if command.name == "boxplot")
    options, chosen = parsed(boxplot, [*command_line(BoxplotOptions(pool=True)), *command_line(selection)])
    assert chosen == selection
    assert options == BoxplotOptions(pool=True, store=selection.store), "operations are read from the same store"


def test_a_value_that_begins_with_a_dash_is_no_flag() -> None:
    assert command_line(SpeedupOptions(a=("-x=1",))) == ["--a=-x=1"]


@pytest.mark.parametrize(
    ("cls", "given", "message"),
    [
        (CompareOptions, {"a": "x=1", "b": "x=2", "rate": 1.0}, "--rate=1.0: must be above 0 and below 1"),
        (SpeedupOptions, {"ridge": (75.0, 0.0)}, "--ridge=0.0: must be above 0"),
        (InfeedOptions, {"against": "weight"}, "--against=weight: no such choice; choose one of flops_per_example, "),
        (BoxplotOptions, {"unit": "cubic"}, "--unit=cubic: no such choice; choose one of crossed, model, point"),
    ],
)
def test_a_value_out_of_bounds_is_named(cls: type[Arguments], given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        cls(**given)
