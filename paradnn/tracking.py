"""The only writer of MLflow: one run for each point, one parent run for each sweep.

A run is made RUNNING when its point begins, which is also the claim that keeps other drivers off it. Artifacts go
first, then one `log_batch` with params, metrics and tags, the outcome among them: a run without an outcome was not
finished, whatever its status says.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paradnn import store
from paradnn.config import Tracking
from paradnn.errors import StoreError
from paradnn.identity import Identity
from paradnn.ledger import Entry, Ledger, owner_tag
from paradnn.outcome import OUTCOMES
from paradnn.record import SCHEMA_VERSION, Record

__all__ = ["Busy", "Finished", "MlflowTracker", "Ticket"]

#: How much longer than its time limit a claim of another host is believed.
_CLAIM_MARGIN = 600.0
_PARENT = "mlflow.parentRunId"
_NOTE = "mlflow.note.content"


@dataclass(frozen=True)
class Ticket:
    """The right to measure a point: its run, already in the store."""

    run_id: str
    start_time: int


@dataclass(frozen=True)
class Finished:
    """The store holds an outcome of this point already."""

    run_id: str
    outcome: str


@dataclass(frozen=True)
class Busy:
    """Another driver is measuring this point."""

    run_id: str


class MlflowTracker:
    """Records into an MLflow tracking store."""

    def __init__(self, settings: Tracking) -> None:
        self.address = store.locate(settings.uri)
        self._experiment = settings.experiment
        self._parent: str | None = None
        self._project_run = os.environ.get("MLFLOW_RUN_ID")
        self._open()

    @property
    def where(self) -> str:
        """The store's address as it may be shown."""
        return self.address.public

    def finished(
        self, environment_ids: Iterable[str], counts: Callable[[Mapping[str, str]], bool]
    ) -> dict[Identity, Finished]:
        """Measurements of these environments that have an outcome which `counts` (given its tags)."""
        found = {}
        for environment_id in environment_ids:
            for entry in self._ledger.of_environment(environment_id):
                if entry.outcome and counts(entry.tags):
                    found[entry.identity] = Finished(entry.run_id, entry.outcome)
        return found

    def metrics(self, run_id: str) -> tuple[dict[str, float], dict[str, str]]:
        """Metrics and tags of one run."""
        run = self._client.get_run(run_id)
        return dict(run.data.metrics), dict(run.data.tags)

    def open_sweep(self, name: str, description: str, tags: Mapping[str, str]) -> str:
        """Start the parent run of a multirun; the runs that follow are its children."""
        links = {_PARENT: self._project_run} if self._project_run else {}
        run = self._client.create_run(
            self._experiment_id,
            run_name=name,
            tags={
                "kind": "sweep",
                "schema_version": SCHEMA_VERSION,
                "owner": owner_tag(),
                _NOTE: description,
                **links,
                **tags,
            },
        )
        self._parent = run.info.run_id
        return self._parent

    def join_sweep(self, run_id: str | None) -> None:
        """Let the runs that follow be children of a parent that another process opened."""
        self._parent = run_id

    def close_sweep(
        self, status: str, description: str, metrics: Mapping[str, float], table: Mapping[str, Any]
    ) -> None:
        """End the parent run; `status` is an MLflow run status, `table` is kept as sweep.json."""
        if self._parent is None:
            return
        from mlflow.entities import Metric

        self._put_artifacts(self._parent, {"sweep.json": table})
        now = _now()
        self._client.log_batch(self._parent, metrics=[Metric(key, value, now, 0) for key, value in metrics.items()])
        self._client.set_tag(self._parent, _NOTE, description)
        self._client.set_terminated(self._parent, status)
        self._parent = None

    def begin(
        self,
        identity: Identity,
        name: str,
        tags: Mapping[str, str],
        timeout: float,
        counts: Callable[[Mapping[str, str]], bool] | None,
    ) -> Ticket | Finished | Busy:
        """Claim a point and make its run. `counts` says which outcomes make measuring unnecessary; None: none does.

        Two drivers that claim at once both see the other's run afterwards, and both withdraw and come back later: a
        claim holds only when, after it was written, nobody else's stood beside it.
        """
        if counts is not None and (other := self._other(identity, counts)):
            return other
        start = _now()
        run = self._client.create_run(
            self._experiment_id,
            start_time=start,
            run_name=name,
            tags={
                **tags,
                "owner": owner_tag(),
                "claim_expires": f"{time.time() + timeout + _CLAIM_MARGIN:.0f}",
                **({_PARENT: self._parent} if self._parent else {}),
            },
        )
        if counts is not None and (other := self._other(identity, counts, besides=run.info.run_id)):
            self._client.delete_run(run.info.run_id)
            return other
        return Ticket(run.info.run_id, start)

    def record(self, ticket: Ticket, record: Record, late: Callable[[], Mapping[str, float]]) -> str:
        """Write a finished point into its run; `late` gives metrics known only now. The run's id."""
        from mlflow.entities import Metric, Param, RunTag

        self._put_artifacts(ticket.run_id, record.artifacts)
        now = _now()
        metrics = {**record.metrics, **late()}
        tags = {**record.tags, _NOTE: record.description}
        self._client.log_batch(
            ticket.run_id,
            metrics=[Metric(key, float(value), now, 0) for key, value in metrics.items()],
            params=[Param(key, value) for key, value in record.params.items()],
            tags=[RunTag(key, value) for key, value in tags.items()],
        )
        self._client.set_terminated(ticket.run_id, "FINISHED" if record.outcome == "ok" else "FAILED", record.end_time)
        return ticket.run_id

    def abandon(self, ticket: Ticket, reason: str) -> None:
        """Close the run of a point that was not measured to its end, without an outcome."""
        self._client.set_tag(ticket.run_id, "reason", reason)
        self._client.set_terminated(ticket.run_id, "KILLED")

    def close_abandoned(self) -> int:
        """Close runs that dead drivers left RUNNING; how many there were."""
        count = 0
        for entry in self._ledger.running():
            count += self._close_if_abandoned(entry)
        return count

    def _other(
        self, identity: Identity, counts: Callable[[Mapping[str, str]], bool], besides: str = ""
    ) -> Finished | Busy | None:
        for entry in self._ledger.of_point(identity):
            if entry.run_id == besides or self._close_if_abandoned(entry):
                continue
            if entry.outcome:
                if counts(entry.tags):
                    return Finished(entry.run_id, entry.outcome)
            elif entry.status == "RUNNING":
                return Busy(entry.run_id)
        return None

    def _close_if_abandoned(self, entry: Entry) -> bool:
        if not entry.is_abandoned():
            return False
        if entry.outcome in OUTCOMES:  # it was recorded whole, only its end was not
            self._client.set_terminated(entry.run_id, "FINISHED" if entry.outcome == "ok" else "FAILED")
            return False
        self._client.set_tag(entry.run_id, "reason", "its driver was killed")
        self._client.set_terminated(entry.run_id, "KILLED")
        return True

    def _put_artifacts(self, run_id: str, artifacts: Mapping[str, Any]) -> None:
        """Store files under the run, all in one upload."""
        if not artifacts:
            return
        with tempfile.TemporaryDirectory(prefix="paradnn-") as folder:
            for name, content in artifacts.items():
                text = content if isinstance(content, str) else json.dumps(content, indent=1)
                (Path(folder) / name).write_text(text)
            self._client.log_artifacts(run_id, folder)

    def _open(self) -> None:
        """Connect, and make database and experiment where they are not there yet."""
        # `mlflow run` exports its run; ours must not write into it.
        os.environ.pop("MLFLOW_RUN_ID", None)
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        # After the import, which sets its own: that tables are made is no news to a user.
        for name in ("alembic", "mlflow", "mlflow.store.db.utils"):
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            with store.locked(self.address):
                self._client = MlflowClient(self.address.uri)
                experiment = self._client.get_experiment_by_name(self._experiment)
                if experiment is None:
                    store.use_write_ahead_log(self.address)
                    self._experiment_id = self._client.create_experiment(
                        self._experiment, self.address.artifact_location
                    )
                elif experiment.lifecycle_stage != "active":
                    raise StoreError(
                        f"tracking.experiment={self._experiment}: was deleted in {self.where}; "
                        "restore it or choose another name"
                    )
                else:
                    self._experiment_id = experiment.experiment_id
        except StoreError:
            raise
        except (MlflowException, OSError, ImportError) as error:
            line = store.without_secrets(" ".join(str(error).split()))[:300]
            raise StoreError(
                f"tracking.uri={self.where}: cannot be opened ({line}); check the address, "
                "or give sqlite:///path/of/mlflow.db"
            ) from None
        self._ledger = Ledger(self.address, self._client, self._experiment_id)


def _now() -> int:
    return int(time.time() * 1000)
