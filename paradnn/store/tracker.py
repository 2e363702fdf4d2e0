"""Recording of results in the store, or in files while the store does not answer.

A driver is a process of `python -m paradnn.train`, which measures points (configurations). A result
of a point goes into a file of the journal first, then into the store. If a driver is killed between
the two, the next driver of the same store uploads the file. If the store stops answering, the
driver waits for `tracking.patience` seconds. It then continues to measure without claims in the
store, and retries the store periodically. It does not record a result of a point that another
driver has recorded in the meantime.
"""

import contextlib
import math
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from paradnn.config.identity import Identity
from paradnn.config.settings import Tracking
from paradnn.core import locks
from paradnn.core.errors import (
    ClaimLostError,
    DataError,
    StoreAwayError,
    StoreDeletedError,
    StoreError,
    StoreRefusalError,
)
from paradnn.core.metric import MetricSnapshot
from paradnn.core.words import counted, without_credentials
from paradnn.store.journal import Journal, folder_of, read_record, read_sweep, store_key
from paradnn.store.leases import HEARTBEAT_SECONDS, Lease
from paradnn.store.mlflow_store import MlflowStore, Uploaded
from paradnn.store.runs import (
    AcceptsRun,
    Claim,
    Claimed,
    Finished,
    Record,
    RecordingMetrics,
    SweepRun,
)

T = TypeVar("T")

#: Seconds between two attempts to reach a store that does not answer, while the driver waits.
_WAITING_RETRY_SECONDS = 1.0
#: Seconds between two such attempts while the driver measures.
_BACKGROUND_RETRY_SECONDS = 30.0
#: Seconds for which a driver tries to end its lease, and seconds between two attempts.
_UNREGISTER_SECONDS = 2.0
_UNREGISTER_PAUSE = 0.05


def sync_command(folder: Path, settings: Tracking) -> str:
    """Return the command line that uploads a folder of results into a store.

    The command contains no credentials. They must be in the environment.

    Args:
        folder: The folder.
        settings: Address and experiment of the store.
    """
    command = ["python", "-m", "paradnn.sync", str(folder)]
    if settings.uri:
        command += ["--uri", without_credentials(settings.uri)]
    if settings.experiment_name != "paradnn":  # the default may differ in another shell
        command += ["--experiment", settings.experiment_name]
    return shlex.join(command)


def open_tracker(settings: Tracking, notify: Callable[[str], None]) -> Journal:
    """Open the configured store for recording, or the folder of `tracking=offline`.

    Args:
        settings: Address and experiment of the store, and folder of the files.
        notify: Prints a line to the user, for example if the store does not accept results.

    Raises:
        StoreError: If the store or folder cannot be opened.
    """
    for line in _unused_variables():
        notify(line)
    if settings.name == "offline":
        return Journal(folder_of(settings))
    return Tracker(settings, MlflowStore(settings), notify)


def _unused_variables() -> Iterator[str]:
    """Yield a line for each of MLflow's variables that is set but not used by ParaDnn."""
    experiment = os.environ.get("MLFLOW_EXPERIMENT_ID")
    if experiment and "MLFLOW_RUN_ID" not in os.environ:  # `mlflow run` sets both
        yield (
            f"MLFLOW_EXPERIMENT_ID={experiment} is not used:"
            " name the experiment with MLFLOW_EXPERIMENT_NAME or tracking.experiment"
        )


class Tracker(Journal):
    """Records runs in a store, or in files while the store does not answer.

    Methods raise StoreError if neither the store nor the disk accepts a result.

    Args:
        settings: Folder of the files, and address and experiment of the store.
        store: The store.
        notify: Prints a line to the user, for example if the store does not answer.
    """

    def __init__(
        self, settings: Tracking, store: MlflowStore, notify: Callable[[str], None]
    ) -> None:
        super().__init__(folder_of(settings), store_key(settings))
        self._store = store
        self._notify = notify
        self._patience = settings.patience
        self._command = sync_command(self.folder, settings)
        self._pending_files: list[Path] = []  # files to upload
        self._open_claims: set[str] = set()  # runs of claims that are neither recorded nor released
        self._has_unclosed_sweep = False  # whether the end of the sweep was written to a file
        self._away_since: float | None = None  # monotonic seconds; None while the store answers
        self._next_attempt = 0.0  # monotonic seconds of the next attempt to reach the store
        self._has_accepted_claim = False  # whether the store has accepted a claim
        self._loss = ""  # what happened to a deleted store, as text; empty if it exists

    @property
    def problem(self) -> str:
        return self._loss

    @property
    def where(self) -> str:
        if self._loss:
            return f"{self.folder} until {self._command}"
        if not self._pending_files and not self._has_unclosed_sweep:
            return self._store.where
        if self._pending_files:
            pending = f"{len(self._pending_files)} of them"
        else:
            pending = "the end of the sweep"
        return f"{self._store.where}, {pending} in files until {self._command}"

    def finished(
        self, environment_ids: Iterable[str], sweep_id: str | None = None
    ) -> dict[Identity, list[Finished]]:
        return self._store.finished(environment_ids, sweep_id)

    def finished_anywhere(self, identity: Identity) -> list[Finished]:
        return self._store.finished_anywhere(identity)

    def lost_points(self, sweep_id: str) -> set[Identity]:
        return self._store.lost_points(sweep_id)

    def fetch(self, run_id: str) -> tuple[dict[str, float], dict[str, str]]:
        if self.path_of(run_id).is_file():
            return super().fetch(run_id)
        return self._store.fetch(run_id)

    def close_abandoned(self) -> int:
        """Upload the results of drivers that ended early, then close the runs of those drivers.

        Returns:
            The number of closed runs without an outcome.
        """
        self._pending_files += self.left_behind()
        self._upload_pending("left by drivers that ended early")
        return self._store.close_abandoned()

    def open_sweep(self, name: str, description: str, tags: Mapping[str, str]) -> str:
        super().open_sweep(name, description, tags)
        return self._store.open_sweep(name, description, tags)

    def join_sweep(
        self, name: str, description: str, tags: Mapping[str, str], *, is_launched: bool
    ) -> str:
        super().join_sweep(name, description, tags, is_launched=is_launched)
        return self._store.join_sweep(name, description, tags)

    def annotate_sweep(self, end: SweepRun) -> None:
        super().annotate_sweep(end)
        with contextlib.suppress(StoreError):  # the design's result must not stop the session
            self._store.annotate_sweep(end)

    def register(self, driver: str, lease: Lease) -> None:
        self._store.register(driver, lease)

    def unregister(self, *, is_complete: bool = False, conclusion: str = "") -> None:
        with contextlib.suppress(StoreError):  # an interruption may have left an orphaned claim
            self._store.delete_orphaned_claims(self._open_claims)
        # If several drivers end at once, a write to a SQLite store may fail because it is locked. A
        # driver that does not end its lease counts as running, and the sweep stays open.
        deadline = time.monotonic() + _UNREGISTER_SECONDS
        while True:
            try:
                self._store.unregister(is_complete=is_complete, conclusion=conclusion)
                return
            except StoreError:
                if time.monotonic() > deadline:
                    return  # the lease expires
            time.sleep(_UNREGISTER_PAUSE)

    def leases_of_sweep(self) -> dict[str, Lease]:
        return self._store.leases_of_sweep()

    def renew_lease(self) -> str:
        self._renew_file_claims()
        return self._store.renew_lease(tuple(self._open_claims))

    def close_sweep(self, end: SweepRun) -> None:
        if end.status == "KILLED":  # an interrupted sweep ends at once
            self._patience = 0.0

        def close() -> None:
            self._store.close_sweep(end)
            self._store.delete_orphaned_claims(self._open_claims)

        try:
            self._call_store(close)  # uploads the kept files first
        except StoreAwayError:
            super().close_sweep(end)
            self._has_unclosed_sweep = True

    def begin(
        self,
        identity: Identity,
        name: str,
        tags: Mapping[str, str],
        accepts: AcceptsRun | None,
    ) -> Claimed:
        while self._is_available():
            try:
                answer = self._store.begin(identity, name, tags, accepts)
                self._away_since = None
                self._has_accepted_claim = True
                if isinstance(answer, Claim):
                    self._open_claims.add(answer.run_id)
                return answer
            except StoreError as error:
                if isinstance(error, StoreRefusalError) and not self._has_accepted_claim:
                    raise  # nothing is measured yet, so the user can fix it now
                self._note_failure(error)
        try:
            return super().begin(identity, name, tags, accepts)
        except StoreError as error:
            raise self._no_space_error() from error

    def log_snapshots(self, claim: Claim, snapshots: Sequence[MetricSnapshot]) -> None:
        self._try_store(claim, partial(self._store.log_snapshots, claim, snapshots))

    def record(self, claim: Claim, record: Record, recording_metrics: RecordingMetrics) -> str:
        """Record a point in the store, or keep it as a file if the store does not answer.

        Args:
            claim: The reservation of the point that `begin` returned.
            record: The result.
            recording_metrics: Returns metrics of the recording itself, such as its duration.

        Returns:
            The id of the run; for a kept file, the stem of the file name.

        Raises:
            ClaimLostError: If another driver has taken over the point, because this process was
                suspended for longer than its lease.
        """
        is_in_store = claim.run_id in self._open_claims
        self._open_claims.discard(claim.run_id)
        if is_in_store and self._away_since is None and self._is_lost(claim):
            raise ClaimLostError(f"{record.name}: another driver has taken over this point")
        document = self.document(claim, record, recording_metrics())
        path: Path | None = None
        with contextlib.suppress(StoreError):  # the disk may be full; the store may still accept
            path = self.keep(document)
        if self._away_since is None and is_in_store:
            try:
                run_id = self._store.record(claim, record, recording_metrics)
                if path:
                    path.unlink(missing_ok=True)
                return run_id
            except StoreError as error:
                self._note_failure(error)
        if path is None:
            try:
                return self._call_store(lambda: self._store.upload(document)).run_id
            except StoreAwayError as error:
                raise self._no_space_error(record.name) from error
        self._pending_files.append(path)
        if self._away_since is None:  # the point was claimed while the store did not answer
            self._upload_pending("the store answers again")
        return path.stem

    def _is_lost(self, claim: Claim) -> bool:
        try:
            return self._store.is_lost(claim)
        except StoreError:  # the upload of the kept file will detect a lost claim
            return False

    def abandon(self, claim: Claim, reason: str) -> None:
        if claim.run_id not in self._open_claims:
            super().abandon(claim, reason)
        elif self._away_since is None:
            self._store.abandon(claim, reason)
        self._open_claims.discard(claim.run_id)

    def _no_space_error(self, lost_result: str = "") -> StoreError:
        detail = ""
        if lost_result:
            detail = f", so {lost_result} is lost"
        return StoreError(
            f"neither {self._store.where} nor {self.folder} accepts results{detail}; "
            f"{counted(len(self._pending_files), 'result')} in files. "
            "Free some space, then repeat the command to continue"
        )

    def _try_store(self, claim: Claim, write: Callable[[], None]) -> None:
        """Write values of a point to the store if it answers and holds the claim; ignore failures.

        After a StoreError, the store counts as unreachable.

        Args:
            claim: The reservation of the point to which the values belong.
            write: Writes the values.
        """
        if self._away_since is None and claim.run_id in self._open_claims:
            try:
                write()
            except StoreError as error:
                self._note_failure(error)

    def _call_store(self, call: Callable[[], T]) -> T:
        """Call a function that uses the store, again after each StoreError, until it succeeds.

        Args:
            call: The function, which may raise StoreError.

        Returns:
            The result of the function.

        Raises:
            StoreAwayError: If the store does not answer within `tracking.patience`.
        """
        while self._is_available():
            try:
                return call()
            except StoreError as error:
                self._note_failure(error)
        raise StoreAwayError(f"{self._store.where}: does not answer")

    def _note_failure(self, error: StoreError) -> None:
        """Remember that a call of the store failed, and notify the user of the first failure.

        If the store is unreachable, later calls wait for the store until `tracking.patience`
        seconds have passed since the first failure. After any other error, they do not wait. A
        deleted store is never tried again, and its runs are copied if possible.
        """
        now = time.monotonic()
        if isinstance(error, StoreDeletedError):
            self._away_since = now
            self._next_attempt = math.inf
            if not self._loss:
                self._loss = f"{error}. {self._rescue()}"
                self._notify(
                    f"{self._loss}. From now on, results go to files; upload them afterwards with\n"
                    f"  {self._command}"
                )
            return
        if self._away_since is None:
            self._away_since = now
            self._notify(
                f"the store does not answer ({error}). Results go to files until it answers again. "
                f"If it never does, upload them with:\n  {self._command}"
            )
        if not isinstance(error, StoreAwayError) or now - self._away_since >= self._patience:
            self._next_attempt = now + _BACKGROUND_RETRY_SECONDS

    def _rescue(self) -> str:
        """Copy the runs of a deleted store to a database in the journal's folder.

        The copy succeeds only for a deleted SQLite database that this process still has open.

        Returns:
            A sentence for the user: where the copy is, or that the runs are lost.
        """
        copy = self._store.rescue(self.folder)
        if copy:
            return f"Its runs were copied to {copy}: move that file back to restore them"
        return "Its runs are lost, because this process can no longer read them"

    def _is_available(self) -> bool:
        """Return whether the store answers.

        If the store stopped answering less than `tracking.patience` seconds ago, this method waits
        for it. Once the store answers again, the kept files are uploaded.
        """
        while self._away_since is not None:
            now = time.monotonic()
            if now < self._next_attempt:
                return False
            if self._store.is_back() and self._upload_pending("the store answers again"):
                # Drivers on other hosts could not renew their leases either.
                self._store.expiries_count_from = time.monotonic() + HEARTBEAT_SECONDS
                return True
            if now - self._away_since >= self._patience:
                self._next_attempt = now + _BACKGROUND_RETRY_SECONDS
            else:
                time.sleep(_WAITING_RETRY_SECONDS)
        return True

    def _upload_pending(self, why: str) -> bool:
        """Upload the kept files and remove them.

        Args:
            why: Reason for the upload, for the message to the user.

        Returns:
            False if the store stops answering, otherwise True.
        """
        count = 0
        while self._pending_files:
            try:
                count += self._upload(self._pending_files[0])
            except StoreAwayError as error:
                self._note_failure(error)
                return False
            except (StoreError, DataError) as error:  # the file stays for `paradnn.sync`
                self._notify(f"{self._pending_files[0]} was not uploaded: {error}")
            self._pending_files.pop(0)
        try:
            self._store.delete_orphaned_claims(self._open_claims)
        except StoreError:
            return False
        if count:
            self._notify(f"{counted(count, 'result')} uploaded: {why}")
        return True

    def _upload(self, path: Path) -> bool:
        """Upload one result file and remove it.

        The file is kept if another process uploads it at the same time, or if the result is
        redundant in the store.

        Returns:
            Whether the store now holds the result.
        """
        with _locked(path) as is_locked:
            if not is_locked:
                return False
            done = self._store.upload(read_record(path))
            if done.state != "withheld":
                path.unlink(missing_ok=True)
                return True
        self._notify(
            f"{done.record.name} was not uploaded, because another driver measured the same point "
            f"in the meantime (run {done.run_id}); {path} is kept, and "
            f"{self._command} --repeats uploads it too"
        )
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Lock a result file against upload by other processes, and yield whether it is locked.

    Yields:
        False if the file does not exist or another process has locked it.
    """
    is_locked = False
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # the file does not exist
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            is_locked = locks.try_lock(descriptor) and path.exists()
        yield is_locked


def sync(
    folder: Path, settings: Tracking, *, repeats: bool = False
) -> tuple[list[tuple[Path, Uploaded]], list[str]]:
    """Upload every result file below a folder.

    Args:
        folder: The folder of a sweep with `tracking=offline`, or of results that were kept because
            a store did not answer.
        settings: Address and experiment of the store.
        repeats: Whether to upload a result even if the store holds an equivalent result of the
            same point.

    Returns:
        A pair of two lists. The first has each result file with the outcome of its upload. The
        second has one line of text per file that is damaged or that the store rejects.

    Raises:
        DataError: If the folder does not exist.
        StoreError: If the store does not answer, rejects the credentials, or is not a valid
            address.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder; give the folder of a sweep with tracking=offline"
        )
    store = MlflowStore(settings)
    store.close_abandoned()
    done: list[tuple[Path, Uploaded]] = []
    problems: list[str] = []
    from rich.console import Console
    from rich.progress import track

    points, sweeps = (sorted(folder.rglob(f"{kind}-*.json")) for kind in ("point", "sweep"))
    screen = Console(stderr=True)
    for path in track(
        [*points, *sweeps],
        "logging",
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    ):
        try:
            if path in sweeps:
                store.end_sweep(read_sweep(path))
                continue
            with _locked(path):
                done.append((path, store.upload(read_record(path), repeats=repeats)))
        except (StoreAwayError, StoreRefusalError):
            raise
        except (DataError, StoreError) as error:
            problem = str(error)
            if str(path) not in problem:
                problem = f"{path}: {problem}"
            problems.append(problem)
    return done, problems
