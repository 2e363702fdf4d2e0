"""What the store already holds of given points: finished runs, and runs that somebody is measuring now.

Resume and claims ask this for thousands of points, so SQL stores are read directly (one query, milliseconds); other
stores through `search_runs`.
"""

from __future__ import annotations

import json
import math
import os
import platform
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from paradnn.config.identity import Identity
from paradnn.errors import StoreError
from paradnn.store.address import StoreAddress

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["Entry", "Ledger", "enter_task", "find_experiment", "owner_tag"]

_KEYS = (
    "point_id",
    "environment_id",
    "replicate",
    "outcome",
    "limits_id",
    "extras",
    "owner",
    "claim_expires",
    "kind",
    "reason",
    "offline_id",
    "sweep_id",
)


#: Of which launched task this process is an attempt, if of any: its name, and what orders attempts (restarts, begun).
_attempt: dict[str, Any] = {}


@dataclass(frozen=True)
class Entry:
    """One run as the ledger sees it."""

    run_id: str
    status: str
    tags: Mapping[str, str]

    @property
    def identity(self) -> Identity:
        """Of which measurement it is."""
        return Identity(
            self.tags.get("point_id", ""), self.tags.get("environment_id", ""), int(self.tags.get("replicate", 0))
        )

    @property
    def outcome(self) -> str | None:
        """The outcome, once it is recorded."""
        return self.tags.get("outcome")

    def is_abandoned(self) -> bool:
        """Whether nobody will finish this RUNNING run.

        Its driver is gone from this host; or it was an earlier attempt of the task that this process is; or its claim
        ran out.
        """
        if self.status != "RUNNING" or "owner" not in self.tags:
            return False
        owner = json.loads(self.tags["owner"])
        if _is_earlier(owner):
            return True
        if owner["boot"] == _boot():
            return not _is_alive(owner["pid"], owner["started"])
        # Another host, or this one before it was started again: only time can tell.
        same_host = owner["host"] == socket.gethostname() and owner["boot"].split("/")[1:] == _boot().split("/")[1:]
        return same_host or time.time() > float(self.tags.get("claim_expires", "inf"))

    def is_claim_of(self, owner: str) -> bool:
        """Whether it is a point that the process with this owner tag holds, without an outcome yet."""
        return (
            self.status == "RUNNING"
            and not self.outcome
            and self.tags.get("kind") != "sweep"
            and self.tags.get("owner") == owner
        )


def enter_task(task: str | None, restarts: int = 0) -> None:
    """From now on this process is an attempt of the launched task with that name; None: of none.

    A scheduler runs one attempt of a task at a time, on whichever host: what an earlier one held, it holds no more.
    """
    _attempt.clear()
    if task is not None:
        _attempt.update(task=task, restarts=restarts, begun=time.time())


def owner_tag() -> str:
    """Who holds a run: this process, told apart from a later one with the same number."""
    process = psutil.Process()
    who = {"host": socket.gethostname(), "boot": _boot(), "pid": process.pid, "started": process.create_time()}
    return json.dumps(who | _attempt)


def find_experiment(address: StoreAddress, name: str) -> tuple[str, str, str] | None:
    """Id, life cycle stage and artifact location, read from a SQL store; None where it is not there or not made yet."""
    from sqlalchemy import inspect, text

    if address.database and not address.database.exists():
        return None
    engine = _engine(address)
    if not inspect(engine).has_table("experiments"):
        return None
    query = text("SELECT experiment_id, lifecycle_stage, artifact_location FROM experiments WHERE name = :name")
    with engine.connect() as connection:
        row = connection.execute(query, {"name": name}).fetchone()
    return (str(row[0]), row[1], row[2]) if row else None


def _engine(address: StoreAddress) -> Any:
    import sqlalchemy

    # A writer holds a SQLite database for a moment: wait for it rather than fail.
    waiting = {"timeout": 60} if address.uri.startswith("sqlite") else {}
    try:
        return sqlalchemy.create_engine(address.uri, connect_args=waiting)
    except ImportError as error:
        raise StoreError(f"{address.public}: {error}; install it with pip install 'paradnn[postgres]'") from error


class Ledger:
    """Reads identities and claims from the store, the newest run first; `client` is called where SQL does not serve."""

    def __init__(self, address: StoreAddress, client: Callable[[], MlflowClient] | None, experiment_id: str) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self._engine: Any = _engine(address) if address.is_sql else None

    def fetch(self, run_id: str) -> tuple[dict[str, float], dict[str, str]]:
        """Metrics and tags of one run."""
        if self._engine is None:
            assert self._client is not None
            run = self._client().get_run(run_id)
            return dict(run.data.metrics), dict(run.data.tags)
        from sqlalchemy import text

        metrics = text("SELECT key, value, is_nan FROM latest_metrics WHERE run_uuid = :run")
        tags = text("SELECT key, value FROM tags WHERE run_uuid = :run")
        with self._engine.connect() as connection:
            values = connection.execute(metrics, {"run": run_id}).fetchall()
            labels = connection.execute(tags, {"run": run_id}).fetchall()
        return {key: math.nan if is_nan else value for key, value, is_nan in values}, dict(map(tuple, labels))

    def of_environment(self, environment_id: str) -> list[Entry]:
        """Every point of one environment: finished, running or abandoned."""
        return self.with_tag("environment_id", environment_id)

    def of_point(self, identity: Identity) -> list[Entry]:
        """The runs of one measurement."""
        return [entry for entry in self.with_tag("point_id", identity.point_id) if entry.identity == identity]

    def running(self) -> list[Entry]:
        """Runs of any kind that are still RUNNING."""
        if self._engine is not None:
            return self._select("r.status = 'RUNNING'", {})
        return self._search("attributes.status = 'RUNNING'")

    def with_tag(self, key: str, value: str) -> list[Entry]:
        """Runs that bear the tag `key` with `value`."""
        if self._engine is not None:
            condition = "r.run_uuid IN (SELECT run_uuid FROM tags WHERE key = :key AND value = :value)"
            return self._select(condition, {"key": key, "value": value})
        return self._search(f"tags.{key} = '{value}'")

    def _select(self, condition: str, values: Mapping[str, str]) -> list[Entry]:
        from sqlalchemy import text

        names = ", ".join(f"'{key}'" for key in _KEYS)
        query = text(
            "SELECT r.run_uuid, r.status, t.key, t.value FROM runs r JOIN tags t ON t.run_uuid = r.run_uuid "
            "WHERE r.experiment_id = :experiment AND r.lifecycle_stage = 'active' "
            f"AND t.key IN ({names}) AND {condition} ORDER BY r.start_time DESC"
        )
        found: dict[str, tuple[str, dict[str, str]]] = {}
        with self._engine.connect() as connection:
            for run_id, status, key, value in connection.execute(
                query, {**values, "experiment": int(self._experiment_id)}
            ):
                found.setdefault(run_id, (status, {}))[1][key] = value
        return [Entry(run_id, status, tags) for run_id, (status, tags) in found.items()]

    def _search(self, condition: str) -> list[Entry]:
        found = []
        for run in self.pages(condition):
            tags = {key: run.data.tags[key] for key in _KEYS if key in run.data.tags}
            found.append(Entry(run.info.run_id, run.info.status, tags))
        return found

    def pages(self, condition: str) -> Iterable[Any]:
        """MLflow's own runs that meet a condition, each once: all that a store tells, and slowly."""
        assert self._client is not None
        token, seen = None, set()
        while True:
            page = self._client().search_runs(
                [self._experiment_id],
                condition,
                max_results=1000,
                page_token=token,
                order_by=["attributes.start_time DESC"],
            )
            for run in page:
                if run.info.run_id not in seen:  # pages are offsets: a new run shifts them
                    seen.add(run.info.run_id)
                    yield run
            token = page.token
            if not token:
                return


def _is_earlier(owner: Mapping[str, Any]) -> bool:
    """Whether the owner of a run is an earlier attempt of this process' task; hosts' clocks only break ties."""
    if not _attempt or owner.get("task") != _attempt["task"]:
        return False
    return (owner["restarts"], owner["begun"]) < (_attempt["restarts"], _attempt["begun"])


def _boot() -> str:
    """Which running system and process namespace this is, so that process numbers can be compared."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as handle:
            boot = handle.read().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{platform.node()}/{psutil.boot_time():.0f}"


def _is_alive(pid: int, started: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - started) < 1.0
    except psutil.Error:
        return False
