"""The published measurements as a frame with tables of operations, as the importer reads them, without a store."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd

from analysis.published.archive import OPERATION_COLUMNS, read_archive
from tests.conftest import ROOT

#: The data files of the paper's artifact: where PARADNN_ARCHIVE says, or beside this checkout.
ARCHIVE = Path(os.environ.get("PARADNN_ARCHIVE", ROOT.parent / "shared" / "reference" / "paradnn"))


def published_frame(folder: Path, artifacts: Path) -> pd.DataFrame:
    """One row a run; the tables of operations stand in files below `artifacts`, where `artifact_uri` finds them."""
    rows = []
    for row in read_archive(folder).rows.values():
        layers, nodes, inputs, outputs, batch = row.shape
        place = artifacts / row.point_id
        if row.operations:
            place.mkdir(parents=True)
            table = {"columns": list(OPERATION_COLUMNS), "data": row.operations}
            (place / "operation_types.json").write_text(json.dumps(table))
        rows.append(
            {
                "run_id": row.point_id,
                "run_name": row.label,
                "point_id": row.point_id,
                "artifact_uri": place.as_uri(),
                "environment_id": row.platform.device,
                "family": "fc",
                "device": row.platform.device,
                "platform.name": row.platform.name,
                "precision": row.platform.precision,
                "compile": row.platform.compile,
                "outcome": row.outcome,
                "mode": "train",
                "source": "published",
                "model.layers": layers,
                "model.nodes": nodes,
                "model.input_size": inputs,
                "model.output_size": outputs,
                "batch_size": batch,
                **row.metrics,
            }
        )
    return pd.DataFrame(rows)
