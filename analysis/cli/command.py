"""What a sub-command is: a function from a frame to a result, with the arguments it adds to the shared ones."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.cli import options, output

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Argument", "Command", "Result", "argument"]

Argument = tuple[tuple[str, ...], dict[str, Any]]


def argument(*flags: str, **settings: Any) -> Argument:
    """What `argparse.ArgumentParser.add_argument` is given."""
    return flags, settings


@dataclass(frozen=True)
class Result:
    """What an analysis found.

    `text` says it in words; `figure` draws it when asked for; `sources` are the run ids it rests on, None for all
    runs of the frame.
    """

    table: pd.DataFrame
    text: str = ""
    figure: Callable[[], Figure] | None = None
    sources: Sequence[str] | None = None


@dataclass(frozen=True)
class Command:
    """A sub-command. `analyse` takes the frame of the chosen runs; `act` takes the arguments alone and prints itself.

    `columns` limits what is read from the store; `draws` adds --png and --svg.
    """

    name: str
    summary: str
    description: str
    example: str
    analyse: Callable[[pd.DataFrame, argparse.Namespace], Result] | None = None
    act: Callable[[argparse.Namespace], None] | None = None
    arguments: tuple[Argument, ...] = ()
    columns: tuple[str, ...] | None = None
    draws: bool = False
    selects: bool = True

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments and the shared ones."""
        for flags, settings in self.arguments:
            parser.add_argument(*flags, **settings)
        options.add_store(parser)
        if self.selects:
            options.add_selection(parser)
        if self.analyse is not None:
            output.add_output(parser, figures=self.draws)

    def execute(self, args: argparse.Namespace) -> None:
        """Do it, and print, write and log what came out."""
        if self.act is not None:
            self.act(args)
        if self.analyse is not None:
            frame = options.load_chosen(args, self.columns)
            output.deliver(self.analyse(frame, args), frame, args)
