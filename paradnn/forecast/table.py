"""Planned points and past runs side by side, as columns: what a prediction is made from."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradnn.config.identity import request_of, texts
from paradnn.config.point import Point
from paradnn.costs import Costs, layer_count
from paradnn.forecast.history import Past
from paradnn.forecast.regression import Array
from paradnn.forecast.timing import MeasureColumns

__all__ = ["PLANNED", "Rates", "Table", "row_of", "table_of_points", "table_of_runs"]

#: FLOP/s and B/s that one of these devices can do at most, and cores of its host: of a device, framework and precision.
Rates = Callable[[str, str, str], tuple[float, float, float]]
#: The session that is to come.
PLANNED = "planned"
#: Keys that may change a step's time beside the model's and the batch; others are told apart, but not learned.
_WORDS = ("mode", "precision", "compile", "optimizer.name", "devices", "transport", "data.name")
_WORD_GROUPS = ("framework.", "platform.")
#: Keys that do not change what a step is.
_ASIDE = ("measure", "software", "replicate", "seed")
#: Layers of a model that this version does not know.
_TYPICAL_LAYERS = 10
_COSTS = ("parameters", "flops_per_step", "bytes_per_step")


@dataclass(frozen=True)
class Table:
    """One entry a point in every column.

    rows: its keys as the store keeps them. words: those that may change a step's time and are not at their default.
    steps: what tells one step from another. sessions: the sweep that measured it, or is to. flops, bytes: of a step.
    peak_flops, peak_bytes: a second, of all its devices. crowding: logarithm of how many times more threads than cores
    wanted to run on its host; 0 where that is unknown. settings: how it is measured.
    """

    rows: Sequence[Mapping[str, str]]
    words: Sequence[frozenset[tuple[str, str]]]
    steps: Sequence[str]
    families: Sequence[str]
    environments: Sequence[str]
    sessions: Sequence[str]
    flops: Array
    bytes: Array
    parameters: Array
    layers: Array
    batch: Array
    peak_flops: Array
    peak_bytes: Array
    crowding: Array
    profiled: NDArray[np.bool_]
    settings: MeasureColumns

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, key: str) -> NDArray[np.str_]:
        """The text of one key."""
        return np.array([row.get(key, "null") for row in self.rows], dtype=str)


def row_of(point: Point) -> dict[str, str]:
    """The keys of `point` as the store keeps them."""
    return texts(request_of(point))


def table_of_points(
    points: Sequence[Point], costs: Sequence[Costs], environments: Sequence[str], devices: Sequence[str], rates: Rates
) -> Table:
    """The table of planned points: their costs, and ids and devices of their environments."""
    rows = [row_of(point) for point in points]
    metrics = [{name: float(getattr(cost, name)) for name in _COSTS} for cost in costs]
    return _table(rows, metrics, environments, [PLANNED] * len(rows), devices, rates)


def table_of_runs(runs: Sequence[Past], rates: Rates) -> Table:
    """The table of past runs."""
    return _table(
        [{**_defaults(), **run.params} for run in runs],
        [run.metrics for run in runs],
        [run.tags.get("environment_id", "") for run in runs],
        [run.tags.get("sweep_id", run.run_id) for run in runs],
        [run.tags.get("device", "") for run in runs],
        rates,
    )


@functools.cache
def _defaults() -> dict[str, str]:
    """Every key of a point but the model's: what a run that lacks a later one had."""
    point = texts(asdict(Point(model=None)))  # type: ignore[arg-type]
    return {key: value for key, value in point.items() if key != "model"}


def _table(
    rows: Sequence[Mapping[str, str]],
    metrics: Sequence[Mapping[str, float]],
    environments: Sequence[str],
    sessions: Sequence[str],
    devices: Sequence[str],
    rates: Rates,
) -> Table:
    flops, size, cores = (
        np.array(
            [rates(device, row["framework.name"], row["precision"]) for device, row in zip(devices, rows, strict=True)]
        )
        .reshape(-1, 3)
        .T
    )
    # Devices of a CPU are cores of one machine, others are chips of their own.
    chips = np.array([1.0 if row["platform.name"] == "cpu" else _number(row["devices"]) for row in rows])
    # A sweep alone on its host shows a load of its cores and a little more.
    load = np.array([entry.get("load_average", np.nan) for entry in metrics]) / (1.25 * cores)
    parameters, work, traffic = (np.array([max(float(entry[name]), 1.0) for entry in metrics]) for name in _COSTS)
    return Table(
        rows=rows,
        words=[_words(row) for row in rows],
        steps=[_step(row) for row in rows],
        families=[row.get("model.name", "") for row in rows],
        environments=environments,
        sessions=sessions,
        flops=work,
        bytes=traffic,
        parameters=parameters,
        layers=np.array([_layers(_model(row)) for row in rows], dtype=float),
        batch=np.array([_number(row.get("batch_size")) for row in rows], dtype=float),
        peak_flops=chips * flops,
        peak_bytes=chips * size,
        crowding=np.log(np.fmax(1.0, load)),
        profiled=np.array(["true" in (row["measure.profile"], row["measure.keep_trace"]) for row in rows], dtype=bool),
        settings=MeasureColumns.of([_measure(row) for row in rows]),
    )


def _words(row: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    defaults = _defaults()
    items = ((key, value) for key, value in row.items() if key in _WORDS or key.startswith(_WORD_GROUPS))
    return frozenset((key, value) for key, value in items if value != defaults.get(key, "null"))


def _step(row: Mapping[str, str]) -> str:
    items = sorted(item for item in row.items() if item[1] != "null" and item[0].split(".")[0] not in _ASIDE)
    return "|".join(f"{key}={value}" for key, value in items)


def _model(row: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((key.removeprefix("model."), value) for key, value in row.items() if key.startswith("model."))


@functools.lru_cache(maxsize=65536)
def _layers(model: tuple[tuple[str, str], ...]) -> int:
    try:
        return layer_count({key: _value(value) for key, value in model})
    except (KeyError, TypeError, ValueError):  # of another version
        return _TYPICAL_LAYERS


def _measure(row: Mapping[str, str]) -> dict[str, float]:
    return {name: _number(row.get(f"measure.{name}")) for name in MeasureColumns.__dataclass_fields__}


def _number(text: str | None) -> float:
    value = _value(text) if text is not None else None
    return float(value) if isinstance(value, (int, float)) else np.nan


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
