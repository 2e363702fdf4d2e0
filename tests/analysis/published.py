"""The published measurements as a frame with tables of operations, as the importer reads them, without a store."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd

from analysis.published.archive import read_archive
from tests.conftest import ROOT

#: The data files of the paper's artifact: where PARADNN_ARCHIVE says, or beside this checkout.
ARCHIVE = Path(os.environ.get("PARADNN_ARCHIVE", ROOT.parent / "shared" / "reference" / "paradnn"))


def published_frame(folder: Path, artifacts: Path) -> pd.DataFrame:
    """One row a run; the tables of operations stand in files below `artifacts`, where `artifact_uri` finds them."""
    found = read_archive(folder)
    for run in found.runs:
        if "operation_types.json" in run.tables:
            columns, rows = run.tables["operation_types.json"]
            place = artifacts / run.point_id
            place.mkdir(parents=True)
            (place / "operation_types.json").write_text(json.dumps({"columns": list(columns), "data": rows}))
    frame = found.frame()
    return frame.assign(artifact_uri=[(artifacts / run).as_uri() for run in frame["run_id"]])
