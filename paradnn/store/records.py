"""What readers of stores are asked for, and what a run is that they give: one description for every kind of store."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from paradnn.store.runs import OUTCOME_TAGS

#: How MLflow's SQL stores write infinity.
LARGEST = 1.7976931348623157e308
#: What a run holds: "params" and "tags" are text, "metrics" numbers.
Values = Literal["params", "tags", "metrics"]


def number(value: float) -> float:
    """A metric with the infinities that MLflow's SQL stores write as the largest float."""
    return math.copysign(math.inf, value) if abs(value) >= LARGEST else value


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


@dataclass(frozen=True)
class Query:
    """Runs of some experiments that are not deleted, narrowed by whatever else is given.

    `params` and `tags` map a key to the values allowed for it; a run must satisfy all of them. Times are Unix
    milliseconds, `since_ms` included, `until_ms` not. Runs that never said how they ended are left out unless
    `unfinished`. `newest` keeps so many of the runs that started last. `columns` names the keys to read of each kind of
    values; of a kind that it does not name, all are read."""

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

    def narrowed(self, row: Row) -> Row:
        """A run with those of its values that are to be read."""
        wanted = self._wanted
        return Row(row.run, wanted("params", row.params), wanted("tags", row.tags), wanted("metrics", row.metrics))

    def _wanted(self, kind: Values, values: dict[str, Any]) -> dict[str, Any]:
        keys = self.columns.get(kind)
        return {sys.intern(key): value for key, value in values.items() if keys is None or key in keys}
