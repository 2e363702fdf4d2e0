"""`python -m paradnn.sync FOLDER`: log results that were kept as files into the tracking store.

It may be given again at any time, also after an interruption: a file whose run the store holds already is passed over.
Damaged files are named and left where they are, the others are logged; the exit code is then 1. Files are kept.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paradnn.config import Tracking
from paradnn.errors import DataError, ParadnnError
from paradnn.offline import default_folder, read_document
from paradnn.record import SCHEMA_VERSION, Record
from paradnn.tracking import MlflowTracker

__all__ = ["main", "sync"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 when every file is in the store, 1 when some are damaged, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m paradnn.sync", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=default_folder(), help="default: %(default)s")
    parser.add_argument("--uri", help="tracking URI; default: MLFLOW_TRACKING_URI, else sqlite:///mlruns/mlflow.db")
    parser.add_argument("--experiment", default="paradnn", help="MLflow experiment (default: %(default)s)")
    given = parser.parse_args(arguments)
    try:
        counts, problems = sync(given.folder, Tracking(uri=given.uri, experiment=given.experiment))
    except ParadnnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    for problem in problems:
        print(f"refused: {problem}", file=sys.stderr)
    print(f"{counts['logged']} logged, {counts['known']} in the store already, {len(problems)} refused")
    return 1 if problems else 0


def sync(folder: Path, settings: Tracking) -> tuple[Counter[str], list[str]]:
    """Log every result file below `folder`; counts of logged and known, and the damaged files in words."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give the folder of a sweep with tracking=offline")
    tracker = MlflowTracker(settings)
    tracker.close_abandoned()
    counts: Counter[str] = Counter()
    problems = []
    paths = sorted(folder.rglob("point-*.json"))
    parents = _Parents(tracker, folder)
    with _progress() as progress:
        for path in progress.track(paths, description="logging"):
            try:
                document = read_document(path)
                record = _record(document, path)
            except DataError as error:
                problems.append(str(error))
                continue
            counts["logged" if _adopt(tracker, parents, document, record) else "known"] += 1
        problems += parents.close(progress.track(sorted(folder.rglob("sweep-*.json")), description="sweeps"))
    return counts, problems


def _adopt(tracker: MlflowTracker, parents: _Parents, document: Mapping[str, Any], record: Record) -> bool:
    """Log one record unless the store holds it; whether it was logged."""
    if any(entry.outcome for entry in tracker.entries("offline_id", document["offline_id"])):
        return False
    # The run that was begun for it before the store went away, if it is there.
    same_point = tracker.entries("point_id", record.tags["point_id"])
    begun = next((entry for entry in same_point if entry.run_id == document["run_id"]), None)
    if begun and begun.outcome:  # the store had taken it, only its answer was lost
        return False
    tracker.join_sweep(parents.of(document["sweep"]))
    marked = replace(record, tags={**record.tags, "offline_id": document["offline_id"]})
    tracker.adopt(marked, begun.run_id if begun else None)
    return True


class _Parents:
    """Parent runs of offline sweeps, each made once."""

    def __init__(self, tracker: MlflowTracker, folder: Path) -> None:
        self._tracker = tracker
        self._ids: dict[str, str] = {}

    def of(self, sweep: Mapping[str, Any] | None) -> str | None:
        """The parent's run id; None for a point outside a sweep."""
        if sweep is None:
            return None
        sweep_id = sweep["tags"]["sweep_id"]
        if sweep_id not in self._ids:
            known = [
                entry for entry in self._tracker.entries("sweep_id", sweep_id) if entry.tags.get("kind") == "sweep"
            ]
            self._ids[sweep_id] = (
                known[0].run_id
                if known
                else self._tracker.open_sweep(sweep["name"], sweep["description"], sweep["tags"])
            )
        return self._ids[sweep_id]

    def close(self, paths: Any) -> list[str]:
        """End the parents that this call used; damaged files in words."""
        problems = []
        for path in paths:
            try:
                document = read_document(path)
            except DataError as error:
                problems.append(str(error))
                continue
            sweep = document["sweep"]
            run_id = self._ids.pop(sweep["tags"]["sweep_id"], None)
            if run_id:
                self._tracker.join_sweep(run_id)
                self._tracker.close_sweep(sweep["status"], sweep["description"], sweep["metrics"], document["table"])
        for run_id in self._ids.values():  # the sweep was interrupted: it has no closing file
            self._tracker.join_sweep(run_id)
            self._tracker.close_sweep("FINISHED", "A sweep whose driver ended early.", {}, {})
        return problems


def _record(document: Mapping[str, Any], path: Path) -> Record:
    if document.get("schema_version") != SCHEMA_VERSION:
        raise DataError(f"{path}: schema_version {document.get('schema_version')}, this version reads {SCHEMA_VERSION}")
    try:
        return Record(**document["record"])
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not the record of a point ({error})") from None


def _progress() -> Any:
    from rich.console import Console
    from rich.progress import Progress

    return Progress(console=Console(stderr=True), transient=True)


if __name__ == "__main__":
    sys.exit(main())
