"""What a tracking store holds, for reading alone: nothing is made, claimed or closed in it.

Stores are read as analysis and resume read them, so planning from a SQL store needs no import of MLflow; folders of
offline results file by file.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paradnn.config.identity import Identity
from paradnn.config.point import Tracking
from paradnn.core.errors import DataError, NoStoreError, StoreError
from paradnn.store.address import locate
from paradnn.store.claims import RunIndex
from paradnn.store.journal import Journal, folder_of, read_record
from paradnn.store.metrics import PHASES
from paradnn.store.reader import Reader, Way, open_reader
from paradnn.store.runs import Finished, Query, Values

#: Tags that say whether a run is like a planned one.
_TAGS = ("environment_id", "device", "sweep_id", "outcome", "steady", "kind", "source")
_METRICS = (
    *(f"phase_{name}_seconds" for name in PHASES),
    *("step_time_ms", "step_time_low_ms", "step_time_high_ms", "warmup_blocks", "processes", "parameters"),
    *("flops_per_step", "bytes_per_step", "load_average", "peak_memory_bytes"),
)


@dataclass(frozen=True)
class Past:
    """A run that has ended: `start` in Unix seconds, params as they are stored, metrics, some of its tags."""

    run_id: str
    start: float
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]


@dataclass(frozen=True)
class History:
    """A store, with its address as it may be shown; this one is not there yet, and holds nothing. Methods raise
    StoreError when it does not answer."""

    where: str

    def finished(self, environment_ids: Collection[str], sweep_id: str | None = None) -> dict[Identity, list[Finished]]:
        """Every run with an outcome in these environments, as `Tracker.finished`."""
        return {}

    def claimed(self) -> set[Identity]:
        """The points that a living driver is measuring now."""
        return set()

    def past(self, devices: Collection[str], most: int) -> list[Past]:
        """The newest measured points on these devices, at most so many, in the order of their start."""
        return []

    def metrics(self, run_id: str) -> Mapping[str, float]:
        """The metrics of one run."""
        raise StoreError(f"{self.where}: no run {run_id}")


def open_history(settings: Tracking, way: Way = "auto") -> History:
    """The store that the configuration names; one that is not there yet holds nothing."""
    if settings.name == "offline":
        folder = folder_of(settings)
        return _Files(str(folder)) if folder.is_dir() else History(str(folder))
    address = locate(settings.uri)
    try:
        return _Store(address.public, open_reader(address, way, pooled=True), settings.experiment)
    except NoStoreError:
        return History(address.public)


@dataclass(frozen=True)
class _Store(History):
    reader: Reader
    experiment: str

    def finished(self, environment_ids: Collection[str], sweep_id: str | None = None) -> dict[Identity, list[Finished]]:
        return RunIndex(self.reader, self.experiment).finished(environment_ids, sweep_id)

    def claimed(self) -> set[Identity]:
        return RunIndex(self.reader, self.experiment).claimed()

    def past(self, devices: Collection[str], most: int) -> list[Past]:
        tags = {"kind": ("point",), "source": ("measured",), "device": tuple(devices)}
        columns: Mapping[Values, Collection[str]] = {"tags": _TAGS, "metrics": _METRICS}
        rows = self.reader.read(Query((self.experiment,), tags=tags, newest=most, columns=columns))
        runs = [Past(run.run_id, (run.start_ms or 0) / 1e3, params, found, tags) for run, params, tags, found in rows]
        return sorted(runs, key=lambda run: run.start)

    def metrics(self, run_id: str) -> Mapping[str, float]:
        query = Query((self.experiment,), run_id=run_id, columns={"params": (), "tags": ()})
        for row in self.reader.read(query):
            return row.metrics
        return super().metrics(run_id)


@dataclass(frozen=True)
class _Files(History):
    """A folder, each file of which is read once."""

    @cached_property
    def _journal(self) -> Journal:
        return Journal(Path(self.where))

    def finished(self, environment_ids: Collection[str], sweep_id: str | None = None) -> dict[Identity, list[Finished]]:
        return self._journal.finished(environment_ids, sweep_id)

    def claimed(self) -> set[Identity]:
        return self._journal.claimed()

    def past(self, devices: Collection[str], most: int) -> list[Past]:
        return [run for run in self._points if run.tags.get("device") in devices][-most:]

    @cached_property
    def _points(self) -> list[Past]:
        found = []
        for path in Path(self.where).glob("point-*.json"):
            with contextlib.suppress(DataError):
                document = read_record(path)
                record, sweep = document.record, document.sweep
                if record.tags.get("kind") == "point":
                    tags = {**record.tags, **({"sweep_id": sweep.tags["sweep_id"]} if sweep else {})}
                    metrics = {key: value for key, value in record.metrics.items() if math.isfinite(value)}
                    found.append(Past(path.stem, record.start_time / 1e3, record.params, metrics, tags))
        return sorted(found, key=lambda run: run.start)

    def metrics(self, run_id: str) -> Mapping[str, float]:
        return read_record(Path(self.where) / f"{run_id}.json").record.metrics
