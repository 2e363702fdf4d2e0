"""One path for the results of a session, whether the store answers or not.

A result goes into a file of the journal first, then into the store. If a driver is killed
between the two, the next driver of the same store uploads the file. If the store goes away, the
driver waits for `tracking.patience` seconds. It then continues to measure without claims and
retries the store from time to time. A result that another driver recorded in the meantime is not
recorded twice.
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

# Seconds between two attempts to reach a store that is away: while the driver waits, and later.
_WAITING_RETRY_SECONDS = 1.0
_BACKGROUND_RETRY_SECONDS = 30.0
#: Seconds for which a driver tries to end its lease, and between two tries.
_UNREGISTER_SECONDS = 2.0
_UNREGISTER_PAUSE = 0.05


def sync_command(folder: Path, settings: Tracking) -> str:
    """Return the command line that uploads a folder of results into the store of these settings.

    It has no credentials, which belong in the environment.
    """
    words = ["python", "-m", "paradnn.sync", str(folder)]
    if settings.uri:
        words += ["--uri", without_credentials(settings.uri)]
    if settings.experiment_name != "paradnn":  # the default may differ in another shell
        words += ["--experiment", settings.experiment_name]
    return shlex.join(words)


def open_tracker(settings: Tracking, notify: Callable[[str], None]) -> Journal:
    """Open the configured store, or the folder of `tracking=offline`.

    Args:
        settings: Address, experiment and folder.
        notify: Receives lines for the user, for example if results cannot go into the store.

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
    """A journal in front of a store.

    Methods raise StoreError if neither the store nor the disk accepts a result.
    """

    def __init__(
        self, settings: Tracking, store: MlflowStore, notify: Callable[[str], None]
    ) -> None:
        super().__init__(folder_of(settings), store_key(settings))
        self._store = store
        self._notify = notify
        self._patience = settings.patience
        self._command = sync_command(self.folder, settings)
        self._kept: list[Path] = []  # files to upload
        self._held: set[str] = set()  # runs of claims that are neither recorded nor released
        self._unclosed = False  # whether the end of the sweep went into a file
        self._away_since: float | None = None  # monotonic seconds; None while the store answers
        self._next_look = 0.0  # monotonic seconds of the next attempt to reach the store
        self._proven = False  # whether the store has accepted a claim
        self._loss = ""  # fate of a deleted store, as text

    @property
    def problem(self) -> str:
        return self._loss

    @property
    def where(self) -> str:
        if self._loss:
            return f"{self.folder} until {self._command}"
        if not self._kept and not self._unclosed:
            return self._store.where
        if self._kept:
            pending = f"{len(self._kept)} of them"
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
        """Upload the results that drivers left when they ended early, then close their runs."""
        self._kept += self.left_behind()
        self._upload_kept("left by drivers that ended early")
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
        with contextlib.suppress(StoreError):  # the points matter more
            self._store.annotate_sweep(end)

    def register(self, driver: str, lease: Lease) -> None:
        self._store.register(driver, lease)

    def unregister(self, *, is_complete: bool = False, conclusion: str = "") -> None:
        with contextlib.suppress(StoreError):  # a claim that an interruption left half made
            self._store.delete_orphaned_claims(self._held)
        # Drivers that end at the same time lock a SQLite store for each other, which fails at once.
        # If one cannot end its lease, the others take it for alive and the sweep stays open.
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
        return self._store.renew_lease(tuple(self._held))

    def close_sweep(self, end: SweepRun) -> None:
        if end.status == "KILLED":  # an interrupted sweep ends at once
            self._patience = 0.0

        def close() -> None:
            self._store.close_sweep(end)
            self._store.delete_orphaned_claims(self._held)

        try:
            self._patiently(close)  # uploads the kept files first
        except StoreAwayError:
            super().close_sweep(end)
            self._unclosed = True

    def begin(
        self,
        identity: Identity,
        name: str,
        tags: Mapping[str, str],
        accepts: AcceptsRun | None,
    ) -> Claimed:
        while self._is_there():
            try:
                answer = self._store.begin(identity, name, tags, accepts)
                self._away_since = None
                self._proven = True
                if isinstance(answer, Claim):
                    self._held.add(answer.run_id)
                return answer
            except StoreError as error:
                if isinstance(error, StoreRefusalError) and not self._proven:
                    raise  # nothing is measured yet, so the user can fix it now
                self._lost(error)
        try:
            return super().begin(identity, name, tags, accepts)
        except StoreError as error:
            raise self._no_room() from error

    def log_snapshots(self, claim: Claim, snapshots: Sequence[MetricSnapshot]) -> None:
        self._try_store(claim, partial(self._store.log_snapshots, claim, snapshots))

    def record(self, claim: Claim, record: Record, recording_metrics: RecordingMetrics) -> str:
        """Record a point in the store, or keep it as a file if the store does not accept it.

        Raises:
            ClaimLostError: If another driver has taken over the point, because this process was
                suspended for longer than its lease.
        """
        begun = claim.run_id in self._held
        self._held.discard(claim.run_id)
        if begun and self._away_since is None and self._is_lost(claim):
            raise ClaimLostError(f"{record.name}: another driver has taken it over")
        document = self.document(claim, record, recording_metrics())
        path: Path | None = None
        with contextlib.suppress(StoreError):  # the store may accept what the disk does not
            path = self.keep(document)
        if self._away_since is None and begun:
            try:
                run_id = self._store.record(claim, record, recording_metrics)
                if path:
                    path.unlink(missing_ok=True)
                return run_id
            except StoreError as error:
                self._lost(error)
        if path is None:
            try:
                return self._patiently(lambda: self._store.upload(document)).run_id
            except StoreAwayError as error:
                raise self._no_room(record.name) from error
        self._kept.append(path)
        if self._away_since is None:  # claimed while the store was away
            self._upload_kept("the store answers again")
        return path.stem

    def _is_lost(self, claim: Claim) -> bool:
        try:
            return self._store.is_lost(claim)
        except StoreError:  # the result is kept, and compared with the store at its upload
            return False

    def abandon(self, claim: Claim, reason: str) -> None:
        if claim.run_id not in self._held:
            super().abandon(claim, reason)
        elif self._away_since is None:
            self._store.abandon(claim, reason)
        self._held.discard(claim.run_id)

    def _no_room(self, lost: str = "") -> StoreError:
        detail = ""
        if lost:
            detail = f": {lost} is lost"
        return StoreError(
            f"neither {self._store.where} nor {self.folder} accepts results{detail}; "
            f"{counted(len(self._kept), 'result')} in files. "
            "Free some space; the same command then continues"
        )

    def _try_store(self, claim: Claim, act: Callable[[], None]) -> None:
        """Call `act` if the store holds the claim; nothing is lost if the store does not answer."""
        if self._away_since is None and claim.run_id in self._held:
            try:
                act()
            except StoreError as error:
                self._lost(error)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Call the store until it answers.

        Raises:
            StoreAwayError: If the store stays away.
        """
        while self._is_there():
            try:
                return ask()
            except StoreError as error:
                self._lost(error)
        raise StoreAwayError(f"{self._store.where}: does not answer")

    def _lost(self, error: StoreError) -> None:
        """Note that the store failed.

        The driver waits only for a store that is away, and no longer than `tracking.patience`.
        """
        now = time.monotonic()
        if isinstance(error, StoreDeletedError):
            self._away_since = now
            self._next_look = math.inf
            if not self._loss:
                self._loss = f"{error}. {self._rescue()}"
                self._notify(
                    f"{self._loss}. Results from now on go to files: upload them afterwards with\n"
                    f"  {self._command}"
                )
            return
        if self._away_since is None:
            self._away_since = now
            self._notify(
                f"the store does not answer ({error}). Results go to files until it does. "
                f"If it stays away, upload them with:\n  {self._command}"
            )
        if not isinstance(error, StoreAwayError) or now - self._away_since >= self._patience:
            self._next_look = now + _BACKGROUND_RETRY_SECONDS

    def _rescue(self) -> str:
        """Copy the runs of a deleted store; return the result of the rescue as text."""
        copy = self._store.rescue(self.folder)
        if copy:
            return f"Its runs were copied to {copy}: move that file back to restore them"
        return "Its runs are lost: this process could not read them any more"

    def _is_there(self) -> bool:
        """Whether the store answers.

        Waits for a store that went away recently, and uploads the kept files once it is back.
        """
        while self._away_since is not None:
            now = time.monotonic()
            if now < self._next_look:
                return False
            if self._store.is_back() and self._upload_kept("the store answers again"):
                # Drivers on other hosts could not renew their leases either.
                self._store.expiries_count_from = time.monotonic() + HEARTBEAT_SECONDS
                return True
            if now - self._away_since >= self._patience:
                self._next_look = now + _BACKGROUND_RETRY_SECONDS
            else:
                time.sleep(_WAITING_RETRY_SECONDS)
        return True

    def _upload_kept(self, why: str) -> bool:
        """Upload the kept files and remove them; return False if the store goes away again."""
        count = 0
        while self._kept:
            try:
                count += self._upload(self._kept[0])
            except StoreAwayError as error:
                self._lost(error)
                return False
            except (StoreError, DataError) as error:  # the file stays for `paradnn.sync`
                self._notify(f"{self._kept[0]} was not uploaded: {error}")
            self._kept.pop(0)
        try:
            self._store.delete_orphaned_claims(self._held)
        except StoreError:
            return False
        if count:
            self._notify(f"{counted(count, 'result')} uploaded: {why}")
        return True

    def _upload(self, path: Path) -> bool:
        """Upload one file; return whether the store now holds its result.

        Another process may upload the same file at the same time.
        """
        with _alone_with(path) as is_locked:
            if not is_locked:
                return False
            done = self._store.upload(read_record(path))
            if done.state != "withheld":
                path.unlink(missing_ok=True)
                return True
        self._notify(
            f"{done.record.name} was not uploaded: run {done.run_id} holds the same point, "
            f"which another driver measured in the meantime; {path} is kept, and "
            f"{self._command} --repeats uploads it too"
        )
        return False


@contextlib.contextmanager
def _alone_with(path: Path) -> Iterator[bool]:
    """Lock a file; yield whether it exists and no other process uploads it."""
    is_locked = False
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # it is gone
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            is_locked = locks.try_lock(descriptor) and path.exists()
        yield is_locked


def sync(
    folder: Path, settings: Tracking, *, repeats: bool = False
) -> tuple[list[tuple[Path, Uploaded]], list[str]]:
    """Upload every result file below a folder.

    Args:
        folder: The folder of a sweep with `tracking=offline`, or of results that no store accepted.
        settings: The store and the experiment.
        repeats: Whether to upload results of points that the store already holds too.

    Returns:
        The result of the upload per file; and one line per file that is damaged or that the store
        rejects.

    Raises:
        DataError: If the folder does not exist.
        StoreError: If the store does not answer or rejects the credentials.
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
            with _alone_with(path):
                done.append((path, store.upload(read_record(path), repeats=repeats)))
        except (StoreAwayError, StoreRefusalError):
            raise
        except (DataError, StoreError) as error:
            problem = str(error)
            if str(path) not in problem:
                problem = f"{path}: {problem}"
            problems.append(problem)
    return done, problems
