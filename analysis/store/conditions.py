"""Conditions on the columns of a frame, as --where, comparisons and claims use them.

    model.nodes>=1024      device=TPU v2,V100      version.tensorflow!=2.1*      reason=null

`docs/reference/analysis.md`, section "Conditions", defines them. A missing value meets no condition
except `column=null`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis.lazy import pd
from paradnn.core.errors import ConfigError
from paradnn.core.words import did_you_mean

Value = str | int | float | bool | None
_ColumnKind = Literal["boolean", "time", "number", "text"]

_SIGNS = ">=|<=|!=|=|>|<"
_CONDITION = re.compile(rf"\s*(.+?)\s*({_SIGNS})\s*(.*?)\s*")
_SIGNED_VALUE = re.compile(rf"\s*({_SIGNS})\s*(.+?)\s*")
_TIME = re.compile(r"\d{4}-\d\d?(-\d\d?.*)?")
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_NULL = "null"


@dataclass(frozen=True)
class Condition:
    """A condition on one column, such as "model.nodes>=1024".

    Attributes:
        column: Name of the column.
        sign: One of = != < <= > >=.
        values: The operands. A value meets = if it equals any operand, and != if it equals none.
    """

    column: str
    sign: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.column}{self.sign}{','.join(self.values)}"

    def meets(self, column: pd.Series, option: str) -> Any:
        """Evaluate the condition for each entry of a column.

        Args:
            column: The column, with n entries.
            option: Option of the command line that an error message names.

        Returns:
            A boolean array (n,): whether each entry meets the condition.

        Raises:
            ConfigError: If the column cannot hold such a value.
        """
        try:
            if self.sign in _COMPARISONS:
                is_present = column.notna().to_numpy(dtype=bool)
                return is_present & _compare(column, self.sign, self.values[0])
            return self._meets_equality(column)
        except ValueError as error:
            problem = f"{str(error)!r} is not a value of {self.column}"
            remedy = _value_remedy(column, self.sign)
            raise ConfigError(option, str(self), problem, remedy) from None

    def _meets_equality(self, column: pd.Series) -> Any:
        """Evaluate = or != for each entry of a column.

        Raises:
            ValueError: If the column cannot hold an operand. The message is the operand.
        """
        is_present = column.notna().to_numpy(dtype=bool)
        parts = [part for value in self.values for part in _split_values(value, column)]
        equal = ~is_present if _NULL in parts else is_present & False
        for part in parts:
            if part != _NULL:
                equal |= is_present & _equals(column, part)
        if self.sign == "=":
            return equal
        return is_present & ~equal


#: Conditions by column. A row must meet all conditions.
Conditions = Mapping[str, tuple[Condition, ...]]


def parse_condition(text: str, option: str = "--where") -> Condition:
    """Parse a condition such as "model.nodes>=1024" or "device=TPU v2,V100".

    Args:
        text: The condition.
        option: Option of the command line that an error message names.

    Raises:
        ConfigError: If the text is not a condition.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        example = "'model.nodes>=1024'"
        if option.startswith("--"):
            example = f"{option} {example}"
        raise ConfigError(option, text, "is not a condition", f"for example, write {example}")
    column, sign, value = match.groups()
    condition = Condition(column, sign, (value,))
    _check_order(condition, option)
    return condition


def claim_conditions(column: str, values: Sequence[Value], option: str) -> tuple[Condition, ...]:
    """Return the conditions on one column that an entry of a claims file states.

    Args:
        column: Name of the column.
        values: Texts with a sign, such as ">=1024", and plain values. An entry of the column must
            satisfy all texts with a sign, and equal one of the plain values if there are any.
        option: Location in the claims file, which an error message names.
    """
    conditions = []
    plain_values = []
    for value in values:
        text = _value_text(value)
        match = _SIGNED_VALUE.fullmatch(text)
        if match is None:
            plain_values.append(text)
            continue
        condition = Condition(column, match[1], (match[2],))
        _check_order(condition, option)
        conditions.append(condition)
    if plain_values:
        conditions.append(Condition(column, "=", tuple(plain_values)))
    return tuple(conditions)


def _value_text(value: Value) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def possible_texts(texts: Iterable[str], column: str, option: str = "--where") -> set[str] | None:
    """Return the values that a text column can have in rows which meet some conditions.

    The column itself is not read.

    Args:
        texts: Conditions in the form of `parse_condition`; all must hold.
        column: The column.
        option: Option of the command line that an error message names.

    Returns:
        A set that includes all these values; None if the conditions do not restrict the column to a
        known set.
    """
    possible: set[str] | None = None
    for text in texts:
        condition = parse_condition(text, option)
        if condition.column != column or condition.sign != "=":
            continue
        value = condition.values[0]
        # A text with a comma may be one value or a list of values: include both.
        values = {value, *(part.strip() for part in value.split(","))}
        if _NULL in values or any("*" in part or "?" in part for part in values):
            continue
        possible = values if possible is None else possible & values
    return possible


def filter_by_text(
    frame: pd.DataFrame, texts: Iterable[str], option: str = "--where"
) -> pd.DataFrame:
    """Return the rows that meet every condition, with a new index.

    Args:
        frame: The rows.
        texts: Conditions in the form of `parse_condition`, such as "batch_size>=64".
        option: Option of the command line that an error message names.

    Raises:
        ConfigError: If a text is not a condition, or a column is absent or cannot have the value.
    """
    conditions = [parse_condition(text, option) for text in texts]
    return filter_rows(frame, conditions, option).reset_index(drop=True)


def filter_rows(
    frame: pd.DataFrame, conditions: Iterable[Condition], option: str = "--where"
) -> pd.DataFrame:
    """Return the rows that meet every condition.

    Args:
        frame: The rows.
        conditions: The conditions.
        option: Option of the command line that an error message names.

    Raises:
        ConfigError: If a column is absent, or cannot have the value.
    """
    for condition in conditions:
        if condition.column not in frame:
            raise ConfigError(
                option,
                str(condition),
                f"these runs have no column {condition.column}",
                _similar_column(condition.column, frame),
            )
        frame = frame[condition.meets(frame[condition.column], option)]
    return frame


def _similar_column(name: str, frame: pd.DataFrame) -> str:
    if f"model.{name}" in frame:
        return f"did you mean model.{name}?"
    hint = did_you_mean(name, map(str, frame.columns)).strip()
    return hint or "python -m analysis export runs.csv writes all columns"


def format_conditions(conditions: Conditions) -> str:
    """Return conditions as a user would type them: "family=fc, batch_size>=1024"."""
    return ", ".join(str(condition) for group in conditions.values() for condition in group)


def _check_order(condition: Condition, option: str) -> None:
    """Require that the operand of <, <=, > or >= is a number or a time.

    Args:
        condition: A condition with any sign; = and != are not checked.
        option: Option of the command line that an error message names.

    Raises:
        ConfigError: If the operand is neither.
    """
    [value] = condition.values
    if condition.sign not in _COMPARISONS or _TIME.fullmatch(value):
        return
    try:
        float(value)
    except ValueError:
        raise ConfigError(
            option,
            str(condition),
            f"compares with {value!r}, which is neither a number nor a time",
            f"for example, write '{condition.column}>=1024', or use = or !=",
        ) from None


def _split_values(value: str, column: pd.Series) -> list[str]:
    """Return the parts of an operand between commas.

    If the whole text is a value of the column, as some names of devices are, it is not split.
    """
    if "," not in value:
        return [value]
    if _column_kind(column) == "text" and _equals(column, value).any():
        return [value]
    return [part.strip() for part in value.split(",")]


def _equals(column: pd.Series, text: str) -> Any:
    """Return whether each of n entries equals a value, as a boolean array (n,).

    Numbers, booleans and times are compared by value. In a text, * matches any characters and ? any
    single character.

    Args:
        column: The entries.
        text: The value as text.

    Raises:
        ValueError: If the column cannot have such a value. The message is `text`.
    """
    kind = _column_kind(column)
    if kind == "text":
        pattern = re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
        matches = [entry for entry in column.dropna().unique() if pattern.fullmatch(str(entry))]
        return column.isin(matches).to_numpy()
    value = _parse_value(text, kind)
    return column.eq(value).fillna(False).to_numpy(dtype=bool)


def _compare(column: pd.Series, sign: str, text: str) -> Any:
    """Return whether each of n entries is <, <=, > or >= a value, as a boolean array (n,).

    In a text column, only entries that are numbers can satisfy the comparison.

    Args:
        column: The entries.
        sign: One of < <= > >=.
        text: A number or a time, as text.

    Raises:
        ValueError: If the column is boolean, or cannot have such a value. The message is `text`.
    """
    kind = _column_kind(column)
    if kind == "boolean":
        raise ValueError(text)
    if kind == "text":
        column = pd.to_numeric(column, errors="coerce").astype("float64")
        kind = "number"
    value = _parse_value(text, kind)
    return _COMPARISONS[sign](column, value).fillna(False).to_numpy(dtype=bool)


def _column_kind(column: pd.Series) -> _ColumnKind:
    if pd.api.types.is_bool_dtype(column):
        return "boolean"
    if pd.api.types.is_datetime64_any_dtype(column):
        return "time"
    if pd.api.types.is_numeric_dtype(column):
        return "number"
    return "text"


def _value_remedy(column: pd.Series, sign: str) -> str:
    """Return advice on what to write as the operand of a condition on a column.

    Args:
        column: The column.
        sign: Sign of the condition, such as ">=".
    """
    kind = _column_kind(column)
    if kind == "boolean":
        return f"write {column.name}=true or {column.name}=false"
    if kind == "time":
        return "write a time, such as 2026-01-31"
    if kind == "number" or sign not in _COMPARISONS:
        return "write a number"
    return "write a number, or use = or !="


def _parse_value(text: str, kind: _ColumnKind) -> Any:
    """Parse a text as a number, boolean or time; a time without a zone is UTC.

    Args:
        text: The text.
        kind: The kind of value.

    Raises:
        ValueError: If the text is not such a value. The message is `text`.
    """
    if kind == "boolean":
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    try:
        if kind == "time":
            return pd.to_datetime(text, utc=True)
        return float(text)
    except ValueError:
        raise ValueError(text) from None
