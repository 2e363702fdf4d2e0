"""Hyperparameters as terms of a regression, and its weights as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from analysis.columns import as_numbers
from analysis.lazy import np, pd
from paradnn.core.errors import ConfigError
from paradnn.statistics.estimate import LEVEL

_PREFERRED_BASE = "float32"


def format_weight(term: str, row: pd.Series) -> str:
    """Format the effect of a term, such as "nodes: 1.3x per doubling (...), weight +0.41 (...)".

    For a term that is not a logarithm, the text has only the weight, such as "dropout +0.41 (...)".
    The parentheses contain 95% intervals.

    Args:
        term: Name of the term.
        row: Row of the term in a table of weights. Its columns are `weight`, `low` and `high` (ends
            of the 95% interval of the weight), and those that `doublings` returns.
    """
    digits = 2 if abs(row["weight"]) >= 0.1 else 3
    value, low, high = (f"{row[name]:+.{digits}f}" for name in ("weight", "low", "high"))
    weight = f"{value} ({low} to {high})"
    if pd.isna(row["doubling"]):
        return f"{term} {weight}"
    return f"{term}: {format_doubling(row)}, weight {weight}"


def format_doubling(row: pd.Series) -> str:
    """Format the effect of doubling a hyperparameter: "1.36x per doubling (95% CI 1.2x to 1.54x)".

    Args:
        row: A row of the table that `doublings` returns.
    """
    value, low, high = (f"{row[f'doubling{end}']:.3g}x" for end in ("", "_low", "_high"))
    return f"{value} per doubling ({LEVEL:.0%} CI {low} to {high})"


def doublings(weights: pd.DataFrame, logarithmic: Collection[str]) -> pd.DataFrame:
    """Return the factor by which doubling each hyperparameter multiplies the metric.

    Args:
        weights: The weights of a regression of the logarithm of a metric: a row per term, with the
            columns `slope` (unstandardized), `weight` (standardized), `low` and `high` (ends of the
            95% interval of the weight). The metric and the terms must have logarithms to the same
            base.
        logarithmic: Names of the terms that are logarithms.

    Returns:
        A row per term with the factor `doubling` and the ends of its 95% interval, `doubling_low`
        and `doubling_high`. All three are NaN for terms that are not logarithms.
    """
    slope = weights["slope"].where(weights.index.isin(list(logarithmic)))
    ends = {"doubling": slope}
    for end in ("low", "high"):
        ends[f"doubling_{end}"] = slope * weights[end] / weights["weight"]
    return 2 ** pd.DataFrame(ends)


def encode(
    frame: pd.DataFrame, names: Sequence[str], *, log: bool = False
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Encode hyperparameters as the terms (columns) of a regression.

    A numeric column becomes one term: its numbers, or with `log` their natural logarithms.
    `as_numbers` first converts booleans to 0 or 1, and a list of block counts, such as "[3, 4, 6,
    3]", to the sum of its entries.

    A text column becomes one indicator term `column=value` (1.0 for runs with the value, else 0.0)
    for each value except the base value. The base value is float32 if the column contains it, else
    the most frequent value. A column with a single text gets one constant term.

    Args:
        frame: Runs or configurations, one per row.
        names: Columns to encode. A text column without any value is omitted.
        log: Whether numeric columns become logarithms. Booleans stay 0 or 1.

    Returns:
        The terms (a row per row of `frame`, a column per term), and a mapping from each text column
        with several values to its base value.

    Raises:
        ConfigError: If `log` is set and a number is zero or negative.
    """
    terms: dict[str, pd.Series] = {}
    bases: dict[str, str] = {}
    for name in names:
        numbers = as_numbers(frame[name])
        if numbers is not None:
            if log and takes_logarithm(frame[name]):
                numbers = logarithms(numbers, name, "exclude it with --on")
            terms[name] = numbers
            continue
        texts = frame[name].astype("object")
        counts = texts.value_counts().sort_index().sort_values(ascending=False, kind="stable")
        if counts.empty:
            continue
        base = _PREFERRED_BASE if _PREFERRED_BASE in counts else str(counts.index[0])
        values = [value for value in counts.index if value != base]
        if values:
            bases[name] = base
        for value in values or [base]:
            terms[f"{name}={value}"] = texts.eq(value).astype("float64").mask(texts.isna())
    return pd.DataFrame(terms, index=frame.index), bases


def logarithms(values: Any, name: str, remedy: str) -> Any:
    """Return the natural logarithms of values.

    Args:
        values: Numbers, as a series or an array.
        name: Name of the column of the values, for the error message.
        remedy: What the user can do about a value without a logarithm; the end of the error
            message.

    Raises:
        ConfigError: If a value is zero or negative.
    """
    if (values <= 0).any():
        raise ConfigError(
            "--log-scale",
            "both",
            f"{name} contains {values.min():g}, which has no logarithm",
            remedy,
        )
    return np.log(values)


def takes_logarithm(column: pd.Series) -> bool:
    """Return whether `encode` replaces a column by its logarithm if `log` is set.

    It does so for columns of numbers and of lists of block counts, such as "[3, 4, 6, 3]", but not
    for text and boolean columns.
    """
    return not pd.api.types.is_bool_dtype(column) and as_numbers(column) is not None
