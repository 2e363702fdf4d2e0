"""Carrying out one analysis through its own command, so that the page holds what the command prints."""

from __future__ import annotations

import argparse
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import pandas as pd

from analysis.report.outline import REMEDIES, Item
from analysis.report.svg import embed
from analysis.summaries.boxplot import COMMANDS as BOXPLOT
from analysis.summaries.breakdown import COMMANDS as BREAKDOWN
from analysis.summaries.claims import COMMANDS as CLAIMS
from analysis.summaries.command import Command
from analysis.summaries.compare import COMMANDS as COMPARE
from analysis.summaries.heatmap import COMMANDS as HEATMAP
from analysis.summaries.infeed import COMMANDS as INFEED
from analysis.summaries.overhead import COMMANDS as OVERHEAD
from analysis.summaries.parameters import COMMANDS as PARAMETERS
from analysis.summaries.result import Result
from analysis.summaries.roofline import COMMANDS as ROOFLINE
from analysis.summaries.scaling import COMMANDS as SCALING
from analysis.summaries.sensitivity import COMMANDS as SENSITIVITY
from analysis.summaries.software import COMMANDS as SOFTWARE
from analysis.summaries.speedup import COMMANDS as SPEEDUP
from paradnn.errors import ParadnnError

__all__ = ["Budget", "Missing", "Section", "carry_out"]

_ANALYSES = {
    command.name: command
    for command in (
        *BOXPLOT,
        *BREAKDOWN,
        *CLAIMS,
        *COMPARE,
        *HEATMAP,
        *INFEED,
        *OVERHEAD,
        *PARAMETERS,
        *ROOFLINE,
        *SCALING,
        *SENSITIVITY,
        *SOFTWARE,
        *SPEEDUP,
    )
}
_ALTERNATIVE = 320  # characters of a figure's text alternative


@dataclass(frozen=True)
class Section:
    """An analysis that was made: where it stands in the page, what it found, its figure as HTML (empty without one).

    `left_out` says why a figure is not there.
    """

    name: str
    anchor: str
    title: str
    reading: str
    command: str
    result: Result
    figure: str = ""
    left_out: str = ""
    names: str = ""


@dataclass(frozen=True)
class Missing:
    """An analysis that could not be made: of which part, why, and the command that would supply it."""

    title: str
    of: str
    reason: str
    remedy: str


@dataclass
class Budget:
    """Bytes of figures that the page still has room for, and how many had none."""

    left: int
    refused: list[str] = field(default_factory=list)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ParadnnError(message)


def carry_out(
    item: Item,
    frame: pd.DataFrame,
    chosen: Sequence[str],
    shared: argparse.Namespace,
    prefix: str,
    of: str,
    budget: Budget,
) -> Section | Missing:
    """Run an item's command on a frame; what it refuses is a `Missing`.

    `chosen` are the options that choose this frame's runs from the store, for the command that the page shows;
    `shared` holds the report's own arguments. A fault of an analysis is named and leaves the rest of the report whole.
    """
    remedy = item.remedy or REMEDIES.get(item.name, "")
    if item.problem:
        return Missing(item.title, of, item.problem, remedy)
    options = [*item.options, *(["--pool"] if shared.pool else [])]
    line = shlex.join(["python", "-m", "analysis", item.name, *item.options, *chosen])
    anchor = f"{prefix}-{item.anchor}"
    rows = _rows(frame, item)
    try:
        result = _analyse(_ANALYSES[item.name], rows, options, shared.store)
    except ParadnnError as error:
        return Missing(item.title, of, str(error), remedy)
    except Exception as error:
        return Missing(item.title, of, _fault(item.name, error), line)
    if not len(result.table):
        return Missing(item.title, of, " ".join(result.text.split()) or "no run has what it takes", remedy)
    figure, left_out = _figure(result, item.title, anchor, of, budget)
    return Section(item.name, anchor, item.title, item.reading, line, result, figure, left_out)


def _rows(frame: pd.DataFrame, item: Item) -> pd.DataFrame:
    """The frame, narrowed as the item's own --family does when the command reads the store."""
    if "--family" not in item.options:
        return frame.copy()
    wanted = item.options[item.options.index("--family") + 1].split(",")
    return frame[frame["family"].isin(wanted)].reset_index(drop=True).copy()


def _analyse(command: Command, frame: pd.DataFrame, options: Sequence[str], store: str | None) -> Result:
    parser = _Parser(add_help=False, allow_abbrev=False)
    command.configure(parser)
    args = parser.parse_args(list(options))
    args.command, args.store = command, store
    if command.analyse is None:
        raise ParadnnError(f"{command.name} is no analysis")
    return command.analyse(frame, args)


def _figure(result: Result, title: str, anchor: str, of: str, budget: Budget) -> tuple[str, str]:
    """The figure as HTML, or why there is none."""
    if result.figure is None:
        return "", ""
    if budget.left <= 0:
        budget.refused.append(f"{title} of {of}")
        return "", "The figure is left out to keep the page small; the command below draws it with --svg."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a glyph that the font lacks
            figure = embed(result.figure(), anchor, _alternative(f"{title}, {of}", result.text))
    except ParadnnError as error:
        return "", f"No figure: {error}."
    except Exception as error:
        return "", f"No figure: {_fault('drawing', error)}."
    budget.left -= len(figure)
    return figure, ""


def _alternative(title: str, words: str) -> str:
    """What a figure shows for those who do not see it: its title and the first findings."""
    said = title + "."
    for line in (line.strip() for line in words.splitlines() if line.strip()):
        if len(said) + len(line) > _ALTERNATIVE and len(said) > len(title) + 1:
            break
        said += f" {line}"
    return said if len(said) <= 2 * _ALTERNATIVE else said[: 2 * _ALTERNATIVE] + "..."


def _fault(what: str, error: Exception) -> str:
    problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    warnings.warn(f"{what} failed, a fault of this tool ({problem})", stacklevel=2)
    return f"{what} failed, a fault of this tool worth reporting ({problem})"
