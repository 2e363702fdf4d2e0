"""The runs of a large SQLite store once more, as columns in a file beside it: mlflow.db.arrow beside mlflow.db.

It is used as long as nothing has been written to the store since, and made again otherwise; who deletes it loses the
seconds of one reading. Files of the store are compared by inode, size, times and SQLite's own count of changes, and
only columns that were read when these times were past are kept, so that no later write can have the same. A file that
was damaged since, which its checksum shows, is thrown away and made again.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paradnn.store.address import StoreAddress, moves_of
from paradnn.store.reader import Reader, Way, open_reader
from paradnn.store.records import Query, Records, Run, Texts

__all__ = ["CachedReader"]

#: Version of the file's layout.
#:   1  the first.
#:   2  a checksum follows the columns.
_LAYOUT = 2
#: A store of fewer runs is read as fast as the file would be.
_WORTH = 2_000
#: Nanoseconds after which a file that is written again has another time, on the coarsest of disks.
_SETTLED = 2_000_000_000
#: Where the file says what it is of, and how columns are named beside those of `Run`.
_ABOUT = "paradnn"
_PARAM, _TAG, _METRIC = "param ", "tag ", "metric "


class CachedReader:
    """Reads a store as `open_reader` does, and a large SQLite store through the file of its columns.

    For one reading: what it has seen of the store once, it does not look at again.
    """

    def __init__(self, address: StoreAddress, way: Way = "auto") -> None:
        self._address = address
        self._way = way

    def experiments(self) -> list[str]:
        """The names of the store's experiments that are not deleted."""
        return self._store.experiments() if self._whole is None else self._whole.experiments

    def read(self, query: Query) -> Records:
        """The runs of a query."""
        if not _answers(query) or self._whole is None:
            return self._store.read(query)
        return query.chosen(self._whole.records)

    @cached_property
    def _store(self) -> Reader:
        return open_reader(self._address, self._way)

    @cached_property
    def _whole(self) -> _Whole | None:
        """All runs, where they are read by columns; None where the store is asked itself."""
        state = _state(self._address) if self._way != "api" else None
        return None if state is None else _load(self._address, state) or self._make(state)

    def _make(self, state: _State) -> _Whole | None:
        """All runs, read from the store and kept; None where that is not worth it or cannot be done now."""
        from paradnn.store.sql import SqlReader

        store, path = self._store, _file(self._address)
        if not isinstance(store, SqlReader) or not state.is_settled or not os.access(path.parent, os.W_OK):
            return None
        if store.size() < _WORTH:
            return None
        names, places = store.experiments(), store.artifact_places()
        whole = _Whole(store.read(Query(tuple(names), unfinished=True)), names)
        if _state(self._address) == state:
            # A disk that takes no more costs the next reading its seconds, this one nothing.
            with contextlib.suppress(OSError):
                _save(whole, path, {"state": state.text, "places": places, "moves": _moves(self._address, places)})
        return whole


@dataclass(frozen=True)
class _Whole:
    """All runs of a store that are not deleted, and the names of its experiments."""

    records: Records
    experiments: list[str]


@dataclass(frozen=True)
class _State:
    """What a SQLite store's files look like, which changes with every write.

    `files`: inode, size, modification and change time of the database and its journals. `count`: SQLite's own of its
    changes. `workspace`: which part of the store MLflow shows.
    """

    files: tuple[tuple[int, int, int, int] | None, ...]
    count: str
    workspace: str

    @property
    def is_settled(self) -> bool:
        """Whether the last change is so long ago that another one would have another time."""
        latest = max(time for each in self.files if each for time in each[2:])
        return time.time_ns() - latest > _SETTLED

    @property
    def text(self) -> str:
        """What is compared."""
        return json.dumps([_LAYOUT, self.files, self.count, self.workspace])


def _answers(query: Query) -> bool:
    """Whether columns answer it: MLflow's own tags are not among them, and few runs are found faster in the tables."""
    few = query.newest is not None or query.run_id is not None or query.status is not None
    return not few and not any(key.startswith("mlflow.") for key in query.tags)


def _state(address: StoreAddress) -> _State | None:
    """How the store's files are now; None where they cannot be seen."""
    if address.database is None:
        return None
    try:
        with open(address.database, "rb") as file:
            count = file.read(100)[24:28].hex()
        found = [_look(Path(f"{address.database}{ending}")) for ending in ("", "-wal", "-journal")]
    except OSError:
        return None
    return _State(tuple(found), count, os.environ.get("MLFLOW_WORKSPACE", ""))


def _look(path: Path) -> tuple[int, int, int, int] | None:
    """An empty journal says as much as none: a reader makes one."""
    try:
        seen = path.stat()
    except FileNotFoundError:
        return None
    return (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns) if seen.st_size else None


def _moves(address: StoreAddress, places: Sequence[Sequence[str | None]]) -> list[list[Any]]:
    """How artifact addresses are to be read, which depends on folders that are there now."""
    locations, newest = places
    return [list(astuple(move)) for move in moves_of(address, locations, lambda: newest)]


def _save(whole: _Whole, path: Path, about: Mapping[str, Any]) -> None:
    """Write the file whole or not at all, for those to read who may read the store."""
    records = whole.records
    fields = zip(Run._fields, zip(*records.runs, strict=True), strict=True)
    columns: dict[str, Any] = {field: pa.array(values) for field, values in fields}
    for begin, texts in ((_PARAM, records.params), (_TAG, records.tags)):
        columns |= {begin + name: _coded(column) for name, column in texts.items()}
    columns |= {
        _METRIC + name: pa.array(np.frombuffer(held, dtype="float64")) for name, held in records.metrics.items()
    }
    known = json.dumps({**about, "experiments": whole.experiments})
    table = pa.table(columns).replace_schema_metadata({_ABOUT: known})
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        os.fchmod(handle, stat.S_IMODE(path.with_suffix("").stat().st_mode) & 0o666)
        with os.fdopen(handle, "wb") as file:
            with pa.ipc.new_file(pa.PythonFile(file, "w"), table.schema) as writer:
                writer.write_table(table)
            file.flush()
            file.write(_checksum(pa.memory_map(name).read_buffer()))
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _checksum(content: Any) -> bytes:
    """Four bytes that other contents lack, but for one in four billion."""
    return zlib.crc32(content).to_bytes(4, "big")


def _coded(column: Texts) -> Any:
    codes = column.array()
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(list(column.places), pa.string()))


def _load(address: StoreAddress, state: _State) -> _Whole | None:
    """What the file holds; None where it is not there, damaged, or of another state of the store."""
    try:
        whole = pa.memory_map(str(_file(address))).read_buffer()
        columns = whole[:-4]
        if _checksum(columns) != whole[-4:].to_pybytes():
            return None
        with pa.BufferReader(columns) as file:
            table = pa.ipc.open_file(file).read_all()
            about = json.loads((table.schema.metadata or {}).get(_ABOUT.encode(), b"{}"))
            if about.get("state") != state.text or _moves(address, about["places"]) != about["moves"]:
                return None
            return _Whole(_records(table), about["experiments"])
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None


def _records(table: pa.Table) -> Records:
    fields = [table[field].to_pylist() for field in Run._fields]
    records = Records(map(Run._make, zip(*fields, strict=True)))
    for name in table.column_names[len(fields) :]:
        [column] = table[name].chunks or [pa.array([], table.schema.field(name).type)]
        if name.startswith(_METRIC):
            records.metrics[name.removeprefix(_METRIC)] = column.to_numpy()
            continue
        texts = Texts(column.indices.fill_null(-1).to_numpy(), _places(column.dictionary.to_pylist()))
        kind, begin = (records.params, _PARAM) if name.startswith(_PARAM) else (records.tags, _TAG)
        kind[name.removeprefix(begin)] = texts
    return records


def _places(texts: Sequence[str]) -> dict[str, int]:
    return dict(zip(texts, range(len(texts)), strict=True))


def _file(address: StoreAddress) -> Path:
    """Where the columns of a SQLite store are kept."""
    database = address.database or Path()
    return database.with_name(f"{database.name}.arrow")
