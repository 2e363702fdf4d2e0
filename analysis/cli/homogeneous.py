"""Heterogeneous runs, one group at a time: the largest group that an analysis accepts, and how to see the others.

Runs of different protocols or environments are never mixed unasked. Where an analysis meets some, it is made again of
fewer: of one protocol in each environment, then of one protocol and environment on each device, then of one in all,
the one with most runs first.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.options import Options, Selection, command_line
from analysis.result import Paragraph, Result
from paradnn.errors import HeterogeneousError, ParadnnError
from paradnn.families import message_families

if TYPE_CHECKING:
    import pandas as pd

    from analysis.report.populations import Population

__all__ = ["answer", "answer_of_one_protocol"]

_LISTED = 4  # groups whose command is told
Analysis = Callable[["pd.DataFrame", Any], Result]


def answer(analyse: Analysis, frame: pd.DataFrame, options: Options, selection: Selection) -> Result:
    """What an analysis says of a frame; of heterogeneous runs, what it says of their largest group, and of which.

    `selection` chose the frame: the commands for other groups narrow it. Where no group will do, the error of all of
    them; where they lack different things that of the largest, and what sets them apart.
    """
    try:
        return analyse(frame, options)
    except HeterogeneousError as error:
        refusal = error
    lacking: list[ParadnnError] = []
    beside = frame["family"].isin(message_families() if options.beside_messages else ())
    apart = frame[~beside].reset_index(drop=True)
    for chosen, others, how in _choices(apart, selection):
        try:
            result = analyse(_rows(frame, chosen, beside), options)
        except ParadnnError as error:
            lacking += [] if isinstance(error, HeterogeneousError) else [error]
            continue
        return replace(result, set_aside=_said(apart, chosen, others, how, options))
    if not lacking:
        raise refusal
    if len({str(error) for error in lacking}) == 1:
        raise lacking[0]
    raise HeterogeneousError(f"{lacking[0]}; that is of the most runs that go together: {refusal}") from lacking[0]


def answer_of_one_protocol(analyse: Analysis, frame: pd.DataFrame, options: Options, selection: Selection) -> Result:
    """The same for an analysis that refuses nothing as a whole: in each environment it sees one protocol alone."""
    chosen, others, how = next(_choices(frame, selection), ([], [], ""))
    if not others or options.pool:
        return analyse(frame, options)
    result = analyse(_rows(frame, chosen), options)
    return replace(result, set_aside=_said(frame, chosen, others, how, options))


def _choices(frame: pd.DataFrame, selection: Selection) -> Iterator[tuple[list[Population], list[Population], str]]:
    """Which populations are taken and which are not, fewer and fewer taken, and in words what they share."""
    from analysis.report.populations import split

    populations = sorted(split(frame, selection), key=_size, reverse=True)
    counts: Counter[str | None] = Counter()
    for each in populations:
        counts[each.value("protocol_id")] += _size(each)[0]
    common = sorted(populations, key=lambda each: -counts[each.value("protocol_id")])
    steps = (
        (common, lambda each: (each.device, each.value("environment_id")), "one protocol"),
        (populations, lambda each: each.device, "one protocol and environment"),
        (populations, lambda each: None, "one protocol and environment"),
    )
    for ordered, key, how in steps:
        first: dict[object, Population] = {}
        for each in ordered:
            first.setdefault(key(each), each)
        chosen = list(first.values())
        yield chosen, [each for each in populations if each not in chosen], how
    for each in populations[1:]:
        yield [each], [other for other in populations if other is not each], how


def _size(population: Population) -> tuple[int, Any]:
    """Measured runs, and when the last of them began."""
    from analysis.store.frame import is_ok

    rows = population.rows
    return int(is_ok(rows).sum()), rows["start_time"].max() if "start_time" in rows else 0


def _rows(frame: pd.DataFrame, chosen: Sequence[Population], beside: pd.Series | None = None) -> pd.DataFrame:
    """The runs of populations, and those `beside` them, in the order of the frame."""
    wanted = frame["run_id"].isin({run for each in chosen for run in each.rows["run_id"]})
    return frame[wanted if beside is None else wanted | beside].reset_index(drop=True)


def _said(
    frame: pd.DataFrame, chosen: Sequence[Population], others: Sequence[Population], how: str, options: Options
) -> Paragraph:
    every = [*chosen, *others]
    taken = sum(len(each.rows) for each in chosen)
    what = "; ".join(_label(each, every) for each in chosen[:_LISTED])
    head = f"Of these {len(frame):,} runs, {taken:,} of {how} were taken: {what}. Not taken:"
    points = [
        f"{_runs(len(each.rows))} of {_label(each, every)}: {_command(each.selection, options)}"
        for each in others[:_LISTED]
    ]
    if len(others) > _LISTED:
        points.append(f"and {len(others) - _LISTED} more groups; python -m analysis report shows each by itself")
    return Paragraph(head, tuple(points))


def _runs(count: int) -> str:
    from paradnn.core.words import counted

    return counted(count, "run")


def _command(selection: Selection, options: Options) -> str:
    words = [options.command, *command_line(options), *command_line(selection)]
    return shlex.join(["python", "-m", "analysis", *words])


def _label(population: Population, every: Sequence[Population]) -> str:
    """What tells a group from the others: its protocol, and device and environment where there are several."""
    words = [f"protocol {population.value('protocol') or population.value('protocol_id') or '(none)'}"]
    same = [each for each in every if each.device == population.device]
    if len({each.value("environment_id") for each in same}) > 1:
        words.append(f"environment {(population.value('environment_id') or '(none)')[:8]}")
    if len({each.value("task") for each in every}) > 1:
        words.append(f"task {population.value('task') or '(none)'}")
    if len(same) < len(every):
        words.insert(0, population.device)
    return ", ".join(words)
