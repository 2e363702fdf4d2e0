"""The operation tables of many runs as one frame: which kinds of operation took the time, and at what rates."""

from __future__ import annotations

import pandas as pd

from analysis.store import load_tables

__all__ = ["NUMBERS", "load_types"]

#: What a table holds of each type: how often it ran and its own seconds in the profile, its share of the profiled
#: time, FLOPs and bytes moved, both rates while it runs, FLOPs / bytes.
NUMBERS = ("count", "self_seconds", "share", "flops", "bytes", "flops_per_second", "bytes_per_second",
           "arithmetic_intensity")  # fmt: skip


def load_types(frame: pd.DataFrame, tracking_uri: str | None = None) -> pd.DataFrame:
    """The tables operation_types.json of a frame's runs: run_id, type and NUMBERS (float64, NaN where not recorded).

    Runs that were not profiled have none and are passed over; they are found by `artifact_uri`, in local folders
    directly and elsewhere through MLflow. Raises DataError for a damaged table.
    """
    tables = load_tables(frame, "operation_types.json", tracking_uri)
    columns: dict[str, pd.Series] = {
        name: tables[name].astype("str") if name in tables else pd.Series(index=tables.index, dtype="str")
        for name in ("run_id", "type")
    }
    for name in NUMBERS:
        held = tables[name] if name in tables else pd.Series(index=tables.index, dtype="float64")
        columns[name] = pd.to_numeric(held, errors="coerce").astype("float64")
    return pd.DataFrame(columns)
