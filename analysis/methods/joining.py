"""Which columns say that two runs measured the same point, where the runs come from two sides."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.prices import PRICE
from paradnn.core.workload import choices, key_groups
from paradnn.errors import ConfigError
from paradnn.store.metrics import METRICS

__all__ = ["as_steps", "describes", "given_columns", "is_place", "join_columns", "shown", "values_of"]

# What is computed, and where and with what. Of the second only what both sides share takes part in a pair's identity.
_POINT = ("batch_size", "precision", "compile", "mode", "devices", "transport", "hosts", "task", "scenario")
_SCENARIOS = choices("scenario")[1:]
_SCENARIO_PREFIXES = tuple(f"{name}." for name in _SCENARIOS)
_POINT_PREFIXES = ("model.", "optimizer.", "data.", *(f"{group}." for group in key_groups()))
_PLACE_PREFIXES = ("platform.", "framework.", "software.")
_NEVER = ("model.name", "platform.index", PRICE)
#: What else tells the steps of two runs apart.
_STEP = ("family", "device", "seed")
#: What a run of a scenario says of its queries.
_QUERIES = {
    *(name for name, one in METRICS.items() if one.kind == "load"),
    *("latency_p50_ms", "latency_p90_ms", "latency_p99_ms", "cost_per_million_queries", "energy_per_query_joules"),
    *("limit", "limit_reason"),
}


def join_columns(a: pd.DataFrame, b: pd.DataFrame) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """The columns that identify a point, and those that set the two sides apart (column -> values of A, values of B).

    A point is identified by family, model.*, optimizer.*, data.*, batch_size, precision, compile, mode, devices,
    transport, task, scenario and generate with their keys; where both sides share a value also by device, platform.*,
    framework.* and software.*. Left out is what sets the sides apart: a column with one value in A and another one in
    B, or that one side lacks altogether. How a run was timed (measure.*), tracked, seeded or repeated identifies no
    point.
    """
    keys, differ = ["family"], {}
    for name in [column for column in a.columns if column in b]:
        point = describes(name)
        if not point and name != "device" and not is_place(name):
            continue
        values, others = values_of(a[name]), values_of(b[name])
        if not values and not others:
            continue
        # Runs that are not there set nothing apart.
        apart = len(a) > 0 and len(b) > 0 and not values & others
        if apart and (not point or not values or not others or len(values) == len(others) == 1):
            differ[name] = (shown(values), shown(others))
        else:
            keys.append(name)
    return keys, differ


def given_columns(on: Sequence[str], a: pd.DataFrame, b: pd.DataFrame) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """The same for columns that were named; ConfigError for one that a side lacks."""
    for name in on:
        for side, frame in (("A", a), ("B", b)):
            if name not in frame:
                raise ConfigError("on", name, f"the runs of {side} have no such column", "name columns of both sides")
    keys = list(dict.fromkeys(["family", *on]))
    return keys, {name: values for name, values in join_columns(a, b)[1].items() if name not in keys}


def describes(name: str) -> bool:
    """Whether a column says what is computed."""
    return name not in _NEVER and (name in _POINT or name.startswith(_POINT_PREFIXES))


def is_place(name: str) -> bool:
    """Whether a column says where and with what it is computed."""
    return name not in _NEVER and name.startswith(_PLACE_PREFIXES)


def as_steps(frame: pd.DataFrame, asked: Collection[str]) -> tuple[pd.DataFrame, int]:
    """Runs of scenarios as replicates of the point whose steps they time, and how many such runs there are.

    A scenario times the steps of a closed point first, so that runs which differ in it and its keys alone have measured
    one thing several times: they get one `point_id`, that of a closed run where there is one, and the columns of
    scenarios are left out. The frame as it is where `asked`, words of options, names a scenario, one of its keys or a
    metric of its queries: then these are the question.
    """
    if "scenario" not in frame or any(word in _QUERIES or _of_scenario(word) for word in asked):
        return frame, 0
    loaded = frame["scenario"].isin(list(_SCENARIOS)).to_numpy(dtype=bool)
    if not loaded.any():
        return frame, 0
    steps = frame.drop(columns=[name for name in frame.columns if _of_scenario(name)])
    keys = [name for name in steps.columns if name in _STEP or describes(name) or is_place(name)]
    if "point_id" in steps and keys:
        group = steps.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
        order = np.argsort(loaded, kind="stable")  # closed runs first: all are called what these are
        names = steps["point_id"].iloc[order].groupby(group[order]).first()
        steps["point_id"] = steps["point_id"].where(~loaded, names.reindex(group).to_numpy())
    steps.attrs = dict(frame.attrs)
    return steps, int(loaded.sum())


def _of_scenario(name: str) -> bool:
    """Whether a column says who asks, and how."""
    return name == "scenario" or name.startswith(_SCENARIO_PREFIXES)


def values_of(column: pd.Series) -> set[Any]:
    """The values of a column."""
    return set(column.dropna().unique())


def shown(values: set[Any], limit: int = 3) -> str:
    """Some values for a person to read: "0.1, 0.2, 0.3 and 4 more"."""
    texts = [str(value) for value in sorted(values, key=lambda value: (str(type(value)), value))]
    return ", ".join(texts[:limit]) + (f" and {len(texts) - limit} more" if len(texts) > limit else "") or "(none)"
