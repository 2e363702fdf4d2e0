"""MLPerf's reference convergence points as runs that learn.

    python -m analysis import-mlperf-rcp DIR

DIR is a clone of github.com/mlcommons/logging: a file for each benchmark in a round of MLPerf Training or MLPerf HPC.
Each point, the epochs of repeated trainings at a batch size, becomes one run with its hyperparameters and the epochs of
every training.
"""

from __future__ import annotations

import itertools
import re
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.published.source import DAMAGED, Found, Publication, PublishedRun, digest, read_json, reason
from paradnn.core.words import counted
from paradnn.errors import DataError
from paradnn.store.runs import PUBLISHED

_MOST = 1e15  # no samples and no epochs are as many
#: Runs that a benchmark's rules drop at either end, where it is not one.
_DROPPED = {"unet3d": 4}
#: The key that holds what each training took, and its unit. (BERT's trainings are counted in samples under the first.)
_TOOK = {"Epochs to converge": "epochs", "samples to converge": "samples"}
_ABOUT = (
    "Reference convergence points of MLPerf {} (github.com/mlcommons/logging, rcp_checker): what its reference "
    "trainings took to their targets at several batch sizes; see docs/learning.md."
)
#: When the first round with reference points, training 1.0, was published; rounds came half a year apart.
_PUBLISHED = round(datetime(2021, 6, 30, tzinfo=UTC).timestamp() * 1000)


def read_rcp(folder: Path) -> Found:
    """The points of all rounds. DataError for another folder."""
    root = next((path for path in (folder, *folder.glob("**/rcp_checker")) if [*path.glob("*/rcps_*.json")]), folder)
    publications: list[Publication] = []
    damaged: list[str] = []
    files = sorted(root.glob("*/rcps_*.json"))
    for folder_of_round, paths in itertools.groupby(files, key=lambda path: path.parent.name):
        name, runs = folder_of_round.replace("_", " "), list[PublishedRun]()
        for path in paths:
            try:
                runs += [_point(name, *record) for record in read_json(path).items()]
            except DAMAGED as error:
                damaged.append(f"{folder_of_round}/{path.name}: {reason(error)}")
        if runs:
            publications.append(Publication(f"published, MLPerf {name}", _ABOUT.format(name), _PUBLISHED, runs))
    if not publications:
        raise DataError(f"{folder}: holds no reference points of MLPerf; give a clone of mlcommons/logging")
    read = f"{counted(len(files) - len(damaged), 'file')}, {len(damaged)} damaged"
    summary = f"{{logged}} point{{s}} logged, {{present}} were there already; {read}"
    return Found(publications, damaged, summary=summary)


def _point(round_: str, name: str, record: dict[str, Any]) -> PublishedRun:
    """What trainings of a benchmark took at a batch size, in a round of MLPerf."""
    key = next((key for key in _TOOK if key in record), None)
    if key is None:
        raise KeyError(" or ".join(_TOOK))
    unit, took = _TOOK[key], [float(value) for value in record[key]]
    batch_size, benchmark = int(record["BS"]), str(record["Benchmark"])
    if not took or not all(0 <= value < _MOST for value in (*took, batch_size)):
        raise ValueError(f"{name} has no numbers")
    platform, further = str(record.get("Platform") or "(not said)"), dict(record.get("Hyperparams") or {})
    dropped = _DROPPED.get(benchmark, 1)
    kept = sorted(took)[dropped : len(took) - dropped] if len(took) > 2 * dropped else took
    mean = statistics.fmean(kept)
    named = {
        f"mlperf.{key}": str(value) for key, value in further.items() if re.fullmatch(r"[\w. /-]{1,100}", key, re.A)
    }
    own = {"task": "learn", "mode": "train", "model.name": benchmark, "batch_size": str(batch_size)}
    return PublishedRun(
        point_id=digest("mlperf-rcp", round_, benchmark, name),
        name=f"{benchmark} b{batch_size}, {round_}",
        params=own | named | {"mlperf.round": round_, "mlperf.unit": unit},
        tags={
            "environment_id": digest("mlperf-rcp", platform),
            "protocol_id": PUBLISHED,
            "replicate": "0",
            "device": platform,
            "mlflow.note.content": f"MLPerf {round_}, {benchmark}: {len(took)} reference trainings at "
            f"batch size {batch_size:,} took {mean:g} {unit} on average.",
        },
        metrics={"epochs_to_target": mean, "epochs_to_target_deviation": statistics.pstdev(took)},
        tables={"trainings.json": ((unit,), [[value] for value in took])},
    )
