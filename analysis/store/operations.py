"""Operation tables: of one run, checked; of many as one frame."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.store.load import load_table, load_tables
from paradnn.errors import DataError, StoreError

__all__ = ["NUMBERS", "load_types", "read_operations"]

#: What a table holds of each type: how often it ran and its own seconds in the profile, its share of the profiled
#: time, FLOPs and bytes moved, both rates while it runs, FLOPs / bytes.
NUMBERS = (
    "count",
    "self_seconds",
    "share",
    "flops",
    "bytes",
    "flops_per_second",
    "bytes_per_second",
    "arithmetic_intensity",
)
#: Most detailed first.
_TABLES = ("operations.json", "operation_types.json")
_COLUMNS = ("type", "share", "flops", "bytes", "flops_per_second", "bytes_per_second", "arithmetic_intensity")


def read_operations(run_id: str, tracking_uri: str | Sequence[str] | None = None) -> pd.DataFrame:
    """One row an operation, or an operation type where the run holds types alone (no column `operation` then).

    StoreError for a run that was not profiled, DataError for a table that lacks columns.
    """
    for name in _TABLES:
        try:
            table = load_table(run_id, name, tracking_uri)
        except StoreError as error:
            missing = error
            continue
        lacking = [column for column in _COLUMNS if column not in table]
        if lacking:
            raise DataError(f"{name} of run {run_id} is no operation table: it lacks {', '.join(lacking)}")
        return table
    raise missing


def load_types(frame: pd.DataFrame, tracking_uri: str | Sequence[str] | None = None) -> pd.DataFrame:
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
