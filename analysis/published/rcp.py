"""Logging MLPerf's reference convergence points as runs that learn.

    python -m analysis import-mlperf-rcp DIR

DIR is a clone of github.com/mlcommons/logging. Each point, the epochs of repeated trainings at a batch size, becomes
one run with its hyperparameters and the epochs of every training (`analysis.analyses.time_to_accuracy` says what they
are for). Each file is one benchmark in one round of MLPerf Training or MLPerf HPC.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.published import runs
from analysis.published.files import DAMAGED, read_json, reason
from analysis.published.runs import Publication, PublishedRun, Table, digest, log_publications
from paradnn.errors import DataError
from paradnn.store.runs import PUBLISHED

__all__ = ["EXPERIMENT", "Imported", "ReferencePoint", "import_rcp", "read_reference_points"]

#: Where the runs go: apart from one's own, which share neither models nor data with them.
EXPERIMENT = "mlperf-rcp"
_MOST = 1e15  # no samples and no epochs are as many
#: Runs that a benchmark's rules drop at either end, where it is not one.
_DROPPED = {"unet3d": 4}
#: The key that holds what each training took, and its unit. (BERT's trainings are counted in samples under the first.)
_TOOK = {"Epochs to converge": "epochs", "samples to converge": "samples"}
_ABOUT = (
    "Reference convergence points of {} (github.com/mlcommons/logging, rcp_checker): what its reference trainings took "
    "to their targets at several batch sizes; see docs/learning.md."
)
#: When the first round with reference points, training 1.0, was published; rounds came half a year apart.
_PUBLISHED = round(datetime(2021, 6, 30, tzinfo=UTC).timestamp() * 1000)


@dataclass(frozen=True)
class ReferencePoint:
    """One record of a file: what trainings of `benchmark` took in `unit` at `batch_size`, in the `round` of MLPerf."""

    round: str
    benchmark: str
    name: str
    batch_size: int
    unit: str
    took: Sequence[float]
    platform: str
    hyperparameters: dict[str, Any]

    @property
    def dropped(self) -> int:
        """Trainings that the rules leave out at either end."""
        return _DROPPED.get(self.benchmark, 1)

    @property
    def mean(self) -> float:
        """What the trainings took on average by the rules, as `analysis.analyses.time_to_accuracy` has it."""
        count = len(self.took)
        kept = sorted(self.took)[self.dropped : count - self.dropped] if count > 2 * self.dropped else self.took
        return statistics.fmean(kept)


@dataclass(frozen=True)
class Imported:
    """All points, and what became of them."""

    points: tuple[ReferencePoint, ...]
    files: int
    runs: runs.Imported


def read_reference_points(folder: Path) -> tuple[list[ReferencePoint], int, list[str]]:
    """The points of all rounds, the files that hold them, and what is damaged, with the reason.

    Raises DataError for a folder of another kind.
    """
    root = next((path for path in (folder, *folder.glob("**/rcp_checker")) if [*path.glob("*/rcps_*.json")]), folder)
    found: list[ReferencePoint] = []
    damaged: list[str] = []
    files = sorted(root.glob("*/rcps_*.json"))
    for path in files:
        try:
            content = read_json(path)
            found += [_point(path.parent.name.replace("_", " "), *record) for record in content.items()]
        except DAMAGED as error:
            damaged.append(f"{path.parent.name}/{path.name}: {reason(error)}")
    if not found:
        raise DataError(f"{folder}: holds no reference points of MLPerf; give a clone of mlcommons/logging")
    return found, len(files) - len(damaged), damaged


def _point(round_: str, name: str, record: dict[str, Any]) -> ReferencePoint:
    key = next((key for key in _TOOK if key in record), None)
    if key is None:
        raise KeyError(" or ".join(_TOOK))
    took = [float(value) for value in record[key]]
    batch_size = int(record["BS"])
    if not took or not all(0 <= value < _MOST for value in (*took, batch_size)):
        raise ValueError(f"{name} has no numbers")
    platform, further = str(record.get("Platform") or "(not said)"), dict(record.get("Hyperparams") or {})
    return ReferencePoint(round_, str(record["Benchmark"]), name, batch_size, _TOOK[key], took, platform, further)


def import_rcp(
    folder: Path,
    tracking_uri: str | None = None,
    experiment: str = EXPERIMENT,
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Log the points that the store does not hold yet, one run each."""
    points, files, damaged = read_reference_points(folder)
    publications = [
        Publication(f"published, MLPerf {name}", _ABOUT.format(f"MLPerf {name}"), _PUBLISHED, [*map(_run, entries)])
        for name, entries in itertools.groupby(points, key=lambda point: point.round)
    ]
    return Imported(tuple(points), files, log_publications(publications, tracking_uri, experiment, damaged, progress))


def _run(point: ReferencePoint) -> PublishedRun:
    params = {"task": "learn", "mode": "train", "model.name": point.benchmark, "batch_size": str(point.batch_size)}
    named = {key: value for key, value in point.hyperparameters.items() if re.fullmatch(r"[\w. /-]{1,100}", key, re.A)}
    params |= {f"mlperf.{key}": str(value) for key, value in named.items()}
    params |= {"mlperf.round": point.round, "mlperf.unit": point.unit}
    return PublishedRun(
        point_id=digest("mlperf-rcp", point.round, point.benchmark, point.name),
        name=f"{point.benchmark} b{point.batch_size}, {point.round}",
        params=params,
        tags={
            "environment_id": digest("mlperf-rcp", point.platform),
            "protocol_id": PUBLISHED,
            "replicate": "0",
            "device": point.platform,
            "mlflow.note.content": f"MLPerf {point.round}, {point.benchmark}: {len(point.took)} reference trainings at "
            f"batch size {point.batch_size:,} took {point.mean:g} {point.unit} on average.",
        },
        metrics={"epochs_to_target": point.mean, "epochs_to_target_deviation": statistics.pstdev(point.took)},
        tables={"trainings.json": Table((point.unit,), [[value] for value in point.took])},
    )
