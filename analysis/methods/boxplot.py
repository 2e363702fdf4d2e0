"""Box plots as the paper draws them: the spread of a metric over the models of a group, without assuming its shape.

Out come, for each group, five percentiles, the values outside the whiskers and an interval of the median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.methods.dependence import Levels, Unit, crossed_quantile, levels_of

__all__ = ["BOX", "LEVELS", "WHISKERS", "Boxes", "box_statistics"]

#: Whisker, box, bar, box, whisker: the percentiles of the paper's Figure 11.
LEVELS = (2, 9, 50, 91, 98)

#: Points below which a 9th percentile lies between the two lowest of them, and below which a 2nd does: a box, or
#: whiskers, of fewer would be drawn from two values.
BOX, WHISKERS = 13, 51


@dataclass(frozen=True)
class Boxes:
    """The boxes of a metric.

    `table` has one row a group: the columns grouped by, label, count, missing (rows of the group without the metric,
    such as out of memory), p2, p9, p50, p91, p98, median_low, median_high (95% interval, NaN where the sample is too
    small for an end), sample (what the interval is over), minimum, maximum, outliers (how many are beyond the
    whiskers). `values` maps a label to its values, ascending.
    """

    metric: str
    by: tuple[str, ...]
    table: pd.DataFrame
    values: Mapping[str, np.ndarray]


def box_statistics(
    frame: pd.DataFrame, metric: str, by: Sequence[str], order: Sequence[str] = (), unit: Unit = "crossed"
) -> Boxes:
    """The paper's percentiles of `metric` over the rows of each group (columns `by`).

    Percentiles interpolate linearly between order statistics (Hyndman and Fan's definition 7, NumPy's default). The
    bar is the median, the box reaches from the 9th to the 91st percentile, the whiskers from the 2nd to the 98th
    (paper, section 5.3 and Figure 11). The median's interval is over the models and batch sizes that the points of a
    group share (`dependence.crossed_quantile`). Infinite and missing values are counted as missing. Groups stand in
    their own order (numbers ascending), except that the values in `order`, such as families, come first as given.
    """
    rows: list[dict[str, object]] = []
    kept: dict[str, np.ndarray] = {}
    for key, group in frame.groupby(list(by), sort=True, dropna=False):
        label = ", ".join("(none)" if pd.Series([part]).isna().all() else str(part) for part in key)
        values = group[metric].to_numpy(dtype="float64", na_value=np.nan)
        known = np.isfinite(values)
        values = values[known]
        row = dict(zip(by, key, strict=True)) | {"label": label, "count": len(values)}
        row["missing"] = len(group) - len(values)
        if len(values):
            row |= _box(values, levels_of(group[known], unit))
            kept[label] = np.sort(values)
        rows.append(row)
    columns = [
        *by,
        "label",
        "count",
        "missing",
        *(f"p{level}" for level in LEVELS),
        "median_low",
        "median_high",
        "sample",
        "minimum",
        "maximum",
        "outliers",
    ]
    table = pd.DataFrame(rows).reindex(columns=columns)
    # Families come in the paper's order; sorted() is stable, so the rest keeps its own.
    place = {name: position for position, name in enumerate(order)}
    ranks = [place.get(value, len(place)) for value in table[by[0]]]
    table = table.iloc[sorted(range(len(table)), key=ranks.__getitem__)].reset_index(drop=True)
    table["outliers"] = table["outliers"].fillna(0).astype("int64")
    return Boxes(metric, tuple(by), table, kept)


def _box(values: np.ndarray, levels: Levels) -> dict[str, object]:
    """What `Boxes.table` says of the values of one group, none of them missing."""
    found = np.percentile(values, LEVELS)
    low, high = (end if np.isfinite(end) else np.nan for end in crossed_quantile(values, levels)[1:])
    outliers = int(((values < found[0]) | (values > found[-1])).sum())
    row: dict[str, object] = {f"p{level}": value for level, value in zip(LEVELS, found, strict=True)}
    row |= {"median_low": low, "median_high": high, "sample": levels.words}
    return row | {"minimum": values.min(), "maximum": values.max(), "outliers": outliers}
