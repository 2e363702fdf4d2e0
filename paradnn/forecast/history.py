"""What a tracking store holds, for reading alone: nothing is made, claimed or closed in it.

SQL stores are read directly, as the ledger reads them, so planning needs no import of MLflow; servers through MLflow's
client; folders of offline results file by file.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from paradnn.config.identity import Identity
from paradnn.config.point import Tracking
from paradnn.errors import DataError, StoreError
from paradnn.store.address import StoreAddress, locate, without_secrets
from paradnn.store.metrics import PHASES
from paradnn.tracking.base import Finished
from paradnn.tracking.offline import OfflineTracker, default_folder, read_document
from paradnn.tracking.run_index import Ledger

__all__ = ["History", "Past", "open_history"]

#: Tags that tell whether a run is like a planned one.
_TAGS = ("environment_id", "device", "sweep_id", "outcome", "steady", "kind", "source")
_METRICS = (
    *(f"phase_{name}_seconds" for name in PHASES),
    "step_time_ms",
    "warmup_blocks",
    "parameters",
    "flops_per_step",
    "bytes_per_step",
    "load_average",
)


@dataclass(frozen=True)
class Past:
    """A run that has ended: `start` in Unix seconds, params as they are stored, metrics, some of its tags."""

    run_id: str
    start: float
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]


class History(Protocol):
    """A store. Methods raise StoreError when it does not answer."""

    @property
    def where(self) -> str:
        """Its address, as it may be shown."""

    def finished(self, environment_ids: Collection[str]) -> dict[Identity, list[Finished]]:
        """Every run with an outcome in these environments, as `Tracker.finished`."""

    def past(self, devices: Collection[str], most: int) -> list[Past]:
        """The newest measured points on these devices, at most so many."""

    def metrics(self, run_id: str) -> Mapping[str, float]:
        """The metrics of one run."""


def open_history(settings: Tracking) -> History:
    """The store that the configuration names; one that is not there yet holds nothing."""
    if settings.name == "offline":
        folder = Path(settings.folder).expanduser().absolute() if settings.folder else default_folder()
        return _Files(folder) if folder.is_dir() else _Nothing(str(folder))
    address = locate(settings.uri)
    if address.is_sql:
        if address.folder and not Path(address.uri.removeprefix("sqlite:///")).exists():
            return _Nothing(address.public)
        return _Sql.open(address, settings.experiment) or _Nothing(address.public)
    return _Server.open(address, settings.experiment) or _Nothing(address.public)


@dataclass(frozen=True)
class _Nothing:
    where: str

    def finished(self, environment_ids: Collection[str]) -> dict[Identity, list[Finished]]:
        return {}

    def past(self, devices: Collection[str], most: int) -> list[Past]:
        return []

    def metrics(self, run_id: str) -> Mapping[str, float]:
        raise StoreError(f"{self.where}: no run {run_id}")


def _by_identity(ledger: Ledger, environment_ids: Iterable[str]) -> dict[Identity, list[Finished]]:
    found: dict[Identity, list[Finished]] = {}
    for environment_id in environment_ids:
        for entry in ledger.of_environment(environment_id):
            if entry.outcome:
                found.setdefault(entry.identity, []).append(Finished(entry.run_id, entry.tags))
    return found


@contextlib.contextmanager
def _answering(where: str, *errors: type[BaseException]) -> Iterator[None]:
    """What the store's library raises becomes a StoreError of one line."""
    expected: tuple[type[BaseException], ...] = (OSError, *errors)
    try:
        yield
    except expected as error:
        cause = error.__cause__ or error
        line = without_secrets(" ".join(str(cause).split()))[:300]
        raise StoreError(f"tracking.uri={where}: {line}; check the address") from error


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


@dataclass(frozen=True)
class _Sql:
    where: str
    engine: Any
    experiment: int
    ledger: Ledger

    @classmethod
    def open(cls, address: StoreAddress, experiment: str) -> _Sql | None:
        """The experiment in a database; None where the database has no such experiment, or no tables at all."""
        import sqlalchemy
        from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

        with _answering(address.public, SQLAlchemyError, NoSuchModuleError, ImportError):
            engine = sqlalchemy.create_engine(address.uri)
            if not sqlalchemy.inspect(engine).has_table("experiments"):
                return None
            query = sqlalchemy.text("SELECT experiment_id FROM experiments WHERE name = :name")
            with engine.connect() as connection:
                row = connection.execute(query, {"name": experiment}).fetchone()
        return cls(address.public, engine, int(row[0]), Ledger(address, None, str(row[0]))) if row else None

    def finished(self, environment_ids: Collection[str]) -> dict[Identity, list[Finished]]:
        with self._answers():
            return _by_identity(self.ledger, environment_ids)

    def past(self, devices: Collection[str], most: int) -> list[Past]:
        starts: dict[str, float] = {}
        for device in devices:
            points = "SELECT run_uuid FROM tags WHERE key = 'kind' AND value = 'point'"
            rows = self._rows(
                "SELECT r.run_uuid, r.start_time FROM runs r JOIN tags t ON t.run_uuid = r.run_uuid "
                "WHERE r.experiment_id = :experiment AND r.lifecycle_stage = 'active' AND t.key = 'device' "
                f"AND t.value = :device AND r.run_uuid IN ({points})",
                device=device,
            )
            starts |= {run_id: start / 1e3 for run_id, start in rows}
        chosen = sorted(starts, key=lambda run_id: starts[run_id])[-most:]
        if not chosen:
            return []
        since = int(starts[chosen[0]] * 1e3)
        tags = self._values("tags", since, f"AND x.key IN ({_listed(_TAGS)})")
        params = self._values("params", since)
        metrics = self._values("latest_metrics", since, f"AND NOT x.is_nan AND x.key IN ({_listed(_METRICS)})")
        return [
            Past(run_id, starts[run_id], params.get(run_id, {}), metrics.get(run_id, {}), tags[run_id])
            for run_id in chosen
            if tags.get(run_id, {}).get("source") == "measured" and "outcome" in tags[run_id]
        ]

    def metrics(self, run_id: str) -> Mapping[str, float]:
        return dict(self._rows("SELECT key, value FROM latest_metrics WHERE run_uuid = :run_id", run_id=run_id))

    def _values(self, table: str, since: int, condition: str = "") -> dict[str, dict[str, Any]]:
        """Keys and values of every run that began since then (Unix milliseconds)."""
        found: dict[str, dict[str, Any]] = {}
        query = (
            f"SELECT x.run_uuid, x.key, x.value FROM {table} x JOIN runs r ON r.run_uuid = x.run_uuid "
            f"WHERE r.experiment_id = :experiment AND r.start_time >= :since {condition}"
        )
        for run_id, key, value in self._rows(query, since=since):
            found.setdefault(run_id, {})[key] = value
        return found

    def _rows(self, query: str, **values: Any) -> list[Any]:
        from sqlalchemy import text

        with self._answers(), self.engine.connect() as connection:
            given = {"experiment": self.experiment, **values}
            return list(connection.execute(text(query), {key: given[key] for key in given if f":{key}" in query}))

    def _answers(self) -> contextlib.AbstractContextManager[None]:
        from sqlalchemy.exc import SQLAlchemyError

        return _answering(self.where, SQLAlchemyError)


@dataclass(frozen=True)
class _Server:
    where: str
    client: Any
    experiment: str
    ledger: Ledger

    @classmethod
    def open(cls, address: StoreAddress, experiment: str) -> _Server | None:
        """The experiment on a server; None where it has no such experiment."""
        # By default a request to a server that is gone is repeated for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        from mlflow import MlflowClient

        with _server_answers(address.public):
            client = MlflowClient(address.uri)
            found = client.get_experiment_by_name(experiment)
        if found is None:
            return None
        number = str(found.experiment_id)
        return cls(address.public, client, number, Ledger(address, lambda: client, number))

    def finished(self, environment_ids: Collection[str]) -> dict[Identity, list[Finished]]:
        with _server_answers(self.where):
            return _by_identity(self.ledger, environment_ids)

    def past(self, devices: Collection[str], most: int) -> list[Past]:
        found: dict[str, Past] = {}
        for device in devices:
            condition = f"tags.kind = 'point' AND tags.source = 'measured' AND tags.device = '{device}'"
            token, left = None, most
            while left > 0:
                with _server_answers(self.where):
                    page = self.client.search_runs(
                        [self.experiment],
                        condition,
                        max_results=min(1000, left),
                        page_token=token,
                        order_by=["attributes.start_time DESC"],
                    )
                left -= len(page)
                found |= {run.info.run_id: _of_run(run) for run in page if "outcome" in run.data.tags}
                token = page.token
                if not token:
                    break
        return sorted(found.values(), key=lambda run: run.start)[-most:]

    def metrics(self, run_id: str) -> Mapping[str, float]:
        with _server_answers(self.where):
            return dict(self.client.get_run(run_id).data.metrics)


def _server_answers(where: str) -> contextlib.AbstractContextManager[None]:
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException

    return _answering(where, MlflowException, RequestException)


def _of_run(run: Any) -> Past:
    tags = {key: run.data.tags[key] for key in _TAGS if key in run.data.tags}
    return Past(run.info.run_id, run.info.start_time / 1e3, dict(run.data.params), dict(run.data.metrics), tags)


@dataclass(frozen=True)
class _Files:
    folder: Path

    @property
    def where(self) -> str:
        return str(self.folder)

    def finished(self, environment_ids: Collection[str]) -> dict[Identity, list[Finished]]:
        return OfflineTracker(self.folder).finished(environment_ids)

    def past(self, devices: Collection[str], most: int) -> list[Past]:
        found = []
        for path in self.folder.glob("point-*.json"):
            with contextlib.suppress(DataError):
                document = read_document(path)
                record, sweep = document["record"], document.get("sweep") or {}
                tags = {key: record["tags"][key] for key in _TAGS if key in record["tags"]}
                tags |= {key: value for key, value in sweep.get("tags", {}).items() if key == "sweep_id"}
                if tags.get("kind") == "point" and tags.get("device") in devices:
                    metrics = {key: value for key, value in record["metrics"].items() if math.isfinite(value)}
                    found.append(Past(path.stem, record["start_time"] / 1e3, record["params"], metrics, tags))
        return sorted(found, key=lambda run: run.start)[-most:]

    def metrics(self, run_id: str) -> Mapping[str, float]:
        metrics: Mapping[str, float] = read_document(self.folder / f"{run_id}.json")["record"]["metrics"]
        return metrics
