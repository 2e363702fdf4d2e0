"""The distribution of the latencies of a run's queries, from the histogram that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.store.load import load_files
from paradnn.errors import DataError

__all__ = ["Distribution", "load_distributions"]


@dataclass(frozen=True)
class Distribution:
    """`shares` (n,) of a run's queries took no longer than `milliseconds` (n,)."""

    milliseconds: NDArray[np.float64]
    shares: NDArray[np.float64]


def load_distributions(frame: pd.DataFrame, tracking_uri: str | Sequence[str] | None = None) -> dict[str, Distribution]:
    """Run id -> its distribution, of the runs that hold one. DataError for a damaged file."""
    from hdrh.histogram import HdrHistogram

    found = {}
    for run_id, content in load_files(frame, "latency.hdr", tracking_uri).items():
        try:
            counts = HdrHistogram.decode(content.strip())
        except Exception as error:
            raise DataError(f"latency.hdr of run {run_id} is damaged: {error}") from error
        values = [
            (item.value_iterated_to, item.count_added_in_this_iter_step) for item in counts.get_recorded_iterator()
        ]
        microseconds, added = np.array(values, dtype="float64").T
        found[run_id] = Distribution(microseconds / 1e3, np.cumsum(added) / added.sum())
    return found
