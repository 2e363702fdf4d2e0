"""Results as files, for machines that reach no tracking store; `python -m paradnn.sync` logs them later.

Each point is one self-contained JSON file with a checksum, written beside its name and then renamed: a file that is
there is whole. A claim is an empty-handed file of its own, made exclusively, so several drivers may share a folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paradnn.config.identity import Identity
from paradnn.config.paths import HOME
from paradnn.core.workload import Moment
from paradnn.errors import DataError, StoreError
from paradnn.record.record import Record
from paradnn.store.schema import SCHEMA_VERSION
from paradnn.tracking.base import AcceptsRun, Claim, ClaimedElsewhere, Finished, RecordingMetrics
from paradnn.tracking.run_index import Entry, owner_tag

__all__ = ["FORMAT", "OfflineTracker", "default_folder", "read_document", "write_document"]

#: What the files say they are; the number counts versions of their layout.
#:   1  the first.
FORMAT = "paradnn-offline-1"


def default_folder() -> Path:
    """Where files go when nothing else is said."""
    return HOME / "mlruns" / "offline"


class OfflineTracker:
    """Keeps results as files below a folder; see `paradnn.tracking.base.Tracker`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()
        self._sweep: dict[str, Any] | None = None
        self._known: dict[Identity, list[Finished]] | None = None
        self._read: set[str] = set()  # names of files that are known
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"tracking.folder={folder}: cannot be made ({error.strerror}); give another") from None
        if not os.access(self.folder, os.W_OK):
            raise StoreError(f"tracking.folder={folder}: cannot be written; give another")

    @property
    def where(self) -> str:
        return f"{self.folder} (python -m paradnn.sync {self.folder} logs them)"

    def finished(self, environment_ids: Iterable[str], sweep_id: str | None = None) -> dict[Identity, list[Finished]]:
        wanted = set(environment_ids)
        return {
            identity: runs
            for identity, runs in self._all(fresh=True).items()
            if identity.environment_id in wanted or (sweep_id and runs[0].tags.get("sweep_id") == sweep_id)
        }

    def fetch(self, run_id: str) -> tuple[dict[str, float], dict[str, str]]:
        record = read_document(self.folder / f"{run_id}.json")["record"]
        return record["metrics"], record["tags"]

    def open_sweep(self, name: str, description: str, tags: Mapping[str, str]) -> str:
        self._sweep = {"name": name, "description": description, "tags": dict(tags)}
        return tags["sweep_id"]

    def enter_sweep(self, parent: str, name: str, description: str, tags: Mapping[str, str]) -> None:
        self.open_sweep(name, description, tags)

    def drop_sweep(self) -> None:
        self._remove_reports()
        self._sweep = None

    def report_task(self, task: int, report: Mapping[str, Any]) -> None:
        if self._sweep is not None:
            write_document(self.folder / f"task-{self._sweep['tags']['sweep_id']}-{task}.json", {"report": report})

    def task_reports(self) -> dict[int, dict[str, Any]]:
        return {int(path.stem.rpartition("-")[2]): read_document(path)["report"] for path in self._reports()}

    def sweep_rows(self, sweep_id: str) -> list[dict[str, Any]]:
        rows = []
        for path in self.folder.glob("point-*.json"):
            with contextlib.suppress(DataError):
                record = read_document(path)["record"]
                if record["tags"].get("sweep_id") == sweep_id:
                    rows.append({"run_id": path.stem, "name": record["name"], **record["tags"], **record["metrics"]})
        return rows

    def release(self, sweep_id: str) -> int:
        count = 0
        for path in self.folder.glob("*.claim"):
            with contextlib.suppress(OSError, ValueError):
                owner = json.loads(json.loads(path.read_text())["owner"])
                if owner.get("task", "").startswith(f"{sweep_id}/"):
                    path.unlink(missing_ok=True)
                    count += 1
        return count

    def close_sweep(
        self,
        status: str,
        description: str,
        metrics: Mapping[str, float],
        artifacts: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> None:
        if self._sweep is None:
            return
        content = {**self._sweep, "description": description, "status": status, "metrics": dict(metrics)}
        content["tags"] = {**self._sweep["tags"], **tags}
        write_document(
            self.folder / f"sweep-{self._sweep['tags']['sweep_id']}.json",
            {"sweep": content, "artifacts": dict(artifacts)},
        )
        self._remove_reports()
        self._sweep = None

    def begin(
        self, identity: Identity, name: str, tags: Mapping[str, str], timeout: float, accepts: AcceptsRun | None
    ) -> Claim | Finished | ClaimedElsewhere:
        claim = Claim(f"point-{uuid.uuid4().hex}", identity, int(time.time() * 1000), repeats=accepts is None)
        if accepts is None:
            return claim
        for _ in range(2):
            if found := self._accepted(identity, accepts):
                return found
            if self._claim(identity, timeout):
                # Another driver may have recorded it, and let it go, since the folder was read.
                if found := self._accepted(identity, accepts, fresh=True):
                    self._claim_path(identity).unlink(missing_ok=True)
                return found or claim
        return ClaimedElsewhere(str(self._claim_path(identity)))

    def claimed(self) -> set[Identity]:
        """The points that a living driver is measuring now."""
        found = set()
        for path in self.folder.glob("*.claim"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                content = json.loads(path.read_text())
                if not Entry(path.stem, "RUNNING", content).is_abandoned():
                    found.add(Identity(**content["identity"]))
        return found

    def renew(self, claim: Claim, timeout: float) -> None:
        path = self._claim_path(claim.identity)
        if not claim.repeats:
            with contextlib.suppress(OSError), _placed(self.folder, _owned(claim.identity, timeout)) as made:
                os.replace(made, path)

    def tell(self, claim: Claim, moments: Sequence[Moment]) -> None:
        """Files are looked at when they are there: epochs of an open point are not kept."""

    def record(self, claim: Claim, record: Record, recording_metrics: RecordingMetrics) -> str:
        run_id = claim.run_id if claim.run_id.startswith("point-") else f"point-{uuid.uuid4().hex}"
        content = asdict(record)
        content["metrics"] = {**record.metrics, **recording_metrics()}
        begun = None if run_id == claim.run_id else claim.run_id
        write_document(
            self.folder / f"{run_id}.json",
            {"record": content, "offline_id": run_id, "run_id": begun, "sweep": self._sweep, "repeats": claim.repeats},
        )
        if self._known is not None:
            self._read.add(f"{run_id}.json")
            self._known.setdefault(claim.identity, []).append(Finished(run_id, record.tags))
        self._claim_path(claim.identity).unlink(missing_ok=True)
        return run_id

    def abandon(self, claim: Claim, reason: str) -> None:
        self._claim_path(claim.identity).unlink(missing_ok=True)

    def close_abandoned(self) -> int:
        return sum(self._drop_if_stale(path) for path in self.folder.glob("*.claim"))

    def _reports(self) -> list[Path]:
        return list(self.folder.glob(f"task-{self._sweep['tags']['sweep_id']}-*.json")) if self._sweep else []

    def _remove_reports(self) -> None:
        for path in self._reports():
            path.unlink(missing_ok=True)

    def _all(self, fresh: bool = False) -> dict[Identity, list[Finished]]:
        """What the folder holds; damaged files are left to `sync` to name."""
        if self._known is None or fresh:
            self._known = self._known or {}
            for path in self.folder.glob("point-*.json"):
                if path.name in self._read:
                    continue
                self._read.add(path.name)
                with contextlib.suppress(DataError):
                    tags = read_document(path)["record"]["tags"]
                    identity = Identity(tags["point_id"], tags["environment_id"], int(tags["replicate"]))
                    self._known.setdefault(identity, []).append(Finished(path.stem, tags))
        return self._known

    def _accepted(self, identity: Identity, accepts: AcceptsRun, fresh: bool = False) -> Finished | None:
        """The first run of a point that is accepted; `fresh`: what others recorded meanwhile is looked at too."""
        return next((run for run in self._all(fresh).get(identity, []) if accepts(run.tags)), None)

    def _claim_path(self, identity: Identity) -> Path:
        return self.folder / f"{identity.point_id}-{identity.environment_id}-{identity.replicate}.claim"

    def _claim(self, identity: Identity, timeout: float) -> bool:
        path = self._claim_path(identity)
        with _placed(self.folder, _owned(identity, timeout)) as made:
            try:
                os.link(made, path)  # fails where the name is taken: the claim appears whole or not at all
                return True
            except FileExistsError:
                self._drop_if_stale(path)
                return False

    def _drop_if_stale(self, path: Path) -> bool:
        try:
            stale = Entry(path.stem, "RUNNING", json.loads(path.read_text())).is_abandoned()
        except (OSError, ValueError):
            return False
        if stale:
            path.unlink(missing_ok=True)
        return stale


def _owned(identity: Identity, timeout: float) -> bytes:
    """The content of a claim of this process for a point that takes so many seconds."""
    expires = str(time.time() + timeout + 600)
    return json.dumps({"owner": owner_tag(), "claim_expires": expires, "identity": asdict(identity)}).encode()


def write_document(path: Path, content: Mapping[str, Any]) -> None:
    """Write one file whole or not at all; raises StoreError when the disk does not take it."""
    body = json.dumps({"format": FORMAT, "schema_version": SCHEMA_VERSION, **content}, sort_keys=True)
    text = json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body})
    try:
        with _placed(path.parent, text.encode()) as made:
            os.replace(made, path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}); free some space and run again") from error


def read_document(path: Path) -> dict[str, Any]:
    """What `write_document` wrote; raises DataError for a file that is damaged or of another kind."""
    try:
        outer = json.loads(path.read_text())
        body = outer["body"]
        intact = hashlib.sha256(body.encode()).hexdigest() == outer["sha256"]
        content: dict[str, Any] = json.loads(body) if intact else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: no result file, or a damaged one ({type(error).__name__})") from None
    if not intact:
        raise DataError(f"{path}: damaged, its checksum does not fit")
    if content.get("format") != FORMAT:
        raise DataError(f"{path}: format {content.get('format')!r}, this version reads {FORMAT!r}")
    return content


@contextlib.contextmanager
def _placed(folder: Path, data: bytes) -> Iterator[Path]:
    """A finished temporary file in `folder`, gone afterwards unless it was renamed."""
    path = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        with path.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        yield path
    finally:
        path.unlink(missing_ok=True)
