"""The only writer to MLflow: one run per point and one parent run per sweep.

A point is one configuration to measure. A driver is a process of `python -m paradnn.train`, which
measures points. A run is created as RUNNING when its point begins. This run is also the claim that
keeps other drivers from measuring the point. Artifacts are written first, then one `log_batch` with
params, metrics and tags, including the outcome. A run without an outcome is unfinished, whatever
its status. Through a server, a point takes five requests: create the run, check for other claims,
log files, log values, end the run.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import random
import secrets
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paradnn.config.identity import Identity
from paradnn.config.learning_sets import DIGEST_TAG
from paradnn.config.settings import Tracking
from paradnn.core.errors import (
    DataError,
    NoStoreError,
    StoreDeletedError,
    StoreError,
    StoreRefusalError,
)
from paradnn.core.metric import MetricSnapshot
from paradnn.core.scratch import Scratch
from paradnn.store import runs
from paradnn.store.address import StoreAddress, address_of, local_folder, locate, relocate_artifacts
from paradnn.store.claims import (
    Entry,
    RunIndex,
    close_abandoned,
    close_run,
    leases_in,
    status_of,
)
from paradnn.store.client import (
    client_of,
    is_listening,
    one_line_of,
    open_experiment,
    store_errors,
    wraps_errors,
)
from paradnn.store.files import file_content, file_identity, inside, pack
from paradnn.store.journal import Document, identity_of
from paradnn.store.leases import LAUNCH, LEASE_SECONDS, Lease, expiry, owner_tag
from paradnn.store.metrics import listing_position, stored_name, stored_value
from paradnn.store.reader import open_reader
from paradnn.store.runs import Claim, Claimed, Finished, Record, SweepRun
from paradnn.store.views import view_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric


# Maximum number of metrics, params and tags that a tracking server accepts in one request.
_MAX_VALUES = 1000
_PARENT = "mlflow.parentRunId"
#: Seconds within which a driver that created a sweep's run must register with it or delete it.
_JOIN_SECONDS = 30.0
_NOTE = "mlflow.note.content"
_SOURCE = {"mlflow.source.name": "paradnn.train", "mlflow.source.type": "LOCAL"}
#: Description of the experiment; MLflow's UI truncates it to one line.
_EXPERIMENT_DESCRIPTION = (
    "One run per measured point, nested under its sweep. The tag `outcome` says how it ended; "
    "docs/reference/metrics.md explains the metrics."
)


@dataclass(frozen=True)
class Uploaded:
    """Outcome of an upload of a result from a file.

    Attributes:
        state: One of three texts. "logged": the upload stored the result. "known": the store
            already had the result. "withheld": the result was not stored, because another driver
            has measured the point.
        run_id: Id of the run in the store that holds the point.
        record: The result.
    """

    state: Literal["logged", "known", "withheld"]
    run_id: str
    record: Record


@wraps_errors
class MlflowStore(RunIndex):
    """Writes runs to an MLflow tracking store, and claims points in it.

    Methods raise StoreError if the store does not answer.

    Args:
        settings: Address and experiment of the store, both created if absent.

    Raises:
        StoreError: If the store cannot be opened.
    """

    def __init__(self, settings: Tracking) -> None:
        self._address = locate(settings.uri)
        _require_no_workspace(self._address)
        self._parent: str | None = None
        self._parents: dict[str, str] = {}  # sweep id -> id of its run
        self._owner = owner_tag()
        self._contended = False  # whether a claim found a run of another driver
        self._driver = ""  # key of this process among the drivers of the sweep
        self._own_lease: Lease | None = None
        # Unix seconds of the latest renewal of the lease; this clock includes suspension.
        self._renewed = time.time()
        self._open_claims: set[str] = set()  # runs of claims without a recorded result
        self._possibly_lost: set[str] = set()  # runs of claims whose lease expired
        # `mlflow run` exports its run in MLFLOW_RUN_ID. That run becomes the parent of this
        # driver's sweep. The variable is removed, so that nothing else is logged into that run.
        project = os.environ.pop("MLFLOW_RUN_ID", None)
        is_same_store = address_of(os.environ.get("MLFLOW_TRACKING_URI")).uri == self._address.uri
        self._project_run = project if is_same_store else None
        try:
            with store_errors(self.where):
                self._open(settings.experiment_name)
        except StoreRefusalError as error:
            raise StoreRefusalError(f"tracking.uri={error}") from error
        except StoreError as error:
            remedy = "check the address, or give sqlite:///path/of/mlflow.db, or tracking=offline"
            raise StoreError(f"tracking.uri={error}; {remedy}") from error

    def _open(self, experiment: str) -> None:
        client = known = None
        # Importing MLflow takes seconds, and a lookup in the tables does not need it.
        if self._address.is_sql:
            from paradnn.store.sql import SqlReader

            relocate_artifacts(self._address)
            with contextlib.suppress(NoStoreError):
                known = SqlReader(self._address).experiment(experiment)
        if known is None:
            # The tag experimentKind makes the UI show runs and their descriptions, not traces.
            about = {
                "mlflow.experimentKind": "custom_model_development",
                _NOTE: _EXPERIMENT_DESCRIPTION,
                **view_tags(),
            }
            self._client, known = client, _ = open_experiment(self._address, experiment, about)
        self._experiment_id = known
        self._database_identity = self._current_identity()
        super().__init__(open_reader(self._address, client=client, pooled=True), experiment)

    @functools.cached_property
    def _client(self) -> MlflowClient:  # type: ignore[override]
        """MLflow's client, created at the first write."""
        from mlflow.exceptions import MlflowException

        try:
            return client_of(self._address)
        except MlflowException as error:  # such as tables of another MLflow version
            raise StoreRefusalError(f"{self.where}: {one_line_of(error)}") from error

    @property
    def where(self) -> str:
        return self._address.public

    def _current_identity(self) -> tuple[int, int] | None:
        database = self._address.database
        if database is None:
            return None
        return file_identity(database)

    def _require_present(self) -> None:
        """Raise StoreDeletedError if the database file is not the one that was opened."""
        if self._current_identity() != self._database_identity:
            raise StoreDeletedError(f"{self.where}: was deleted or replaced while it was in use")

    def rescue(self, folder: Path) -> Path | None:
        """Copy a deleted SQLite database into `folder`.

        The open connections of this process can still read the deleted file. The copy contains
        every run of the store, but not the artifacts of the runs.

        Args:
            folder: Folder of the copy, which is created if it is absent.

        Returns:
            The path of the copy; None if this process cannot read the database or write the copy.
        """
        if not hasattr(self._reader, "copy_to"):
            return None
        path = folder / f"rescued-{secrets.token_hex(4)}.db"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._reader.copy_to(path)
        except (OSError, StoreError):
            path.unlink(missing_ok=True)
            return None
        return path

    def open_sweep(self, name: str, description: str, tags: Mapping[str, str]) -> str:
        self._require_present()
        own = {
            **_SOURCE,
            "kind": "sweep",
            "schema_version": runs.SCHEMA_VERSION,
            runs.OWNER: self._owner,
        }
        if self._project_run:
            own[_PARENT] = self._project_run
        run = self._client.create_run(
            self._experiment_id, run_name=name, tags={**own, _NOTE: description, **tags}
        )
        self._parent = self._parents[tags["sweep_id"]] = str(run.info.run_id)
        return self._parent

    def join_sweep(self, name: str, description: str, tags: Mapping[str, str]) -> str:
        """Adopt the parent run of a sweep that several drivers share; create it if it is absent.

        Several drivers may create a parent run at the same time. They choose the run in which a
        driver has registered a lease, or else the run with the smallest id. A driver that created
        another run deletes that run. The creator of the chosen run returns once it sees no other
        run.

        Args:
            name: Name of the parent run, if this driver creates it.
            description: Description of the parent run, if this driver creates it.
            tags: Tags of the parent run, including `sweep_id`.

        Returns:
            The id of the parent run.
        """
        self._require_present()
        sweep = SweepRun("RUNNING", description, tags=tags, name=name)
        created = ""
        seen: dict[str, float] = {}  # id of a run -> monotonic seconds at which it was first seen
        while True:
            known = {entry.run_id: entry for entry in self._runs_of(sweep)}
            if not known:
                created = self.open_sweep(name, description, tags)
                known = {entry.run_id: entry for entry in self._runs_of(sweep)}
            now = time.monotonic()
            seen = {run_id: seen.get(run_id, now) for run_id in known}
            leased = [run_id for run_id in sorted(known) if self.leases(run_id)]
            chosen = next(iter(leased or sorted(known)), "")
            if created and created != chosen:
                self._client.delete_run(created)
                created = ""
            is_alone = list(known) == [created]
            if chosen and (leased or is_alone or now - seen[chosen] > _JOIN_SECONDS):
                break
            time.sleep(random.uniform(0.05, 0.5))
        if known[chosen].status != "RUNNING":
            self._client.update_run(chosen, status="RUNNING")
        self._parent = self._parents[tags["sweep_id"]] = chosen
        return chosen

    def register(self, driver: str, lease: Lease) -> None:
        """Register this process with its sweep, as a driver or as the launcher of drivers.

        The registration is a lease: it expires unless it is renewed. Later reservations of points
        by this process refer to the lease, unless the process only launches other drivers.

        Args:
            driver: Number of the driver as text, or `LAUNCH` for the process that launched the
                drivers.
            lease: The registration, which `renew_lease` must renew.
        """
        self._require_present()
        self._driver = driver
        self._own_lease = lease
        self._write_lease(lease.renewed())
        self._renewed = time.time()
        if driver != LAUNCH:
            self.lease = f"{self._parent} {driver}"

    def unregister(self, *, is_complete: bool = False, conclusion: str = "") -> None:
        """End this process's registration with its sweep.

        Args:
            is_complete: Whether this process ends because no point is left.
            conclusion: Conclusion that the design of the sweep reached, as Markdown; empty if it
                reached no conclusion.
        """
        if self._own_lease is not None:
            lease = self._own_lease.ended_now(is_complete=is_complete, conclusion=conclusion)
            self._write_lease(lease)
            self._own_lease = None

    def leases_of_sweep(self) -> dict[str, Lease]:
        """Return the leases (expiring registrations) of the drivers of this process's sweep.

        Returns:
            Number of the driver as text, or `LAUNCH` -> lease; empty without a sweep.
        """
        if self._parent is None:
            return {}
        return self.leases(self._parent)

    def renew_lease(self, open_claims: Sequence[str]) -> str:
        """Renew the registration (lease) of this driver with its sweep.

        A driver without a lease renews each of its reservations of points (claims) instead.

        Args:
            open_claims: Ids of the runs that this process has claimed but not recorded.

        Returns:
            The reason why this driver must end; empty if it may continue.
        """
        self._require_present()
        if self._own_lease is None or self._parent is None:
            for run_id in open_claims:
                self._client.set_tag(run_id, runs.EXPIRES, expiry())
        else:
            leases = leases_in(self._client.get_run(self._parent).data.tags)
            reason = self._own_lease.end_reason(leases, self._driver)
            if reason:
                return reason
            self._write_lease(self._own_lease.renewed())
        self._note_renewal()
        return ""

    def _note_renewal(self) -> None:
        self._check_renewal_gap()
        self._renewed = time.time()

    def _write_lease(self, lease: Lease) -> None:
        self._client.set_tag(self._parent, f"{runs.DRIVER_LEASE}{self._driver}", lease.text)

    def is_lost(self, claim: Claim) -> bool:
        """Return whether another driver has taken over a claimed point.

        That can happen if this process was suspended for longer than its lease is valid.

        Args:
            claim: Reservation of the point by this process.
        """
        self._check_renewal_gap()
        if claim.run_id not in self._possibly_lost:
            return False
        entries = [entry for entry in self.of_point(claim.identity) if entry.run_id == claim.run_id]
        return not entries or entries[0].status != "RUNNING"

    def _check_renewal_gap(self) -> None:
        if time.time() - self._renewed > LEASE_SECONDS:
            self._possibly_lost |= self._open_claims

    def annotate_sweep(self, end: SweepRun) -> None:
        """Add artifacts, metrics and tags to the parent run of the sweep without closing it.

        Args:
            end: The values to add. Its status is ignored.
        """
        if self._parent is not None:
            self._add_to_sweep(self._parent, end, _since_1970(time.time() * 1000))

    def close_sweep(self, end: SweepRun) -> None:
        self._require_present()
        if self._parent is not None:
            self._end_sweep(self._parent, end)
            self._require_present()
            self._parent = None

    def _end_sweep(self, run_id: str, end: SweepRun) -> None:
        now = _since_1970(time.time() * 1000)
        self._add_to_sweep(run_id, end, now)
        self._client.set_terminated(run_id, end.status, now)

    def _add_to_sweep(self, run_id: str, end: SweepRun, now: int) -> None:
        from mlflow.entities import RunTag

        self._put_artifacts(run_id, end.artifacts)
        tags = dict(end.tags)
        if end.description:
            tags[_NOTE] = end.description
        self._client.log_batch(
            run_id,
            metrics=_numbers([MetricSnapshot(0, now, end.metrics)]),
            tags=[RunTag(key, value) for key, value in tags.items()],
        )

    def begin(
        self,
        identity: Identity,
        name: str,
        tags: Mapping[str, str],
        accepts: runs.AcceptsRun | None,
    ) -> Claimed:
        """Claim (reserve) a point by creating its run.

        After a claim is written, it is valid if the store holds no other claim of the point. If two
        drivers claim at once, both withdraw and try again later. If a run of the point is likely to
        exist, the store is also checked before the claim, which saves creating a run. This is the
        case for measurements of a machine's peak rates, and for points after a claim has found a
        run of another driver.

        Args:
            identity: Hashes of the configuration and its environment, and number of the repetition.
            name: Name of the run.
            tags: Tags of the run.
            accepts: Returns whether a stored run, given its tags, replaces the measurement. None
                claims the point even if the store holds a result.

        Returns:
            The claim, an accepted run, or None if another driver is measuring the point.
        """
        self._require_present()
        is_shared = tags.get("kind") == "ceilings"  # shared by all experiments of the store
        is_run_likely = self._contended or tags.get("kind") != "point"
        if accepts is not None and is_run_likely:
            finished, is_busy = self._others(identity, accepts, everywhere=is_shared)
            if finished or is_busy:
                return finished
        own = {runs.OWNER: self._owner, runs.EXPIRES: expiry()}
        if self.lease:
            own[runs.LEASE] = self.lease
        if not self._open_claims and self._own_lease is None:
            self._renewed = time.time()
        claim = self._create(identity, name, {**tags, **own}, time.time() * 1000, self._parent)
        if accepts is None:
            self._open_claims.add(claim.run_id)
            return replace(claim, repeats=True)
        finished, is_busy = self._others(
            identity, accepts, except_run=claim.run_id, everywhere=is_shared
        )
        if finished or is_busy:
            self._contended = True
            self._client.delete_run(claim.run_id)
            return finished
        self._open_claims.add(claim.run_id)
        return claim

    def _create(
        self,
        identity: Identity,
        name: str,
        tags: Mapping[str, str],
        start: float,
        parent: str | None,
    ) -> Claim:
        all_tags = {**_SOURCE, **tags}
        if parent:
            all_tags[_PARENT] = parent
        begun = _since_1970(start)
        run = self._client.create_run(
            self._experiment_id, start_time=begun, run_name=name, tags=all_tags
        )
        _exclude_modules_from_collection()
        return Claim(run.info.run_id, identity, begun, files=run.info.artifact_uri, tags=all_tags)

    def _others(
        self,
        identity: Identity,
        accepts: runs.AcceptsRun,
        *,
        except_run: str = "",
        everywhere: bool = False,
    ) -> tuple[Finished | None, bool]:
        """Find other runs of a point that replace or block its measurement.

        Abandoned runs are closed on the way.

        Args:
            identity: Hashes of the configuration and its environment, and number of the repetition.
            accepts: Returns whether a stored run, given its tags, replaces the measurement.
            except_run: Id of a run to ignore; empty ignores no run.
            everywhere: Whether to consider all experiments of the store.

        Returns:
            A pair: an accepted run or None, and whether another driver is measuring the point.
        """
        is_busy = False
        for entry in self.of_point(identity, everywhere=everywhere):
            if entry.run_id == except_run:
                continue
            if entry.is_abandoned() and close_run(self._client, entry):
                continue
            if entry.outcome:
                if accepts(entry.tags):
                    return Finished(entry.run_id, entry.tags), False
            # This process created the run, but did not receive the answer to its request.
            elif entry.is_claim_of(self._owner):
                self._client.delete_run(entry.run_id)
            elif entry.status == "RUNNING":
                is_busy = True
        return None, is_busy

    def log_snapshots(self, claim: Claim, snapshots: Sequence[MetricSnapshot]) -> None:
        self._require_present()
        self._log_numbers(claim.run_id, _numbers(snapshots))

    def abandon(self, claim: Claim, reason: str) -> None:
        self._open_claims.discard(claim.run_id)
        for entry in self.of_point(claim.identity):
            # The interruption came after the outcome was recorded.
            if entry.run_id == claim.run_id and entry.outcome:
                self._client.set_terminated(claim.run_id, status_of(entry.outcome))
                return
        self._client.set_tag(claim.run_id, "reason", reason)
        self._client.set_terminated(claim.run_id, "KILLED")

    def close_abandoned(self) -> int:
        return close_abandoned(self, lambda: self._client)

    def upload(self, document: Document, *, repeats: bool = False) -> Uploaded:
        """Log a result from a file into the run that was created for it, or into a new run.

        Nothing is logged if the store already has this result. Unless `repeats` is set, a result is
        also skipped if another run of the same point makes it redundant.

        Args:
            document: The result of a point.
            repeats: Whether to log a redundant result as a repeated measurement of its point.

        Returns:
            Whether the result was logged, and the id of the run that holds the point.

        Raises:
            DataError: If the store does not accept the result.
        """
        try:
            with store_errors(self.where):
                return self._upload(document, repeats=repeats)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            problem = " ".join(str(error).split())[:200]
            raise DataError(f"{document.offline_id}: cannot be logged ({problem})") from error

    def _upload(self, document: Document, *, repeats: bool) -> Uploaded:
        record = document.record
        identity = identity_of(document.record.tags)
        runs_of_point = self.of_point(identity)
        begun_run = next(
            (entry for entry in runs_of_point if entry.run_id == document.run_id), None
        )
        logged = [*self.with_tag("offline_id", document.offline_id), *filter(None, [begun_run])]
        logged = [entry for entry in logged if entry.outcome]
        if logged:
            # The store accepted the result, but its answer was lost, or the run was not ended.
            for entry in logged:
                if entry.status == "RUNNING":
                    self._client.set_terminated(
                        entry.run_id, status_of(record.outcome), _since_1970(record.end_time)
                    )
            return Uploaded("known", logged[0].run_id, record)
        equivalent = next(
            (entry for entry in runs_of_point if record.is_redundant_with(entry.tags)), None
        )
        if begun_run:
            claim = Claim(begun_run.run_id, identity, record.start_time)
        else:
            claim = None
        if equivalent and not (
            document.repeats or (repeats and record.tags.get("kind") == "point")
        ):
            if begun_run and claim and begun_run.status == "RUNNING":
                self.abandon(
                    claim, "another driver measured the point while the store was unreachable"
                )
            return Uploaded("withheld", equivalent.run_id, record)
        parent = self._parent_of(document.sweep) if document.sweep else None
        if claim is None:
            tags = {
                key: value for key, value in record.tags.items() if key not in runs.OUTCOME_TAGS
            }
            tags |= {runs.OWNER: self._owner, runs.EXPIRES: expiry()}
            claim = self._create(identity, record.name, tags, record.start_time, parent)
        try:
            self.record(
                claim,
                replace(record, tags={**record.tags, "offline_id": document.offline_id}),
                dict,
            )
        except Exception:
            if not begun_run:  # do not leave an incomplete run
                with contextlib.suppress(Exception):
                    self._client.delete_run(claim.run_id)
            raise
        return Uploaded("logged", claim.run_id, record)

    def _parent_of(self, sweep: SweepRun) -> str:
        """Find or create the stored parent run of a sweep whose points are uploaded from files.

        A created run gets the status KILLED, until `end_sweep` uploads the end of the sweep.

        Args:
            sweep: Name and tags of the parent run. Its tag `sweep_id` identifies the sweep.

        Returns:
            The id of the parent run in the store.
        """
        sweep_id = sweep.tags["sweep_id"]
        own = self._parent
        if sweep_id not in self._parents:
            known = self._runs_of(sweep)
            if known:
                self._parents[sweep_id] = known[0].run_id
            else:
                created = self.open_sweep(
                    sweep.name, "A sweep whose driver ended early.", sweep.tags
                )
                self._client.set_terminated(created, "KILLED")
                self._parent = own
        return self._parents[sweep_id]

    def _runs_of(self, sweep: SweepRun) -> list[Entry]:
        entries = self.with_tag("sweep_id", sweep.tags["sweep_id"])
        return [entry for entry in entries if entry.tags.get("kind") == "sweep"]

    def end_sweep(self, sweep: SweepRun) -> None:
        """Close the parent run of a sweep that ended while the store did not answer.

        Nothing happens if the store has no such run, or if the run has ended regularly.

        Args:
            sweep: Final status, description, metrics and artifacts of the parent run.
        """
        for known in self._runs_of(sweep)[:1]:
            if known.status in ("RUNNING", "KILLED"):
                self._end_sweep(known.run_id, replace(sweep, tags={}))

    def is_back(self) -> bool:
        """Return whether the store answers, tested with a short time-out."""
        try:
            with store_errors(self.where):
                self._require_present()
                return is_listening(self._address.uri) and bool(
                    self._client.get_experiment(self._experiment_id)
                )
        except StoreError:
            return False

    def delete_orphaned_claims(self, keep: Container[str]) -> None:
        """Delete runs that reserve points for this process but whose ids it never received.

        The store created such a run, but its answer was lost.

        Args:
            keep: Ids of the runs that this process knows to have claimed.
        """
        for entry in self.running():
            if entry.is_claim_of(self._owner) and entry.run_id not in keep:
                self._client.delete_run(entry.run_id)

    def record(self, claim: Claim, record: Record, recording_metrics: runs.RecordingMetrics) -> str:
        from mlflow.entities import Param, RunTag

        self._require_present()  # otherwise artifacts would recreate a deleted folder
        run_id = claim.run_id
        self._open_claims.discard(run_id)
        end = _since_1970(record.end_time)
        self._put_artifacts(run_id, record.artifacts, claim.files)
        params = [Param(key, value) for key, value in record.params.items()]
        all_tags = {**record.tags, _NOTE: record.description}
        tags = [
            RunTag(key, value) for key, value in all_tags.items() if claim.tags.get(key) != value
        ]
        # The time of a metric is the end of the point. If a record is written again after a lost
        # answer, the store therefore keeps one value.
        last = MetricSnapshot(0, end, {**record.metrics, **recording_metrics()})
        # MLflow lists metrics in the order in which they are logged.
        numbers = sorted(_numbers([last]), key=lambda entry: listing_position(entry.key))
        numbers += _numbers(record.history)
        # The last batch contains the outcome.
        first = max(0, len(numbers) + len(params) + len(tags) - _MAX_VALUES)
        self._log_numbers(run_id, numbers[:first])
        self._log_data_set(run_id, record)
        self._client.log_batch(run_id, metrics=numbers[first:], params=params, tags=tags)
        self._client.set_terminated(run_id, status_of(record.outcome), end)
        self._require_present()
        return run_id

    def _log_data_set(self, run_id: str, record: Record) -> None:
        """Log the training data set of a run, if it has one, for MLflow's list of datasets."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        digest = record.tags.get(DIGEST_TAG)
        if digest is None:
            return
        source = {"uri": record.params.get("data.path", "")}
        data = Dataset(
            name=record.params["data.name"],
            digest=digest,
            source_type="local",
            source=json.dumps(source),
        )
        context = InputTag("mlflow.data.context", "training")
        self._client.log_inputs(run_id, datasets=[DatasetInput(data, [context])])

    def _log_numbers(self, run_id: str, numbers: Sequence[Metric]) -> None:
        """Log metrics in batches.

        Logging is idempotent: the store keeps one of two metrics with equal name, time and value.
        """
        for start in range(0, len(numbers), _MAX_VALUES):
            self._client.log_batch(run_id, metrics=numbers[start : start + _MAX_VALUES])

    def _put_artifacts(
        self, run_id: str, artifacts: Mapping[str, Any], address: str | None = None
    ) -> None:
        """Store files under a run.

        Args:
            run_id: The run.
            artifacts: File name -> content, as in `Record`.
            address: Address of the run's artifacts; if it is None, the store is queried for it.
        """
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        address = address or str(self._client.get_run(run_id).info.artifact_uri)
        if not local_folder(address):
            artifacts = pack(artifacts)
        with Scratch() as folder:
            for name, content in artifacts.items():
                path = inside(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file_content(content))
            get_artifact_repository(address, tracking_uri=self._address.uri).log_artifacts(
                str(folder)
            )


@functools.cache
def _exclude_modules_from_collection() -> None:
    """Exclude all existing objects, mostly those of MLflow's modules, from garbage collection.

    A full collection between two points would otherwise take 0.2 s of processor time. Only the
    first call has an effect.
    """
    gc.collect()
    gc.freeze()


def _require_no_workspace(address: StoreAddress) -> None:
    """Raise StoreError if MLFLOW_WORKSPACE is set for a store that is accessed without a server."""
    workspace = os.environ.get("MLFLOW_WORKSPACE", "").strip()
    if address.is_sql and workspace not in ("", "default"):
        raise StoreError(
            f"tracking.uri={address.public}: MLFLOW_WORKSPACE={workspace} selects a workspace, but "
            "only a tracking server has workspaces; give the address of a server, or unset the "
            "variable"
        )


def _numbers(snapshots: Sequence[MetricSnapshot]) -> list[Metric]:
    """Convert snapshots to MLflow's metric entities, with sections and rounded values."""
    from mlflow.entities import Metric

    return [
        Metric(stored_name(name), stored_value(value), _since_1970(snapshot.time), snapshot.step)
        for snapshot in snapshots
        for name, value in snapshot.metrics.items()
    ]


def _since_1970(milliseconds: float) -> int:
    """Return a time in milliseconds that MLflow accepts.

    If the host's clock is wrong, the time may be before 1970, which MLflow rejects.
    """
    return max(1, int(milliseconds))
