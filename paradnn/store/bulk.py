"""Whole tables of a SQLite store in one go: a million runs have some eighty million rows, too many for a loop.

SQLite joins the texts of some hundred thousand rows to one, which Arrow cuts into columns: no row becomes an object of
Python's, and two threads read at once. `benchmarks/README.md` has the figures.
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from numpy.typing import NDArray

from paradnn.store.records import Texts

__all__ = ["Table"]

_CUT = b"\x1f"  # stands after each text; one that holds it itself is noticed, as there are too many pieces then
_ROWIDS = 200_000  # read at once
_THREADS = 2


class _Batch(NamedTuple):
    """Rows of a table: the (rows,) of each key, of known runs alone; positions of their runs (rows,); their values."""

    by_key: Mapping[str, NDArray[np.intp]]
    positions: NDArray[np.int32]
    values: Any  # an array of Arrow's for texts, of NumPy's for numbers


@dataclass(frozen=True)
class Table:
    """The rows of one long table, of all runs or more; `condition` is the SQL that they meet, empty for all of them."""

    engine: sa.Engine
    name: str
    condition: str

    def add_texts(self, index: Mapping[str, int], columns: defaultdict[str, Texts]) -> None:
        """Fill columns with the values of the runs in the index."""
        for batch in self._batches(index, _texts):
            for key, rows in batch.by_key.items():
                column = columns[key]
                found = batch.values.take(pa.array(rows)).dictionary_encode()
                places = column.places
                codes = [places.setdefault(text, len(places)) for text in _whole(found)]
                column.array()[batch.positions[rows]] = np.array(codes, dtype="int32")[found.indices.to_numpy()]

    def add_metrics(self, index: Mapping[str, int], columns: Mapping[str, array[float] | NDArray[np.float64]]) -> None:
        """Fill columns with the values of the runs in the index."""
        for batch in self._batches(index, _numbers):
            for key, rows in batch.by_key.items():
                np.frombuffer(columns[key], dtype="float64")[batch.positions[rows]] = batch.values[rows]

    def _batches(self, index: Mapping[str, int], read: Any) -> Iterator[_Batch]:
        """The table in pieces; the next ones are read meanwhile."""
        with self.engine.connect() as connection:
            ends = sa.text(f"SELECT min(rowid), max(rowid) FROM {self.name}")
            first, last = connection.execute(ends).one()
        if first is None:
            return
        ahead: deque[Future[_Pieces]] = deque()
        with ThreadPoolExecutor(_THREADS) as pool:
            for start in range(first, last + 1, _ROWIDS):
                ahead.append(pool.submit(self._read, read, start))
                if len(ahead) > _THREADS:
                    yield _batch(ahead.popleft().result(), index)
            while ahead:
                yield _batch(ahead.popleft().result(), index)

    def _read(self, read: Any, start: int) -> _Pieces:
        # Without an index rows come in the order of their rowids, in both readings of one transaction.
        where = f"FROM {self.name} NOT INDEXED WHERE rowid >= {start} AND rowid < {start + _ROWIDS}"
        where += f" AND ({self.condition})" if self.condition else ""
        with self.engine.connect() as connection:
            cursor = connection.connection.cursor()
            cursor.execute("BEGIN")
            try:
                pieces: _Pieces = read(cursor, where)
            finally:
                cursor.execute("ROLLBACK")
                cursor.close()
        return pieces


class _Pieces(NamedTuple):
    """Columns of a piece of a table, (rows,) each; every text ends with the cut."""

    runs: Any
    keys: Any
    values: Any


def _texts(cursor: Any, where: str) -> _Pieces:
    columns, _ = _columns(cursor, ("run_uuid", "key", "value"), where)
    return _Pieces(*columns)


def _numbers(cursor: Any, where: str) -> _Pieces:
    (runs, keys), some_nan = _columns(cursor, ("run_uuid", "key"), where, "max(is_nan)")
    values = _floats(cursor, "value", where, len(runs))
    if some_nan:
        values[_floats(cursor, "is_nan", where, len(runs)) != 0] = np.nan
    return _Pieces(runs, keys, values)


def _floats(cursor: Any, name: str, where: str, count: int) -> NDArray[np.float64]:
    return np.fromiter(chain.from_iterable(cursor.execute(f"SELECT {name} {where}")), dtype="float64", count=count)


def _columns(cursor: Any, names: Sequence[str], where: str, total: str = "NULL") -> tuple[list[Any], Any]:
    """The columns as arrays of Arrow's, and a `total` over the rows; of a table with a text that holds the cut, row by
    row."""
    joined = ", ".join(f"CAST(group_concat({name} || char({_CUT[0]}), '') AS BLOB)" for name in names)
    cursor.execute(f"SELECT count(*), {total}, {joined} {where}")
    count, totalled, *texts = cursor.fetchone()
    found = [_cut(text or b"") for text in texts]
    if all(len(column) == count for column in found):
        return found, totalled
    there = " AND ".join(f"{name} IS NOT NULL" for name in names)
    cursor.execute(f"SELECT {', '.join(names)} {where} AND {there}")
    rows = [[text.encode() + _CUT for text in row] for row in cursor.fetchall()]
    columns = [pa.array([row[place] for row in rows], pa.large_string()) for place in range(len(names))]
    return columns, totalled


def _cut(text: bytes) -> Any:
    """The texts (rows,) that were joined to one, each with its cut."""
    ends = np.flatnonzero(np.frombuffer(text, dtype="uint8") == _CUT[0]) + 1
    offsets = np.concatenate(([0], ends)).astype("int64")
    return pa.LargeStringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))


def _whole(texts: Any) -> list[str]:
    """The distinct texts of a column that is coded by them, without their cuts."""
    return [text[:-1] for text in texts.dictionary.to_pylist()]


def _batch(pieces: _Pieces, index: Mapping[str, int]) -> _Batch:
    """The pieces, their runs looked up: the rows of a run mostly stand together."""
    runs = pc.run_end_encode(pieces.runs)
    found = [index.get(run_id[:-1], -1) for run_id in runs.values.to_pylist()]
    lengths = np.diff(runs.run_ends.to_numpy(), prepend=0)
    positions = np.repeat(np.array(found, dtype="int32"), lengths)
    keys = pieces.keys.dictionary_encode()
    codes = np.where(positions < 0, len(keys.dictionary), keys.indices.to_numpy()).astype("int16")
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(keys.dictionary) + 1))
    by_key = {
        key: order[low:high] for key, low, high in zip(_whole(keys), bounds, bounds[1:], strict=False) if high > low
    }
    return _Batch(by_key, positions, pieces.values)
