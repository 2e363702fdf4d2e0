"""The published measurements of the package as a frame, without a store."""

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.published.source import ImportedFolder, load_shipped
from analysis.store.frame import typed
from tests.conftest import ROOT

#: The data files of the paper's artifact: in PARADNN_ARCHIVE, or next to this checkout.
ARCHIVE = Path(os.environ.get("PARADNN_ARCHIVE", ROOT.parent / "shared" / "reference" / "paradnn"))


def raw(name: str) -> dict[str, list[Any]]:
    """The content of one of these files; skips the test if they are absent."""
    if not ARCHIVE.is_dir():
        pytest.skip("the published data are not there")
    return json.loads((ARCHIVE / f"{name}.json").read_text())


def frame_of(found: ImportedFolder) -> pd.DataFrame:
    """The runs as a store would return them, with their points as ids."""
    known = [{**run.tags, **run.params, "source": "published"} for run in found.runs]
    table = pd.DataFrame(
        [{"run_id": run.point_id, "point_id": run.point_id} | run.metrics for run in found.runs]
    )
    texts = {
        name: typed([row.get(name) for row in known])
        for name in {name: 0 for row in known for name in row}
    }
    frame = table.assign(outcome=[run.outcome for run in found.runs], **texts)
    return frame.rename(columns={"model.name": "family"})


def published_frame(artifacts: Path) -> pd.DataFrame:
    """One row per run. The tables of operations are files below `artifacts`, to which `artifact_uri`
    points.
    """
    found = load_shipped("archive")
    for run in found.runs:
        if "operation_types.json" in run.tables:
            columns, rows = run.tables["operation_types.json"]
            place = artifacts / run.point_id
            place.mkdir(parents=True)
            (place / "operation_types.json").write_text(
                json.dumps({"columns": list(columns), "data": rows})
            )
    frame = frame_of(found)
    return frame.assign(artifact_uri=[(artifacts / run).as_uri() for run in frame["run_id"]])
