"""Uploading results that were kept as files into the tracking store.

It may be done again at any time: a file whose run the store holds already is passed over.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from paradnn.config.identity import Identity
from paradnn.config.point import Tracking
from paradnn.core.workload import Moment
from paradnn.errors import DataError
from paradnn.record.record import Record
from paradnn.store.address import without_credentials
from paradnn.store.schema import SCHEMA_VERSION
from paradnn.tracking.base import Claim
from paradnn.tracking.mlflow_tracker import MlflowTracker
from paradnn.tracking.offline import read_document
from paradnn.tracking.resume import supersedes
from paradnn.tracking.run_index import Entry

__all__ = ["Synced", "Uploaded", "sync", "sync_command", "upload_record"]


@dataclass(frozen=True)
class Uploaded:
    """What became of a result file: `run_id` is its run, or, where it was withheld, the run that holds the same point.

    "known": the store holds it already. "withheld": it was measured without a claim, and the store holds another
    measurement of the same point, environment and replicate.
    """

    state: Literal["logged", "known", "withheld"]
    run_id: str
    name: str
    path: Path
    kind: str


@dataclass
class Synced:
    """What became of the files of a folder; `problems` are the damaged ones, in words."""

    files: list[Uploaded] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def of(self, state: str) -> list[Uploaded]:
        """The files that ended so."""
        return [each for each in self.files if each.state == state]


def sync_command(folder: Path, settings: Tracking) -> str:
    """The command line that logs a folder into the store of these settings; credentials are left to the environment."""
    words = ["python", "-m", "paradnn.sync", str(folder)]
    if settings.uri:
        words += ["--uri", without_credentials(settings.uri)]
    if settings.experiment != Tracking.experiment:
        words += ["--experiment", settings.experiment]
    return shlex.join(words)


def sync(folder: Path, settings: Tracking, *, repeats: bool = False) -> Synced:
    """Log every result file below `folder`; with `repeats` also those of points that the store holds already."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give the folder of a sweep with tracking=offline")
    tracker = MlflowTracker(settings)
    tracker.close_abandoned()
    done = Synced()
    paths = sorted(folder.rglob("point-*.json"))
    parents = _Parents(tracker)
    with _progress() as progress:
        for path in progress.track(paths, description="logging"):
            try:
                done.files.append(upload_record(tracker, path, parents, repeats=repeats))
            except DataError as error:
                done.problems.append(str(error))
        done.problems += parents.close(progress.track(sorted(folder.rglob("sweep-*.json")), description="sweeps"))
    return done


def upload_record(
    tracker: MlflowTracker, path: Path, parents: _Parents | None = None, *, repeats: bool = False
) -> Uploaded:
    """Log one file, unless the store holds it, or, without `repeats`, as much of the same point by another driver.

    The run that was begun for it before the store went away is used where it is there. Raises DataError for a damaged
    file. Without `parents` the run becomes a child of the tracker's open sweep.
    """
    document = read_document(path)
    record = _record(document, path)
    tracker.announce()

    def done(state: Literal["logged", "known", "withheld"], run_id: str) -> Uploaded:
        return Uploaded(state, run_id, record.name, path, record.tags.get("kind", "point"))

    logged = [entry for entry in tracker.entries("offline_id", document["offline_id"]) if entry.outcome]
    if logged:
        tracker.finish(logged, record)
        return done("known", logged[0].run_id)
    identity = Identity(record.tags["point_id"], record.tags["environment_id"], int(record.tags["replicate"]))
    same = [entry for entry in tracker.entries("point_id", identity.point_id) if entry.identity == identity]
    begun = next((entry for entry in same if entry.run_id == document["run_id"]), None)
    if begun and begun.outcome:  # the store had taken it, only its answer was lost, or the run's end
        tracker.finish([begun], record)
        return done("known", begun.run_id)
    held = next((entry for entry in same if supersedes(entry.tags, record.tags)), None)
    again = document.get("repeats") or (repeats and record.tags.get("kind") == "point")
    if held and not again:
        if begun:
            claim = Claim(begun.run_id, identity, record.start_time)
            tracker.abandon(claim, "another driver measured the point while the store was unreachable")
        return done("withheld", held.run_id)
    if parents:
        tracker.join_sweep(parents.of(document["sweep"]))
    marked = replace(record, tags={**record.tags, "offline_id": document["offline_id"]})
    return done("logged", tracker.upload(marked, begun.run_id if begun else None))


class _Parents:
    """Parent runs of offline sweeps, each made once."""

    def __init__(self, tracker: MlflowTracker) -> None:
        self._tracker = tracker
        self._ids: dict[str, str] = {}
        self._made: set[str] = set()

    def of(self, sweep: Mapping[str, Any] | None) -> str | None:
        """The parent's run id; None for a point outside a sweep."""
        if sweep is None:
            return None
        sweep_id = sweep["tags"]["sweep_id"]
        if sweep_id not in self._ids:
            known = self._known(sweep_id)
            if known:
                self._ids[sweep_id] = known.run_id
            else:
                made = self._tracker.open_sweep(sweep["name"], sweep["description"], sweep["tags"])
                self._ids[sweep_id] = made
                self._made.add(made)
        return self._ids[sweep_id]

    def close(self, paths: Any) -> list[str]:
        """End the parents that this call used, or that no process ended; damaged files in words."""
        problems = []
        for path in paths:
            try:
                document = read_document(path)
            except DataError as error:
                problems.append(str(error))
                continue
            sweep = document["sweep"]
            sweep_id = sweep["tags"]["sweep_id"]
            run_id = self._ids.pop(sweep_id, None)
            if run_id is None and (known := self._known(sweep_id)) and known.status in ("RUNNING", "KILLED"):
                run_id = known.run_id  # the store went away between its last point and its end
            if run_id:
                self._tracker.join_sweep(run_id)
                # Files of an earlier version hold the table alone.
                artifacts = document.get("artifacts") or {"sweep.json": document["table"]}
                self._tracker.close_sweep(sweep["status"], sweep["description"], sweep["metrics"], artifacts, {})
        # Without a closing file the sweep was interrupted; a parent that was there already is closed by who opened it.
        for run_id in self._made.intersection(self._ids.values()):
            self._tracker.join_sweep(run_id)
            self._tracker.close_sweep("FINISHED", "A sweep whose driver ended early.", {}, {}, {})
        return problems

    def _known(self, sweep_id: str) -> Entry | None:
        """The parent in the store, if it is there."""
        entries = self._tracker.entries("sweep_id", sweep_id)
        return next((entry for entry in entries if entry.tags.get("kind") == "sweep"), None)


def _record(document: Mapping[str, Any], path: Path) -> Record:
    if document.get("schema_version") != SCHEMA_VERSION:
        raise DataError(f"{path}: schema_version {document.get('schema_version')}, this version reads {SCHEMA_VERSION}")
    try:
        record = document["record"]
        return Record(**{**record, "history": [Moment(**moment) for moment in record.get("history", ())]})
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not the record of a point ({error})") from None


def _progress() -> Any:
    from rich.console import Console
    from rich.progress import Progress

    return Progress(console=Console(stderr=True), transient=True)
