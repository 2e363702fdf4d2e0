"""Every analysis of runs begins at the gate: a decorator, so that none can forget it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pandas as pd

    from analysis.options import Options
    from analysis.result import Result
    from analysis.store.quality import Quality

__all__ = ["gated", "gated_untimed", "gated_with_queries"]

R = TypeVar("R", bound="Result")
Analysis = Callable[..., R]


def gated(analyse: Analysis[R]) -> Analysis[R]:
    """An analysis (frame, options) that sees only the runs which pass `analysis.store.quality`, and says what did not.

    `options.steady_only` chooses how narrow the gate is. Runs of scenarios are what their steps are, unless options ask
    for their queries (`analysis.methods.joining.as_steps`).
    """
    return _gated(analyse, queries=False)


def gated_untimed(analyse: Analysis[R]) -> Analysis[R]:
    """The same for an analysis of no times: whether runs are steady, and alone on their machine, says nothing there."""

    @functools.wraps(analyse)
    def through_the_gate(frame: pd.DataFrame, options: Any = None) -> R:
        result = gated(analyse)(frame, options)
        quality = result.quality
        if quality is None or quality.steady_only:
            return result
        return replace(result, quality=replace(quality, unsteady=0, contended=0, scenarios=0))

    return through_the_gate


def gated_with_queries(analyse: Analysis[R]) -> Analysis[R]:
    """The same for an analysis of what scenarios gave: their runs stay what they are."""
    return _gated(analyse, queries=True)


def _gated(analyse: Analysis[R], queries: bool) -> Analysis[R]:
    @functools.wraps(analyse)
    def through_the_gate(frame: pd.DataFrame, options: Any = None) -> R:
        from analysis.store.quality import admit

        runs, quality = admit(frame, bool(options and options.steady_only))
        if not queries:
            runs, quality = _as_steps(runs, quality, options)
        result = analyse(runs, options) if options is not None else analyse(runs)
        return replace(result, quality=quality)

    return through_the_gate


def _as_steps(runs: pd.DataFrame, quality: Quality, options: Options | None) -> tuple[pd.DataFrame, Quality]:
    from analysis.methods.joining import as_steps
    from analysis.options import command_line

    words = " ".join(command_line(options)) if options is not None else ""
    steps, count = as_steps(runs, re.findall(r"[a-z][\w.]*", words))
    return steps, replace(quality, scenarios=count)
