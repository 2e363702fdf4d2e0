"""A bundle: runs, their artifacts and their checksums in one .zip, which is read like a store.

    manifest.json          format, schema version, number of runs, and the SHA-256 of every other file
    runs.jsonl             a line for each run: its fields, params, tags and metrics
    artifacts/RUN_ID/...   its files

Bundles are made by `python -m analysis export FILE.zip`; every command of the analysis takes one as --store, and
`python -m analysis import FILE.zip` logs one into a store.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from paradnn.errors import DataError, NoStoreError, SchemaError
from paradnn.store.address import BUNDLE, StoreAddress
from paradnn.store.query import Query
from paradnn.store.records import Records, Row, Run
from paradnn.store.schema import SCHEMA_VERSION
from paradnn.store.whole_file import whole_file

__all__ = ["FORMAT", "BundleReader", "artifacts_of", "read_artifact", "write_bundle"]

#: What the files say they are; the number counts versions of their layout.
#:   1  the first.
FORMAT = "paradnn-bundle-1"
_MANIFEST, _RUNS = "manifest.json", "runs.jsonl"

#: The files of a run, as (name, content).
Artifacts = Callable[[Run], Iterable[tuple[str, bytes]]]


def write_bundle(path: Path, rows: Iterable[Row], artifacts: Artifacts) -> int:
    """Write runs and their files to one .zip, whole or not at all; how many runs it holds."""
    sums: dict[str, str] = {}
    lines = []
    with whole_file(path, "FILE") as making, zipfile.ZipFile(making, "w", zipfile.ZIP_DEFLATED) as target:
        for row in rows:
            run = {**row.run._asdict(), "params": row.params, "tags": row.tags, "metrics": row.metrics}
            lines.append(json.dumps(run, sort_keys=True))
            for name, content in artifacts(row.run):
                _add(target, f"artifacts/{row.run.run_id}/{name}", content, sums)
        _add(target, _RUNS, "".join(f"{line}\n" for line in lines).encode(), sums)
        manifest = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "runs": len(lines), "sha256": sums}
        target.writestr(_MANIFEST, json.dumps(manifest, indent=1))
    return len(lines)


def _add(target: zipfile.ZipFile, name: str, content: bytes, sums: dict[str, str]) -> None:
    target.writestr(name, content)
    sums[name] = hashlib.sha256(content).hexdigest()


class BundleReader:
    """Reads a bundle as a store is read; see `paradnn.store.reader.Reader`.

    Raises NoStoreError where there is no such file, DataError for a damaged one, SchemaError for another version.
    """

    def __init__(self, address: StoreAddress) -> None:
        self._path = Path(address.uri.removeprefix(f"{BUNDLE}:"))
        self._rows = list(_rows(self._path))

    def experiments(self) -> list[str]:
        """The names of its experiments."""
        return sorted({row.run.experiment for row in self._rows})

    def read(self, query: Query) -> Records:
        """The runs of a query."""
        wanted = [row for row in self._rows if row.run.experiment in query.experiments]
        rows = [row for row in wanted if query.accepts(row.run, row.params, row.tags)]
        rows.sort(key=lambda row: row.run.start_ms or 0, reverse=query.newest is not None)
        rows = rows[: query.newest]
        records = Records(row.run for row in rows)
        for row in rows:
            run_id = row.run.run_id
            params = ((run_id, key, value) for key, value in row.params.items() if query.wants("params", key))
            tags = ((run_id, key, value) for key, value in row.tags.items() if query.wants("tags", key))
            records.add_text(params, records.params)
            records.add_text(tags, records.tags)
            metrics = ((run_id, key, value) for key, value in row.metrics.items() if query.wants("metrics", key))
            records.add_metrics((*entry, math.isnan(entry[2])) for entry in metrics)
        return records


def read_artifact(address: str, name: str) -> bytes | None:
    """A file of a run, whose artifact address is of a bundle; None where it has none of that name."""
    path, _, run_id = address.removeprefix(f"{BUNDLE}:").rpartition("#")
    member = f"artifacts/{run_id}/{name}"
    return _read(Path(path), member) if member in _open(Path(path)).sums else None


def artifacts_of(address: str) -> Iterator[tuple[str, bytes]]:
    """Every file of a run, given its artifact address: (name, content)."""
    path, _, run_id = address.removeprefix(f"{BUNDLE}:").rpartition("#")
    begin = f"artifacts/{run_id}/"
    for member in _open(Path(path)).sums:
        if member.startswith(begin):
            yield member.removeprefix(begin), _read(Path(path), member)


def _rows(path: Path) -> Iterator[Row]:
    for line in _read(path, _RUNS).decode().splitlines():
        content = json.loads(line)
        params, tags, metrics = (content.pop(name) for name in ("params", "tags", "metrics"))
        yield Row(Run(**{**content, "artifact_uri": f"{BUNDLE}:{path}#{content['run_id']}"}), params, tags, metrics)


@dataclass(frozen=True)
class _Bundle:
    """An open bundle and the checksums of its files."""

    file: zipfile.ZipFile
    sums: Mapping[str, str]


def _open(path: Path) -> _Bundle:
    try:
        state = path.stat()
    except OSError:
        raise NoStoreError(f"no bundle of results at {path}: python -m analysis export FILE.zip makes one") from None
    return _opened(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)
def _opened(path: Path, changed: int, size: int) -> _Bundle:
    """The bundle at a path, as it was when it was changed last: its directory is read once."""
    del changed, size
    try:
        file = zipfile.ZipFile(path)
        manifest: dict[str, Any] = json.loads(file.read(_MANIFEST))
        bundle = _Bundle(file, dict(manifest["sha256"]))
        unsafe = [name for name in bundle.sums if name.startswith("/") or ".." in name.split("/")]
    except (OSError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError):
        raise DataError(f"{path}: no bundle of results, or a damaged one") from None
    if unsafe:
        raise DataError(f"{path}: {unsafe[0]} would be written outside its folder; do not trust this file")
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path}: format {manifest.get('format')!r}, this version reads {FORMAT!r}")
    if manifest.get("schema_version") != SCHEMA_VERSION:
        raise SchemaError(
            f"{path}: schema_version={manifest.get('schema_version')}, this version reads {SCHEMA_VERSION}: use the "
            "release that wrote it"
        )
    return bundle


def _read(path: Path, member: str) -> bytes:
    """A file of a bundle, checked; DataError where it is damaged."""
    bundle = _open(path)
    try:
        content = bundle.file.read(member)
    except (OSError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError):
        raise DataError(f"{path}: {member} is damaged") from None
    if hashlib.sha256(content).hexdigest() != bundle.sums.get(member):
        raise DataError(f"{path}: {member} is damaged, its checksum does not fit")
    return content
