"""Reading the runs that a selection chooses."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from analysis.options import Selection
from analysis.store.conditions import parse, select

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["load_chosen"]


def load_chosen(selection: Selection, columns: Collection[str] | None = None) -> pd.DataFrame:
    """The frame of the runs that a selection chooses; `columns` limits what is read."""
    from analysis.store.load import load

    if columns is not None:
        columns = {*columns, *(parse(condition).column for condition in selection.where)}
    frame = load(
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
    return select(frame, selection.where)
