"""What a sub-command is: a function from a frame to a result, with the arguments it adds to the shared ones."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.cli.options import add_selection, add_store, load_chosen
from analysis.cli.output import add_output, deliver
from analysis.summaries.result import Result

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Argument", "Command", "argument"]

Argument = tuple[tuple[str, ...], dict[str, Any]]


def argument(*flags: str, **settings: Any) -> Argument:
    """What `argparse.ArgumentParser.add_argument` is given."""
    return flags, settings


@dataclass(frozen=True)
class Command:
    """A sub-command. `analyse` takes the frame of the chosen runs; `act` takes the arguments alone and prints itself.

    `columns` limits what is read from the store, `read` reads something else where its own arguments say so; `draws`
    adds --png and --svg.
    """

    name: str
    summary: str
    description: str
    example: str
    analyse: Callable[[pd.DataFrame, argparse.Namespace], Result] | None = None
    act: Callable[[argparse.Namespace], None] | None = None
    arguments: tuple[Argument, ...] = ()
    columns: tuple[str, ...] | None = None
    read: Callable[[argparse.Namespace], pd.DataFrame | None] | None = None
    draws: bool = False
    selects: bool = True

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments and the shared ones."""
        for flags, settings in self.arguments:
            parser.add_argument(*flags, **settings)
        add_store(parser)
        if self.selects:
            add_selection(parser)
        if self.analyse is not None:
            add_output(parser, figures=self.draws)

    def execute(self, args: argparse.Namespace) -> None:
        """Do it, and print, write and log what came out."""
        if self.act is not None:
            self.act(args)
        if self.analyse is not None:
            given = None if self.read is None else self.read(args)
            frame = load_chosen(args, self.columns) if given is None else given
            deliver(self.analyse(frame, args), frame, args)
