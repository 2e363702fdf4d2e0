"""Choosing rows by a claim's conditions, and saying which condition nothing met."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["Conditions", "Value", "choose", "in_words", "lacking", "parse_comparison"]

Value = str | int | float | bool
#: Column -> the values allowed for it: text may hold * and ?, or be a comparison with a number such as ">=1024".
Conditions = Mapping[str, tuple[Value, ...]]

_COMPARISON = re.compile(r"(>=|<=|>|<|!=)\s*(.+)")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def choose(frame: pd.DataFrame, conditions: Conditions) -> pd.DataFrame:
    """The rows that meet every condition; none where a column is absent. A missing value meets no condition."""
    kept = np.ones(len(frame), dtype=bool)
    for name, values in conditions.items():
        kept &= _meets(frame[name], values) if name in frame else False
    return frame[kept]


def lacking(frame: pd.DataFrame, conditions: Conditions) -> str:
    """Why no row meets the conditions: the first one, in their order, after which nothing is left."""
    left = frame
    for number, (name, values) in enumerate(conditions.items(), 1):
        if name not in frame:
            return f"no run says {name}"
        left = choose(left, {name: values})
        if left.empty:
            return f"no runs with {in_words(dict(list(conditions.items())[:number]))}"
    return "no runs" if frame.empty else "nothing is missing"


def in_words(conditions: Conditions) -> str:
    """The conditions as a user would type them: family=fc, batch_size>=1024."""
    parts = []
    for name, values in conditions.items():
        texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
        compares = [text for text in texts if parse_comparison(text)]
        equals = [text for text in texts if not parse_comparison(text)]
        parts += [f"{name}{text}" for text in compares]
        parts += [f"{name}={'|'.join(equals)}"] if equals else []
    return ", ".join(parts)


def parse_comparison(text: Value) -> tuple[str, str] | None:
    """(sign, right side) of a text such as ">=1024", None for a plain value."""
    match = _COMPARISON.fullmatch(text.strip()) if isinstance(text, str) else None
    return (match[1], match[2].strip()) if match else None


def _meets(column: pd.Series[Any], values: tuple[Value, ...]) -> np.ndarray[Any, Any]:
    """Comparisons must all hold; of the plain values any will do."""
    kept = column.notna().to_numpy(dtype=bool).copy()
    plain = [value for value in values if parse_comparison(value) is None]
    if plain:
        kept &= np.logical_or.reduce([_equals(column, value) for value in plain])
    for sign, text in filter(None, map(parse_comparison, values)):
        if sign == "!=":
            kept &= ~_equals(column, text)
        else:
            numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype="float64", na_value=np.nan)
            kept &= np.asarray(_COMPARE[sign](numbers, float(text)), dtype=bool)
    return kept


def _equals(column: pd.Series[Any], value: Value) -> np.ndarray[Any, Any]:
    """Numbers as numbers, truth as truth, all else as text in which * and ? stand for anything."""
    if pd.api.types.is_bool_dtype(column):
        found = column.astype("object").map(
            lambda entry: entry is not pd.NA and str(entry).lower() == str(value).lower()
        )
        return found.to_numpy(dtype=bool)
    if pd.api.types.is_numeric_dtype(column):
        try:
            number = float(value)
        except ValueError:
            return np.zeros(len(column), dtype=bool)
        return np.asarray(column.to_numpy(dtype="float64", na_value=np.nan) == number)
    pattern = re.compile(fnmatch.translate(str(value)))
    matches = {text: pattern.match(str(text)) is not None for text in column.dropna().unique()}
    return column.map(matches).fillna(False).to_numpy(dtype=bool)
