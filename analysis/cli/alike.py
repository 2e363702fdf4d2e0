"""Refusing to pool unlike runs where an analysis takes groups apart by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["alike_within"]


def alike_within(frame: pd.DataFrame, by: Sequence[str], pool: bool) -> str:
    """Check that the rows of each group (columns `by`) are of one environment, protocol and schema.

    SchemaError where they are not, unless `pool`: then what differs is noted in the frame's `attrs["pooled"]` and
    returned as a sentence. Empty where all are alike.
    """
    from analysis.frame import require_alike

    found = []
    for _, group in frame.groupby(list(by), sort=True, dropna=False):
        pooled = require_alike(group, pool=pool).attrs.get("pooled", "")
        if pooled and pooled not in found:
            found.append(pooled)
    if not found:
        return ""
    frame.attrs["pooled"] = "; ".join(found)
    return f"Unlike runs were pooled: {frame.attrs['pooled']}."
