"""Nothing is lost when the store goes away: from the first failure on, results are kept as files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from paradnn.config import Tracking
from paradnn.errors import StoreError
from paradnn.identity import Identity
from paradnn.offline import OfflineTracker, default_folder
from paradnn.record import Record
from paradnn.tracker import Busy, Counts, Finished, Late, Ticket, Tracker
from paradnn.tracking import MlflowTracker

__all__ = ["ResilientTracker", "open_tracker"]

T = TypeVar("T")


def open_tracker(settings: Tracking, notify: Callable[[str], None]) -> Tracker:
    """The tracker that the configuration asks for; raises StoreError when it cannot be opened.

    `notify` is told, in one line, when results go into files instead.
    """
    folder = Path(settings.folder) if settings.folder else default_folder()
    if settings.name == "offline":
        return OfflineTracker(folder)
    return ResilientTracker(MlflowTracker(settings), folder, notify)


class ResilientTracker:
    """A tracker that turns to files when the store fails in the middle of a session, and stays there."""

    def __init__(self, store: Tracker, folder: Path, notify: Callable[[str], None]) -> None:
        self._store = store
        self._folder = folder
        self._notify = notify
        self._files: OfflineTracker | None = None
        self._sweep: tuple[str, str, Mapping[str, str]] | None = None

    @property
    def where(self) -> str:
        return f"{self._store.where} and {self._files.where}" if self._files else self._store.where

    def finished(self, environment_ids: Iterable[str]) -> dict[Identity, list[Finished]]:
        return self._store.finished(environment_ids)

    def fetch(self, run_id: str) -> tuple[dict[str, float], dict[str, str]]:
        return self._try(lambda tracker: tracker.fetch(run_id))

    def close_abandoned(self) -> int:
        return self._store.close_abandoned()

    def open_sweep(self, name: str, description: str, tags: Mapping[str, str]) -> str:
        self._sweep = (name, description, tags)
        return self._store.open_sweep(name, description, tags)

    def close_sweep(
        self, status: str, description: str, metrics: Mapping[str, float], table: Mapping[str, Any]
    ) -> None:
        self._try(lambda tracker: tracker.close_sweep(status, description, metrics, table))

    def begin(
        self, identity: Identity, name: str, tags: Mapping[str, str], timeout: float, counts: Counts | None
    ) -> Ticket | Finished | Busy:
        return self._try(lambda tracker: tracker.begin(identity, name, tags, timeout, counts))

    def record(self, ticket: Ticket, record: Record, late: Late) -> str:
        return self._try(lambda tracker: tracker.record(ticket, record, late))

    def abandon(self, ticket: Ticket, reason: str) -> None:
        self._try(lambda tracker: tracker.abandon(ticket, reason))

    def _try(self, call: Callable[[Tracker], T]) -> T:
        if self._files is None:
            try:
                return call(self._store)
            except StoreError as error:
                self._files = OfflineTracker(self._folder)
                if self._sweep:
                    self._files.open_sweep(*self._sweep)
                self._notify(
                    f"the store does not answer ({error}). Results go to files; bring them in with:\n"
                    f"  python -m paradnn.sync {self._files.folder}"
                )
        return call(self._files)
