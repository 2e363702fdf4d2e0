"""From a frame's runs, and from points that were not measured, to what the model of step time takes.

The frame holds typed values; the model reads keys as the store keeps them, so they are written back that way. Costs are
the analytic ones for measured and unmeasured points alike: what is learned of one then holds for the other.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from paradnn.config.point import Optimizer
from paradnn.families import model_of
from paradnn.families.layers import Costs
from paradnn.forecast.past_runs import NOISE_METRICS, PastRuns, stated_noise
from paradnn.forecast.table import Table
from paradnn.platform.specifications import find_hardware
from paradnn.store.metrics import PHASES
from paradnn.store.runs import LATER_PARAMS

__all__ = ["WORK", "costs_of", "is_key", "past_runs", "rates_of", "table_of"]

#: Keys of a point that identify what is computed, where and with what; how it is timed is none of it.
_KEYS = ("batch_size", "precision", "compile", "mode", "devices", "transport", "hosts")
_GROUPS = ("model.", "generate.", "optimizer.", "platform.", "framework.", "data.", "software.")

#: What arithmetic says of a point, as metrics of runs.
WORK = ("parameters", "flops_per_step", "bytes_per_step", "memory_lower_bound_bytes")
#: Shares of its peaks that the best step reaches, where no peak is known.
_BEST = (0.6, 0.5)


def is_key(name: str) -> bool:
    """Whether a column is a key of the configuration that says what a point is."""
    return name in _KEYS or (name.startswith(_GROUPS) and name != "model.name")


def costs_of(points: pd.DataFrame) -> pd.DataFrame:
    """The analytic work of points (rows with `family` and keys): columns `WORK`, NaN where no such model can be built.

    A key that the points lack counts as what the original suite had: training, float32, RMSprop, one device.
    """
    names = [name for name in points if str(name).startswith(("model.", "generate.", "optimizer.")) or name in _KEYS]
    texts = _texts(points[names])
    rows = [
        _work(family, frozenset(row.items())) for family, row in zip(points["family"].astype("str"), texts, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(WORK), index=points.index, dtype="float64")


def table_of(points: pd.DataFrame, rates: tuple[float, float]) -> Table:
    """Points (rows with `family`, `environment_id` and keys) as a table; `rates` are FLOP/s and B/s of one device.

    Columns of `WORK` count where a model is of another version; points without any of the two count as one FLOP.
    """
    names = [str(name) for name in points if is_key(str(name))]
    family = points["family"].astype("str")
    rows = [
        {**LATER_PARAMS, **row, "model.name": name} for row, name in zip(_texts(points[names]), family, strict=True)
    ]
    work = costs_of(points)
    for name in (name for name in WORK if name in points):
        work[name] = work[name].fillna(points[name].astype("float64"))
    columns = ["flops_per_step", "bytes_per_step", "parameters"]
    costs = np.maximum(np.nan_to_num(work[columns].to_numpy(dtype="float64"), nan=1.0), 1.0)
    count = len(points)
    return Table(
        rows,
        _words(points, "environment_id"),
        _words(points, "sweep_id"),
        costs=costs,
        peaks=np.tile((*rates, 1.0), (count, 1)),
        load=np.full(count, np.nan),
    )


def past_runs(runs: pd.DataFrame, seconds: np.ndarray, rates: tuple[float, float]) -> PastRuns:
    """Measured runs with the seconds (n,) of their steps; of phases and gaps a frame says nothing here."""
    unknown = np.full(len(runs), np.nan)
    columns = [runs[name].to_numpy(dtype="float64") if name in runs else unknown for name in NOISE_METRICS]
    return PastRuns(
        table_of(runs, rates),
        seconds,
        phases=dict.fromkeys(PHASES, unknown),
        warmup_blocks=unknown,
        steady=unknown,
        gaps=unknown,
        noise=stated_noise(*columns),
    )


def rates_of(runs: pd.DataFrame, seconds: np.ndarray) -> tuple[float, float]:
    """FLOP/s and B/s of one device of measured runs: measured ceilings, else the specification, else what the best of
    the runs implies."""
    work = costs_of(runs)
    part = find_hardware(str(runs["device"].iloc[0]))
    precision = str(runs["precision"].iloc[0]) if "precision" in runs else "float32"
    specified = (
        (part.peak_flops.get(precision) or part.peak_flops.get("float32"), part.bandwidth) if part else (None, None)
    )
    found = []
    for kind, share, known in zip(("flops", "bytes"), _BEST, specified, strict=True):
        ceiling = f"peak_{kind}_per_second"
        measured = float(runs[ceiling].median()) if ceiling in runs else np.nan
        best = float(np.nanmax(np.append((work[f"{kind}_per_step"] / seconds).to_numpy(), 1.0))) / share
        found.append(measured if measured > 0 else known or best)
    return found[0], found[1]


def _words(points: pd.DataFrame, name: str) -> list[str]:
    return points[name].astype("str").fillna("").tolist() if name in points else [""] * len(points)


def _texts(points: pd.DataFrame) -> list[dict[str, str]]:
    """Each row's keys as the store writes them; a missing value is "null"."""
    columns = {str(name): [_text(value) for value in points[name].astype("object")] for name in points}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _text(value: Any) -> str:
    if value is None or value is pd.NA or value != value:
        return "null"
    return str(value).lower() if isinstance(value, bool | np.bool_) else str(value)


@functools.lru_cache(maxsize=65536)
def _work(family: str, keys: frozenset[tuple[str, str]]) -> tuple[float, ...]:
    row: Mapping[str, Any] = {key: _value(text) for key, text in keys if text != "null"}
    model = {key.removeprefix("model."): value for key, value in row.items() if key.startswith("model.")}
    try:
        costs: Costs = model_of({"name": family, **model}).costs(
            batch_size=row["batch_size"],
            precision=row.get("precision", "float32"),
            mode=row.get("mode", "train"),
            optimizer=row.get("optimizer.name", "rmsprop"),
            momentum=row.get("optimizer.momentum", Optimizer().momentum),
            devices=row.get("devices", 1),
            prompt=row.get("generate.prompt", 0),
            tokens=row.get("generate.tokens", 0),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError):  # no such model, or one of another version
        return (np.nan,) * len(WORK)
    return tuple(float(getattr(costs, name)) for name in WORK)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
