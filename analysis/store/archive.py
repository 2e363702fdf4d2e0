"""The published ParaDnn measurements as runs.

    python -m analysis import-archive DIR

Each row of `analysis.store.published` becomes one run with the tag source=published.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from analysis.store.publication import Imported, Publication, PublishedRun, Table, digest, log_publications
from analysis.store.published import OPERATION_COLUMNS, TRACE_COLUMNS, Row, read_archive
from paradnn.store.protocols import PUBLISHED

__all__ = ["import_archive"]

#: 2 March 2020, the first day of MLSys, in Unix milliseconds.
_PUBLISHED = 1_583_107_200_000


def import_archive(
    folder: Path,
    tracking_uri: str | None = None,
    experiment: str = "paradnn",
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Log the rows of an archive that the store does not hold yet, one run each, and complete those that lack metrics.

    `left_out` of the result names damaged entries. Raises as `read_archive`, and StoreError.
    """
    archive = read_archive(folder)
    about = f"{len(archive.rows):,} published measurements of ParaDnn (Wang, Wei, Brooks, MLSys 2020); "
    about += "see docs/published-data.md."
    runs = [_run(row) for row in archive.rows.values()]
    publication = Publication("published, MLSys 2020", about, _PUBLISHED, runs)
    return log_publications([publication], tracking_uri, experiment, archive.damaged, progress)


def _run(row: Row) -> PublishedRun:
    layers, nodes, _, _, batch = row.shape
    tables = {}
    if row.operations:
        tables["operation_types.json"] = Table(OPERATION_COLUMNS, row.operations)
    if row.traces:
        tables["traces.json"] = Table(TRACE_COLUMNS, row.traces)
    name = f"fc {layers}x{nodes} b{batch} {row.platform.precision} {row.platform.device}"
    return PublishedRun(row.point_id, name, _params(row), _tags(row), row.metrics, row.outcome, row.reason, tables)


def _params(row: Row) -> dict[str, str]:
    """What is known of a row's configuration; precision, optimizer and compilation as the artifact's programs say."""
    layers, nodes, inputs, outputs, batch = map(str, row.shape)
    return {
        "model.name": "fc",
        "model.layers": layers,
        "model.nodes": nodes,
        "model.input_size": inputs,
        "model.output_size": outputs,
        "batch_size": batch,
        "precision": row.platform.precision,
        "platform.name": row.platform.name,
        "compile": row.platform.compile,
        "mode": "train",
        "replicate": "0",
        "optimizer.name": "rmsprop",
        "framework.name": "tensorflow",
    }


def _tags(row: Row) -> dict[str, str]:
    device = row.platform.device
    return {
        "environment_id": digest(device),
        "protocol_id": PUBLISHED,
        "replicate": "0",
        "device": device,
        "archive_label": row.label,
        "mlflow.note.content": f"Published measurement of ParaDnn (Wang, Wei, Brooks, MLSys 2020) on {device}; "
        "see docs/published-data.md.",
    }
