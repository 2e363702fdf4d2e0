"""A bundle: runs, their artifacts and their checksums in one .zip, which is read like a store.

    manifest.json          format, schema version, number of runs, SHA-256 of every other file
    runs.jsonl             one line per run: its fields, params, tags and metrics
    artifacts/RUN_ID/...   the files of a run

`python -m analysis export FILE.zip` writes a bundle. Every command of the analysis accepts a bundle
as --store, and `python -m analysis import FILE.zip` logs its runs into a store.
"""

import hashlib
import json
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import make_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from paradnn.core.channel import read_message
from paradnn.core.errors import DataError, NoStoreError, SchemaError
from paradnn.store.address import BUNDLE, StoreAddress
from paradnn.store.files import inside, is_inside, read_json, whole_file
from paradnn.store.runs import SCHEMA_VERSION, Query, Row, Run, Values

#: Format tag of a bundle; the number is the version of its layout.
#:   1  first version.
FORMAT = "paradnn-bundle-1"
_MANIFEST = "manifest.json"
_RUNS = "runs.jsonl"

#: Limits that protect against malicious files: number of files, unpacked bytes, and ratio of
#: unpacked to packed bytes. Bundles of this suite have a ratio of 5 to 30. The first
#: `_FREE_BYTES` unpacked bytes do not count toward the ratio.
_MAX_FILES = 2_000_000
_MAX_BYTES = 64 * 2**30
_MAX_RATIO = 200
_FREE_BYTES = 64 * 2**20
_MAX_LINE_BYTES = 16 * 2**20  # limit of a line of runs.jsonl
_MAX_TEXT_CHARS = 8_000  # limit of a param or tag, as in MLflow
#: Exceptions that a damaged .zip may cause.
_DAMAGE_ERRORS = (
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
)

Artifacts = Callable[[Run], Iterable[tuple[str, bytes]]]  # returns (name, content) of a run's files


def write_bundle(path: Path, rows: Iterable[Row], artifacts: Artifacts) -> int:
    """Write runs, their artifacts and checksums to one .zip atomically.

    Args:
        path: The .zip, which is replaced if it exists.
        rows: The runs with their params, tags and metrics.
        artifacts: Returns the files of a run as pairs of name and content.

    Returns:
        The number of runs.

    Raises:
        ConfigError: If the file cannot be written.
    """
    sums: dict[str, str] = {}
    lines = []
    with (
        whole_file(path, "FILE") as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as target,
    ):

        def add(name: str, content: bytes) -> None:
            target.writestr(name, content)
            sums[name] = hashlib.sha256(content).hexdigest()

        for row in rows:
            run = {
                **row.run._asdict(),
                "params": row.params,
                "tags": row.tags,
                "metrics": row.metrics,
            }
            lines.append(json.dumps(run, sort_keys=True))
            for name, content in artifacts(row.run):
                add(f"artifacts/{row.run.run_id}/{name}", content)
        add(_RUNS, "".join(f"{line}\n" for line in lines).encode())
        manifest = {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "runs": len(lines),
            "sha256": sums,
        }
        target.writestr(_MANIFEST, json.dumps(manifest, indent=1))
    return len(lines)


class BundleReader:
    """Reads runs from a bundle, a .zip of results (`paradnn.store.reader.Reader`).

    Args:
        address: Address of the bundle.

    Raises:
        NoStoreError: If the file does not exist.
        DataError: If the bundle is damaged or exceeds a limit.
        SchemaError: If the bundle has another schema version.
    """

    def __init__(self, address: StoreAddress) -> None:
        self._rows = list(_rows(Path(address.uri.removeprefix(f"{BUNDLE}:"))))

    def experiments(self) -> list[str]:
        """Return the names of the experiments of the bundle's runs."""
        return sorted({row.run.experiment for row in self._rows})

    def read(self, query: Query) -> list[Row]:
        """Return the runs that satisfy a query, with the params, tags and metrics it requests."""
        wanted = [row for row in self._rows if row.run.experiment in query.experiments]
        rows = [row for row in wanted if query.accepts(row.run, row.params, row.tags)]
        rows.sort(key=lambda row: row.run.start_ms or 0, reverse=query.newest is not None)
        return [query.narrowed(row) for row in rows[: query.newest]]


def read_artifact(address: str, name: str) -> bytes | None:
    """Return the content of a run's file in a bundle; None if the run has no such file.

    Args:
        address: Artifact address of the run, which points into a bundle.
        name: Name of the file within the run.

    Raises:
        DataError: If the bundle is damaged.
    """
    path, prefix, members = _locate(address)
    if prefix + name in members:
        return b"".join(_read_pieces(path, prefix + name))
    return None


def artifacts_of(address: str) -> Iterator[tuple[str, bytes]]:
    """Yield every file of a run in a bundle as a pair of name and content.

    Args:
        address: Artifact address of the run, which points into a bundle.

    Raises:
        DataError: If the bundle is damaged.
    """
    path, prefix, members = _locate(address)
    for member in members:
        yield member.removeprefix(prefix), b"".join(_read_pieces(path, member))


def extract(address: str, folder: Path | None) -> None:
    """Verify the checksum of every file of a run in a bundle, and optionally unpack the files.

    Args:
        address: Artifact address of the run, which points into a bundle.
        folder: Folder for the unpacked files; None only verifies the checksums.

    Raises:
        DataError: If a file is damaged, or would be written outside the folder.
    """
    path, prefix, members = _locate(address)
    for member in members:
        if folder is None:
            deque(_read_pieces(path, member), 0)
            continue
        target = inside(folder, member.removeprefix(prefix))
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.writelines(_read_pieces(path, member))


def _locate(address: str) -> tuple[Path, str, list[str]]:
    """Find the files of a run in its bundle.

    Args:
        address: Artifact address of the run.

    Returns:
        The path of the bundle, the common prefix of the names of the run's files in the bundle, and
        the names with this prefix.
    """
    path, _, run_id = address.removeprefix(f"{BUNDLE}:").rpartition("#")
    return Path(path), f"artifacts/{run_id}/", _open(Path(path))[2].get(run_id, [])


_KINDS = get_args(Values)
#: A line of runs.jsonl: the fields of a run and its values.
_Line: Any = make_dataclass(
    "_Line", [*get_type_hints(Run).items(), *((kind, get_type_hints(Row)[kind]) for kind in _KINDS)]
)


def _rows(path: Path) -> Iterator[Row]:
    deque(_read_pieces(path, _RUNS), 0)  # read to the end, where the checksum is verified
    known: set[str] = set()
    with _open(path)[0].open(_RUNS) as lines:
        for number, line in enumerate(iter(lambda: lines.readline(_MAX_LINE_BYTES), b""), 1):
            try:
                row = _row(path, line)
                if row.run.run_id in known:
                    raise ValueError(f"run {row.run.run_id} appears twice")
            except (ValueError, OverflowError, DataError) as error:
                problem = " ".join(str(error).split())[:200]
                raise DataError(
                    f"{path}: line {number} of {_RUNS} is not a run: {problem}"
                ) from None
            known.add(row.run.run_id)
            yield row


def _row(path: Path, line: bytes) -> Row:
    entry = read_message(_Line, read_json(line.decode()), "run")
    inside(Path(), entry.run_id)
    if "/" in entry.run_id or "#" in entry.run_id:
        raise ValueError(f"run_id={entry.run_id[:80]!r} is not a run id")
    if not all(0 <= (time or 0) < 2**53 for time in (entry.start_ms, entry.end_ms)):
        raise ValueError(f"start_ms={entry.start_ms} or end_ms={entry.end_ms} is outside 0..2**53")
    for key, text in (*entry.params.items(), *entry.tags.items()):
        if len(text) > _MAX_TEXT_CHARS or len(key) > _MAX_TEXT_CHARS:
            raise ValueError(
                f"{key[:80]} has {len(text):,} characters, but at most {_MAX_TEXT_CHARS:,} are allowed"
            )
    entry.artifact_uri = f"{BUNDLE}:{path}#{entry.run_id}"
    return Row(
        Run(*(getattr(entry, field) for field in Run._fields)),
        *(getattr(entry, kind) for kind in _KINDS),
    )


#: An open bundle, file name -> checksum, and run id -> names of the run's files.
_Bundle = tuple[zipfile.ZipFile, Mapping[str, str], Mapping[str, list[str]]]


def _open(path: Path) -> _Bundle:
    try:
        state = path.stat()
    except (OSError, ValueError):
        raise NoStoreError(
            f"no bundle of results at {path}: python -m analysis export FILE.zip writes one"
        ) from None
    return _opened(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)
def _opened(path: Path, changed: int, size: int) -> _Bundle:
    """Open a bundle and check its manifest; the result is cached until the file changes.

    Args:
        path: The bundle.
        changed: Time of the last change in nanoseconds; part of the cache key.
        size: Size of the .zip in bytes.

    Returns:
        The open .zip; file name -> checksum; and run id -> names of the run's files.

    Raises:
        DataError: If the bundle is damaged or exceeds a limit.
        SchemaError: If the bundle has another schema version.
    """
    del changed
    try:
        file = zipfile.ZipFile(path)
        # Check the unpacked size in the directory first: it could fill memory or disk.
        files = len(file.infolist())
        unpacked = sum(member.file_size for member in file.infolist())
        max_bytes = min(_MAX_BYTES, _MAX_RATIO * size + _FREE_BYTES)
        if files > _MAX_FILES or unpacked > max_bytes:
            contents = (
                f"contains {files:,} files of {unpacked:,} bytes in an archive of {size:,} bytes"
            )
            limit = f"but at most {_MAX_FILES:,} files of {max_bytes:,} bytes are read"
            raise DataError(f"{path}: {contents}, {limit}; do not trust this file")
        manifest: dict[str, Any] = read_json(file.read(_MANIFEST))
        format_tag = manifest.get("format")
        version = manifest.get("schema_version")
        if format_tag == FORMAT:
            sums = {str(name): str(checksum) for name, checksum in manifest["sha256"].items()}
        else:
            sums = {}
    except _DAMAGE_ERRORS:
        raise DataError(f"{path}: is not a bundle of results, or is damaged") from None
    if format_tag != FORMAT:
        problem = f"has the format {format_tag!r}, but this release reads {FORMAT!r}"
        raise DataError(f"{path}: {problem}; use the release that wrote the bundle")
    if version != SCHEMA_VERSION:
        problem = f"has schema_version={version}, but this release reads {SCHEMA_VERSION}"
        raise SchemaError(f"{path}: {problem}; use the release that wrote the bundle")
    runs: dict[str, list[str]] = {}
    for name in sums:
        if not is_inside(path.parent, name):
            raise DataError(
                f"{path}: {name[:80]} would be written outside its folder; do not trust this file"
            )
        kind, _, rest = name.partition("/")
        if kind == "artifacts":
            runs.setdefault(rest.partition("/")[0], []).append(name)
    return file, sums, runs


def _read_pieces(path: Path, member: str) -> Iterator[bytes]:
    """Yield the content of a file of a bundle in pieces, and verify its checksum.

    Raises:
        DataError: If the file is damaged. A wrong checksum is detected only after the last piece.
    """
    file, sums, _ = _open(path)
    digest = hashlib.sha256()
    try:
        with file.open(member) as source:
            while piece := source.read(2**20):
                digest.update(piece)
                yield piece
    except (*_DAMAGE_ERRORS, EOFError):
        raise DataError(f"{path}: {member} is damaged; copy the bundle again") from None
    if digest.hexdigest() != sums.get(member):
        raise DataError(
            f"{path}: {member} is damaged: its checksum does not match; copy the bundle again"
        )
