"""Refusing to pool heterogeneous runs where an analysis forms groups by itself, and saying what differed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["joined", "pooled_within", "require_runs"]


def pooled_within(frame: pd.DataFrame, by: Sequence[str], pool: bool) -> str:
    """What differs within the groups (columns `by`) in environment, protocol and schema; empty where nothing does.

    SchemaError where anything differs, unless `pool`.
    """
    from analysis.store.frame import require_homogeneous

    groups = (group for _, group in frame.groupby(list(by), sort=True, dropna=False))
    return joined(require_homogeneous(group, pool=pool).attrs.get("pooled", "") for group in groups)


def joined(differences: Iterable[str]) -> str:
    """Differences as one text, each once."""
    return "; ".join(dict.fromkeys(filter(None, differences)))


def require_runs(frame: pd.DataFrame) -> None:
    """NotEnoughData where a frame holds no run."""
    from paradnn.errors import NotEnoughData

    if frame.empty:
        raise NotEnoughData("no run matches; choose other runs, see python -m analysis runs")
