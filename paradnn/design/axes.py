"""What distinguishes the points of a space from each other, as columns of numbers."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Axis", "axes_of", "coordinates", "kinds_of", "sizes_of", "terms_of"]

Array = NDArray[np.float64]
Row = Mapping[str, str]

#: Groups of keys, and keys, that change neither a step nor what memory it takes.
_ASIDE = ("measure", "replicate", "seed")


@dataclass(frozen=True)
class Axis:
    """A key in which points differ: its texts (n,), and numbers (n,) where it is one of numbers, else None.

    A list of numbers, such as model.blocks, counts as its sum.
    """

    key: str
    texts: tuple[str, ...]
    numbers: Array | None


def axes_of(rows: Sequence[Row]) -> list[Axis]:
    """The keys in which points, as the store keeps them, differ; a point that lacks a key has "" there."""
    keys = dict.fromkeys(key for row in rows for key in row if key.split(".")[0] not in _ASIDE)
    texts = {key: tuple(row.get(key, "") for row in rows) for key in keys}
    return [Axis(key, column, _numbers(column)) for key, column in texts.items() if len(set(column)) > 1]


def coordinates(axes: Sequence[Axis], count: int) -> Array:
    """(count, k) where each point lies; words lie in the order of their first appearance."""
    columns = [axis.numbers if axis.numbers is not None else _codes(axis.texts) for axis in axes]
    return np.stack(columns, axis=1) if columns else np.zeros((count, 0))


def sizes_of(axes: Sequence[Axis], bounds: Array) -> Array:
    """(n, k) what memory grows with: sizes of model and batch, and its analytic lower bound in bytes (n,)."""
    columns = [axis.numbers for axis in axes if axis.numbers is not None and _is_size(axis)]
    return np.stack([*columns, bounds], axis=1)


def kinds_of(axes: Sequence[Axis], places: Sequence[str]) -> list[Hashable]:
    """What must be equal for one point's memory to say anything of another's: all that is no size, and the place."""
    columns = [axis.texts for axis in axes if axis.numbers is None or not _is_size(axis)]
    return list(zip(places, *columns, strict=True))


def terms_of(rows: Sequence[Row]) -> tuple[list[str], Array]:
    """Names and values (n, k) of the terms of a regression: logarithms of numbers above 0, other numbers as they are,
    and an indicator of each word but the commonest."""
    names: list[str] = []
    columns: list[Array] = []
    for axis in axes_of(rows):
        if axis.numbers is not None:
            names.append(axis.key)
            columns.append(np.log(axis.numbers) if axis.numbers.min() > 0 else axis.numbers)
            continue
        words = sorted(dict.fromkeys(axis.texts), key=lambda word: -axis.texts.count(word))
        for word in words[1:]:
            names.append(f"{axis.key}={word}")
            columns.append(np.array([text == word for text in axis.texts], dtype=float))
    return names, np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0))


def _is_size(axis: Axis) -> bool:
    return axis.key == "batch_size" or axis.key.startswith("model.")


def _numbers(texts: Sequence[str]) -> Array | None:
    found = {text: _number(text) for text in set(texts)}
    if any(value is None for value in found.values()):
        return None
    return np.array([found[text] for text in texts], dtype=float)


def _number(text: str) -> float | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if isinstance(value, list):
        return float(sum(value))
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _codes(texts: Sequence[str]) -> Array:
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return np.array([numbers[text] for text in texts], dtype=float)
