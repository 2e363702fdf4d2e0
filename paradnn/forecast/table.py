"""Planned points and past runs side by side, as columns: what a prediction is made from."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradnn.config.costs import costs_of
from paradnn.config.identity import request_of, texts
from paradnn.config.point import Point
from paradnn.core.workload import WORKLOADS
from paradnn.errors import ConfigError
from paradnn.families import Model, model_of
from paradnn.families.layers import Costs
from paradnn.forecast.history import Past
from paradnn.forecast.regression import Array
from paradnn.store.runs import LATER_PARAMS

__all__ = ["PLANNED", "Rates", "Table", "cost_columns", "row_of", "table_of_points", "table_of_runs"]

#: FLOP/s and B/s that one of these devices can do at most, and cores of its host: of a device, framework and precision.
Rates = Callable[[str, str, str], tuple[float, float, float]]
#: The session that is to come.
PLANNED = "planned"
_COSTS = ("flops_per_step", "bytes_per_step", "parameters")
#: Keys that may change a step's time beside the model's and the batch.
_WORDS = ("mode", "precision", "compile", "optimizer.name", "devices", "transport", "hosts", "data.name")
_WORD_GROUPS = ("framework.", "platform.")
#: Groups of keys that do not change what a step is.
_ASIDE = ("measure", "software", "replicate", "seed", "scenario", "task")


@dataclass(frozen=True)
class Table:
    """n points or runs, an entry each in every column.

    rows: keys as the store keeps them. sessions: the sweep that measured it, or is to. costs: (n, 3) FLOPs and bytes of
    a step, parameters. peaks: (n, 3) FLOP/s and B/s of one device, cores of the host. load: runnable threads of the
    host beside it, NaN where unknown.
    """

    rows: Sequence[Mapping[str, str]]
    environments: Sequence[str]
    sessions: Sequence[str]
    costs: Array
    peaks: Array
    load: Array

    def __len__(self) -> int:
        return len(self.rows)

    def text(self, key: str) -> NDArray[np.str_]:
        """(n,) values of one key as text, "null" where a row lacks it."""
        if key not in self._texts:
            self._texts[key] = np.array([row.get(key, "null") for row in self.rows], dtype=str)
        return self._texts[key]

    def number(self, key: str) -> Array:
        """(n,) values of one key as numbers, NaN where they are none."""
        if key not in self._numbers:
            texts = [row.get(key, "null") for row in self.rows]
            values = {text: _value(text) for text in set(texts)}
            numbers = {text: value if isinstance(value, (int, float)) else np.nan for text, value in values.items()}
            self._numbers[key] = np.array([numbers[text] for text in texts], dtype=float)
        return self._numbers[key]

    @cached_property
    def _texts(self) -> dict[str, NDArray[np.str_]]:
        """Columns that were asked for: an adaptive sweep asks for the same before every batch."""
        return {}

    @cached_property
    def _numbers(self) -> dict[str, Array]:
        return {}

    @cached_property
    def model_keys(self) -> list[str]:
        """The keys of models that any row has, but for the name."""
        return sorted({key for row in self.rows for key in row if key.startswith("model.")} - {"model.name"})

    @cached_property
    def families(self) -> list[str]:
        """The family of every row."""
        return [row.get("model.name", "") for row in self.rows]

    @cached_property
    def layers(self) -> Array:
        """(n,) layers; ten for a model that this version does not know."""
        return np.array([_of_model(row, Model.layer_count, 10) for row in self.rows], dtype=float)

    @cached_property
    def examples(self) -> Array:
        """(n, 2) numbers of an example's input and of its target, a one for each class; of a model that this version
        does not know a thousand and ten."""
        return np.array([_of_model(row, Model.example_sizes, (1000, 10)) for row in self.rows], dtype=float).reshape(
            -1, 2
        )

    @cached_property
    def words(self) -> list[frozenset[tuple[str, str]]]:
        """What may change a step's time and is not at its default, as (key, value)."""
        unusual = (row.items() - _defaults().items() for row in self.rows)
        return [
            frozenset(item for item in items if item[0] in _WORDS or item[0].startswith(_WORD_GROUPS))
            for items in unusual
        ]

    @cached_property
    def steps(self) -> list[str]:
        """What distinguishes one step from another."""
        items = (((key, value) for key, value in sorted(row.items()) if value != "null") for row in self.rows)
        aside = {*_ASIDE, *(work.group for work in WORKLOADS.values() if work.same_step)}
        return ["|".join(f"{key}={value}" for key, value in row if key.split(".")[0] not in aside) for row in items]

    @property
    def profiled(self) -> NDArray[np.bool_]:
        """(n,) whether its steps are profiled after they are timed."""
        return np.asarray((self.text("measure.profile") == "true") | (self.text("measure.keep_trace") == "true"))


def cost_columns(points: Sequence[Point]) -> dict[str, NDArray[np.float64]]:
    """Every field of the points' `Costs`, (n,) each; of points that differ in their batch alone few are worked out.

    Costs are linear in the batch, but for what takes at most so much (a lookup reads no more than its table). So where
    the middle of a stretch of batches lies on the line between its ends, all of the stretch does.
    """
    groups: dict[Any, list[int]] = {}
    batches = np.empty(len(points), dtype=np.int64)
    kept: list[Point] = []  # the first point of each group
    for index, point in enumerate(points):
        batches[index] = point.batch_size
        work, optimizer = point.workload, point.optimizer
        like = (point.model, work.mode, *work.cost_keys().items(), point.precision, optimizer.name, optimizer.momentum)
        group = groups.setdefault((*like, point.devices), [])
        if not group:
            kept.append(point)
        group.append(index)
    found = np.empty((len(fields(Costs)), len(points)))
    for point, group in zip(kept, groups.values(), strict=True):
        distinct, places = np.unique(batches[group], return_inverse=True)
        found[:, group] = _over_batches(point, distinct)[:, places]
    return dict(zip((entry.name for entry in fields(Costs)), found, strict=True))


def _over_batches(point: Point, batches: NDArray[np.int64]) -> NDArray[np.float64]:
    """(fields, n) costs of a point with each of some batches, which rise."""

    @functools.cache
    def at(place: int) -> list[int]:
        return list(vars(costs_of(replace(point, batch_size=int(batches[place])))).values())

    found = np.empty((len(fields(Costs)), len(batches)))
    stretches = [(0, len(batches) - 1)]
    while stretches:
        first, last = stretches.pop()
        middle = (first + last) // 2
        begin, end, length = int(batches[first]), int(batches[last]), int(batches[last] - batches[first])
        on_line = [
            (one - low) * length == (high - low) * (int(batches[middle]) - begin)
            for low, one, high in zip(at(first), at(middle), at(last), strict=True)
        ]
        if all(on_line):
            shares = (batches[first : last + 1] - begin) / max(end - begin, 1)
            low, high = (np.array(at(place), dtype=float)[:, None] for place in (first, last))
            found[:, first : last + 1] = np.rint(low + (high - low) * shares)
        else:
            stretches += [(first, middle), (middle, last)]
    return found


def row_of(point: Point) -> dict[str, str]:
    """The keys of `point` as the store keeps them."""
    return texts(request_of(point))


def table_of_points(
    points: Sequence[Point], environments: Sequence[str], devices: Sequence[str], rates: Rates
) -> Table:
    """The table of planned points, from the ids and devices of their environments."""
    columns = cost_columns(points)
    costs = np.stack([columns[name] for name in _COSTS], axis=1)
    rows, sessions = [row_of(point) for point in points], [PLANNED] * len(points)
    return _table(rows, costs, np.full(len(points), np.nan), environments, sessions, devices, rates)


def table_of_runs(runs: Sequence[Past], rates: Rates) -> Table:
    """The table of past runs; a key that came later than a run counts as what it had."""
    return _table(
        [{**LATER_PARAMS, **run.params} for run in runs],
        np.array([[run.metrics[name] for name in _COSTS] for run in runs], dtype=float).reshape(-1, 3),
        np.array([run.metrics.get("load_average", np.nan) for run in runs], dtype=float),
        [run.tags.get("environment_id", "") for run in runs],
        [run.tags.get("sweep_id", run.run_id) for run in runs],
        [run.tags.get("device", "") for run in runs],
        rates,
    )


def _table(
    rows: Sequence[Mapping[str, str]],
    costs: Array,
    load: Array,
    environments: Sequence[str],
    sessions: Sequence[str],
    devices: Sequence[str],
    rates: Rates,
) -> Table:
    names = ((row.get("framework.name", ""), row.get("precision", "")) for row in rows)
    peaks = [rates(device, *name) for device, name in zip(devices, names, strict=True)]
    return Table(
        rows,
        environments,
        sessions,
        costs=np.maximum(costs, 1.0),
        peaks=np.array(peaks, dtype=float).reshape(-1, 3),
        load=load,
    )


@functools.cache
def _defaults() -> dict[str, str]:
    """Every key of a point but the model's."""
    point = texts(request_of(Point(model=None)))  # type: ignore[arg-type]
    return {key: value for key, value in point.items() if key != "model"}


def _of_model(row: Mapping[str, str], figure: Callable[[Model], Any], unknown: Any) -> Any:
    return _of_items(tuple(item for item in row.items() if item[0].startswith("model.")), figure, unknown)


@functools.lru_cache(maxsize=65536)
def _of_items(model: tuple[tuple[str, str], ...], figure: Callable[[Model], Any], unknown: Any) -> Any:
    try:
        return figure(model_of({key.removeprefix("model."): _value(value) for key, value in model}))
    except (KeyError, TypeError, ValueError, ConfigError):  # of another version
        return unknown


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
