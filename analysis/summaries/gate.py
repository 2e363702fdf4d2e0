"""Every analysis of runs begins at the gate: a decorator, so that none can forget it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pandas as pd

    from analysis.summaries.result import Result

__all__ = ["gated"]

R = TypeVar("R", bound="Result")
Analysis = Callable[..., R]


def gated(analyse: Analysis[R]) -> Analysis[R]:
    """An analysis (frame, options) that sees only the runs which pass `analysis.store.quality`, and says what did not.

    `options.steady_only` chooses how narrow the gate is.
    """

    @functools.wraps(analyse)
    def through_the_gate(frame: pd.DataFrame, options: Any = None) -> R:
        from analysis.store.quality import admit

        runs, quality = admit(frame, bool(options and options.steady_only))
        result = analyse(runs, options) if options is not None else analyse(runs)
        return replace(result, quality=quality)

    return through_the_gate
