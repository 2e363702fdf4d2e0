"""Many runs, column by column: a million runs fit in memory, and each text is there once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from paradnn.store.runs import LARGEST, Row, Run, Values


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

    def are(self, text: str) -> NDArray[np.bool_]:
        """(runs,) which runs have the text."""
        return np.equal(self.codes, self.places.get(text, -2))

    def filled(self, other: Texts) -> Texts:
        """The column, with those of another one where it has no text."""
        whole = Texts(self.codes.copy(), dict(self.places))
        lacking = np.flatnonzero((self.codes < 0) & (other.codes >= 0))
        own = [whole.places.setdefault(text, len(whole.places)) for text in other.places]
        whole.codes[lacking] = np.array(own, dtype="int32")[other.codes[lacking]]
        return whole


class Records:
    """Entry i of every column belongs to run i: -1 or NaN where the run lacks the key. `index`: a run's id -> i."""

    def __init__(self, runs: Iterable[Run]) -> None:
        unique = {run.run_id: run for run in runs}
        self.runs, length = list(unique.values()), len(unique)
        self.index = dict(zip(unique, range(length), strict=True))
        self.params: defaultdict[str, Texts] = defaultdict(lambda: Texts.missing(length))
        self.tags: defaultdict[str, Texts] = defaultdict(lambda: Texts.missing(length))
        self.metrics: defaultdict[str, NDArray[np.float64]] = defaultdict(lambda: np.full(length, np.nan))

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
        find, is_text = self.index.get, kind != "metrics"
        for row in rows:  # millions, so in few steps
            position, value = find(row[0]), row[2]
            if position is None or value is None:
                continue
            column = columns[row[1]]
            if is_text:
                places = column.places
                column.codes[position] = places[value] if value in places else places.setdefault(value, len(places))
            elif len(row) == 3 or not row[3]:
                column[position] = value

    @classmethod
    def joined(cls, parts: Sequence[Records]) -> Records:
        """The runs of several stores; one that several hold is one."""
        whole = cls(run for part in parts for run in part.runs)
        kinds: tuple[Values, ...] = ("params", "tags")
        for part in parts:
            ids = [run.run_id for run in part.runs]
            for kind in kinds:
                for name, texts in getattr(part, kind).items():
                    whole.add(kind, ((run_id, name, text) for run_id, text in zip(ids, texts, strict=True)))
            for name, numbers in part.metrics.items():
                whole.add("metrics", ((i, name, x, x != x) for i, x in zip(ids, numbers.tolist(), strict=True)))
        return whole

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A metric of every run (runs,), with the infinities that MLflow's SQL stores write as the largest float."""
        numbers = self.metrics[name]
        return np.where(np.abs(numbers) >= LARGEST, np.copysign(np.inf, numbers), numbers)
