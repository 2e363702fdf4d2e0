"""Columnar storage of runs in memory. Each distinct text is stored once, so a million runs fit."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import compress, islice
from typing import Any, Self, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from paradnn.core.metric import bare_name
from paradnn.store.runs import LARGEST, OUTCOME_TAGS, Query, Row, Run, Values


class Texts:
    """A column with a text or None for each run, stored as integer codes.

    Attributes:
        codes: int32 array of shape (runs,): the code of each run's text; -1 means no text.
        code_of: Text -> code; codes count from 0 in the order of this mapping.
    """

    def __init__(self, codes: NDArray[np.int32], code_of: dict[str, int] | None = None) -> None:
        self.codes = codes
        self.code_of: dict[str, int] = code_of or {}

    @classmethod
    def missing(cls, length: int) -> Self:
        """Return a column of `length` runs without any text."""
        return cls(np.full(length, -1, dtype="int32"))

    @classmethod
    def of(cls, values: Iterable[str | None]) -> Self:
        """Return a column with the given values.

        Args:
            values: A text or None per run.
        """
        code_of: dict[str, int] = {}
        codes = [
            -1 if value is None else code_of.setdefault(value, len(code_of)) for value in values
        ]
        return cls(np.array(codes, dtype="int32"), code_of)

    @classmethod
    def constant(cls, text: str, length: int) -> Self:
        """Return a column of `length` runs that all have the same text."""
        return cls(np.zeros(length, dtype="int32"), {text: 0})

    def __iter__(self) -> Iterator[str | None]:
        values = [*self.code_of, None]  # code -1 selects the last element
        return iter([values[code] for code in self.codes.tolist()])

    def equals(self, text: str) -> NDArray[np.bool_]:
        """Return a mask of shape (runs,) that is True for the runs with the given text."""
        return np.equal(self.codes, self.code_of.get(text, -2))

    def filled(self, other: Self) -> Self:
        """Return a copy in which missing texts are taken from another column.

        Args:
            other: Column of the same runs, in the same order.
        """
        filled = type(self)(self.codes.copy(), dict(self.code_of))
        missing = np.flatnonzero((self.codes < 0) & (other.codes >= 0))
        codes = [filled.code_of.setdefault(text, len(filled.code_of)) for text in other.code_of]
        filled.codes[missing] = np.array(codes, dtype="int32")[other.codes[missing]]
        return filled


#: Rows of a table as three columns of shape (rows,): run ids, keys and values. Values are texts or,
#: for metrics, numbers; NaN means no value.
Part = tuple[Texts, Texts, Texts | NDArray[np.float64]]
MAX_PART_ROWS = 1 << 16  # key codes are sorted as 16-bit integers


def in_parts(kind: Values, rows: Iterable[Sequence[Any]]) -> Iterator[Part]:
    """Split rows of a table into parts of at most `MAX_PART_ROWS` rows, as columns.

    Args:
        kind: Kind of the values: "params", "tags" or "metrics".
        rows: Tuples of (run id, key, value).
    """
    rows = iter(rows)
    while part := list(islice(rows, MAX_PART_ROWS)):
        run_ids, keys, values = zip(*part, strict=True)
        column: Texts | NDArray[np.float64]
        if kind == "metrics":
            column = np.array(values, float)
        else:
            column = Texts.of(values)
        yield Texts.of(run_ids), Texts.of(keys), column


def of_batch(batch: pa.RecordBatch) -> Part:
    """Convert an Arrow batch from `paradnn.store.scan` to columns of run ids, keys and values."""
    run_ids, keys, values = batch.columns
    column: Texts | NDArray[np.float64]
    if pa.types.is_dictionary(values.type):
        column = _texts(values)
    else:
        column = values.to_numpy()
    return _texts(run_ids), _texts(keys), column


def _texts(column: pa.DictionaryArray) -> Texts:
    distinct = (text.decode() for text in column.dictionary.to_pylist())
    return Texts(column.indices.to_numpy(), {text: code for code, text in enumerate(distinct)})


class RunFields(Sequence[Run]):
    """A sequence of runs whose fields are stored as columns, so that millions fit in memory.

    Args:
        columns: Name of each field of `Run` -> its values, one per run.
    """

    def __init__(self, columns: dict[str, pa.Array]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["run_id"])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        return Run(*(self.columns[name][int(index)].as_py() for name in Run._fields))

    def __iter__(self) -> Iterator[Run]:
        return map(Run, *(self.columns[name].to_pylist() for name in Run._fields))


class Records:
    """Runs and their params, tags and metrics as columns.

    Entry i of every column belongs to run i. If the run lacks the param, tag or metric, the entry
    is None or NaN.

    Args:
        runs: The runs. A run that occurs twice is kept once.

    Attributes:
        runs: The runs, each once.
        params: Param name -> column.
        tags: Tag name -> column.
        metrics: Metric name -> float64 array of shape (runs,).
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self.runs: Sequence[Run]
        if isinstance(runs, RunFields):
            self.runs = runs
        else:
            self.runs = list({run.run_id: run for run in runs}.values())
        length = len(self.runs)
        self.params: defaultdict[str, Texts] = defaultdict(lambda: Texts.missing(length))
        self.tags: defaultdict[str, Texts] = defaultdict(lambda: Texts.missing(length))
        self.metrics: defaultdict[str, NDArray[np.float64]] = defaultdict(
            lambda: np.full(length, np.nan)
        )

    @cached_property
    def index(self) -> dict[str, int]:
        """Run id -> position of the run."""
        return {run.run_id: position for position, run in enumerate(self.runs)}

    def texts(self, name: str) -> list[str | None] | pa.Array:
        """Return a text field of all runs.

        Args:
            name: Name of a field of `Run`, such as "run_id".
        """
        if isinstance(self.runs, RunFields):
            return self.runs.columns[name]
        return [getattr(run, name) for run in self.runs]

    def times(self, name: str) -> NDArray[np.int64]:
        """Return a time field of all runs, in Unix milliseconds.

        Args:
            name: Name of a field of `Run`: "start_ms" or "end_ms".

        Returns:
            Array of shape (runs,); -1 means a missing time.
        """
        if isinstance(self.runs, RunFields):
            return np.asarray(self.runs.columns[name].fill_null(-1).to_numpy(), dtype="int64")
        times = (getattr(run, name) for run in self.runs)
        return np.array([-1 if time is None else time for time in times], dtype="int64")

    def rows(self) -> list[Row]:
        """Return each run with its params, tags and metrics as a row."""
        rows = [Row(run, {}, {}, {}) for run in self.runs]
        for kind in get_args(Values):
            for name, column in getattr(self, kind).items():
                values = self.numbers(name).tolist() if kind == "metrics" else column
                for row, value in zip(rows, values, strict=True):
                    if value is not None and value == value:
                        getattr(row, kind)[name] = value
        return rows

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Self:
        """Convert rows to columns.

        Args:
            rows: Runs with their params, tags and metrics, each run once.
        """
        records = cls(row.run for row in rows)
        for kind in get_args(Values):
            entries = (
                (row.run.run_id, *entry) for row in rows for entry in getattr(row, kind).items()
            )
            records.add(kind, in_parts(kind, entries))
        return records

    def add(self, kind: Values, parts: Iterable[Part]) -> None:
        """Add all values of one kind. Values of unknown runs are skipped.

        A column that exists already is replaced.

        Args:
            kind: Kind of the values: "params", "tags" or "metrics".
            parts: Parts of a table, each with columns of run ids, keys and values.
        """
        absent: Any = np.int32(-1)
        if kind == "metrics":
            absent = np.nan
        columns: dict[str, Any] = defaultdict(lambda: np.full(len(self.runs), absent))
        shared_code_of: dict[str, int] = {}  # text -> code in all columns
        for run_ids, keys, values in parts:
            known_positions = [self.index.get(run_id, -1) for run_id in run_ids.code_of]
            positions = np.array(known_positions, "int32")[run_ids.codes]
            if isinstance(values, Texts):
                shared_codes = [
                    shared_code_of.setdefault(text, len(shared_code_of)) for text in values.code_of
                ]
                # Code -1 (no text) selects the appended -1.
                values = np.array([*shared_codes, -1], "int32")[values.codes]
                has_value = values >= 0
            else:
                has_value = ~np.isnan(values)
            valid = np.flatnonzero((positions >= 0) & has_value)
            # Group the rows by key. NumPy sorts 16-bit integers with a radix sort, in linear time.
            order = valid[np.argsort(keys.codes[valid].astype("uint16"), kind="stable")]
            positions = positions[order]
            values = values[order]
            counts = np.bincount(keys.codes[valid])
            ends = np.cumsum(counts)
            names = (
                [bare_name(key) for key in keys.code_of] if kind == "metrics" else [*keys.code_of]
            )
            for code in np.flatnonzero(counts):
                rows = slice(ends[code] - counts[code], ends[code])
                columns[names[code]][positions[rows]] = values[rows]
        texts = list(shared_code_of)
        for name, column in columns.items():
            if kind == "metrics":
                self.metrics[name] = column
                continue
            has_text = column >= 0
            # Replace the shared codes by codes of this column, which count from 0.
            codes, used = pd.factorize(column[has_text])
            column[has_text] = codes
            code_of = {texts[shared_code]: code for code, shared_code in enumerate(used)}
            getattr(self, kind)[name] = Texts(column, code_of)

    def matching(self, query: Query) -> Self:
        """Return the runs that satisfy the tag filters and the outcome condition of a query.

        Args:
            query: The query. Its other conditions are ignored.
        """
        nothing = Texts.missing(len(self.runs))
        # Each condition is a list of masks. A run satisfies it if at least one mask is True.
        # Without conditions, all runs are accepted.
        conditions = [
            [self.tags.get(name, nothing).equals(text) for text in texts]
            for name, texts in query.tags.items()
        ]
        if query.needs_outcome:
            conditions.append([self.tags.get(name, nothing).codes >= 0 for name in OUTCOME_TAGS])
        accepted = np.ones(len(self.runs), dtype=bool)
        for masks in conditions:
            accepted &= np.logical_or.reduce(masks)
        return self.selected(accepted)

    def selected(self, accepted: Any) -> Self:
        """Return the selected runs with their params, tags and metrics.

        Args:
            accepted: Boolean mask of shape (runs,).
        """
        accepted = np.asarray(accepted, dtype=bool)
        if np.all(accepted):
            return self
        part = type(self)(compress(self.runs, accepted))
        for kind in ("params", "tags"):
            for name, column in getattr(self, kind).items():
                texts = Texts(column.codes[accepted], column.code_of)
                if np.any(texts.codes >= 0):
                    getattr(part, kind)[name] = texts
        for name, numbers in self.metrics.items():
            kept = numbers[accepted]
            if not np.all(np.isnan(kept)):
                part.metrics[name] = kept
        return part

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Merge the runs of several stores. A run in more than one store appears once.

        Args:
            parts: The runs of each store. For a value in several parts, the last part counts.
        """
        merged = cls(run for part in parts for run in part.runs)
        parts_with_ids = [(part, Texts.of(run.run_id for run in part.runs)) for part in parts]
        for kind in get_args(Values):
            columns = (
                (ids, Texts.constant(name, len(part.runs)), column)
                for part, ids in parts_with_ids
                for name, column in getattr(part, kind).items()
            )
            merged.add(kind, columns)
        return merged

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a metric of all runs as an array of shape (runs,), NaN where it is missing.

        MLflow's SQL stores write infinities as the largest float. This method restores them, in
        place.

        Args:
            name: Name of the metric.
        """
        numbers = self.metrics[name]
        numbers[numbers >= LARGEST] = np.inf
        numbers[numbers <= -LARGEST] = -np.inf
        return numbers
