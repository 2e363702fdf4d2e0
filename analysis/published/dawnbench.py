"""Import of DAWNBench's training entries as trainings toward an accuracy.

    python -m analysis import-dawnbench DIR
    python -m analysis time-to-accuracy --experiment dawnbench

DIR is a clone of github.com/stanford-futuredata/dawn-bench-entries. Each series (a .tsv file with a
.json file of the same name) becomes one run. The time to the threshold is the time of the first row
that reaches it, as in DAWNBench's README.
"""

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from analysis.published.source import (
    DAMAGED,
    ImportedFolder,
    Publication,
    PublishedRun,
    describe_error,
    digest,
    read_text,
)
from paradnn.core.errors import DataError
from paradnn.store.files import read_json
from paradnn.store.runs import PUBLISHED

#: 14 August 2017, the first day of DAWNBench, in Unix milliseconds.
_PUBLISHED_MS = 1_502_668_800_000
#: Upper bound of every number in a series; epochs and hours of all entries are below it.
_MAX_VALUE = 1e9
_DESCRIPTION = (
    "DAWNBench's training entries for {} (github.com/stanford-futuredata/dawn-bench-entries); "
    "see docs/how-to/learning.md."
)
_UNKNOWN = "(not said)"


class _Task(NamedTuple):
    """A task of DAWNBench: the data set and the accuracy to reach.

    Attributes:
        metric: Column of the accuracy metric.
        threshold: Accuracy to reach, in the unit of that column.
        scale: Value of the column that corresponds to an accuracy of 1.
    """

    metric: str
    threshold: float
    scale: float


_TASKS = {
    "CIFAR10": _Task("top1Accuracy", 94.0, 100.0),
    "ImageNet": _Task("top5Accuracy", 93.0, 100.0),
    "SQuAD": _Task("f1Score", 0.75, 1.0),
}


class _Series(NamedTuple):
    """Progress of a training, one value per row of its file.

    Attributes:
        epochs: Number of each epoch, counted from 1.
        hours: Hours from the start of the training to the end of the epoch.
        values: Value of the accuracy metric after the epoch.
    """

    epochs: list[float]
    hours: list[float]
    values: list[float]


def read_dawnbench(folder: Path) -> ImportedFolder:
    """Read the training entries of all tasks from a clone of DAWNBench's repository.

    Args:
        folder: The clone of github.com/stanford-futuredata/dawn-bench-entries.

    Returns:
        One publication per task. Damaged entries are skipped and listed.

    Raises:
        DataError: If the folder is absent or contains no entry.
    """
    publications = []
    damaged = []
    for name in _TASKS:
        runs = []
        for path in sorted((folder / name / "train").glob("*.tsv")):
            try:
                runs.append(_read_run(name, path))
            except DAMAGED as error:
                damaged.append(f"{path.name}: {describe_error(error)}")
        if runs:
            title = f"published, DAWNBench {name}"
            publications.append(Publication(title, _DESCRIPTION.format(name), _PUBLISHED_MS, runs))
    if not publications:
        problem = "contains no DAWNBench results" if folder.is_dir() else "is not a folder"
        raise DataError(
            f"{folder}: {problem}; give a clone of stanford-futuredata/dawn-bench-entries"
        )
    return ImportedFolder(publications, damaged)


def _read_run(task_name: str, path: Path) -> PublishedRun:
    task = _TASKS[task_name]
    series = _read_series(path, task)
    details_path = path.with_suffix(".json")
    details: Mapping[str, Any] = {}
    if details_path.is_file():
        details = dict(read_json(read_text(details_path)))
    device, model, author, framework = (
        str(details.get(name) or _UNKNOWN) for name in ("hardware", "model", "author", "framework")
    )
    params = {
        "task": "learn",
        "model.name": model,
        "data.name": task_name,
        "learn.target": f"{task.threshold / task.scale:g}",
        "framework.name": framework,
        "mode": "train",
        "seed": "0",
    }
    tags = {
        "environment_id": digest("dawnbench", device),
        "protocol_id": PUBLISHED,
        "replicate": "0",
        "device": device,
        "mlflow.note.content": f"DAWNBench, {task_name} training: {model} by {author}.",
    }
    price = details.get("costPerHour")
    if isinstance(price, int | float) and 0 < price < math.inf:
        params["platform.price_per_hour"] = f"{float(price):g}"
        tags["price_currency"] = "USD"
    metrics = _series_metrics(series, task)
    return PublishedRun(
        point_id=digest("dawnbench", task_name, path.stem),
        name=path.stem,
        params=params,
        tags=tags,
        metrics=metrics,
        outcome="ok" if "seconds_to_target" in metrics else "timeout",
    )


def _read_series(path: Path, task: _Task) -> _Series:
    """Read the rows of an entry. Epoch numbers that start at 0 are shifted to start at 1.

    Raises:
        ValueError: If the file has no rows, or a number is negative or too large.
    """
    table = csv.DictReader(read_text(path).splitlines(), delimiter="\t")
    rows = [row for row in table if any(row.values())]
    epochs, hours, values = (
        [float(row[name]) for row in rows] for name in ("epoch", "hours", task.metric)
    )
    if not rows or not all(0 <= value < _MAX_VALUE for value in (*epochs, *hours, *values)):
        raise ValueError("has no numbers")
    if epochs[0] == 0:
        epochs = [epoch + 1 for epoch in epochs]
    return _Series(epochs, hours, values)


def _series_metrics(series: _Series, task: _Task) -> dict[str, float]:
    metrics = {
        "best_accuracy": max(series.values) / task.scale,
        "epochs": series.epochs[-1],
    }
    for position, value in enumerate(series.values):
        if value >= task.threshold:
            later = series.values[position:]
            metrics["seconds_to_target"] = series.hours[position] * 3600
            metrics["epochs_to_target"] = series.epochs[position]
            metrics["epochs_below_target"] = float(sum(value < task.threshold for value in later))
            break
    return metrics
