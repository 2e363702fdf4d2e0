"""What to read from a store: one value that both readers understand."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pandas as pd

from paradnn.errors import ConfigError

__all__ = ["Query", "make_query"]

Choice = str | Sequence[str] | None


@dataclass(frozen=True)
class Query:
    """Which runs and which of their columns.

    `params` and `tags` map a key to the values allowed for it; a run must satisfy all of them. Times are Unix
    milliseconds, `since_ms` included, `until_ms` not. Runs without the tag `outcome` are left out unless
    `unfinished`. `columns` names the params, metrics and tags to read; None reads all.
    """

    experiments: tuple[str, ...]
    params: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    since_ms: int | None = None
    until_ms: int | None = None
    unfinished: bool = False
    columns: Collection[str] | None = None

    def accepts(self, params: Mapping[str, str], tags: Mapping[str, str], start_ms: int | None) -> bool:
        """Whether a run with these params and tags, started then, is asked for."""
        if not self.unfinished and "outcome" not in tags:
            return False
        if self.since_ms is not None and (start_ms is None or start_ms < self.since_ms):
            return False
        if self.until_ms is not None and (start_ms is None or start_ms >= self.until_ms):
            return False
        return all(params.get(key) in allowed for key, allowed in self.params.items()) and all(
            tags.get(key) in allowed for key, allowed in self.tags.items()
        )

    def wants(self, key: str) -> bool:
        """Whether a param, metric or tag is to be read."""
        return self.columns is None or key in self.columns


def make_query(
    experiments: Choice,
    family: Choice,
    platform: Choice,
    outcome: Choice,
    since: Any,
    until: Any,
    tags: Mapping[str, Choice],
    kind: Choice,
    unfinished: bool,
    columns: Collection[str] | None,
) -> Query:
    """The query of `analysis.store.load.load`'s arguments; ConfigError for a time that is none."""
    wanted_tags = {**tags, "kind": kind, "outcome": outcome}
    if columns is not None:
        # What the frame's own columns and the schema check are made from.
        columns = {*columns, "model.name", "device", "outcome", "kind", "schema_version", "mlflow.parentRunId"}
    return Query(
        experiments=_choice(experiments),
        params={key: _choice(value) for key, value in (("model.name", family), ("platform.name", platform)) if value},
        tags={key: _choice(value) for key, value in wanted_tags.items() if value},
        since_ms=_milliseconds("since", since),
        until_ms=_milliseconds("until", until),
        unfinished=unfinished,
        columns=columns,
    )


def _choice(value: Choice) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _milliseconds(name: str, value: str | datetime | pd.Timestamp | None) -> int | None:
    """Unix milliseconds of a time; one without a zone is taken as UTC."""
    if value is None:
        return None
    try:
        stamp = pd.to_datetime(value, utc=True)
    except (ValueError, TypeError):
        stamp = None
    if stamp is None or pd.isna(stamp):
        raise ConfigError(name, value, "is not a time", "write for example 2026-01-31 or 2026-01-31T12:00:00+01:00")
    return int(stamp.timestamp() * 1000)
