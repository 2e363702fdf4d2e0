"""The operation table of one run, checked."""

from __future__ import annotations

import pandas as pd

from analysis.store import load_table
from paradnn.errors import DataError, StoreError

__all__ = ["read_operations"]

#: Most detailed first.
_TABLES = ("operations.json", "operation_types.json")
_COLUMNS = ("type", "share", "flops", "bytes", "flops_per_second", "bytes_per_second", "arithmetic_intensity")


def read_operations(run_id: str, tracking_uri: str | None = None) -> pd.DataFrame:
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
