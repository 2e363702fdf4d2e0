"""Reading the runs that a selection chooses, and the conditions of --where."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from analysis.options import Selection
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["load_chosen", "select"]

_CONDITION = re.compile(r"\s*(.+?)\s*(>=|<=|!=|=|>|<)\s*(.*?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
    "!=": operator.ne,
}


def load_chosen(selection: Selection, columns: Collection[str] | None = None) -> pd.DataFrame:
    """The frame of the runs that a selection chooses; `columns` limits what is read."""
    from analysis.store.load import load

    tags = dict(selection.tag) | ({"device": selection.device} if selection.device else {})
    if columns is not None:
        columns = {*columns, *(_parse(condition)[0] for condition in selection.where)}
    frame = load(
        selection.store,
        experiments=selection.experiment or ("paradnn",),
        family=selection.family or None,
        platform=selection.platform or None,
        outcome=selection.outcome or None,
        since=selection.since,
        until=selection.until,
        tags=tags,
        unfinished=selection.unfinished,
        columns=columns,
        reader=selection.reader,
    )
    return select(frame, selection.where)


def select(frame: pd.DataFrame, conditions: Sequence[str]) -> pd.DataFrame:
    """The rows that meet every condition, such as "model.nodes>=1024" or "device=TPU v2,V100".

    ConfigError for a column that is not there or a value of another type. A missing value meets no condition but !=.
    """
    for condition in conditions:
        name, sign, text = _parse(condition)
        if name not in frame:
            close = difflib.get_close_matches(name, list(frame.columns), n=1)
            raise ConfigError(
                "--where",
                condition,
                f"these runs have no column {name}",
                f"did you mean {close[0]}?" if close else "see python -m analysis export",
            )
        column, equality = frame[name], sign in ("=", "!=")
        # A comma divides values, unless it is part of one, as in the name of a device.
        parts = text.split(",") if equality and text not in set(column.dropna().astype("str")) else [text]
        values = [_value(part.strip(), column, condition) for part in parts]
        chosen = column.isin(values) == (sign == "=") if equality else _COMPARE[sign](column, values[0])
        frame = frame[chosen.fillna(False).astype(bool)]
    return frame.reset_index(drop=True)


def _parse(condition: str) -> tuple[str, str, str]:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise ConfigError("--where", condition, "is not a condition", "write for example --where 'model.nodes>=1024'")
    return match[1], match[2], match[3]


def _value(text: str, column: pd.Series, condition: str) -> Any:
    """A condition's value as the column's own type."""
    from pandas.api import types

    try:
        if types.is_bool_dtype(column):
            return {"true": True, "false": False}[text.lower()]
        if types.is_numeric_dtype(column):
            return float(text)
        if types.is_datetime64_any_dtype(column):
            import pandas as pd

            stamp = pd.Timestamp(text)
            return stamp if stamp.tz is not None else stamp.tz_localize("UTC")
    except (KeyError, ValueError):
        raise ConfigError(
            "--where", condition, f"{text!r} is no value of {column.name}", f"that column holds {column.dtype}"
        ) from None
    return text
