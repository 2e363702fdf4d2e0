"""Runs as a reader finds them, column by column: a million runs fit in memory, and each text is there once."""

from __future__ import annotations

import math
import struct
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from paradnn.store.runs import OUTCOME_TAGS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ABSENT_BITS", "Query", "Records", "Row", "Run", "Texts", "Values"]


#: What stands where a run lacks a metric: a NaN with bits of its own, as R has it, for a metric may be NaN as well.
ABSENT_BITS = 0x7FF8_0000_0000_07A2
_ABSENT = struct.unpack("d", struct.pack("Q", ABSENT_BITS))[0]
_LARGEST = 1.7976931348623157e308  # how MLflow's SQL stores write infinity


class Run(NamedTuple):
    """What a store says of a run beside its params, metrics and tags; times are Unix milliseconds."""

    run_id: str
    run_name: str | None
    experiment: str
    status: str | None
    start_ms: int | None
    end_ms: int | None
    artifact_uri: str | None


class Row(NamedTuple):
    """One run with the values that were read of it; metrics that are NaN are left out."""

    run: Run
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, float]


class Texts:
    """A text for each run, None where it has none: `codes` (runs,), int32, and the text -> its code in `places`.

    Code -1 is no text. Codes count from 0 in the order of `places`.
    """

    __slots__ = ("codes", "places")

    def __init__(self, codes: array[int] | NDArray[np.int32], places: dict[str, int] | None = None) -> None:
        self.codes = codes
        self.places: dict[str, int] = {} if places is None else places

    @classmethod
    def missing(cls, length: int) -> Texts:
        """No run has a text."""
        return cls(array("i", [-1]) * length)

    @classmethod
    def of(cls, values: Iterable[str | None]) -> Texts:
        """The column of these values."""
        places: dict[str, int] = {}
        codes = array("i", [-1 if value is None else places.setdefault(value, len(places)) for value in values])
        return cls(codes, places)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, run: int) -> str | None:
        code = self.codes[run]
        return None if code < 0 else list(self.places)[code]

    def __iter__(self) -> Iterator[str | None]:
        values = [*self.places, None]  # code -1 finds the last one
        return iter([values[code] for code in self.codes])

    def array(self) -> NDArray[np.int32]:
        """The codes (runs,), in the memory of the column."""
        import numpy as np

        return np.frombuffer(self.codes, dtype="int32") if isinstance(self.codes, array) else self.codes

    def filled(self, other: Texts) -> Texts:
        """The column, with those of another one where it has no text."""
        import numpy as np

        places = dict(self.places)
        merged = np.array([*(places.setdefault(text, len(places)) for text in other.places), -1], dtype="int32")
        codes = self.array()
        return Texts(np.where(codes < 0, merged[other.array()], codes), places)


class Records:
    """First all runs are given, then their values.

    Entry i of every column belongs to run i, None or NaN where the run lacks the key; `index` maps a run's id to i.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        unique = {run.run_id: run for run in runs}
        self._begin(list(unique.values()), {run_id: position for position, run_id in enumerate(unique)})

    def _begin(self, runs: list[Run], index: dict[str, int]) -> None:
        self.runs, self.index, length = runs, index, len(runs)
        self.params: defaultdict[str, Texts] = defaultdict(lambda: Texts.missing(length))
        self.tags: defaultdict[str, Texts] = defaultdict(lambda: Texts.missing(length))
        self.metrics: defaultdict[str, array[float] | NDArray[np.float64]] = defaultdict(
            lambda: array("d", [_ABSENT]) * length
        )

    def of_same_runs(self) -> Records:
        """The same runs, without values."""
        part = Records(())
        part._begin(self.runs, self.index)
        return part

    @classmethod
    def joined(cls, parts: Sequence[Records]) -> Records:
        """The runs of several stores; one that several hold is one."""
        whole = cls(run for part in parts for run in part.runs)
        for part in parts:
            places = [whole.index[run.run_id] for run in part.runs]
            for ours, theirs in ((whole.params, part.params), (whole.tags, part.tags)):
                for name, values in theirs.items():
                    column = ours[name]
                    for place, value in zip(places, values, strict=True):
                        if value is not None:
                            column.codes[place] = column.places.setdefault(value, len(column.places))
            for name, numbers in part.metrics.items():
                measured = whole.metrics[name]
                for place, number in zip(places, numbers, strict=True):
                    measured[place] = number if number == number else measured[place]
        return whole

    def add_text(self, rows: Iterable[tuple[str, str, str]], columns: defaultdict[str, Texts]) -> None:
        """Rows (run id, key, value) into `params` or `tags`; rows of runs not in the index are passed over."""
        find = self.index.get
        for run_id, key, value in rows:
            position = find(run_id)
            if position is not None and value is not None:
                column = columns[key]
                column.codes[position] = column.places.setdefault(value, len(column.places))

    def add_metrics(self, rows: Iterable[tuple[str, str, float, bool]]) -> None:
        """Rows (run id, key, value, is NaN)."""
        find, columns = self.index.get, self.metrics
        for run_id, key, value, is_nan in rows:
            position = find(run_id)
            if position is not None:
                columns[key][position] = math.nan if is_nan else value

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A metric of every run (runs,), with the infinities that MLflow's SQL stores write as the largest float."""
        import numpy as np

        numbers = np.frombuffer(self.metrics[name], dtype="float64")
        numbers = np.where(np.isnan(numbers), np.nan, numbers)
        extreme = np.abs(numbers) >= _LARGEST
        return np.where(extreme, np.copysign(np.inf, numbers), numbers) if extreme.any() else numbers

    def rows(self) -> Iterator[Row]:
        """Run by run, for those who want few."""
        metrics = {name: self.numbers(name).tolist() for name in self.metrics}
        params, tags = ({name: list(column) for name, column in kind.items()} for kind in (self.params, self.tags))
        for place, run in enumerate(self.runs):
            own, noted = (
                {name: value for name, column in columns.items() if (value := column[place]) is not None}
                for columns in (params, tags)
            )
            yield Row(run, own, noted, {n: v for n, c in metrics.items() if not math.isnan(v := c[place])})


#: What a run holds: "params" and "tags" are text, "metrics" numbers.
Values = Literal["params", "tags", "metrics"]


@dataclass(frozen=True)
class Query:
    """Runs of some experiments that are not deleted, narrowed by whatever else is given.

    `params` and `tags` map a key to the values allowed for it; a run must satisfy all of them. Times are Unix
    milliseconds, `since_ms` included, `until_ms` not. Runs that never said how they ended are left out unless
    `unfinished`. `newest` keeps so many of the runs that started last. `columns` names the keys to read of each kind of
    values; of a kind that it does not name, all are read.
    """

    experiments: tuple[str, ...]
    params: Mapping[str, Collection[str]] = field(default_factory=dict)
    tags: Mapping[str, Collection[str]] = field(default_factory=dict)
    run_id: str | None = None
    status: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    unfinished: bool = False
    newest: int | None = None
    columns: Mapping[Values, Collection[str]] = field(default_factory=dict)

    @property
    def needs_outcome(self) -> bool:
        """Whether runs without an outcome must be left out, beyond what `tags` asks."""
        return not self.unfinished and "outcome" not in self.tags

    def accepts(self, run: Run, params: Mapping[str, str], tags: Mapping[str, str]) -> bool:
        """Whether a run of these experiments with these values is asked for, but for `newest`."""
        if self.needs_outcome and not any(name in tags for name in OUTCOME_TAGS):
            return False
        if self.run_id not in (None, run.run_id) or self.status not in (None, run.status):
            return False
        if self.since_ms is not None and (run.start_ms is None or run.start_ms < self.since_ms):
            return False
        if self.until_ms is not None and (run.start_ms is None or run.start_ms >= self.until_ms):
            return False
        return all(params.get(key) in allowed for key, allowed in self.params.items()) and all(
            tags.get(key) in allowed for key, allowed in self.tags.items()
        )

    def wants(self, kind: Values, key: str) -> bool:
        """Whether the values with this key are to be read."""
        return kind not in self.columns or key in self.columns[kind]

    def chosen(self, records: Records) -> Records:
        """The runs that are asked for, of all runs of a store.

        Queries for the `newest` runs, one run or one status are not answered here.
        """
        import numpy as np

        since = -math.inf if self.since_ms is None else self.since_ms
        until = math.inf if self.until_ms is None else self.until_ms
        timed = self.since_ms is not None or self.until_ms is not None
        keep = np.array(
            [
                run.experiment in self.experiments
                and (not timed or (run.start_ms is not None and since <= run.start_ms < until))
                for run in records.runs
            ],
            dtype=bool,
        )
        for columns, filters in ((records.params, self.params), (records.tags, self.tags)):
            for key, allowed in filters.items():
                column = columns[key] if key in columns else Texts.missing(len(records.runs))
                keep &= np.isin(column.array(), [column.places.get(text, -2) for text in allowed])
        if self.needs_outcome:
            ended = [records.tags[name].array() >= 0 for name in OUTCOME_TAGS if name in records.tags]
            keep &= np.logical_or.reduce(ended) if ended else False
        return self._taken(records, keep.nonzero()[0])

    def _taken(self, records: Records, places: NDArray[np.intp]) -> Records:
        """The runs at these places, with what they hold of the values that are wanted."""
        import numpy as np

        every = len(places) == len(records.runs)
        part = records.of_same_runs() if every else Records(records.runs[place] for place in places)
        for kind, ours, theirs in (("params", records.params, part.params), ("tags", records.tags, part.tags)):
            for name, column in ours.items():
                codes = column.array() if every else column.array()[places]
                if self.wants(kind, name) and (codes >= 0).any():  # type: ignore[arg-type]
                    theirs[name] = Texts(codes, column.places)
        for name, held in records.metrics.items():
            numbers = np.frombuffer(held, dtype="float64")
            numbers = numbers if every else numbers[places]
            if self.wants("metrics", name) and (numbers.view("int64") != ABSENT_BITS).any():
                part.metrics[name] = numbers
        return part
