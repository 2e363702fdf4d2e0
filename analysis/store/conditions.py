"""Conditions on the columns of a frame, the same in --where, in both sides of a comparison and in
claims.

    model.nodes>=1024      device=TPU v2,V100      version.tensorflow!=2.1*      reason=null

`docs/reference/analysis.md`, section "Conditions", says what they mean. A missing value meets no condition
but `column=null`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.lazy import pd
from paradnn.core.errors import ConfigError
from paradnn.core.words import did_you_mean

Value = str | int | float | bool | None

_SIGNS = ">=|<=|!=|=|>|<"
_CONDITION = re.compile(rf"\s*(.+?)\s*({_SIGNS})\s*(.*?)\s*")
_SIGNED = re.compile(rf"\s*({_SIGNS})\s*(.+?)\s*")
_TIME = re.compile(r"\d{4}-\d\d?(-\d\d?.*)?")
_ORDER: dict[str, Callable[[Any, Any], Any]]
_ORDER = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_NULL = "null"


@dataclass(frozen=True)
class Condition:
    """What a column must be: `sign` is = != < <= > or >=. = is met by any of `values`, != by none
    of them.
    """

    column: str
    sign: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.column}{self.sign}{','.join(self.values)}"

    def meets(self, column: pd.Series, option: str) -> Any:
        """Which entries (rows,) meet it; ConfigError, naming the `option`, for a value that the
        column cannot hold.
        """
        there = column.notna().to_numpy(dtype=bool)
        text = self.values[0]
        try:
            if self.sign in _ORDER:
                return there & _ordered(column, self.sign, text)
            parts = [part for value in self.values for part in _parts(value, column)]
            equal = ~there if _NULL in parts else there & False
            for text in (part for part in parts if part != _NULL):
                equal |= there & _equals(column, text)
        except ValueError:
            problem = f"{text!r} is no value of {self.column}"
            holds = f"that column holds {column.dtype}"
            raise ConfigError(option, str(self), problem, holds) from None
        return equal if self.sign == "=" else there & ~equal


#: Column -> what it must be; all conditions must be met.
Conditions = Mapping[str, tuple[Condition, ...]]


def parse_condition(text: str, option: str = "--where") -> Condition:
    """A condition such as "model.nodes>=1024" or "device=TPU v2,V100"; ConfigError, naming the
    `option`, otherwise.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ConfigError(
            option, text, "is not a condition", f"write for example {option} 'model.nodes>=1024'"
        )
    return _checked(Condition(match[1], match[2], (match[3],)), option)


def claim_conditions(column: str, values: Sequence[Value], option: str) -> tuple[Condition, ...]:
    """A claim's conditions on one column: values of which any will do, and texts such as ">=1024"
    that all hold.
    """
    named = {None: _NULL, True: "true", False: "false"}
    texts = [
        named[value] if value is None or isinstance(value, bool) else str(value) for value in values
    ]
    signed = [match for text in texts if (match := _SIGNED.fullmatch(text))]
    plain = tuple(text for text in texts if not _SIGNED.fullmatch(text))
    found = [_checked(Condition(column, match[1], (match[2],)), option) for match in signed]
    if plain:
        return (*found, Condition(column, "=", plain))
    return tuple(found)


def filter_by_text(
    frame: pd.DataFrame, texts: Iterable[str], option: str = "--where"
) -> pd.DataFrame:
    """The rows that meet every condition as `parse` reads it, renumbered; ConfigError as `choose`."""
    return filter_rows(
        frame, [parse_condition(text, option) for text in texts], option
    ).reset_index(drop=True)


def filter_rows(
    frame: pd.DataFrame, conditions: Iterable[Condition], option: str = "--where"
) -> pd.DataFrame:
    """The rows that meet every condition; ConfigError for a column that is not there or a value of
    another type.
    """
    for condition in conditions:
        if condition.column not in frame:
            own = f"model.{condition.column}"
            if own in frame:
                close = f"did you mean {own}?"
            else:
                close = did_you_mean(condition.column, map(str, frame.columns))
            problem = f"these runs have no column {condition.column}"
            raise ConfigError(
                option, str(condition), problem, close.strip() or "see python -m analysis export"
            )
        frame = frame[condition.meets(frame[condition.column], option)]
    return frame


def format_conditions(conditions: Conditions) -> str:
    """The conditions as a user would type them: family=fc, batch_size>=1024."""
    return ", ".join(str(condition) for group in conditions.values() for condition in group)


def _checked(condition: Condition, option: str) -> Condition:
    """ConfigError where an order is asked for that no column has."""
    [value] = condition.values
    if condition.sign in _ORDER and not _TIME.fullmatch(value):
        try:
            float(value)
        except ValueError:
            remedy = f"write for example '{condition.column}>=1024', or ask = or !="
            raise ConfigError(
                option, str(condition), "compares with no number and no time", remedy
            ) from None
    return condition


def _parts(value: str, column: pd.Series) -> list[str]:
    """A comma divides values, unless a value of the column holds it, such as the name of a device."""
    if "," not in value or (_kind(column) == "text" and _equals(column, value).any()):
        return [value]
    return [part.strip() for part in value.split(",")]


def _equals(column: pd.Series, text: str) -> Any:
    """Numbers as numbers, truth as truth, times as times, all else as text in which * and ? stand
    for anything.
    """
    kind = _kind(column)
    if kind == "text":
        pattern = re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
        return column.isin(
            [entry for entry in column.dropna().unique() if pattern.fullmatch(str(entry))]
        ).to_numpy()
    if kind == "truth" and text.lower() not in ("true", "false"):
        raise ValueError(text)
    if kind == "truth":
        value = text.lower() == "true"
    else:
        value = _value(text, kind)
    return column.eq(value).fillna(False).to_numpy(dtype=bool)


def _ordered(column: pd.Series, sign: str, text: str) -> Any:
    """Numbers and times have an order; of text, what is a number."""
    kind = _kind(column)
    if kind == "truth":
        raise ValueError(text)
    if kind == "text":
        column = pd.to_numeric(column, errors="coerce").astype("float64")
    return _ORDER[sign](column, _value(text, kind)).fillna(False).to_numpy(dtype=bool)


def _kind(column: pd.Series) -> str:
    if pd.api.types.is_bool_dtype(column):
        return "truth"
    if pd.api.types.is_datetime64_any_dtype(column):
        return "time"
    return "number" if pd.api.types.is_numeric_dtype(column) else "text"


def _value(text: str, kind: str) -> Any:
    """A number, or a time (UTC unless it says otherwise); ValueError for what is none."""
    if kind == "time":
        return pd.to_datetime(text, utc=True)
    return float(text)
