"""Read-only access to the runs of a tracking store, without importing MLflow."""

import functools
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paradnn.config.identity import Identity
from paradnn.config.settings import Tracking
from paradnn.core.errors import DataError, NoStoreError
from paradnn.store.address import locate
from paradnn.store.claims import RunIndex
from paradnn.store.journal import Journal, folder_of, read_record
from paradnn.store.metrics import PHASES
from paradnn.store.reader import Reader, ReadMethod, open_reader
from paradnn.store.runs import Finished, Query, Values

#: Tags that decide whether a run is comparable to a planned point.
_TAGS = ("environment_id", "device", "sweep_id", "outcome", "steady", "kind", "source")
_METRICS = (
    *(f"phase_{name}_seconds" for name in PHASES),
    "step_time_ms",
    "step_time_low_ms",
    "step_time_high_ms",
    "warmup_blocks",
    "processes",
    "parameters",
    "flops_per_step",
    "bytes_per_step",
    "load_average",
    "peak_memory_bytes",
)


@dataclass(frozen=True)
class CompletedRun:
    """A recorded measurement of one configuration, read from a tracking store.

    Attributes:
        run_id: The MLflow id of the run.
        start: Start of the run in Unix seconds.
        params: All params of the run by key, as stored.
        metrics: The metrics of the run that predictions use, by name.
        tags: The tags of the run that predictions use, by key.
    """

    run_id: str
    start: float
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]


@dataclass(frozen=True)
class History:
    """Read access to the runs of a tracking store. A store that does not exist yet has no runs.

    Methods raise StoreError if the store cannot be read.

    Attributes:
        where: Address of the store, without credentials.
        index: Index of the store's runs; None if the store does not exist.
        points: Function that reads the newest measured points. Its arguments are the names of
            devices and the maximum number of points.
    """

    where: str
    index: Journal | RunIndex | None = None
    points: Callable[[Collection[str], int], list[CompletedRun]] = lambda devices, most: []

    def finished(
        self, environment_ids: Collection[str], sweep_id: str | None = None
    ) -> dict[Identity, list[Finished]]:
        """Return the completed runs, grouped by the identity of their measurement.

        Runs with the same identity measured the same configuration in the same environment.

        Args:
            environment_ids: Ids of the environments (hardware and software) whose runs are
                returned.
            sweep_id: Id of a sweep whose runs are also returned, whatever their environment; None
                for no such sweep.
        """
        if self.index:
            return self.index.finished(environment_ids, sweep_id)
        return {}

    def finished_anywhere(self, identity: Identity) -> list[Finished]:
        """Return the completed runs of one measurement, from all experiments of the store.

        Args:
            identity: The configuration, the environment, and the number of the replicate.
        """
        return self.index.finished_anywhere(identity) if self.index else []

    def claimed(self) -> set[Identity]:
        """Return the identities of the measurements that running sweeps have reserved."""
        return self.index.claimed() if self.index else set()

    def past(self, devices: Collection[str], most: int) -> list[CompletedRun]:
        """Return the newest measurements on some devices, in ascending order of their starts.

        Args:
            devices: Names of the devices, as recorded in the runs.
            most: Maximum number of measurements to return.
        """
        return sorted(self.points(devices, most), key=lambda run: run.start)[-most:]

    def metrics(self, run_id: str) -> Mapping[str, float]:
        """Return the metrics of a run by name.

        Args:
            run_id: The MLflow id of the run, which must be in the store.
        """
        assert self.index
        return self.index.fetch(run_id)[0]


def open_history(settings: Tracking, way: ReadMethod = "auto") -> History:
    """Return read access to the runs of the configured store.

    If the store does not exist yet, the result has no runs.

    Args:
        settings: The tracking options, with the address of the store or the folder of an offline
            store.
        way: How the store is read: "sql" from its tables, "api" by MLflow's search, "auto" from its
            tables if possible. An offline store ignores it.
    """
    if settings.name == "offline":
        folder = folder_of(settings)
        if folder.is_dir():
            return History(str(folder), Journal(folder), partial(_in_files, folder))
        return History(str(folder))
    address = locate(settings.uri, write=False)
    try:
        reader = open_reader(address, way, pooled=True)
    except NoStoreError:
        return History(address.public)
    name = settings.experiment_name
    return History(address.public, RunIndex(reader, name), partial(_in_store, reader, name))


def _in_store(
    reader: Reader, experiment: str, devices: Collection[str], most: int
) -> list[CompletedRun]:
    tags = {"kind": ("point",), "source": ("measured",), "device": tuple(devices)}
    columns: Mapping[Values, Collection[str]] = {"tags": _TAGS, "metrics": _METRICS}
    rows = reader.read(Query((experiment,), tags=tags, newest=most, columns=columns))
    return [
        CompletedRun(run.run_id, (run.start_ms or 0) / 1e3, params, found, tags)
        for run, params, tags, found in rows
    ]


def _in_files(folder: Path, devices: Collection[str], most: int) -> list[CompletedRun]:
    runs = map(_in_file, folder.glob("point-*.json"))
    return [run for run in runs if run and run.tags.get("device") in devices]


@functools.cache
def _in_file(path: Path) -> CompletedRun | None:
    """Read the run in a file of an offline store; None if it is unreadable or no measurement.

    The result is cached, because files never change.
    """
    try:
        document = read_record(path)
    except DataError:
        return None
    record = document.record
    sweep = document.sweep
    tags = {**record.tags, **({"sweep_id": sweep.tags["sweep_id"]} if sweep else {})}
    metrics = {key: value for key, value in record.metrics.items() if math.isfinite(value)}
    if tags.get("kind") == "point":
        return CompletedRun(path.stem, record.start_time / 1e3, record.params, metrics, tags)
    return None
