"""Runs as a reader finds them, column by column: 100,000 runs fit in memory, and each value is touched once."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Records", "Row", "Run"]

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


class Records:
    """First all runs are given, then their values.

    Entry i of every list belongs to run i, None or NaN where the run lacks the key; `index` maps a run's id to i.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        unique = {run.run_id: run for run in runs}
        self.runs = list(unique.values())
        self.index = {run_id: position for position, run_id in enumerate(unique)}
        length = len(self.runs)
        self.params: defaultdict[str, list[str | None]] = defaultdict(lambda: [None] * length)
        self.tags: defaultdict[str, list[str | None]] = defaultdict(lambda: [None] * length)
        self.metrics: defaultdict[str, array[float]] = defaultdict(lambda: array("d", [math.nan]) * length)
        self._shared: dict[str, str] = {}

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
                        column[place] = value if value is not None else column[place]
            for name, numbers in part.metrics.items():
                measured = whole.metrics[name]
                for place, number in zip(places, numbers, strict=True):
                    measured[place] = number if number == number else measured[place]
        return whole

    def add_text(self, rows: Iterable[tuple[str, str, str]], columns: defaultdict[str, list[str | None]]) -> None:
        """Rows (run id, key, value) into `params` or `tags`; rows of runs not in the index are passed over.

        Equal values share one object, which keeps millions of params small.
        """
        find, share = self.index.get, self._shared.setdefault
        for run_id, key, value in rows:
            position = find(run_id)
            if position is not None:
                columns[key][position] = share(value, value)

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
        extreme = np.abs(numbers) >= _LARGEST
        return np.where(extreme, np.copysign(np.inf, numbers), numbers) if extreme.any() else numbers

    def rows(self) -> Iterator[Row]:
        """Run by run, for those who want few."""
        metrics = {name: self.numbers(name).tolist() for name in self.metrics}
        for place, run in enumerate(self.runs):
            params, tags = (
                {name: value for name, column in columns.items() if (value := column[place]) is not None}
                for columns in (self.params, self.tags)
            )
            yield Row(run, params, tags, {n: v for n, c in metrics.items() if not math.isnan(v := c[place])})
