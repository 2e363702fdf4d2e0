"""Logging DAWNBench's training entries as runs that learn.

    python -m analysis import-dawnbench DIR
    python -m analysis time-to-accuracy --experiment dawnbench

DIR is a clone of github.com/stanford-futuredata/dawn-bench-entries. Each series (a .tsv beside a .json) becomes one run
with its whole curve; the time to the threshold is that of the first entry which reaches it, as its README says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.published import runs
from analysis.published.files import DAMAGED, read_json, read_table, read_text, reason
from analysis.published.runs import Moment, Publication, PublishedRun, digest, log_publications
from paradnn.errors import DataError
from paradnn.store.runs import PUBLISHED

__all__ = ["EXPERIMENT", "TASKS", "Imported", "Series", "import_dawnbench", "read_series"]

#: Where the runs go: apart from one's own, which share neither models nor data with them.
EXPERIMENT = "dawnbench"
#: What entries say that an hour costs (`costPerHour`) is in this currency.
_CURRENCY = "USD"
_MOST = 1e9  # no epochs and no hours are as many
#: The metric of each task as its column is called, the threshold in it, and what of it is 1.
TASKS = {"CIFAR10": ("top1Accuracy", 94.0, 100.0), "ImageNet": ("top5Accuracy", 93.0, 100.0)}
TASKS["SQuAD"] = ("f1Score", 0.75, 1.0)
_ABOUT = (
    "DAWNBench's training entries for {} (github.com/stanford-futuredata/dawn-bench-entries), with their curves; see "
    "docs/learning.md."
)


@dataclass(frozen=True)
class Series:
    """One entry: epochs, hours since the start and the task's metric after each of them; `about` is its .json."""

    task: str
    name: str
    epochs: Sequence[float]
    hours: Sequence[float]
    metric: Sequence[float]
    about: dict[str, Any]

    @property
    def reached(self) -> int | None:
        """The place of the first entry at the task's threshold or above it."""
        threshold = TASKS[self.task][1]
        return next((place for place, value in enumerate(self.metric) if value >= threshold), None)

    @property
    def below(self) -> int:
        """How many entries after that are below the threshold."""
        reached = self.reached
        return 0 if reached is None else sum(value < TASKS[self.task][1] for value in self.metric[reached:])

    @property
    def price(self) -> float | None:
        """What an hour costs, where the entry says so."""
        price = self.about.get("costPerHour")
        return float(price) if isinstance(price, (int, float)) and 0 < price < math.inf else None

    def metrics(self) -> dict[str, float]:
        """What `task=learn` would have recorded."""
        scale, reached = TASKS[self.task][2], self.reached
        found = {"best_accuracy": max(self.metric) / scale, "epochs": self.epochs[-1]}
        if reached is not None:
            found |= {"seconds_to_target": self.hours[reached] * 3600, "epochs_to_target": self.epochs[reached]}
            found["epochs_below_target"] = float(self.below)
        return found


@dataclass(frozen=True)
class Imported:
    """All series, and what became of them."""

    series: tuple[Series, ...]
    runs: runs.Imported


def read_series(folder: Path) -> tuple[list[Series], list[str]]:
    """The series of all tasks, and the files that hold none, with the reason. DataError for a folder of another kind.

    An entry that counts its epochs from 0 has one more of them at each line.
    """
    found: list[Series] = []
    damaged: list[str] = []
    for task in TASKS:
        for path in sorted((folder / task / "train").glob("*.tsv")):
            try:
                found.append(_series(task, path))
            except DAMAGED as error:
                damaged.append(f"{path.name}: {reason(error)}")
    if not found:
        raise DataError(
            f"{folder}: holds no series of DAWNBench; give a clone of stanford-futuredata/dawn-bench-entries"
        )
    return found, damaged


def _series(task: str, path: Path) -> Series:
    rows = [row for row in read_table(read_text(path), "\t") if any(row.values())]
    columns = {name: [float(row[name]) for row in rows] for name in ("epoch", "hours", TASKS[task][0])}
    if not rows or not all(0 <= value < _MOST for values in columns.values() for value in values):
        raise ValueError("has no numbers")
    epochs = [value + (columns["epoch"][0] == 0) for value in columns["epoch"]]
    about = path.with_suffix(".json")
    content = dict(read_json(about)) if about.is_file() else {}
    return Series(task, path.stem, epochs, columns["hours"], columns[TASKS[task][0]], content)


def import_dawnbench(
    folder: Path,
    tracking_uri: str | None = None,
    experiment: str = EXPERIMENT,
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Log the series that the store does not hold yet, one run each."""
    series, damaged = read_series(folder)
    publications = [
        Publication(f"published, DAWNBench {task}", _ABOUT.format(task), _milliseconds(""), [*map(_run, entries)])
        for task in TASKS
        if (entries := [entry for entry in series if entry.task == task])
    ]
    return Imported(tuple(series), log_publications(publications, tracking_uri, experiment, damaged, progress))


def _run(entry: Series) -> PublishedRun:
    _, threshold, scale = TASKS[entry.task]
    device, model, author, framework = (
        str(entry.about.get(name) or "(not said)") for name in ("hardware", "model", "author", "framework")
    )
    params = {"task": "learn", "model.name": model, "data.name": entry.task, "learn.target": f"{threshold / scale:g}"}
    params |= {"framework.name": framework, "mode": "train", "seed": "0"}
    paid = {} if entry.price is None else {"platform.price_per_hour": f"{entry.price:g}"}
    curve = [
        Moment(step, 3600 * hours, {"heldout_accuracy": accuracy / scale, "learning_seconds": 3600 * hours})
        for step, (hours, accuracy) in enumerate(zip(entry.hours, entry.metric, strict=True), 1)
    ]
    return PublishedRun(
        point_id=digest("dawnbench", entry.task, entry.name),
        name=entry.name,
        params=params | paid,
        tags={
            "environment_id": digest("dawnbench", device),
            "protocol_id": PUBLISHED,
            "replicate": "0",
            "device": device,
            "mlflow.note.content": f"DAWNBench, {entry.task} training: {model} by {author}.",
            **({"price_currency": _CURRENCY} if paid else {}),
        },
        metrics=entry.metrics(),
        outcome="timeout" if entry.reached is None else "ok",
        curve=curve,
        start_ms=_milliseconds(str(entry.about.get("timestamp", ""))),
    )


def _milliseconds(day: str) -> int:
    """Unix milliseconds of a day as entries write it; the first day of DAWNBench where they do not."""
    try:
        return round(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return _milliseconds("2017-08-14")
