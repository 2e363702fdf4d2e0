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
    """Format the effect of a term, such as "batch_size: 1.3x per doubling (...)".

    Args:
        term: Name of the term.
        row: Its `weight`, `low`, `high`, and the columns of `doublings`.
    """
    digits = 2 if abs(row["weight"]) >= 0.1 else 3
    value, low, high = (f"{row[name]:+.{digits}f}" for name in ("weight", "low", "high"))
    weight = f"{value} ({low} to {high})"
    if pd.isna(row["doubling"]):
        return f"{term} {weight}"
    return f"{term}: {format_doubling(row)}, weight {weight}"


def format_doubling(row: pd.Series) -> str:
    """Format the effect of a doubling, such as "1.36x per doubling (95% CI 1.2x to 1.54x)"."""
    value, low, high = (f"{row[f'doubling{end}']:.3g}x" for end in ("", "_low", "_high"))
    return f"{value} per doubling ({LEVEL:.0%} CI {low} to {high})"


def doublings(weights: pd.DataFrame, logarithmic: Collection[str]) -> pd.DataFrame:
    """Return the factor by which doubling a hyperparameter multiplies the metric.

    Args:
        weights: The weights of a regression of a log metric. Metric and terms have logarithms to
            the same base, either e or 2.
        logarithmic: The terms that are logarithms.

    Returns:
        A row per weight: the factor `doubling` and its interval `doubling_low` to `doubling_high`;
        NaN for terms that are not logarithms.
    """
    slope = weights["slope"].where(weights.index.isin(list(logarithmic)))
    ends = {"doubling": slope}
    for end in ("low", "high"):
        ends[f"doubling_{end}"] = slope * weights[end] / weights["weight"]
    return 2 ** pd.DataFrame(ends)


def encode(
    frame: pd.DataFrame, names: Sequence[str], *, log: bool = False
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Encode hyperparameters as the terms of a regression.

    Numbers stay as they are, or become natural logarithms with `log`. Booleans become 0 or 1, and
    lists of blocks their total. A column of texts becomes an indicator `column=value` for each
    value except its base: float32 if it occurs, else the most frequent value.

    Args:
        frame: Runs or points, one per row.
        names: Columns to encode.
        log: Whether to take logarithms of numbers.

    Returns:
        The terms (rows x terms), and the base of each column of texts by its name.

    Raises:
        ConfigError: If `log` is set and a number is not positive.
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
        values: The values.
        name: The column of the values, for the message.
        remedy: End of the message.

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
    """Return whether a column becomes a logarithm on a log scale.

    Numbers and totals of lists do; texts and booleans do not.
    """
    return not pd.api.types.is_bool_dtype(column) and as_numbers(column) is not None
