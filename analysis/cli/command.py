"""What a sub-command is: a function from a frame and options to a result, or one that acts and prints by itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.cli.arguments import add_arguments, read_arguments
from analysis.cli.homogeneous import answer, answer_of_one_protocol
from analysis.cli.output import FigureOutput, Output, deliver
from analysis.cli.selection import load_chosen
from analysis.options import Arguments, Options, Selection, Source

if TYPE_CHECKING:
    import pandas as pd

    from analysis.registry import Analysis
    from analysis.result import Result

__all__ = ["Command", "of_analysis"]


@dataclass(frozen=True)
class Command:
    """A sub-command, called as its options say. `analyse` takes the frame of the chosen runs, `act` what chooses them.

    `columns` limits what is read from the store, `read` reads something else where its options say so; `draws` adds
    --figure and --width; without `selects` it takes no options that choose runs; `one_protocol` is for an analysis that
    would refuse heterogeneous runs part by part, not as a whole, `counts` for one to which no run is an answer.
    """

    options: type[Arguments]
    summary: str
    description: str
    example: str
    analyse: Callable[[pd.DataFrame, Any], Result] | None = None
    act: Callable[[Any, Any], None] | None = None
    columns: tuple[str, ...] | None = None
    read: Callable[[Any, Selection, Output], pd.DataFrame | None] | None = None
    draws: bool = False
    one_protocol: bool = False
    counts: bool = False
    selects: bool = True

    @property
    def name(self) -> str:
        """What is typed."""
        return self.options.command

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments and the shared ones."""
        output = () if self.analyse is None else (FigureOutput if self.draws else Output,)
        add_arguments(parser, Selection if self.selects else Source, self.options, *output)

    def execute(self, args: argparse.Namespace, command_line: list[str]) -> None:
        """Do it, and print, write and log what came out."""
        options = read_arguments(self.options, args)
        selection = read_arguments(Selection, args)
        if self.act is not None:
            self.act(options, selection)
        if self.analyse is not None:
            assert isinstance(options, Options), "what an analysis takes"
            output = read_arguments(FigureOutput, args)
            frame = None if self.read is None else self.read(options, selection, output)
            if frame is None:
                beside = options.beside_messages
                frame = load_chosen(selection, self.columns, may_be_empty=self.counts, beside_messages=beside)
            make = answer_of_one_protocol if self.one_protocol else answer
            result = make(self.analyse, frame, options, selection)
            deliver(self.name, result, frame, selection, output, command_line)


def of_analysis(one: Analysis[Any, Any]) -> Command:
    """The sub-command of a registered analysis."""
    return Command(
        one.options,
        summary=one.summary,
        description=one.description,
        example=one.example,
        analyse=one,
        columns=one.columns,
        read=one.read,
        draws=one.draws,
        one_protocol=one.one_protocol,
        counts=one.counts,
    )
