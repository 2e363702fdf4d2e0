"""Planned points and past runs side by side, as columns: what a prediction is made from."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradnn.config.identity import request_of, texts
from paradnn.config.point import Point
from paradnn.costs import Costs, layer_count
from paradnn.forecast.history import Past
from paradnn.forecast.timing import Protocol
from paradnn.store.schema import LATER_PARAMS

__all__ = ["PLANNED", "Table", "of_points", "of_runs", "row_of", "together"]

Array = NDArray[np.float64]
Words = NDArray[np.object_]

#: The session that is to come.
PLANNED = "planned"
#: Keys that do not change what a step is.
_ASIDE = ("measure", "software", "replicate", "seed", "batch_size")
#: Layers of a model that this version does not know.
_TYPICAL_LAYERS = 10


@dataclass(frozen=True)
class Table:
    """One entry a point in every column.

    flops, bytes: of a step. words: key -> text, of the keys that may change a step's time but are no sizes.
    numbers: key of the model -> value, NaN where the family has no such key. steps: what tells one step from another.
    session: which sweep measured it, or is to. rows: all keys as the store keeps them.
    """

    family: Words
    flops: Array
    bytes: Array
    parameters: Array
    layers: Array
    batch: Array
    profiled: NDArray[np.bool_]
    words: Mapping[str, Words]
    numbers: Mapping[str, Array]
    steps: Words
    environment: Words
    session: Words
    protocol: Protocol
    rows: Sequence[Mapping[str, str]]

    def __len__(self) -> int:
        return len(self.family)


def row_of(point: Point) -> dict[str, str]:
    """The keys of `point` as the store keeps them."""
    return texts(request_of(point))


def of_points(rows: Sequence[Mapping[str, str]], costs: Sequence[Costs], environments: Sequence[str]) -> Table:
    """The table of planned points: their rows, their costs and the ids of their environments."""
    measured = [
        {"parameters": cost.parameters, "flops_per_step": cost.flops_per_step, "bytes_per_step": cost.bytes_per_step}
        for cost in costs
    ]
    return _table(rows, measured, environments, [PLANNED] * len(rows))


def of_runs(runs: Sequence[Past]) -> Table:
    """The table of past runs; a key that came later than they did counts as what they all had."""
    return _table(
        [{**LATER_PARAMS, **run.params} for run in runs],
        [run.metrics for run in runs],
        [run.tags.get("environment_id", "") for run in runs],
        [run.tags.get("sweep_id", run.run_id) for run in runs],
    )


def _table(
    rows: Sequence[Mapping[str, str]],
    metrics: Sequence[Mapping[str, float]],
    environments: Sequence[str],
    sessions: Sequence[str],
) -> Table:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    of_model = [key for key in keys if key.startswith("model.") and key != "model.name"]
    others = [key for key in keys if not key.startswith("model.") and key.split(".")[0] not in _ASIDE]
    family = _words(row.get("model.name", "") for row in rows)
    numbers = {key: np.array([_number(row.get(key)) for row in rows]) for key in of_model}
    return Table(
        family=family,
        flops=_column(metrics, "flops_per_step"),
        bytes=_column(metrics, "bytes_per_step"),
        parameters=_column(metrics, "parameters"),
        layers=_layers(rows),
        batch=np.array([_number(row.get("batch_size")) for row in rows]),
        profiled=np.array([_profiled(row) for row in rows], dtype=bool),
        words={key: _words(row.get(key, "null") for row in rows) for key in others},
        numbers={key: values for key, values in numbers.items() if np.isfinite(values).any()},
        steps=family,  # as far as one table can tell; see `together`
        environment=_words(environments),
        session=_words(sessions),
        protocol=Protocol.of([_protocol(row) for row in rows]),
        rows=rows,
    )


def together(runs: Table, points: Table) -> tuple[Table, Table]:
    """Both with the same keys: one that a side lacks is null, or no number."""
    words, numbers = {*runs.words, *points.words}, {*runs.numbers, *points.numbers}
    keys = {key for table in (runs, points) for row in table.rows for key in row}
    telling = [key for key in sorted(keys) if key.split(".")[0] not in _ASIDE] + ["batch_size"]

    def widened(table: Table) -> Table:
        null, nothing = _words(["null"] * len(table)), np.full(len(table), np.nan)
        return replace(
            table,
            words={key: table.words.get(key, null) for key in sorted(words)},
            numbers={key: table.numbers.get(key, nothing) for key in sorted(numbers)},
            steps=_words("|".join(row.get(key, "null") for key in telling) for row in table.rows),
        )

    return widened(runs), widened(points)


def _layers(rows: Sequence[Mapping[str, str]]) -> Array:
    known: dict[tuple[tuple[str, str], ...], int] = {}
    found = []
    for row in rows:
        model = tuple((key[len("model.") :], value) for key, value in row.items() if key.startswith("model."))
        if model not in known:
            try:
                known[model] = layer_count({key: _value(value) for key, value in model})
            except (KeyError, TypeError, ValueError):  # of another version
                known[model] = _TYPICAL_LAYERS
        found.append(known[model])
    return np.array(found, dtype=float)


def _protocol(row: Mapping[str, str]) -> dict[str, float]:
    return {name: _number(row.get(f"measure.{name}")) for name in Protocol.__dataclass_fields__}


def _profiled(row: Mapping[str, str]) -> bool:
    return "true" in (row.get("measure.profile"), row.get("measure.keep_trace"))


def _column(metrics: Sequence[Mapping[str, float]], name: str) -> Array:
    return np.array([max(float(entry.get(name, np.nan)), 1.0) for entry in metrics], dtype=float)


def _words(values: Any) -> Words:
    found = list(values)
    column = np.empty(len(found), dtype=object)
    column[:] = found
    return column


@functools.lru_cache(maxsize=65536)
def _number(text: str | None) -> float:
    """A positive number, or the mean of a list of them; NaN for anything else."""
    value = _value(text) if text is not None else None
    if isinstance(value, list) and value and all(isinstance(entry, (int, float)) for entry in value):
        value = sum(value) / len(value)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else np.nan


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
