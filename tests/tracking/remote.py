"""A real `mlflow server` behind the proxy that counts, and drivers of it in this process."""

import json
import os
import sqlite3
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from paradnn.config.identity import Identity
from paradnn.config.point import Tracking
from paradnn.store.mlflow_store import MlflowStore
from paradnn.store.runs import Claimed
from tests.cluster.postgres import server
from tests.cluster.recorder import ENVIRONMENT, tags_of
from tests.tracking.counting import Counted, counting

__all__ = ["Remote", "begin", "serving"]


@dataclass(frozen=True)
class Remote:
    """A server on SQLite; what it holds is read from its database."""

    folder: Path
    counted: Counted

    def driver(self, experiment: str, name: str | None = None) -> MlflowStore:
        """The tracker of a driver that has read the store; named, one other than this process' own."""
        opened = MlflowStore(Tracking(uri=self.counted.uri, experiment=experiment))
        if name:  # the process that runs the tests is there as long as they are
            other = psutil.Process(os.getppid())
            opened._owner = json.dumps({**json.loads(opened._owner), "pid": other.pid, "started": other.create_time()})
        opened.finished([ENVIRONMENT])
        self.counted.asked.clear()
        return opened

    def rows(self, sql: str, *values: str) -> list[tuple]:
        with sqlite3.connect(self.folder / "mlflow.db", timeout=60) as database:
            return database.execute(sql, values).fetchall()

    def file(self, run_id: str, name: str) -> bytes:
        [[place]] = self.rows("SELECT artifact_uri FROM runs WHERE run_uuid = ?", run_id)
        path = place.removeprefix("mlflow-artifacts:/")
        address = f"{self.counted.uri}/api/2.0/mlflow-artifacts/artifacts/{path}/{name}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            return bytes(answer.read())

    def runs(self, experiment: str) -> int:
        """How many runs of an experiment are not deleted."""
        [[count]] = self.rows(
            "SELECT count(*) FROM runs JOIN experiments USING (experiment_id) "
            "WHERE experiments.name = ? AND runs.lifecycle_stage = 'active'",
            experiment,
        )
        return int(count)

    def asked(self) -> list[str]:
        """What was asked for since last."""
        found = [each for each in self.counted.asked if each != "get"]
        self.counted.asked.clear()
        return found


@contextmanager
def serving(folder: Path) -> Iterator[Remote]:
    with server(f"sqlite:///{folder / 'mlflow.db'}", folder) as one, counting(one.port) as counted:
        yield Remote(folder, counted)


def begin(tracker: MlflowStore, number: int) -> Claimed:
    """Claim a point that any outcome is accepted for."""
    identity = Identity(str(number), ENVIRONMENT, 0)
    return tracker.begin(identity, f"point {number}", tags_of(identity), 60.0, lambda tags: True)
