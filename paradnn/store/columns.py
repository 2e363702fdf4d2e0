"""Many runs, column by column: a million runs fit in memory, and each text is there once.

A million runs have some eighty million rows in a SQLite store, too many for a loop. SQLite joins the texts of some
hundred thousand rows to one, which Arrow cuts into columns: no row becomes an object of Python's, and two threads read
at once. `benchmarks/README.md` has the figures."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from numpy.typing import NDArray

from paradnn.store.records import LARGEST, Row, Run, Values

#: What stands where a run lacks a metric: a NaN with bits of its own, as R has it, for a metric may be NaN as well.
ABSENT_BITS = 0x7FF8_0000_0000_07A2
_ABSENT = np.array([ABSENT_BITS], dtype="uint64").view("float64")
_CUT = b"\x1f"  # stands after each text; one that holds it itself is noticed, as there are too many pieces then
_ROWIDS = 200_000  # read at once
_THREADS = 2


class Texts:
    """A text for each run, None where it has none: `codes` (runs,), int32, and the text -> its code in `places`. Code
    -1 is no text. Codes count from 0 in the order of `places`."""

    def __init__(self, codes: NDArray[np.int32], places: dict[str, int] | None = None) -> None:
        self.codes = codes
        self.places: dict[str, int] = {} if places is None else places

    @classmethod
    def missing(cls, length: int) -> Texts:
        """No run has a text."""
        return cls(np.full(length, -1, dtype="int32"))

    @classmethod
    def of(cls, values: Iterable[str | None]) -> Texts:
        """The column of these values."""
        places: dict[str, int] = {}
        codes = [-1 if value is None else places.setdefault(value, len(places)) for value in values]
        return cls(np.array(codes, dtype="int32"), places)

    def __len__(self) -> int:
        return len(self.codes)

    def __iter__(self) -> Iterator[str | None]:
        values = [*self.places, None]  # code -1 finds the last one
        return iter([values[code] for code in self.codes.tolist()])

    def put(self, runs: NDArray[Any], texts: Sequence[str], codes: NDArray[Any]) -> None:
        """Give these runs the texts that codes name among `texts`."""
        own = [self.places.setdefault(text, len(self.places)) for text in texts]
        self.codes[runs] = np.array(own, dtype="int32")[codes]

    def filled(self, other: Texts) -> Texts:
        """The column, with those of another one where it has no text."""
        whole = Texts(self.codes.copy(), dict(self.places))
        lacking = np.flatnonzero((self.codes < 0) & (other.codes >= 0))
        whole.put(lacking, list(other.places), other.codes[lacking])
        return whole


class Records:
    """Entry i of every column belongs to run i: -1 or ABSENT where the run lacks the key. `index`: a run's id -> i."""

    def __init__(self, runs: Iterable[Run]) -> None:
        unique = {run.run_id: run for run in runs}
        self.runs, length = list(unique.values()), len(unique)
        self.index = dict(zip(unique, range(length), strict=True))
        self.params: defaultdict[str, Texts] = defaultdict(lambda: Texts.missing(length))
        self.tags: defaultdict[str, Texts] = defaultdict(lambda: Texts.missing(length))
        self.metrics: defaultdict[str, NDArray[np.float64]] = defaultdict(lambda: np.repeat(_ABSENT, length))

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Records:
        """The columns of some rows."""
        records = cls(row.run for row in rows)
        for kind in get_args(Values):
            records.add(kind, ((row.run.run_id, *entry) for row in rows for entry in getattr(row, kind).items()))
        return records

    def add(self, kind: Values, rows: Iterable[Sequence[Any]]) -> None:
        """Rows of run id, key, value, and of metrics whether it is NaN; those of runs not in the index are left out."""
        columns: Any = getattr(self, kind)
        for run_id, key, value, *is_nan in rows:
            position = self.index.get(run_id)
            if position is None or value is None:
                continue
            column = columns[key]
            if kind == "metrics":
                column[position] = math.nan if any(is_nan) else value
            else:
                column.codes[position] = column.places.setdefault(value, len(column.places))

    @classmethod
    def joined(cls, parts: Sequence[Records]) -> Records:
        """The runs of several stores; one that several hold is one."""
        whole = cls(run for part in parts for run in part.runs)
        for part in parts:
            places = np.array([whole.index[run.run_id] for run in part.runs], dtype=np.intp)
            for ours, others in ((whole.params, part.params), (whole.tags, part.tags)):
                for name, column in others.items():
                    held = column.codes >= 0
                    ours[name].put(places[held], list(column.places), column.codes[held])
            for name, numbers in part.metrics.items():
                held = ~np.isnan(numbers)
                whole.metrics[name][places[held]] = numbers[held]
        return whole

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A metric of every run (runs,), with the infinities that MLflow's SQL stores write as the largest float."""
        numbers = np.where(np.isnan(self.metrics[name]), np.nan, self.metrics[name])
        return np.where(np.abs(numbers) >= LARGEST, np.copysign(np.inf, numbers), numbers)

    def rows(self) -> Iterator[Row]:
        """Run by run."""
        metrics = {name: self.numbers(name).tolist() for name in self.metrics}
        params, tags = ({name: list(column) for name, column in kind.items()} for kind in (self.params, self.tags))
        for place, run in enumerate(self.runs):
            own, noted = (
                {name: value for name, column in columns.items() if (value := column[place]) is not None}
                for columns in (params, tags)
            )
            yield Row(run, own, noted, {n: v for n, c in metrics.items() if not math.isnan(v := c[place])})

    def read_table(self, engine: sa.Engine, table: str, condition: str, columns: Any) -> None:
        """Fill columns from a long table of a SQLite store; `condition` is SQL that its rows meet, empty for all."""
        with engine.connect() as connection:
            first, last = connection.execute(sa.text(f"SELECT min(rowid), max(rowid) FROM {table}")).one()
        if first is None:
            return
        ahead: deque[Future[tuple[Any, Any, Any]]] = deque()
        with ThreadPoolExecutor(_THREADS) as pool:
            for start in range(first, last + 1, _ROWIDS):
                # Without an index rows come in the order of their rowids, in both readings of one transaction.
                where = f"FROM {table} NOT INDEXED WHERE rowid >= {start} AND rowid < {start + _ROWIDS}"
                where += f" AND ({condition})" if condition else ""
                ahead.append(pool.submit(_read, engine, where, columns is self.metrics))
                if len(ahead) > _THREADS:
                    self._put(columns, *ahead.popleft().result())
            for waiting in ahead:
                self._put(columns, *waiting.result())

    def _put(self, columns: Any, ids: Any, keys: Any, values: Any) -> None:
        """Rows into columns; the rows of a run mostly stand together."""
        runs, keys = pc.run_end_encode(ids), keys.dictionary_encode()
        found = [self.index.get(run_id[:-1], -1) for run_id in runs.values.to_pylist()]
        positions = np.repeat(np.array(found, dtype="int32"), np.diff(runs.run_ends.to_numpy(), prepend=0))
        names = _whole(keys)
        codes = np.where(positions < 0, len(names), keys.indices.to_numpy()).astype("int16")
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
        for name, low, high in zip(names, bounds, bounds[1:], strict=False):
            rows = order[low:high]
            if not len(rows):
                continue
            if columns is self.metrics:
                columns[name][positions[rows]] = values[rows]
            else:
                own = values.take(pa.array(rows)).dictionary_encode()
                columns[name].put(positions[rows], _whole(own), own.indices.to_numpy())


def _read(engine: sa.Engine, where: str, numbers: bool) -> tuple[Any, Any, Any]:
    """Runs, keys and values of some rows (rows,): texts as arrays of Arrow's, each with its cut, numbers as NumPy's."""
    with engine.connect() as connection:
        cursor = connection.connection.cursor()
        cursor.execute("BEGIN")
        try:
            if not numbers:
                return tuple(_texts(cursor, ("run_uuid", "key", "value"), where))  # type: ignore[return-value]
            runs, keys = _texts(cursor, ("run_uuid", "key"), where)
            values = _floats(cursor, "value", where, len(runs))
            if cursor.execute(f"SELECT max(is_nan) {where}").fetchone()[0]:
                values[_floats(cursor, "is_nan", where, len(runs)) != 0] = np.nan
            return runs, keys, values
        finally:
            cursor.execute("ROLLBACK")
            cursor.close()


def _floats(cursor: Any, name: str, where: str, count: int) -> NDArray[np.float64]:
    return np.fromiter(chain.from_iterable(cursor.execute(f"SELECT {name} {where}")), dtype="float64", count=count)


def _texts(cursor: Any, names: Sequence[str], where: str) -> list[Any]:
    """Columns of texts; of rows with a text that holds the cut, row by row."""
    joined = ", ".join(f"CAST(group_concat({name} || char({_CUT[0]}), '') AS BLOB)" for name in names)
    count, *texts = cursor.execute(f"SELECT count(*), {joined} {where}").fetchone()
    found = [_cut(text or b"") for text in texts]
    if all(len(column) == count for column in found):
        return found
    there = " AND ".join(f"{name} IS NOT NULL" for name in names)
    rows = cursor.execute(f"SELECT {', '.join(names)} {where} AND {there}").fetchall()
    return [pa.array([row[place].encode() + _CUT for row in rows], pa.large_string()) for place in range(len(names))]


def _cut(text: bytes) -> Any:
    """The texts (rows,) that were joined to one, each with its cut."""
    ends = np.flatnonzero(np.frombuffer(text, dtype="uint8") == _CUT[0]) + 1
    offsets = np.concatenate(([0], ends)).astype("int64")
    return pa.LargeStringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))


def _whole(texts: Any) -> list[str]:
    """The distinct texts of a column that is coded by them, without their cuts."""
    return [text[:-1] for text in texts.dictionary.to_pylist()]
