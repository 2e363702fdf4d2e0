"""DAWNBench's training entries as runs that learn.

    python -m analysis import-dawnbench DIR
    python -m analysis time-to-accuracy --experiment dawnbench

DIR is a clone of github.com/stanford-futuredata/dawn-bench-entries. Each series (a .tsv beside a
.json) becomes one run; the time to the threshold is that of the first entry which reaches it, as
its README says.
"""

import csv
import math
from pathlib import Path

from analysis.published.source import (
    DAMAGED,
    ImportedFolder,
    Publication,
    PublishedRun,
    digest,
    read_text,
    reason,
)
from paradnn.core.errors import DataError
from paradnn.store.files import read_json
from paradnn.store.runs import PUBLISHED

#: 14 August 2017, the first day of DAWNBench, in Unix milliseconds.
_PUBLISHED = 1_502_668_800_000
_MOST = 1e9  # no epochs and no hours are as many
#: The metric of each task as its column is called, the threshold in it, and what of it is 1.
_TASKS = {
    "CIFAR10": ("top1Accuracy", 94.0, 100.0),
    "ImageNet": ("top5Accuracy", 93.0, 100.0),
    "SQuAD": ("f1Score", 0.75, 1.0),
}
_ABOUT = "DAWNBench's training entries for {} (github.com/stanford-futuredata/dawn-bench-entries); see docs/how-to/learning.md."


def read_dawnbench(folder: Path) -> ImportedFolder:
    """The series of all tasks. DataError for a folder of another kind."""
    publications = []
    damaged = []
    for task in _TASKS:
        runs = []
        for path in sorted((folder / task / "train").glob("*.tsv")):
            try:
                runs.append(_run(task, path))
            except DAMAGED as error:
                damaged.append(f"{path.name}: {reason(error)}")
        if runs:
            publications.append(
                Publication(f"published, DAWNBench {task}", _ABOUT.format(task), _PUBLISHED, runs)
            )
    if not publications:
        where = "give a clone of stanford-futuredata/dawn-bench-entries"
        raise DataError(f"{folder}: holds no series of DAWNBench; {where}")
    return ImportedFolder(publications, damaged)


def _run(task: str, path: Path) -> PublishedRun:
    """One entry: epochs (from 1, or from 0), hours since the start and the task's metric after
    each; and its .json.
    """
    metric, threshold, scale = _TASKS[task]
    table = csv.DictReader(read_text(path).splitlines(), delimiter="\t")
    rows = [row for row in table if any(row.values())]
    epochs, hours, values = (
        [float(row[name]) for row in rows] for name in ("epoch", "hours", metric)
    )
    if not rows or not all(0 <= value < _MOST for value in (*epochs, *hours, *values)):
        raise ValueError("has no numbers")
    epochs = [value + (epochs[0] == 0) for value in epochs]
    beside = path.with_suffix(".json")
    about = dict(read_json(read_text(beside))) if beside.is_file() else {}
    device, model, author, framework = (
        str(about.get(name) or "(not said)")
        for name in ("hardware", "model", "author", "framework")
    )
    price = about.get("costPerHour")
    if isinstance(price, (int, float)) and 0 < price < math.inf:
        paid = price
    else:
        paid = None
    reached = next((place for place, value in enumerate(values) if value >= threshold), None)
    metrics = {"best_accuracy": max(values) / scale, "epochs": epochs[-1]}
    if reached is not None:
        metrics |= {"seconds_to_target": hours[reached] * 3600, "epochs_to_target": epochs[reached]}
        metrics["epochs_below_target"] = float(sum(value < threshold for value in values[reached:]))
    params = {
        "task": "learn",
        "model.name": model,
        "data.name": task,
        "learn.target": f"{threshold / scale:g}",
    }
    params |= {"framework.name": framework, "mode": "train", "seed": "0"}
    return PublishedRun(
        point_id=digest("dawnbench", task, path.stem),
        name=path.stem,
        params=params | ({"platform.price_per_hour": f"{float(paid):g}"} if paid else {}),
        tags={
            "environment_id": digest("dawnbench", device),
            "protocol_id": PUBLISHED,
            "replicate": "0",
            "device": device,
            "mlflow.note.content": f"DAWNBench, {task} training: {model} by {author}.",
            **({"price_currency": "USD"} if paid else {}),
        },
        metrics=metrics,
        outcome="timeout" if reached is None else "ok",
    )
