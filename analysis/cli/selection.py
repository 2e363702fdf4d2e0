"""Reading the runs that a selection chooses; a choice that no run can meet is told with what there is."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.options import Selection, command_line
from analysis.store.conditions import parse, select
from paradnn.config.outcome import OUTCOMES
from paradnn.core.words import counted, did_you_mean
from paradnn.errors import ConfigError, ParadnnError
from paradnn.families import FAMILIES, message_families

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["load_chosen"]

_PLATFORMS = ("cpu", "gpu", "tpu")


def load_chosen(
    selection: Selection,
    columns: Collection[str] | None = None,
    *,
    may_be_empty: bool = False,
    beside_messages: bool = False,
) -> pd.DataFrame:
    """The frame of the runs that a selection chooses; `columns` limits what is read.

    `beside_messages`: a protocol is that of steps, and runs of messages are taken of any protocol.

    ConfigError for a word that is none, and, unless the frame `may_be_empty`, ParadnnError where no run matches.
    """
    if columns is not None:
        columns = {*columns, *(parse(condition).column for condition in selection.where)}
    frame = _load(selection, columns)
    if beside_messages and selection.protocol is not None:
        every = _load(replace(selection, protocol=None), columns)
        frame = every[every["run_id"].isin(frame["run_id"]) | every["family"].isin(message_families())]
    frame = select(frame, selection.where)
    held = {str(name) for name in frame["family"].dropna()}
    _check("--family", selection.family, [*FAMILIES, *sorted(held.difference(FAMILIES))])
    _check("--platform", selection.platform, _PLATFORMS)
    _check("--outcome", selection.outcome, OUTCOMES)
    if frame.empty and not may_be_empty:
        raise ParadnnError(_nothing(selection))
    return frame


def _load(selection: Selection, columns: Collection[str] | None) -> pd.DataFrame:
    from analysis.store.load import load

    return load(
        selection.store,
        experiments=selection.experiment or ("paradnn",),
        family=selection.family or None,
        platform=selection.platform or None,
        outcome=selection.outcome or None,
        since=selection.since,
        until=selection.until,
        tags=dict(selection.tag) | ({"device": selection.device} if selection.device else {}),
        protocol=selection.protocol,
        unfinished=selection.unfinished,
        columns=columns,
        reader=selection.reader,
    )


def _check(flag: str, values: Collection[str], known: Collection[str]) -> None:
    """A typing mistake among several values would go unseen."""
    for value in values:
        if value not in known:
            remedy = f"{did_you_mean(value, known)}choose of {', '.join(known)}"
            raise ConfigError(flag, value, "there is no such thing", remedy)


def _nothing(selection: Selection) -> str:
    """Why no run matches, in words: what was asked for that the store does not hold, and what it holds."""
    everything = Selection(store=selection.store, experiment=selection.experiment, reader=selection.reader)
    frame = _load(everything, ("platform.name",))
    if frame.empty:
        return "no run in the store; measure first, with python -m paradnn.train -m experiment=quick"
    lacking = [f"{flag} {value}: {hint}the store has {held}" for flag, value, hint, held in _absent(selection, frame)]
    narrowing = shlex.join(command_line(replace(selection, store=(), experiment=())))
    why = "; ".join(lacking) or f"no run meets all of {narrowing}"
    return f"no run matches, of {counted(len(frame), 'run')} in the store; {why}"


def _absent(selection: Selection, frame: pd.DataFrame) -> Iterator[tuple[str, str, str, str]]:
    """Values that no run has: the option, the value, what may have been meant, what the runs have."""
    asked = (
        ("--family", selection.family, "family"),
        ("--platform", selection.platform, "platform.name"),
        ("--device", (selection.device,) if selection.device else (), "device"),
        ("--outcome", selection.outcome, "outcome"),
    )
    for flag, values, column in asked:
        held = sorted({str(value) for value in frame[column].dropna()}) if column in frame else []
        for value in values:
            if value not in held:
                yield flag, value, did_you_mean(value, held), ", ".join(held) or "none"
