"""The package's published measurements as a frame, without a store."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.published.source import ImportedFolder, PublishedRun, load_shipped
from analysis.store.frame import typed
from tests.conftest import ROOT

#: Folder of the data files of the paper's artifact: PARADNN_ARCHIVE, or a folder next to this
#: checkout.
ARCHIVE = Path(os.environ.get("PARADNN_ARCHIVE", ROOT.parent / "shared" / "reference" / "paradnn"))


def raw(name: str) -> dict[str, list[Any]]:
    """Return the content of ARCHIVE/`name`.json; skip the test if the archive is absent."""
    if not ARCHIVE.is_dir():
        pytest.skip(f"the published data are absent: {ARCHIVE}")
    return json.loads((ARCHIVE / f"{name}.json").read_text())


def frame_of(found: ImportedFolder) -> pd.DataFrame:
    """Return the published runs as a store would return them; run ids equal point ids."""
    rows = [{**run.tags, **run.params, "source": "published"} for run in found.runs]
    table = pd.DataFrame(
        [{"run_id": run.point_id, "point_id": run.point_id} | run.metrics for run in found.runs]
    )
    texts = {
        name: typed([row.get(name) for row in rows])
        for name in {name: 0 for row in rows for name in row}
    }
    frame = table.assign(outcome=[run.outcome for run in found.runs], **texts)
    return frame.rename(columns={"model.name": "family"})


def published_frame(artifacts: Path) -> pd.DataFrame:
    """Return one row per published run, and write the operation tables.

    The tables are files below `artifacts`; the column `artifact_uri` holds their folders.
    """
    found = load_shipped("archive")
    for run in found.runs:
        if "operation_types.json" in run.tables:
            columns, rows = run.tables["operation_types.json"]
            folder = artifacts / run.point_id
            folder.mkdir(parents=True)
            (folder / "operation_types.json").write_text(
                json.dumps({"columns": list(columns), "data": rows})
            )
    frame = frame_of(found)
    return frame.assign(artifact_uri=[(artifacts / run).as_uri() for run in frame["run_id"]])


def select_runs(
    folder: ImportedFolder, is_wanted: Callable[[PublishedRun], bool]
) -> ImportedFolder:
    """Copy the folder with only the wanted runs; omit publications that have none left."""
    publications = [
        publication._replace(runs=[run for run in publication.runs if is_wanted(run)])
        for publication in folder.publications
    ]
    return ImportedFolder([publication for publication in publications if publication.runs])
