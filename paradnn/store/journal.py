"""Results as files: what is measured goes here first, then into the store, at once where it
answers, else later. Each point is one JSON file with a checksum, renamed once it is whole, which
stays until a driver of the same store, or `python -m paradnn.sync`, logs it. Without a store points
are claimed here too, by files that are made exclusively. What some processes of a point measured,
and how far a training is, waits here until the point is complete.
"""

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paradnn.config.identity import Identity, digest
from paradnn.config.outcome import PointResult
from paradnn.config.paths import HOME
from paradnn.config.settings import Tracking
from paradnn.core.channel import MessageError, plain, read_message
from paradnn.core.errors import DataError, StoreError
from paradnn.core.messages import PROTOCOL_VERSION
from paradnn.core.metric import MetricSnapshot
from paradnn.core.words import counted
from paradnn.store.address import address_of
from paradnn.store.claims import Entry, expiry, owner_tag
from paradnn.store.files import new_file, read_json
from paradnn.store.runs import (
    SCHEMA_VERSION,
    AcceptsRun,
    Claim,
    Claimed,
    Finished,
    Record,
    RecordingMetrics,
    SweepRun,
)

#: What the files say they are; the number counts versions of their layout.
#:   1  the first.
FORMAT = "paradnn-offline-1"
_LARGEST = 2**30  # bytes of a file that is read


@dataclass(frozen=True)
class Document:
    """A measured point as it is kept. `offline_id` names its file, `run_id` the run that was begun
    for it. `repeats`: it is recorded whatever the store holds. `owner`: the tag of the driver that
    wrote it; of earlier ones none.
    """

    record: Record
    offline_id: str
    run_id: str | None
    sweep: SweepRun | None
    repeats: bool
    owner: str | None


def folder_of(settings: Tracking) -> Path:
    """Where files of these settings go."""
    return Path(settings.folder or HOME / "mlruns" / "offline").expanduser().absolute()


def store_key(settings: Tracking) -> str:
    """Which store, and experiment, results are for."""
    if settings.name == "offline":
        store = ""
    else:
        store = address_of(settings.uri).uri
    return digest([store, settings.experiment_name], 8)


def identity_of(tags: Mapping[str, str]) -> Identity:
    """The measurement that tags name; DataError where they name none."""
    try:
        return Identity(tags["point_id"], tags["environment_id"], int(tags["replicate"]))
    except (KeyError, ValueError) as error:
        raise DataError(f"tags of no point: {type(error).__name__} {str(error)[:80]}") from None


class Journal:
    """Keeps runs as files in a folder. `key`: of the store that they are for; empty where they stay
    (`store_key`). Methods raise StoreError when the disk does not take what is to be kept.
    """

    def __init__(self, folder: Path, key: str = "") -> None:
        self._key = f"{key}-" if key else ""
        self.folder = folder.expanduser().absolute()
        self._sweep: SweepRun | None = None
        self._known: dict[Identity, list[Finished]] = {}
        self._read: set[str] = set()  # names of files that are known
        self._written: list[Path] = []  # results of this process, in the order of their end
        with contextlib.suppress(
            *[StoreError] if key else []
        ):  # beside a store it is needed where that is away
            _make(self.folder)
            if not os.access(self.folder, os.W_OK):
                raise StoreError(f"tracking.folder={folder}: cannot be written; give another")

    @property
    def where(self) -> str:
        """Where the runs are, as it may be shown."""
        return f"{self.folder} (python -m paradnn.sync {self.folder} logs them)"

    def finished(
        self, environment_ids: Iterable[str], sweep_id: str | None = None
    ) -> dict[Identity, list[Finished]]:
        """Every run with an outcome in these environments; of a sweep, in whichever."""
        wanted = set(environment_ids)
        return {
            identity: runs
            for identity, runs in self._all().items()
            if identity.environment_id in wanted
            or (sweep_id and runs[0].tags.get("sweep_id") == sweep_id)
        }

    @property
    def problem(self) -> str:
        """Which results of this process were deleted by others, as text; empty if none were."""
        count = sum(not path.is_file() for path in self._written)
        if not count:
            return ""
        return (
            f"{counted(count, 'result')} of this session were deleted from {self.folder} "
            "while it ran; the same command measures those points again"
        )

    def finished_anywhere(self, identity: Identity) -> list[Finished]:
        """Runs of one measurement that have an outcome, whichever experiment they are for."""
        return list(self._all().get(identity, ()))

    def fetch(self, run_id: str) -> tuple[dict[str, float], dict[str, str]]:
        """Metrics and tags of one run."""
        record = read_record(self.path_of(run_id)).record
        return dict(record.metrics), dict(record.tags)

    def path_of(self, run_id: str) -> Path:
        """Where a result is, or would be."""
        return self.folder / f"{run_id}.json"

    def open_sweep(self, name: str, description: str, tags: Mapping[str, str]) -> str:
        """Start the parent of the runs that follow; its id."""
        self._sweep = SweepRun("RUNNING", description, tags=dict(tags), name=name)
        return tags["sweep_id"]

    def close_sweep(self, end: SweepRun) -> None:
        """End the parent."""
        if self._sweep is not None:
            tags = {**self._sweep.tags, **end.tags}
            content = asdict(replace(end, name=self._sweep.name, tags=tags))
            artifacts = content.pop("artifacts")
            path = self.folder / f"sweep-{tags['sweep_id']}.json"
            write_document(path, {"sweep": content, "artifacts": artifacts})
            self._sweep = None

    def begin(
        self,
        identity: Identity,
        name: str,
        tags: Mapping[str, str],
        timeout: float,
        accepts: AcceptsRun | None,
    ) -> Claimed:
        """Claim a point; with `accepts` None it is measured whatever the store holds."""
        claim = Claim(self._new_id(), identity, int(time.time() * 1000), repeats=accepts is None)
        if accepts is None:
            return claim
        for _ in range(2):
            mine = self._claim(identity, timeout)
            # Looked for once it is claimed: another driver may have recorded it, and let it go, the
            # moment before.
            found = next((run for run in self._all().get(identity, ()) if accepts(run.tags)), None)
            if found and mine:
                self._claim_path(identity).unlink(missing_ok=True)
            if found or mine:
                return found or claim
        return None

    def claimed(self) -> set[Identity]:
        """The points that a living driver is measuring now."""
        entries = map(_claim_in, self.folder.glob("*.claim"))
        return {entry.identity for entry in entries if entry and not entry.is_abandoned()}

    def renew(self, claim: Claim, timeout: float) -> None:
        """Let a claim hold for so many seconds from now on."""
        path = self._claim_path(claim.identity)
        if not claim.repeats:
            with (
                contextlib.suppress(OSError, StoreError),
                _written(path, _owned(claim.identity, timeout)) as made,
            ):
                os.replace(made, path)

    def tell(self, claim: Claim, moments: Sequence[MetricSnapshot]) -> None:
        """Let who looks at a point that is being measured see what its epochs gave so far: in a
        store.
        """

    def record(self, claim: Claim, record: Record, recording_metrics: RecordingMetrics) -> str:
        """Keep a finished point; the run's id."""
        document = self.document(claim, record, recording_metrics())
        self._written.append(self.keep(document))
        return document.offline_id

    def document(self, claim: Claim, record: Record, metrics: Mapping[str, float]) -> Document:
        """What is to be kept of a point that was measured; `metrics` are those of the recording
        itself.
        """
        ours = claim.run_id.startswith("point-")
        run_id, begun = (claim.run_id, None) if ours else (self._new_id(), claim.run_id)
        whole = replace(record, metrics={**record.metrics, **metrics})
        return Document(whole, run_id, begun, self._sweep, claim.repeats, owner_tag())

    def keep(self, document: Document) -> Path:
        """Write a document; where it is. The claim of its point is given back: two drivers that
        kept their own would each wait for the other's last point.
        """
        path = self.path_of(document.offline_id)
        tags = document.record.tags
        content = asdict(document)
        identity = identity_of(tags)
        if document.sweep:
            del content["sweep"]["artifacts"]
        write_document(path, content)
        self._read.add(path.name)
        self._known.setdefault(identity, []).append(Finished(document.offline_id, tags))
        if document.run_id is None and not document.repeats:
            self._claim_path(identity).unlink(missing_ok=True)
        return path

    def left_behind(self) -> Iterator[Path]:
        """Results for this store whose driver is gone."""
        for path in self.folder.glob(f"point-{self._key}*.json") if self._key else ():
            with contextlib.suppress(DataError):
                if Entry(
                    path.stem, "RUNNING", {"owner": read_record(path).owner or ""}
                ).is_abandoned():
                    yield path

    def abandon(self, claim: Claim, reason: str) -> None:
        """Give a point back without an outcome."""
        self._claim_path(claim.identity).unlink(missing_ok=True)

    def close_abandoned(self) -> int:
        """Close what dead drivers left open; how many there were."""
        return sum(self._drop_if_stale(path) for path in self.folder.glob("*.claim"))

    def _all(self) -> dict[Identity, list[Finished]]:
        """What the folder holds, others' of this moment too; damaged files are left to `sync` to
        name.
        """
        for path in self.folder.glob("point-*.json"):
            if path.name not in self._read:
                self._read.add(path.name)
                with contextlib.suppress(DataError):
                    tags = read_record(path).record.tags
                    self._known.setdefault(identity_of(tags), []).append(Finished(path.stem, tags))
        return self._known

    def _claim_path(self, identity: Identity) -> Path:
        return (
            self.folder
            / f"{identity.point_id}-{identity.environment_id}-{identity.replicate}.claim"
        )

    def _claim(self, identity: Identity, timeout: float) -> bool:
        path = self._claim_path(identity)
        try:
            with _written(path, _owned(identity, timeout)) as made:
                os.link(
                    made, path
                )  # fails where the name is taken: the claim appears whole or not at all
            return True
        except FileExistsError:
            self._drop_if_stale(path)
            return False

    def _drop_if_stale(self, path: Path) -> bool:
        stale = bool((entry := _claim_in(path)) and entry.is_abandoned())
        if stale:
            path.unlink(missing_ok=True)
        return stale

    def _new_id(self) -> str:
        return f"point-{self._key}{uuid.uuid4().hex}"


def _owned(identity: Identity, timeout: float) -> bytes:
    return json.dumps(
        {"owner": owner_tag(), "claim_expires": expiry(timeout), "identity": asdict(identity)}
    ).encode()


def _claim_in(path: Path) -> Entry | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        content = read_json(path.read_text())
        tags = {**content.pop("identity"), **content}
        entry = Entry(path.stem, "RUNNING", {key: str(value) for key, value in tags.items()})
        return entry if entry.is_readable and entry.owner else None
    return None


def write_document(path: Path, content: Mapping[str, Any]) -> None:
    """Write one file whole or not at all; raises StoreError when the disk does not take it."""
    body = json.dumps(
        {"format": FORMAT, "schema_version": SCHEMA_VERSION, **content}, sort_keys=True
    )
    text = json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body})
    with _written(path, text.encode()) as made:
        os.replace(made, path)


@contextlib.contextmanager
def _written(path: Path, data: bytes) -> Iterator[Path]:
    """A whole file beside `path`, whose name it is to get; StoreError where the disk does not take
    it.
    """
    _make(path.parent)  # others may have deleted it
    try:
        with new_file(path.parent) as (made, file):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            yield made
    except FileExistsError:
        raise
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written ({error.strerror}); free some space and run again"
        ) from error


def read_document(path: Path) -> dict[str, Any]:
    """What `write_document` wrote; raises DataError for a file that is damaged or of another kind."""
    try:
        if path.stat().st_size > _LARGEST:
            raise DataError(f"{path}: larger than any result, {_LARGEST:,} bytes")
        outer = read_json(path.read_text())
        body = outer["body"]
        intact = hashlib.sha256(body.encode()).hexdigest() == outer["sha256"]
        content: dict[str, Any] = read_json(body) if intact else {}
        form = content.get("format")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: no result file, or a damaged one ({type(error).__name__})"
        ) from None
    if not intact:
        raise DataError(f"{path}: damaged, its checksum does not fit")
    if form != FORMAT:
        raise DataError(f"{path}: format {str(form)[:80]!r}, this version reads {FORMAT!r}")
    return content


def read_record(path: Path) -> Document:
    """The result in a file, checked; DataError for one that is damaged, of another version, or
    none.
    """
    with _checked(path, "the record of a point") as content:
        record = {"description": "", "history": []} | content["record"]
        rest = {name: content.get(name) for name in ("offline_id", "run_id", "owner", "sweep")}
        rest |= {"record": record, "repeats": bool(content.get("repeats"))}
        document = read_message(Document, rest, "document")
        identity_of(document.record.tags)
        return document


def read_sweep(path: Path) -> SweepRun:
    """How a sweep ended; DataError as `read_record` raises it."""
    with _checked(path, "the end of a sweep") as content:
        # Files of an earlier version hold a table alone.
        if "artifacts" in content:
            artifacts = content["artifacts"]
        else:
            artifacts = {"sweep.json": content["table"]}
        return read_message(SweepRun, content["sweep"] | {"artifacts": artifacts}, "sweep")


@contextlib.contextmanager
def _checked(path: Path, what: str) -> Iterator[dict[str, Any]]:
    """The content of a file of this version; DataError for what is found wrong with it inside."""
    content = read_document(path)
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path}: schema_version {str(version)[:80]}, this version reads {SCHEMA_VERSION}"
        )
    if isinstance(sweep := content.get("sweep"), dict):
        content["sweep"] = {"status": "FINISHED", "metrics": {}, "artifacts": {}} | sweep
    try:
        yield content
    except (ValueError, KeyError, TypeError, OverflowError, DataError) as error:
        raise DataError(f"{path}: not {what} ({' '.join(str(error).split())[:200]})") from None


class PartialResults:
    """Results of points that are not complete, a file each in the folder of results that wait for
    the store. Only who holds the claim of a point, or finds its outcome, touches its file.
    """

    def __init__(self, settings: Tracking) -> None:
        # Claims are made in a store: a point of another store, or experiment, is another's.
        self._folder = folder_of(settings)
        self._store = store_key(settings)

    def load(self, identity: Identity) -> list[PointResult]:
        """What an earlier driver kept; a file that cannot be read, or of another version, holds
        nothing.
        """
        try:
            content = read_document(self._path("partial", identity, "json"))
            if (content["schema_version"], content["protocol"]) != (
                SCHEMA_VERSION,
                PROTOCOL_VERSION,
            ):
                return []
            return [read_message(PointResult, result, "result") for result in content["results"]]
        except (DataError, MessageError, KeyError, TypeError):
            return []

    def save(self, identity: Identity, results: Sequence[PointResult]) -> None:
        """Keep all results of a point so far; raises StoreError when the disk does not take them."""
        _make(self._folder)
        content = {"protocol": PROTOCOL_VERSION, "results": plain(list(results))}
        write_document(self._path("partial", identity, "json"), content)

    def forget(self, identity: Identity, ended: bool) -> None:
        """The point is recorded, and where it has `ended` no training goes on from its checkpoint,
        of which a worker that was killed may have left half a file. A folder that cannot be written
        holds no file of ours.
        """
        training = self.checkpoint(identity)
        paths = [self._path("partial", identity, "json")]
        if ended:
            paths += [training, training.with_suffix(".part")]
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def checkpoint(self, identity: Identity) -> Path:
        """Where a worker keeps how far it is, of work that can go on from there."""
        return self._path("training", identity, "npz")

    def _path(self, kind: str, identity: Identity, suffix: str) -> Path:
        own = f"{identity.point_id}-{identity.environment_id}-{identity.replicate}"
        return self._folder / f"{kind}-{self._store}-{own}.{suffix}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"tracking.folder={folder}: cannot be made ({error.strerror}); give another"
        ) from None
