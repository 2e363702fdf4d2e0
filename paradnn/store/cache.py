"""The runs of a large SQLite store once more, as columns in a file beside it: mlflow.db.arrow beside mlflow.db.

It is used as long as nothing has been written to the store since, and made again otherwise; who deletes it loses the
seconds of one reading. Files of the store are compared by inode, size, times and SQLite's own count of changes, and
only columns that were read when these times were past are kept, so that no later write can have the same. A file that
was damaged since, which its checksum shows, is thrown away and made again."""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paradnn.store.address import StoreAddress, moves_of
from paradnn.store.columns import ABSENT_BITS, Records, Texts
from paradnn.store.reader import Reader, Way, open_reader
from paradnn.store.records import Query, Run, Values
from paradnn.store.runs import OUTCOME_TAGS
from paradnn.store.sql import SqlReader

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


def read_columns(address: StoreAddress, query: Query, way: Way = "auto") -> tuple[Records, list[str]]:
    """The runs of a query, and the names of the store's experiments, read as `open_reader` does; those of a large
    SQLite store through the file of its columns."""
    # MLflow's own tags are not among the columns, and few runs are found faster in the tables.
    few = query.newest is not None or query.run_id is not None or query.status is not None
    stored = way == "api" or few or any(key.startswith("mlflow.") for key in query.tags)
    state = None if stored else _state(address)
    whole = _load(address, state) if state else None
    if whole is None:
        store = open_reader(address, way)
        whole = _make(address, state, store) if state else None
    if whole is not None:
        return _chosen(whole[0], query), whole[1]
    return store.columns(query) if isinstance(store, SqlReader) else Records.of(store.read(query)), store.experiments()


def _make(address: StoreAddress, state: str, store: Reader) -> tuple[Records, list[str]] | None:
    """All runs and the names of all experiments, kept; None where that is not worth it or cannot be done now."""
    path = _file(address)
    latest = max(changed for each in _seen(address) if each for changed in each[2:])
    if not isinstance(store, SqlReader) or time.time_ns() - latest <= _SETTLED or not os.access(path.parent, os.W_OK):
        return None
    if store.size() < _WORTH:
        return None
    names, places = store.experiments(), store.artifact_places()
    records = store.columns(Query(tuple(names), unfinished=True))
    if _state(address) == state:
        about = {"state": state, "places": places, "moves": _moves(address, places), "experiments": names}
        # A disk that takes no more costs the next reading its seconds, this one nothing.
        with contextlib.suppress(OSError):
            _save(records, path, about)
    return records, names


def _seen(address: StoreAddress) -> list[tuple[int, int, int, int] | None]:
    """Inode, size, modification and change time of a SQLite database and its journals."""
    found: list[tuple[int, int, int, int] | None] = []
    for ending in ("", "-wal", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            seen = os.stat(f"{address.database}{ending}")
            # An empty journal says as much as none: a reader makes one.
            found.append((seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns) if seen.st_size else None)
            continue
        found.append(None)
    return found


def _state(address: StoreAddress) -> str | None:
    """What a SQLite store looks like, which changes with every write; None where that cannot be seen."""
    if address.database is None:
        return None
    try:
        with open(address.database, "rb") as file:
            changes = file.read(100)[24:28].hex()  # SQLite's own count
        return json.dumps([_LAYOUT, _seen(address), changes, os.environ.get("MLFLOW_WORKSPACE", "")])
    except OSError:
        return None


def _moves(address: StoreAddress, places: Any) -> list[list[Any]]:
    """How artifact addresses are to be read, which depends on folders that are there now."""
    locations, newest = places
    return [list(move) for move in moves_of(address, locations, lambda: newest)]


def _chosen(records: Records, query: Query) -> Records:
    since = -math.inf if query.since_ms is None else query.since_ms
    until = math.inf if query.until_ms is None else query.until_ms
    timed = query.since_ms is not None or query.until_ms is not None
    keep = np.array(
        [
            run.experiment in query.experiments
            and (not timed or (run.start_ms is not None and since <= run.start_ms < until))
            for run in records.runs
        ],
        dtype=bool,
    )
    for columns, filters in ((records.params, query.params), (records.tags, query.tags)):
        for key, allowed in filters.items():
            column = columns[key] if key in columns else Texts.missing(len(records.runs))
            keep &= np.isin(column.codes, [column.places.get(text, -2) for text in allowed])
    if query.needs_outcome:
        ended = [records.tags[name].codes >= 0 for name in OUTCOME_TAGS if name in records.tags]
        keep &= np.logical_or.reduce(ended) if ended else False
    places = keep.nonzero()[0]
    every = len(places) == len(records.runs)
    part = Records(records.runs if every else [records.runs[place] for place in places])
    kinds: tuple[Values, ...] = ("params", "tags")
    for kind in kinds:
        for name, column in getattr(records, kind).items():
            codes = column.codes if every else column.codes[places]
            if query.wants(kind, name) and (codes >= 0).any():
                getattr(part, kind)[name] = Texts(codes, column.places)
    for name, held in records.metrics.items():
        numbers = held if every else held[places]
        if query.wants("metrics", name) and (numbers.view("int64") != ABSENT_BITS).any():
            part.metrics[name] = numbers
    return part


def _save(records: Records, path: Path, about: Mapping[str, Any]) -> None:
    """Write the file whole or not at all, for those to read who may read the store."""
    fields = zip(Run._fields, zip(*records.runs, strict=True), strict=True)
    columns: dict[str, Any] = {field: pa.array(values) for field, values in fields}
    for begin, texts in ((_PARAM, records.params), (_TAG, records.tags)):
        for name, column in texts.items():
            codes = pa.array(column.codes, mask=column.codes < 0)
            columns[begin + name] = pa.DictionaryArray.from_arrays(codes, pa.array(list(column.places), pa.string()))
    columns |= {_METRIC + name: pa.array(numbers) for name, numbers in records.metrics.items()}
    table = pa.table(columns).replace_schema_metadata({_ABOUT: json.dumps(about)})
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


def _load(address: StoreAddress, state: str) -> tuple[Records, list[str]] | None:
    """What the file holds; None where it is not there, damaged, or of another state of the store."""
    try:
        whole = pa.memory_map(str(_file(address))).read_buffer()
        columns = whole[:-4]
        if _checksum(columns) != whole[-4:].to_pybytes():
            return None
        with pa.BufferReader(columns) as file:
            table = pa.ipc.open_file(file).read_all()
            about = json.loads((table.schema.metadata or {}).get(_ABOUT.encode(), b"{}"))
            if about.get("state") != state or _moves(address, about["places"]) != about["moves"]:
                return None
            return _records(table), about["experiments"]
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
        places = {text: place for place, text in enumerate(column.dictionary.to_pylist())}
        kind, begin = (records.params, _PARAM) if name.startswith(_PARAM) else (records.tags, _TAG)
        kind[name.removeprefix(begin)] = Texts(column.indices.fill_null(-1).to_numpy(), places)
    return records


def _file(address: StoreAddress) -> Path:
    return Path(f"{address.database}.arrow")
