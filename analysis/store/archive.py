"""Logging the published ParaDnn measurements as runs.

    python -m analysis import-archive DIR

Each row of `analysis.store.published` becomes one run with the tag source=published, once: a second import logs what is
not there yet, and completes runs of an earlier version that read less.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.store.load import load
from analysis.store.published import OPERATION_COLUMNS, TRACE_COLUMNS, Row, digest, read_archive
from analysis.store.writer import open_experiment, writing
from paradnn.store.address import address_of
from paradnn.store.protocols import PUBLISHED
from paradnn.store.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Imported", "import_archive"]

#: When all of it was published, in Unix milliseconds: 2 March 2020, the first day of MLSys. When each was measured is
#: not known; by this date they stand behind one's own runs wherever runs are listed by time.
_PUBLISHED = 1_583_107_200_000


@dataclass(frozen=True)
class Imported:
    """Runs logged now, runs that were there already, how many of these gained metrics, and what was left out."""

    logged: int
    present: int
    completed: int
    damaged: Sequence[str]


def import_archive(
    folder: Path,
    tracking_uri: str | None = None,
    experiment: str = "paradnn",
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Log the rows of an archive that the store does not hold yet, one run each, and complete those that lack metrics.

    `progress` is called with the number of runs logged and to log. Safe to repeat after an interruption: what has an
    outcome is there, the rest is logged.
    """
    archive = read_archive(folder)
    client, experiment_id = open_experiment(tracking_uri, experiment)
    uri = address_of(tracking_uri).uri
    stored = load(uri, experiments=experiment, tags={"source": "published"})
    present = set(stored["point_id"]) if "point_id" in stored else set()
    todo = [row for row in archive.rows.values() if row.point_id not in present]
    with writing(uri):
        parent = _parent(client, experiment_id, len(archive.rows))
        for number, row in enumerate(todo, 1):
            _log(client, experiment_id, row, parent)
            if progress is not None:
                progress(number, len(todo))
        # Runs of an earlier import stand among one's own, unless they have a parent.
        for run_id in stored.loc[stored["parent_run_id"].isna(), "run_id"]:
            client.set_tag(run_id, "mlflow.parentRunId", parent)
        completed = sum(_complete(client, row, stored) for row in archive.rows.values() if row.point_id in present)
    return Imported(len(todo), len(archive.rows) - len(todo), completed, archive.damaged)


def _parent(client: Any, experiment_id: str, count: int) -> str:
    """The run that imported ones are children of, made by the first import; its id."""
    known = client.search_runs([experiment_id], "tags.kind = 'import'", max_results=1)
    if known:
        return str(known[0].info.run_id)
    about = f"{count:,} published measurements of ParaDnn (Wang, Wei, Brooks, MLSys 2020); see docs/published-data.md."
    tags = {"kind": "import", "schema_version": SCHEMA_VERSION, "source": "published", "mlflow.note.content": about}
    name = "published, MLSys 2020"
    run_id = client.create_run(experiment_id, start_time=_PUBLISHED, tags=tags, run_name=name).info.run_id
    client.set_terminated(run_id, "FINISHED", _PUBLISHED)
    return str(run_id)


def _complete(client: Any, row: Row, stored: pd.DataFrame) -> bool:
    """Log the metrics and captures that a run of an earlier import lacks; whether it lacked any."""
    from mlflow.entities import Metric

    run = stored[stored["point_id"] == row.point_id].iloc[0]
    lacking = {name: value for name, value in row.metrics.items() if name not in run or run[name] != run[name]}
    if not lacking:
        return False
    if "trace_captures" in lacking:
        _log_captures(client, run["run_id"], row)
    now = int(time.time() * 1000)
    client.log_batch(run["run_id"], metrics=[Metric(key, value, now, 0) for key, value in lacking.items()])
    return True


def _log_captures(client: Any, run_id: str, row: Row) -> None:
    table = {"columns": list(TRACE_COLUMNS), "data": row.traces}
    client.log_text(run_id, json.dumps(table), "traces.json")


def _log(client: Any, experiment_id: str, row: Row, parent: str) -> None:
    """One run; its outcome is written last, with its numbers."""
    from mlflow.entities import Metric, Param, RunTag

    layers, nodes, _, _, batch = row.shape
    platform, now = row.platform, int(time.time() * 1000)
    name = f"fc {layers}x{nodes} b{batch} {platform.precision} {platform.device}"
    tags = {**_tags(row), "mlflow.parentRunId": parent}
    run_id = client.create_run(experiment_id, start_time=_PUBLISHED, tags=tags, run_name=name).info.run_id
    if row.operations:
        table = {"columns": list(OPERATION_COLUMNS), "data": row.operations}
        client.log_text(run_id, json.dumps(table), "operation_types.json")
    if row.traces:
        _log_captures(client, run_id, row)
    client.log_batch(
        run_id,
        metrics=[Metric(key, value, now, 0) for key, value in row.metrics.items()],
        params=[Param(key, value) for key, value in _params(row).items()],
        tags=[RunTag(key, value) for key, value in (("reason", row.reason), ("outcome", row.outcome)) if value],
    )
    client.set_terminated(run_id, "FINISHED" if row.outcome == "ok" else "FAILED", _PUBLISHED)


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
        "kind": "point",
        "schema_version": SCHEMA_VERSION,
        "source": "published",
        "point_id": row.point_id,
        "environment_id": digest(device),
        "protocol_id": PUBLISHED,
        "replicate": "0",
        "device": device,
        "archive_label": row.label,
        "mlflow.note.content": f"Published measurement of ParaDnn (Wang, Wei, Brooks, MLSys 2020) on {device}; "
        "see docs/published-data.md.",
    }
