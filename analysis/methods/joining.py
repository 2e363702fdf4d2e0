"""Which columns say that two runs measured the same point, where the runs come from two sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.prices import PRICE
from paradnn.config.scenario import SCENARIOS
from paradnn.errors import ConfigError

__all__ = ["describes", "given_columns", "is_place", "join_columns", "shown", "values_of"]

# What is computed, and where and with what. Of the second only what both sides share takes part in a pair's identity.
_POINT = ("batch_size", "precision", "compile", "mode", "devices", "transport", "task", "scenario")
_POINT_PREFIXES = ("model.", "generate.", "optimizer.", "data.", "learn.", *(f"{name}." for name in SCENARIOS))
_PLACE_PREFIXES = ("platform.", "framework.", "software.")
_NEVER = ("model.name", "platform.index", PRICE)


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


def values_of(column: pd.Series) -> set[Any]:
    """The values of a column."""
    return set(column.dropna().unique())


def shown(values: set[Any], limit: int = 3) -> str:
    """Some values for a person to read: "0.1, 0.2, 0.3 and 4 more"."""
    texts = [str(value) for value in sorted(values, key=lambda value: (str(type(value)), value))]
    return ", ".join(texts[:limit]) + (f" and {len(texts) - limit} more" if len(texts) > limit else "") or "(none)"
