"""Which runs to read from a store, and which of their values: one description for every reader."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from paradnn.store.records import ABSENT_BITS, Records, Run, Texts
from paradnn.store.schema import OUTCOME_TAGS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Query", "Values"]

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
