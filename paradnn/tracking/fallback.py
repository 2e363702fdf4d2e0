"""Nothing is lost when the store goes away: results are kept as files until it answers again.

While it is away no claim can be made, so the driver first waits for it: a restart takes less than `tracking.patience`.
After that it measures on without claims, looks from time to time, and uploads what it kept as soon as the store is
back. What another driver recorded meanwhile is not recorded twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from paradnn.config.identity import Identity
from paradnn.config.point import Tracking
from paradnn.core.words import counted
from paradnn.core.workload import Moment
from paradnn.errors import DataError, StoreAwayError, StoreError, StoreRefusalError
from paradnn.record.record import Record
from paradnn.store.address import address_of
from paradnn.tracking.base import AcceptsRun, Claim, ClaimedElsewhere, Finished, RecordingMetrics, Tracker
from paradnn.tracking.mlflow_tracker import MlflowTracker
from paradnn.tracking.offline import OfflineTracker, default_folder
from paradnn.tracking.upload import sync_command, upload_record

__all__ = ["ResilientTracker", "looks_quickly", "open_tracker"]

T = TypeVar("T")

#: Seconds between two looks at a store that is away: while it is waited for, and later.
_SOON, _LATER = 1.0, 30.0


def open_tracker(settings: Tracking, notify: Callable[[str], None]) -> Tracker:
    """The tracker that the configuration asks for; raises StoreError when it cannot be opened.

    `notify` is called with one line when results go into files instead.
    """
    folder = Path(settings.folder) if settings.folder else default_folder()
    if settings.name == "offline":
        return OfflineTracker(folder)
    return ResilientTracker(MlflowTracker(settings), folder, notify, settings)


def looks_quickly(settings: Tracking) -> bool:
    """Whether the tracker opens and answers in milliseconds, without importing MLflow."""
    if settings.name == "offline":
        return True
    address = address_of(settings.uri)
    return address.is_sql and (address.database is None or address.database.exists())


class ResilientTracker:
    """A tracker that turns to files while the store does not answer, and back."""

    def __init__(self, store: MlflowTracker, folder: Path, notify: Callable[[str], None], settings: Tracking) -> None:
        self._store = store
        self._folder = folder.expanduser().absolute()
        self._notify = notify
        self._patience = settings.patience
        self._command = sync_command(self._folder, settings)
        self._files: OfflineTracker | None = None
        self._kept: list[Path] = []  # what is still to be uploaded
        self._held: set[str] = set()  # runs of claims that are neither recorded nor given back
        self._unclosed = False  # whether the end of the sweep went into a file
        self._away_since: float | None = None  # None while the store answers
        self._next_look = 0.0
        self._proven = False  # whether the store has taken a claim
        self._sweep: tuple[str, str, Mapping[str, str]] | None = None

    @property
    def where(self) -> str:
        if not self._kept and not self._unclosed:
            return self._store.where
        what = f"{len(self._kept)} of them" if self._kept else "the end of the sweep"
        return f"{self._store.where}, {what} in files until {self._command}"

    def finished(self, environment_ids: Iterable[str], sweep_id: str | None = None) -> dict[Identity, list[Finished]]:
        return self._store.finished(environment_ids, sweep_id)

    def fetch(self, run_id: str) -> tuple[dict[str, float], dict[str, str]]:
        if self._files and (self._folder / f"{run_id}.json").is_file():
            return self._files.fetch(run_id)
        return self._store.fetch(run_id)

    def close_abandoned(self) -> int:
        return self._store.close_abandoned()

    def open_sweep(self, name: str, description: str, tags: Mapping[str, str]) -> str:
        self._sweep = (name, description, tags)
        return self._store.open_sweep(name, description, tags)

    def enter_sweep(self, parent: str, name: str, description: str, tags: Mapping[str, str]) -> None:
        self._sweep = (name, description, tags)
        self._store.enter_sweep(parent, name, description, tags)

    def drop_sweep(self) -> None:
        self._patiently(MlflowTracker.drop_sweep)

    def task_reports(self) -> dict[int, dict[str, Any]]:
        return self._patiently(MlflowTracker.task_reports)

    def sweep_rows(self, sweep_id: str) -> list[dict[str, Any]]:
        return self._patiently(lambda store: store.sweep_rows(sweep_id))

    def release(self, sweep_id: str) -> int:
        return self._patiently(lambda store: store.release(sweep_id))

    def report_task(self, task: int, report: Mapping[str, Any]) -> None:
        # Without the store there is no parent to report to.
        self._finally(lambda store: store.report_task(task, report))

    def close_sweep(
        self,
        status: str,
        description: str,
        metrics: Mapping[str, float],
        artifacts: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> None:
        if status == "KILLED":  # an interrupted sweep ends at once
            self._patience = 0.0
        if not self._finally(lambda store: store.close_sweep(status, description, metrics, artifacts, tags)):
            self._as_files().close_sweep(status, description, metrics, artifacts, tags)
            self._unclosed = True

    def begin(
        self, identity: Identity, name: str, tags: Mapping[str, str], timeout: float, accepts: AcceptsRun | None
    ) -> Claim | Finished | ClaimedElsewhere:
        while self._is_there():
            try:
                answer = self._store.begin(identity, name, tags, timeout, accepts)
                self._away_since, self._proven = None, True
                if isinstance(answer, Claim):
                    self._held.add(answer.run_id)
                return answer
            except StoreError as error:
                if isinstance(error, StoreRefusalError) and not self._proven:
                    raise  # nothing was measured yet: the user can mend it now
                self._lost(error)
        return self._as_files().begin(identity, name, tags, timeout, accepts)

    def renew(self, claim: Claim, timeout: float) -> None:
        if self._away_since is None and claim.run_id in self._held:
            try:
                self._store.renew(claim, timeout)
            except StoreError as error:
                self._lost(error)

    def tell(self, claim: Claim, moments: Sequence[Moment]) -> None:
        if self._away_since is None and claim.run_id in self._held:
            try:
                self._store.tell(claim, moments)
            except StoreError as error:
                self._lost(error)

    def record(self, claim: Claim, record: Record, recording_metrics: RecordingMetrics) -> str:
        """Keep a result at once, in a file where the store does not take it: waiting for it comes later."""
        self._held.discard(claim.run_id)
        if self._away_since is None:
            try:
                return self._store.record(claim, record, recording_metrics)
            except StoreError as error:
                self._lost(error)
        run_id = self._as_files().record(claim, record, recording_metrics)
        self._kept.append(self._folder / f"{run_id}.json")
        return run_id

    def abandon(self, claim: Claim, reason: str) -> None:
        self._held.discard(claim.run_id)
        (self._store if self._away_since is None else self._as_files()).abandon(claim, reason)

    def _patiently(self, ask: Callable[[MlflowTracker], T]) -> T:
        """The store's answer, once it gives one; raises StoreAwayError when it stays away."""
        while self._is_there():
            try:
                return ask(self._store)
            except StoreError as error:
                self._lost(error)
        raise StoreAwayError(f"{self._store.where}: does not answer")

    def _finally(self, act: Callable[[MlflowTracker], None]) -> bool:
        """Do a last thing with the store, after all that was kept for it was uploaded; whether it did."""
        while self._is_there():
            try:
                act(self._store)
                self._store.delete_orphaned_claims(self._held)
                return True
            except StoreError as error:
                self._lost(error)
        return False

    def _as_files(self) -> OfflineTracker:
        if self._files is None:
            self._files = OfflineTracker(self._folder)
            if self._sweep:
                self._files.open_sweep(*self._sweep)
        return self._files

    def _lost(self, error: StoreError) -> None:
        """Note that the store failed; whether it is worth waiting for is a matter of the error and of time."""
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            self._notify(
                f"the store does not answer ({error}). Results go to files until it does; should it stay away, upload "
                f"them with:\n  {self._command}"
            )
        if not isinstance(error, StoreAwayError) or now - self._away_since >= self._patience:
            self._next_look = now + _LATER

    def _is_there(self) -> bool:
        """Whether the store can be asked; waits for one that went away lately, and uploads what was kept."""
        if self._away_since is None:
            return True
        while (now := time.monotonic()) >= self._next_look:
            if self._store.is_back() and self._upload_kept():
                return True
            if now - self._away_since >= self._patience:
                self._next_look = now + _LATER
            else:
                time.sleep(_SOON)
        return False

    def _upload_kept(self) -> bool:
        """Upload what was kept, and remove those files; False when the store went away again meanwhile."""
        count = len(self._kept)
        while self._kept:
            path = self._kept[0]
            try:
                done = upload_record(self._store, path)
                if done.state == "withheld":
                    count -= 1
                    self._notify(
                        f"{done.name} was not uploaded: run {done.run_id} holds the same point, measured by another "
                        f"driver meanwhile; {path} is kept, and {self._command} --repeats logs it too"
                    )
                else:
                    path.unlink()
            except StoreAwayError:
                return False
            except (StoreError, DataError) as error:  # the file stays, and `paradnn.sync` names it
                self._notify(f"{path} was not logged: {error}")
            self._kept.pop(0)
        try:
            self._store.delete_orphaned_claims(self._held)
        except StoreError:
            return False
        if count:
            self._notify(f"the store answers again; {counted(count, 'result')} uploaded")
        return True
