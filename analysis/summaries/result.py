"""What an analysis hands to the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Result"]


@dataclass(frozen=True)
class Result:
    """What an analysis found.

    `text` says it in words; `figure` draws it when asked for; `sources` are the run ids it rests on, None for all
    runs of the frame; `pooled` says what differed among runs that were treated as alike on demand.
    """

    table: pd.DataFrame
    text: str = ""
    figure: Callable[[], Figure] | None = None
    sources: Sequence[str] | None = None
    pooled: str = ""
