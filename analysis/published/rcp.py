"""MLPerf's reference convergence points as runs that learn.

    python -m analysis import-mlperf-rcp DIR

DIR is a clone of github.com/mlcommons/logging: a file for each benchmark in a round of MLPerf Training or MLPerf HPC.
Each point, the epochs of repeated trainings at a batch size, becomes one run with its hyperparameters and the epochs of
every training (`analysis.analyses.time_to_accuracy` says what they are for).
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

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


class _Point(NamedTuple):
    """One record of a file: what trainings of `benchmark` took in `unit` at `batch_size`, in the `round` of MLPerf."""

    round: str
    benchmark: str
    batch_size: int
    unit: str
    took: Sequence[float]
    run: PublishedRun


def read_rcp(folder: Path) -> Found:
    """The points of all rounds, and of each benchmark which of its batch sizes decide. DataError for another folder."""
    root = next((path for path in (folder, *folder.glob("**/rcp_checker")) if [*path.glob("*/rcps_*.json")]), folder)
    points: list[_Point] = []
    damaged: list[str] = []
    files = sorted(root.glob("*/rcps_*.json"))
    for path in files:
        try:
            points += [_point(path.parent.name.replace("_", " "), *record) for record in read_json(path).items()]
        except DAMAGED as error:
            damaged.append(f"{path.parent.name}/{path.name}: {reason(error)}")
    if not points:
        raise DataError(f"{folder}: holds no reference points of MLPerf; give a clone of mlcommons/logging")
    publications = [
        Publication(f"published, MLPerf {name}", _ABOUT.format(name), _PUBLISHED, [point.run for point in group])
        for name, group in itertools.groupby(points, key=lambda point: point.round)
    ]
    read = f"{counted(len(files) - len(damaged), 'file')}, {len(damaged)} damaged"
    summary = f"{{logged}} point{{s}} logged, {{present}} were there already; {read}"
    return Found(publications, damaged, list(_deciding(points)), summary)


def _deciding(points: Sequence[_Point]) -> Iterator[str]:
    """Of each benchmark of a round the batch sizes that its rules keep, with what they take."""
    from analysis.analyses.time_to_accuracy import convergence, prune

    for (name, benchmark), group in itertools.groupby(points, key=lambda point: (point.round, point.benchmark)):
        own = list(group)
        dropped = _DROPPED.get(benchmark, 1)
        kept = prune(convergence(point.batch_size, point.took, dropped) for point in own)
        shown = ", ".join(f"{point.batch_size:,} ({point.mean:.4g})" for point in kept)
        yield f"{name} {benchmark}: {counted(len(own), 'point')}, deciding {shown} {own[0].unit}"


def _point(round_: str, name: str, record: dict[str, Any]) -> _Point:
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
    run = PublishedRun(
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
    return _Point(round_, benchmark, batch_size, unit, took, run)
