"""For which value of a hyperparameter two sides are equally good: where the speedup of A over B crosses 1.

Such as the density of a matrix at which a sparse product takes as long as a dense one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from paradnn.errors import ConfigError

__all__ = ["equal_at"]


def equal_at(pairs: pd.DataFrame, column: str, keys: Sequence[str]) -> pd.DataFrame:
    """Where A and B are equal in `column`, for each group of pairs that are alike in `keys`.

    `pairs` as `pairing.pair` gives them. Between neighbouring values the logarithm of the speedup is taken as a
    straight line, over the logarithm of the column where all its values are positive. Columns: the `keys`; `points`;
    `lowest` and `highest`, the values that were measured; `ahead`, who is ahead at the lowest; `crossings`, how often
    that changes; `value`, where, NaN unless it changes once; `low` and `high`, the 95% interval of that: for these
    values the interval of the speedup holds 1. An end beyond the values that were measured is infinite, one of pairs
    without intervals NaN. ConfigError for a column that is no number, or has one value in each group.
    """
    numbers = pd.api.types.is_numeric_dtype(pairs[column]) and not pd.api.types.is_bool_dtype(pairs[column])
    if not numbers:
        raise ConfigError("--equal", column, "is no number", "choose for example batch_size")
    groups = pairs.groupby(list(keys), sort=False, dropna=False) if keys else [((), pairs)]
    rows = [
        {**dict(zip(keys, values, strict=True)), **_equal(group, column)}
        for values, group in groups
        if group[column].nunique() > 1
    ]
    if not rows:
        raise ConfigError("--equal", column, "has one value in all pairs that differ in nothing else", "sweep it")
    return pd.DataFrame(rows)


def _equal(group: pd.DataFrame, column: str) -> dict[str, float | int | str]:
    rows = group.sort_values(column)
    at = rows[column].to_numpy(dtype="float64")
    scaled = np.log(at) if (at > 0).all() else at
    middle, below, above = (
        np.log(rows[name].to_numpy(dtype="float64")) for name in ("speedup", "speedup_low", "speedup_high")
    )
    places = _crossings(scaled, middle)
    falls = middle[0] > 0
    value, ends = np.nan, (np.nan, np.nan)
    if len(places) == 1:
        value = places[0]
        # What falls below 1 may have done so where the lower end of its interval does, and must have where the upper.
        first, last = (below, above) if falls else (above, below)
        if np.isfinite(below).all() and np.isfinite(above).all():
            before, after = _crossings(scaled, first), _crossings(scaled, last)
            ends = before[0] if before else -np.inf, after[-1] if after else np.inf
    shown = np.exp if (at > 0).all() else np.asarray
    low, high = (float(shown(end)) if np.isfinite(end) else end for end in ends)
    return {
        "points": len(rows),
        "lowest": at[0],
        "highest": at[-1],
        "ahead": "A" if falls else "B",
        "crossings": len(places),
        "value": float(shown(value)),
        "low": low,
        "high": high,
    }


def _crossings(x: np.ndarray, y: np.ndarray) -> list[float]:
    """Where a line through points (n,) changes sign."""
    changes = np.flatnonzero(np.sign(y[1:]) * np.sign(y[:-1]) < 0)
    found = [x[i] - y[i] * (x[i + 1] - x[i]) / (y[i + 1] - y[i]) for i in changes]
    # A point that lies on 1 is a crossing where its neighbours lie on both sides.
    on = [i for i in range(1, len(y) - 1) if y[i] == 0 and y[i - 1] * y[i + 1] < 0]
    return sorted(map(float, [*found, *x[on]]))
