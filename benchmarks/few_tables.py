"""Tables in which every point is measured, for benchmarks.few_points: the paper's archive, timm's published speeds, and
spaces that were measured here."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.published.source import shipped
from analysis.store.past import rates_of, table_of
from paradnn.families import model_of
from paradnn.forecast.predict import Line, roofline, step_inputs
from paradnn.forecast.process import Inputs
from paradnn.forecast.regression import Array
from paradnn.forecast.table import Table

#: Slots of RMSprop, with which the archive was trained, and bytes of a weight and of an activation on either machine.
_WEIGHT_BYTES, _ACTIVATION_BYTES = 12, 4
_KEYS = ("model.layers", "model.nodes", "model.input_size", "model.output_size", "batch_size")


@dataclass(frozen=True)
class Known:
    """n points, all measured. values: (n,) logarithms of seconds of a step. at: line -> inputs of all points. factors:
    names and (n, k) logarithms of what speed is said to depend on."""

    name: str
    values: Array
    at: Callable[[Line], Inputs]
    factors: tuple[str, ...]
    logs: Array


@dataclass(frozen=True)
class Sizes:
    """n points of which some ran out of memory. sizes: (n, k); parts: (n, j) of memory; failed: (n,)."""

    sizes: Array
    parts: Array
    failed: np.ndarray


def archive(device: str) -> Known:
    """The paper's fully connected models on a device."""
    rows = [row for row in _rows(device) if "step_time_ms" in row.metrics]
    table = _table(rows)
    shapes = np.array([_shape(row) for row in rows], dtype=float)
    names = ("layers", "nodes", "input_size", "output_size", "batch_size")
    varying = [index for index in range(5) if len(np.unique(shapes[:, index])) > 1]
    return Known(
        device,
        np.log([row.metrics["step_time_ms"] / 1e3 for row in rows]),
        step_inputs(table),
        tuple(names[index] for index in varying),
        np.log(shapes[:, varying]),
    )


def archive_memory() -> Sizes:
    """All points of the archive on TPU v2, those that ran out of memory too."""
    rows = [row for row in _rows("TPU v2") if row.outcome in ("ok", "oom_device")]
    shapes = np.array([_shape(row) for row in rows], dtype=float)
    layers, nodes, inputs, outputs, batch = shapes.T
    weights = nodes * (inputs + outputs) + (layers - 1) * nodes**2
    parts = np.stack([_WEIGHT_BYTES * weights, _ACTIVATION_BYTES * batch * (inputs + layers * nodes + outputs)], axis=1)
    return Sizes(shapes, parts, np.array([row.outcome == "oom_device" for row in rows]))


def _rows(device: str) -> list[Any]:
    return [row for row in shipped("archive").runs if row.tags["device"] == device]


def _shape(row: Any) -> list[int]:
    return [int(row.params[key]) for key in _KEYS]


def _table(rows: list[Any]) -> Table:
    entries, costs = [], []
    for row in rows:
        model = dict(zip(("layers", "nodes", "input_size", "output_size"), _shape(row)[:4], strict=True)) | {
            "name": "fc"
        }
        cost = model_of(model).costs(
            batch_size=_shape(row)[4], precision=row.params["precision"], mode="train", optimizer="rmsprop"
        )
        costs.append([cost.flops_per_step, cost.bytes_per_step, cost.parameters])
        known = ("model.name", "precision", "compile", "platform.name", "mode", *_KEYS)
        entries.append({key: row.params[key] for key in known} | {"devices": "1"})
    rates = {"tpu": (180e12, 2400e9), "gpu": (125e12, 900e9)}[rows[0].params["platform.name"]]
    peaks = np.tile([*rates, 1.0], (len(rows), 1))
    same = [rows[0].tags["device"]] * len(rows)
    return Table(entries, same, same, np.array(costs, dtype=float), peaks, np.full(len(rows), np.nan))


def own(path: Path) -> Known:
    """A space that was measured whole: rows of keys and `seconds` of a step, as the analysis predicts it."""
    points = pd.read_csv(path)
    seconds = points.pop("seconds").to_numpy(dtype=float)
    axes = [str(name) for name in points if points[name].nunique() > 1]
    points = points.assign(environment_id="here", sweep_id="one")
    table = table_of(points, rates_of(points, seconds))
    names = tuple(name.removeprefix("model.") for name in axes)
    return Known(path.stem, np.log(seconds), step_inputs(table), names, np.log(points[axes].to_numpy(dtype=float)))


def timm(path: Path) -> Known:
    """One of timm's tables: models at the batch and image size of their row.

    The roofline's parts are multiply-accumulates, activations, weights, and a time of each step; their rates cancel
    against the factors, which data find.
    """
    with path.open() as handle:
        rows = list(csv.DictReader(handle))
    mode = "infer" if "infer_step_time" in rows[0] else "train"
    need = [f"{mode}_{key}" for key in ("gmacs", "macts", "img_size", "batch_size")]
    rows = [row for row in rows if all(float(row.get(key) or 0) > 0 for key in (*need, "param_count"))]
    macs, activations, image, batch = (np.array([float(row[key]) for row in rows]) for key in need)
    weights = np.array([float(row["param_count"]) for row in rows])
    seconds = np.array([float(row[f"{mode}_batch_size"]) / float(row[f"{mode}_samples_per_sec"]) for row in rows])
    families = [re.split(r"[_\d]", row["model"].split(".")[0])[0] for row in rows]
    parts = np.stack([batch * macs / 3e4, batch * activations / 2e5, weights / 2e5, np.full(len(rows), 1e-2)])
    logs = np.log10(np.stack([macs, activations, weights, image, batch], axis=1))
    names = ("multiply-accumulates", "activations", "parameters", "image size", "batch size")
    varying = [index for index in range(5) if len(np.unique(logs[:, index])) > 1]
    coordinates = {names[index]: logs[:, index] for index in varying}
    coordinates["macs of an activation"] = logs[:, 0] - logs[:, 1]
    coordinates["family"] = np.array(families, dtype=str)

    def at(line: Line) -> Inputs:
        base, columns = roofline(parts, families, line, (1.0, 1.0, 1.0, 1.0))
        return Inputs(base, columns | {"all": (np.ones(len(rows)), 1.0)}, coordinates, range(len(rows)))

    name = path.stem.removeprefix("benchmark-").replace("-", " ")
    factors = tuple(names[index] for index in varying)
    return Known(name, np.log(seconds), at, factors, logs[:, varying])
