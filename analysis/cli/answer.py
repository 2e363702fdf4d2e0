"""The runs that a selection chooses, and what an analysis says of them.

Runs of different protocols or environments are never mixed unasked: where an analysis meets some,
it is made again of fewer, of one protocol in each environment, then of one protocol and environment
on each device, then of one in all.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.lazy import pd
from analysis.options import Options, Selection, command_line
from analysis.registry import Analysis
from analysis.result import Paragraph, Result
from analysis.store.conditions import filter_by_text, parse_condition
from paradnn.config.outcome import OUTCOMES
from paradnn.config.paths import default_experiment
from paradnn.core.errors import ConfigError, HeterogeneousError, ParadnnError
from paradnn.core.words import counted, did_you_mean
from paradnn.families import FAMILIES

if TYPE_CHECKING:
    from analysis.report.populations import Population

_PLATFORMS = ("cpu", "gpu", "tpu")
_LISTED = 4  # groups whose command is shown


def load_chosen(
    selection: Selection, columns: Collection[str] | None = None, *, may_be_empty: bool = False
) -> pd.DataFrame:
    """The frame of the runs that a selection chooses; `columns` limits what is read.

    ConfigError for a word that is none, and, unless the frame `may_be_empty`, ParadnnError where no
    run matches.
    """
    if columns is not None:
        columns = {*columns, *(parse_condition(condition).column for condition in selection.where)}
    frame = filter_by_text(_load(selection, columns), selection.where)
    held = {str(name) for name in frame["family"].dropna().unique()}
    for flag, values, known in (
        ("--family", selection.family, [*FAMILIES, *sorted(held.difference(FAMILIES))]),
        ("--platform", selection.platform, _PLATFORMS),
        ("--outcome", selection.outcome, OUTCOMES),
    ):
        # A typing mistake among several values would go unseen.
        for value in (value for value in values if value not in known):
            remedy = f"{did_you_mean(value, known)}choose of {', '.join(known)}"
            raise ConfigError(flag, value, "there is no such thing", remedy)
    if frame.empty and not may_be_empty:
        raise ParadnnError(_nothing(selection))
    return frame


def _load(selection: Selection, columns: Collection[str] | None) -> pd.DataFrame:
    from analysis.store.load import load

    same = ("family", "platform", "outcome", "since", "until", "protocol", "unfinished", "reader")
    return load(
        selection.store,
        experiments=selection.experiment or (default_experiment(),),
        tags=dict(selection.tag) | ({"device": selection.device} if selection.device else {}),
        columns=columns,
        **{name: getattr(selection, name) for name in same},
    )


def _nothing(selection: Selection) -> str:
    """Why no run matches, in words: what was asked for that the store does not hold, and what it
    holds.
    """
    frame = _load(
        replace(Selection(), store=selection.store, experiment=selection.experiment),
        ("platform.name",),
    )
    if frame.empty:
        return (
            "no run in the store; measure first, with python -m paradnn.train -m experiment=quick"
        )
    lacking = []
    asked = {
        "family": selection.family,
        "platform.name": selection.platform,
        "outcome": selection.outcome,
    }
    for column, values in {**asked, "device": filter(None, [selection.device])}.items():
        if column in frame:
            held = sorted({str(value) for value in frame[column].dropna()})
        else:
            held = []
        for value in (value for value in values if value not in held):
            flag = f"--{column.removesuffix('.name')} {value}"
            lacking.append(
                f"{flag}: {did_you_mean(value, held)}the store has {', '.join(held) or 'none'}"
            )
    narrowing = shlex.join(command_line(replace(selection, store=(), experiment=())))
    why = "; ".join(lacking) or f"no run meets all of {narrowing}"
    return f"no run matches, of {counted(len(frame), 'run')} in the store; {why}"


def answer(
    one: Analysis[Any, Result], frame: pd.DataFrame, options: Options, selection: Selection
) -> Result:
    """What an analysis says of a frame; of heterogeneous runs, what it says of their largest group,
    and of which.

    `selection` chose the frame: the commands for other groups narrow it. Where no group will do,
    the error of all of them, or of the largest with what sets them apart.
    """
    refusal = None
    lacking = list[ParadnnError]()
    if options.pool or not one.requires_one_protocol:
        try:
            return one(frame, options)
        except HeterogeneousError as error:
            refusal = error
    for chosen, others, how in _choices(frame, selection):
        if not others and refusal is None:
            return one(frame, options)
        try:
            taken = frame["run_id"].isin({run for each in chosen for run in each.rows["run_id"]})
            result = one(frame[taken].reset_index(drop=True), options)
        except ParadnnError as error:
            if refusal is None:
                raise
            lacking += [] if isinstance(error, HeterogeneousError) else [error]
            continue
        given = ["python", "-m", "analysis", one.name, *command_line(options)]
        return replace(result, set_aside=_said(frame, chosen, others, how, given))
    if len({str(error) for error in lacking}) == 1:
        raise lacking[0]
    if lacking:
        raise HeterogeneousError(
            f"{lacking[0]}; that is of the most runs that go together: {refusal}"
        ) from lacking[0]
    assert refusal is not None
    raise refusal


def _choices(
    frame: pd.DataFrame, selection: Selection
) -> Iterator[tuple[list[Population], list[Population], str]]:
    """Which populations are taken and which are not, fewer and fewer taken, and in words what they
    share.
    """
    from analysis.report.populations import split
    from analysis.store.frame import is_ok

    populations = split(frame, selection)
    size = {each.key: int(is_ok(each.rows).sum()) for each in populations}
    populations.sort(key=lambda each: (size[each.key], each.rows["start_time"].max()), reverse=True)
    counts: Counter[str | None] = Counter()
    for each in populations:
        counts[each.value("protocol_id")] += size[each.key]
    common = sorted(populations, key=lambda each: -counts[each.value("protocol_id")])
    one = "one protocol and environment"
    single: list[tuple[list[Population], tuple[str, ...], str]] = [
        ([each], (), one) for each in populations
    ]
    tiers = [
        (common, ("device", "environment_id"), "one protocol"),
        (populations, ("device",), one),
        *single,
    ]
    for ordered, keys, how in tiers:
        first: dict[object, Population] = {}
        for each in ordered:
            first.setdefault(tuple(each.value(key) for key in keys), each)
        chosen = list(first.values())
        yield chosen, [each for each in populations if each not in chosen], how


def _said(
    frame: pd.DataFrame,
    chosen: Sequence[Population],
    others: Sequence[Population],
    how: str,
    given: Sequence[str],
) -> Paragraph:
    """Which runs were taken, and the commands for the others: `given`, narrowed to each."""
    taken = sum(len(each.rows) for each in chosen)
    what = "; ".join(each.name for each in chosen[:_LISTED])
    points = [
        f"{counted(len(each.rows), 'run')} of {each.name}: {shlex.join([*given, *command_line(each.selection)])}"
        for each in others[:_LISTED]
    ]
    more = len(others) - len(points)
    if more:
        points.append(f"and {more} more groups; python -m analysis report shows each by itself")
    head = f"Of these {len(frame):,} runs, {taken:,} of {how} were taken: {what}. Not taken:"
    return Paragraph(head, tuple(points))
