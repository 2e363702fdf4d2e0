"""What is kept of a point as files until it is recorded, so that a killed driver loses none of it: what some of its
processes measured, and how far its training is."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from paradnn.config.identity import Identity, digest
from paradnn.config.outcome import PointResult
from paradnn.config.point import Tracking
from paradnn.errors import DataError, StoreError
from paradnn.store.address import address_of
from paradnn.store.schema import SCHEMA_VERSION
from paradnn.tracking.offline import default_folder, read_document, write_document
from paradnn.worker.channel import MessageError, plain, read_message
from paradnn.worker.messages import PROTOCOL_VERSION

__all__ = ["PartialResults"]


class PartialResults:
    """Results of points that are not complete, a file each in the folder of results that wait for the store.

    Only who holds the claim of a point, or finds its outcome, touches its file.
    """

    def __init__(self, settings: Tracking) -> None:
        self._folder = Path(settings.folder).expanduser().absolute() if settings.folder else default_folder()
        # Claims are made in a store: a point of another store, or experiment, is another's.
        store = "" if settings.name == "offline" else address_of(settings.uri).uri
        self._store = digest([store, settings.experiment], 8)

    def load(self, identity: Identity) -> list[PointResult]:
        """What an earlier driver kept; a file that cannot be read, or of another version, holds nothing."""
        try:
            content = read_document(self._path(identity))
            if (content["schema_version"], content["protocol"]) != (SCHEMA_VERSION, PROTOCOL_VERSION):
                return []
            return [read_message(PointResult, result, "result") for result in content["results"]]
        except (DataError, MessageError, KeyError, TypeError):
            return []

    def save(self, identity: Identity, results: Sequence[PointResult]) -> None:
        """Keep all results of a point so far; raises StoreError when the disk does not take them."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"tracking.folder={self._folder}: cannot be made ({error.strerror}); give another"
            ) from None
        write_document(self._path(identity), {"protocol": PROTOCOL_VERSION, "results": plain(list(results))})

    def remove(self, identity: Identity) -> None:
        """The point is recorded. A folder that cannot be written holds no file of ours."""
        with contextlib.suppress(OSError):
            self._path(identity).unlink(missing_ok=True)

    def forget(self, identity: Identity, outcome: str) -> None:
        """The point has this outcome already: who recorded it may have been killed before it removed what it kept."""
        self.remove(identity)
        if outcome == "ok":  # what was cut short may be measured again, and go on
            self.remove_checkpoint(identity)

    def holds_any(self) -> bool:
        """Whether anything is kept of any point; mostly nothing is."""
        return any(next(self._folder.glob(pattern), None) for pattern in ("partial-*", "training-*"))

    def checkpoint(self, identity: Identity) -> Path:
        """Where a worker keeps how far it is, of work that can go on from there."""
        return self._folder / f"training-{self._name(identity)}.npz"

    def remove_checkpoint(self, identity: Identity) -> None:
        """The training has ended; a worker that was killed may have left a half-written file too."""
        path = self.checkpoint(identity)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.with_suffix(".part").unlink(missing_ok=True)  # as it is called while it is written

    def _path(self, identity: Identity) -> Path:
        return self._folder / f"partial-{self._name(identity)}.json"

    def _name(self, identity: Identity) -> str:
        return f"{self._store}-{identity.point_id}-{identity.environment_id}-{identity.replicate}"
