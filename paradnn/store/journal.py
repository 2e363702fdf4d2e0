"""Results as files, written before the store receives them.

A point is one configuration to measure, and a driver is a process of `python -m paradnn.train`.
Each result of a point is a JSON file with a checksum, which gets its final name once it is
complete. If the store does not answer, the file is kept until a driver of the same store, or
`python -m paradnn.sync`, uploads it.

Without a store, drivers also claim (reserve) points in this folder, by files that are created
exclusively. The folder also keeps results of incomplete points and checkpoints of trainings.
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
from paradnn.store.claims import Entry
from paradnn.store.files import new_file, read_json
from paradnn.store.leases import LAUNCH, Lease, expiry, owner_tag
from paradnn.store.runs import (
    LEASE,
    SCHEMA_VERSION,
    AcceptsRun,
    Claim,
    Claimed,
    Finished,
    Record,
    RecordingMetrics,
    SweepRun,
)

#: Format tag of the files; the number is the version of their layout.
#:   1  first version.
FORMAT = "paradnn-offline-1"
_MAX_FILE_BYTES = 2**30  # larger files are rejected


@dataclass(frozen=True)
class Document:
    """Content of the file with the result of a measured point (configuration).

    Attributes:
        record: The result: params, metrics, tags and artifacts of the run.
        offline_id: Stem of the file name, which identifies the result.
        run_id: Id of the run that the store created for the point; None if it created no run.
        sweep: Parent run of the point's sweep; None if the point belongs to no sweep.
        repeats: Whether the point is recorded even if the store already holds a result of it.
        owner: Owner tag of the driver that wrote the file; None in files of earlier versions.
    """

    record: Record
    offline_id: str
    run_id: str | None
    sweep: SweepRun | None
    repeats: bool
    owner: str | None


def folder_of(settings: Tracking) -> Path:
    """Return the absolute path of the folder for results that are kept as files.

    Args:
        settings: Settings of the store. The default of their `folder` is mlruns/offline.
    """
    return Path(settings.folder or HOME / "mlruns" / "offline").expanduser().absolute()


def store_key(settings: Tracking) -> str:
    """Return a hash of the store's address and the experiment, for names of files.

    Args:
        settings: Address and experiment of the store.
    """
    if settings.name == "offline":
        store = ""
    else:
        store = address_of(settings.uri).uri
    return digest([store, settings.experiment_name], 8)


def identity_of(tags: Mapping[str, str]) -> Identity:
    """Return the identity of a run's measurement: point, environment and replicate.

    Args:
        tags: Tags of the run.

    Raises:
        DataError: If the tags identify no measurement.
    """
    try:
        return Identity(tags["point_id"], tags["environment_id"], int(tags["replicate"]))
    except (KeyError, ValueError) as error:
        raise DataError(
            f"tags do not describe a point: {type(error).__name__} {str(error)[:80]}"
        ) from None


class Journal:
    """Stores runs as files in a folder, and reserves points there by claim files.

    Methods raise StoreError if a file cannot be written.

    Args:
        folder: The folder, which is created if it is absent.
        key: The `store_key` of the store to which the results are uploaded; empty if no store
            receives them.

    Raises:
        StoreError: If `key` is empty and the folder cannot be created or written.
    """

    def __init__(self, folder: Path, key: str = "") -> None:
        self._key = key  # identifies the store; empty without one
        self._file_prefix = "point-"
        if key:
            self._file_prefix += f"{key}-"
        self.folder = folder.expanduser().absolute()
        self._sweep: SweepRun | None = None
        self._known: dict[Identity, list[Finished]] = {}  # results in the files of `_read`
        self._read: set[str] = set()  # names of files that were read
        self._own_results: list[Path] = []  # results of this process, in order of completion
        self._file_claims: set[Identity] = set()  # points that this process has claimed in files
        self._driver = ""  # key of this process among the drivers of the sweep
        self._own_lease: Lease | None = None
        try:
            _make_folder(self.folder)
            if not os.access(self.folder, os.W_OK):
                raise StoreError(
                    f"tracking.folder={folder}: cannot be written; choose a writable folder"
                )
        except StoreError:
            # With a store, the folder is needed only while the store does not answer.
            if not key:
                raise

    @property
    def where(self) -> str:
        """Location of the runs, as text without credentials."""
        return f"{self.folder} (python -m paradnn.sync {self.folder} logs them)"

    def finished(
        self, environment_ids: Iterable[str], sweep_id: str | None = None
    ) -> dict[Identity, list[Finished]]:
        """Return the finished runs that were measured in given environments, or by a given sweep.

        Args:
            environment_ids: Ids of the environments (hashes of hardware and software versions).
            sweep_id: Id of a sweep whose runs are included whatever their environment; None
                includes only runs in the environments.

        Returns:
            Measurement -> its finished runs.
        """
        wanted = set(environment_ids)
        return {
            identity: runs
            for identity, runs in self._all().items()
            if identity.environment_id in wanted
            or (sweep_id and any(run.tags.get("sweep_id") == sweep_id for run in runs))
        }

    @property
    def problem(self) -> str:
        """Message about deleted result files of this process; empty if no file was deleted."""
        count = sum(not path.is_file() for path in self._own_results)
        if not count:
            return ""
        return (
            f"{counted(count, 'result')} of this session disappeared from {self.folder} "
            "while it ran; the same command measures the missing points again"
        )

    def finished_anywhere(self, identity: Identity) -> list[Finished]:
        """Return the finished runs of one measurement (point, environment and replicate)."""
        return list(self._all().get(identity, ()))

    def fetch(self, run_id: str) -> tuple[dict[str, float], dict[str, str]]:
        """Return the metrics and the tags of a run, in this order.

        The name of the run is the value of the tag `mlflow.runName`.

        Args:
            run_id: Id of the run, which is the stem of its file's name.

        Raises:
            DataError: If the folder has no valid file of the run.
        """
        record = read_record(self.path_of(run_id)).record
        return dict(record.metrics), {**record.tags, "mlflow.runName": record.name}

    def path_of(self, run_id: str) -> Path:
        """Return the path of the file for the result of a run; the file need not exist."""
        return self.folder / f"{run_id}.json"

    def open_sweep(self, name: str, description: str, tags: Mapping[str, str]) -> str:
        """Open the parent run of a sweep.

        All points that are recorded after this call belong to the parent run.

        Args:
            name: Name of the parent run.
            description: Description of the parent run, which MLflow's UI shows.
            tags: Tags of the parent run, including `sweep_id`.

        Returns:
            The id of the parent run.
        """
        self._sweep = SweepRun("RUNNING", description, tags=dict(tags), name=name)
        return tags["sweep_id"]

    def join_sweep(
        self, name: str, description: str, tags: Mapping[str, str], *, is_launched: bool
    ) -> str:
        """Adopt the parent run of a sweep that several drivers share, or open it.

        Args:
            name: Name of the parent run, if this driver opens it.
            description: Description of the parent run, if this driver opens it.
            tags: Tags of the parent run, including `sweep_id`.
            is_launched: Whether another process launched this driver and opened the sweep.

        Returns:
            The id of the parent run.

        Raises:
            StoreError: If the drivers do not share a folder.
        """
        path = self._lease_path(tags["sweep_id"], LAUNCH)
        if is_launched and not self._key and not path.exists():
            raise StoreError(
                f"tracking.folder={self.folder}: the launching process uses a different folder; "
                "set tracking.folder to a folder that all hosts share"
            )
        return Journal.open_sweep(self, name, description, tags)

    def annotate_sweep(self, end: SweepRun) -> None:
        """Add values to the parent run of the sweep without closing it.

        A journal adds only the tags. A store also adds metrics and artifacts.

        Args:
            end: The tags, metrics and artifacts to add. Its status is ignored.
        """
        if self._sweep is not None:
            tags = {**self._sweep.tags, **end.tags}
            self._sweep = replace(self._sweep, tags=tags)

    def register(self, driver: str, lease: Lease) -> None:
        """Register this process with its sweep, as a driver or as the launcher of drivers.

        Args:
            driver: Number of the driver as text, or `LAUNCH` for the process that launched the
                drivers.
            lease: The registration, which `renew_lease` must renew.

        Raises:
            StoreError: If the lease cannot be stored.
        """
        self._driver = driver
        self._own_lease = lease
        self._write_lease(lease.renewed())

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
        leases = {}
        if self._sweep is not None:
            prefix = f"driver-{self._sweep.tags['sweep_id']}-"
            for path in self.folder.glob(f"{prefix}*.json"):
                with contextlib.suppress(OSError, ValueError):
                    lease = Lease.read(path.read_text())
                    if lease:
                        leases[path.stem.removeprefix(prefix)] = lease
        return leases

    def renew_lease(self) -> str:
        """Renew the registration (lease) of this driver and its reservations of points (claims).

        Returns:
            The reason why this driver must end; empty if it may continue.
        """
        self._renew_file_claims()
        if self._own_lease is None or self._sweep is None:
            return ""
        reason = self._own_lease.end_reason(self.leases_of_sweep(), self._driver)
        if not reason:
            self._write_lease(self._own_lease.renewed())
        return reason

    def _write_lease(self, lease: Lease) -> None:
        if self._sweep is not None:
            path = self._lease_path(self._sweep.tags["sweep_id"], self._driver)
            with _temporary_file(path, lease.text.encode()) as temporary:
                os.replace(temporary, path)

    def _renew_file_claims(self) -> None:
        for identity in tuple(self._file_claims):
            path = self._claim_path(identity)
            with (
                contextlib.suppress(OSError, StoreError),
                _temporary_file(path, self._claim_content(identity)) as temporary,
            ):
                if identity in self._file_claims:
                    os.replace(temporary, path)

    def _lease_path(self, sweep_id: str, driver: str) -> Path:
        return self.folder / f"driver-{sweep_id}-{driver}.json"

    def close_sweep(self, end: SweepRun) -> None:
        """Close the parent run of the sweep.

        Args:
            end: Final status, description, metrics, tags and artifacts of the parent run.
        """
        if self._sweep is not None:
            tags = {**self._sweep.tags, **end.tags}
            content = asdict(replace(end, name=self._sweep.name, tags=tags))
            artifacts = content.pop("artifacts")
            path = self.folder / f"sweep-{tags['sweep_id']}.json"
            write_document(path, {"sweep": content, "artifacts": artifacts})
            # Remove only leases in files. Those in a store stay, as the store may not answer.
            for lease in self.folder.glob(self._lease_path(tags["sweep_id"], "*").name):
                lease.unlink(missing_ok=True)
            self._sweep = None

    def begin(
        self,
        identity: Identity,
        name: str,
        tags: Mapping[str, str],
        accepts: AcceptsRun | None,
    ) -> Claimed:
        """Claim (reserve) a point, so that no other driver measures it.

        The claim expires unless `renew_lease` is called regularly.

        Args:
            identity: Hashes of the configuration and its environment, and number of the repetition.
            name: Name of the run; a journal ignores it.
            tags: Tags of the run; a journal ignores them.
            accepts: Returns whether a stored run, given its tags, replaces the measurement. None
                claims the point even if the store holds a result.

        Returns:
            The claim, an accepted run, or None if another driver is measuring the point.
        """
        claim = Claim(self._new_id(), identity, int(time.time() * 1000), repeats=accepts is None)
        if accepts is None:
            return claim
        for _ in range(2):
            is_claimed = self._claim(identity)
            # Look for a result after claiming: another driver may have recorded the point and
            # released its claim just before.
            runs = self._all().get(identity, ())
            accepted = next((run for run in runs if accepts(run.tags)), None)
            if accepted and is_claimed:
                self._release(identity)
            if accepted or is_claimed:
                return accepted or claim
        return None

    def claimed(self) -> set[Identity]:
        """Return the measurements that running drivers have claimed but not recorded."""
        entries = map(_claim_in, self.folder.glob("*.claim"))
        return {entry.identity for entry in entries if entry and not entry.is_abandoned()}

    def lost_points(self, sweep_id: str) -> set[Identity]:
        """Return the measurements of a sweep whose drivers ended before they finished them.

        Args:
            sweep_id: Id of the sweep. A journal ignores it, because claims in files do not name
                their sweep.
        """
        entries = map(_claim_in, self.folder.glob("*.claim"))
        return {entry.identity for entry in entries if entry and entry.is_abandoned()}

    def log_snapshots(self, claim: Claim, snapshots: Sequence[MetricSnapshot]) -> None:
        """Store metrics of a point while it is measured; a journal does nothing.

        Args:
            claim: The reservation of the point that `begin` returned.
            snapshots: Values of metrics at successive steps.
        """

    def record(self, claim: Claim, record: Record, recording_metrics: RecordingMetrics) -> str:
        """Record the result of a finished point, and release its claim.

        Args:
            claim: The reservation of the point that `begin` returned.
            record: The result.
            recording_metrics: Returns metrics of the recording itself, such as its duration.

        Returns:
            The id of the run.
        """
        document = self.document(claim, record, recording_metrics())
        self._own_results.append(self.keep(document))
        return document.offline_id

    def document(self, claim: Claim, record: Record, metrics: Mapping[str, float]) -> Document:
        """Return the content of the file of a measured point.

        Args:
            claim: The reservation of the point that `begin` returned.
            record: The result.
            metrics: Metrics of the recording itself.
        """
        if claim.run_id.startswith("point-"):  # claimed in files
            offline_id = claim.run_id
            run_id = None
        else:
            offline_id = self._new_id()
            run_id = claim.run_id
        return Document(
            record=replace(record, metrics={**record.metrics, **metrics}),
            offline_id=offline_id,
            run_id=run_id,
            sweep=self._sweep,
            repeats=claim.repeats,
            owner=owner_tag(),
        )

    def keep(self, document: Document) -> Path:
        """Write the file of a measured point, and release the claim (reservation) of the point.

        Without the release, two drivers could wait for each other's points.

        Args:
            document: Content of the file.

        Returns:
            The path of the file.
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
        if document.run_id is None and identity in self._file_claims:
            self._release(identity)
        return path

    def left_behind(self) -> Iterator[Path]:
        """Yield the result files for this store whose drivers ended before they uploaded them."""
        if not self._key:
            return
        for path in self.folder.glob(f"{self._file_prefix}*.json"):
            with contextlib.suppress(DataError):
                owner = read_record(path).owner or ""
                if Entry(path.stem, "RUNNING", {"owner": owner}).is_abandoned():
                    yield path

    def abandon(self, claim: Claim, reason: str) -> None:
        """Release the claim of a point that has no outcome.

        Args:
            claim: The reservation of the point that `begin` returned.
            reason: Why the measurement ended, as text for the run; a journal ignores it.
        """
        self._release(claim.identity)

    def close_abandoned(self) -> int:
        """Remove the reservations (claims) of drivers that have ended, and return how many."""
        return sum(self._drop_if_stale(path) for path in self.folder.glob("*.claim"))

    def _all(self) -> dict[Identity, list[Finished]]:
        """Return the finished runs in the folder, including those of other processes.

        Damaged files are skipped; `paradnn.sync` reports them.
        """
        for path in self.folder.glob("point-*.json"):
            if path.name not in self._read:
                self._read.add(path.name)
                with contextlib.suppress(DataError):
                    tags = read_record(path).record.tags
                    self._known.setdefault(identity_of(tags), []).append(Finished(path.stem, tags))
        return self._known

    def _claim_path(self, identity: Identity) -> Path:
        return self.folder / f"{_file_stem(identity)}.claim"

    def _claim(self, identity: Identity) -> bool:
        path = self._claim_path(identity)
        try:
            with _temporary_file(path, self._claim_content(identity)) as temporary:
                # A link makes the complete claim appear atomically, and fails if `path` exists.
                os.link(temporary, path)
            self._file_claims.add(identity)
            return True
        except FileExistsError:
            self._drop_if_stale(path)
            return False

    def _release(self, identity: Identity) -> None:
        self._file_claims.discard(identity)
        self._claim_path(identity).unlink(missing_ok=True)

    def _claim_content(self, identity: Identity) -> bytes:
        content = {
            "owner": owner_tag(),
            "claim_expires": expiry(),
            LEASE: self._lease_key,
            "identity": asdict(identity),
        }
        return json.dumps(content).encode()

    @property
    def _lease_key(self) -> str:
        """Text in claim files that identifies the lease of this process; empty without a lease."""
        if self._own_lease is None or self._sweep is None:
            return ""
        return f"{self._sweep.tags['sweep_id']} {self._driver}"

    def _drop_if_stale(self, path: Path) -> bool:
        entry = _claim_in(path)
        if entry is None:
            return False
        # A scheduler may have restarted this driver. Claims of its earlier process are stale.
        is_own = bool(self._lease_key) and entry.tags.get(LEASE) == self._lease_key
        is_stale = entry.is_abandoned() or (is_own and entry.owner != owner_tag())
        if is_stale:
            path.unlink(missing_ok=True)
        return is_stale

    def _new_id(self) -> str:
        return f"{self._file_prefix}{uuid.uuid4().hex}"


def _claim_in(path: Path) -> Entry | None:
    """Read the file that reserves a point as an index entry; None if it is absent or damaged."""
    try:
        content = read_json(path.read_text())
        tags = {**content.pop("identity"), **content}
        entry = Entry(path.stem, "RUNNING", {key: str(value) for key, value in tags.items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not (entry.is_readable and entry.owner):
        return None
    return entry


def _file_stem(identity: Identity) -> str:
    """Return a text that identifies a measurement in names of files."""
    return f"{identity.point_id}-{identity.environment_id}-{identity.replicate}"


def write_document(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file with format tag, schema version and checksum atomically.

    Args:
        path: The file, which is replaced if it exists.
        content: Values that JSON can express, by key.

    Raises:
        StoreError: If the file cannot be written.
    """
    body = json.dumps(
        {"format": FORMAT, "schema_version": SCHEMA_VERSION, **content}, sort_keys=True
    )
    text = json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body})
    with _temporary_file(path, text.encode()) as temporary:
        os.replace(temporary, path)


@contextlib.contextmanager
def _temporary_file(path: Path, data: bytes) -> Iterator[Path]:
    """Yield the path of a complete temporary file with `data`, in the folder of `path`.

    The caller renames the temporary file to `path`, or links it there.

    Raises:
        FileExistsError: If the caller links the file to `path`, which exists.
        StoreError: If the file cannot be written.
    """
    _make_folder(path.parent)  # another process may have deleted it
    try:
        with new_file(path.parent) as (temporary, file):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            yield temporary
    except FileExistsError:
        raise
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written ({error.strerror}); free some space and run again"
        ) from error


def read_document(path: Path) -> dict[str, Any]:
    """Return the content that `write_document` wrote, after a check of its checksum.

    Raises:
        DataError: If the file is damaged, is too large, or has another format.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise DataError(
                f"{path}: is larger than {_MAX_FILE_BYTES:,} bytes, the maximum size of a result file"
            )
        outer = read_json(path.read_text())
        body = outer["body"]
        if hashlib.sha256(body.encode()).hexdigest() != outer["sha256"]:
            raise DataError(f"{path}: is damaged: its checksum does not match")
        content: dict[str, Any] = read_json(body)
        format_tag = content.get("format")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: is not a result file, or is damaged ({type(error).__name__})"
        ) from None
    if format_tag != FORMAT:
        raise DataError(
            f"{path}: has the format {str(format_tag)[:80]!r}, but this release reads {FORMAT!r}; "
            "use the release that wrote the file"
        )
    return content


def read_record(path: Path) -> Document:
    """Return the validated result of a point from a file that `Journal.keep` wrote.

    Raises:
        DataError: If the file is damaged, has another version, or is not the result of a point.
    """
    with _checked(path, "the record of a point") as content:
        record = {"description": "", "history": []} | content["record"]
        rest = {name: content.get(name) for name in ("offline_id", "run_id", "owner", "sweep")}
        rest |= {"record": record, "repeats": bool(content.get("repeats"))}
        document = read_message(Document, rest, "document")
        identity_of(document.record.tags)
        return document


def read_sweep(path: Path) -> SweepRun:
    """Return the parent run of an ended sweep from the file that `Journal.close_sweep` wrote.

    Raises:
        DataError: If the file is damaged, has another version, or is not the end of a sweep.
    """
    with _checked(path, "the end of a sweep") as content:
        # Files of an earlier version hold only a table.
        if "artifacts" in content:
            artifacts = content["artifacts"]
        else:
            artifacts = {"sweep.json": content["table"]}
        return read_message(SweepRun, content["sweep"] | {"artifacts": artifacts}, "sweep")


@contextlib.contextmanager
def _checked(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the content of a result file, and convert errors of the caller's parsing.

    Args:
        path: The file.
        kind: Expected kind of content, for the error message.

    Raises:
        DataError: If the schema version differs, or if the caller's parsing fails.
    """
    content = read_document(path)
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path}: has schema_version={str(version)[:80]}, but this release reads {SCHEMA_VERSION}; "
            "use the release that wrote the file"
        )
    sweep = content.get("sweep")
    if isinstance(sweep, dict):
        content["sweep"] = {"status": "FINISHED", "metrics": {}, "artifacts": {}} | sweep
    try:
        yield content
    except (ValueError, KeyError, TypeError, OverflowError, DataError) as error:
        raise DataError(f"{path}: not {kind} ({' '.join(str(error).split())[:200]})") from None


class PartialResults:
    """Results of points whose processes have not all run, one file per point.

    The files are in the folder of the journal. Only a process that has reserved a point, or that
    finds the point's outcome in the store, may access its file.

    Args:
        settings: Folder of the journal, and address and experiment of the store.
    """

    def __init__(self, settings: Tracking) -> None:
        # Claims belong to one store and experiment, so partial results must not be shared between
        # them.
        self._folder = folder_of(settings)
        self._store = store_key(settings)

    def load(self, identity: Identity) -> list[PointResult]:
        """Return the results of a point's processes that an earlier driver saved.

        The list is empty if the file is absent or unreadable, or has a different schema version or
        protocol version.

        Args:
            identity: Hashes of the configuration and its environment, and number of the repetition.
        """
        try:
            content = read_document(self._path("partial", identity, "json"))
            versions = (content["schema_version"], content["protocol"])
            if versions != (SCHEMA_VERSION, PROTOCOL_VERSION):
                return []
            return [read_message(PointResult, result, "result") for result in content["results"]]
        except (DataError, MessageError, KeyError, TypeError):
            return []

    def save(self, identity: Identity, results: Sequence[PointResult]) -> None:
        """Save the results of a point's processes so far.

        Args:
            identity: Hashes of the configuration and its environment, and number of the repetition.
            results: The results, in the order of the processes.

        Raises:
            StoreError: If the file cannot be written.
        """
        _make_folder(self._folder)
        content = {"protocol": PROTOCOL_VERSION, "results": plain(list(results))}
        write_document(self._path("partial", identity, "json"), content)

    def forget(self, identity: Identity, *, ended: bool) -> None:
        """Delete the partial results of a recorded point.

        Errors are ignored, because a folder that is not writable holds no file of this process.

        Args:
            identity: Hashes of the configuration and its environment, and number of the repetition.
            ended: Whether to delete the checkpoint too, because no training will resume from it.
        """
        checkpoint = self.checkpoint(identity)
        paths = [self._path("partial", identity, "json")]
        if ended:
            # A killed worker may have left an incomplete checkpoint (.part).
            paths += [checkpoint, checkpoint.with_suffix(".part")]
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def checkpoint(self, identity: Identity) -> Path:
        """Return the path of the checkpoint file from which a worker can resume a training.

        Args:
            identity: Hashes of the configuration and its environment, and number of the repetition.
        """
        return self._path("training", identity, "npz")

    def _path(self, kind: str, identity: Identity, suffix: str) -> Path:
        return self._folder / f"{kind}-{self._store}-{_file_stem(identity)}.{suffix}"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"tracking.folder={folder}: cannot be created ({error.strerror}); "
            "choose a writable folder"
        ) from None
