"""Saying that unlike runs were pooled, in the answer and in what --log keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["pooled"]


def pooled(frame: pd.DataFrame, differences: Iterable[str]) -> list[str]:
    """A sentence on what differed among runs that were pooled, none where nothing did; kept in `attrs["pooled"]`."""
    distinct = list(dict.fromkeys(differences))
    if not distinct:
        return []
    frame.attrs["pooled"] = "; ".join(distinct)
    return [f"Unlike runs were pooled: {frame.attrs['pooled']}."]
