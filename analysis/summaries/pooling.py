"""Refusing to pool unlike runs where an analysis takes groups apart by itself, and saying so where they were pooled.

What differed goes into `Result.pooled`, from where --log keeps it, and as a sentence into the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["alike_within", "joined", "sentence"]


def alike_within(frame: pd.DataFrame, by: Sequence[str], pool: bool) -> str:
    """What differs within the groups (columns `by`) in environment, protocol and schema; empty where all are alike.

    SchemaError where anything does, unless `pool`.
    """
    from analysis.store.frame import require_alike

    groups = (group for _, group in frame.groupby(list(by), sort=True, dropna=False))
    return joined(require_alike(group, pool=pool).attrs.get("pooled", "") for group in groups)


def joined(differences: Iterable[str]) -> str:
    """Differences as one text, each once."""
    return "; ".join(dict.fromkeys(filter(None, differences)))


def sentence(pooled: str) -> list[str]:
    """What `alike_within` or `joined` found as a sentence; none where nothing differed."""
    return [f"Unlike runs were pooled: {pooled}."] if pooled else []
