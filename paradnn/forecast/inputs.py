"""What a Gaussian process sees of points: a base, columns of a line, coordinates of the smooth part, steps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradnn.forecast.regression import Array, Columns

__all__ = ["Coordinate", "Coordinates", "Inputs", "aligned", "joined", "matrix", "places", "pooled"]


@dataclass(frozen=True)
class Coordinate:
    """values: (n,) numbers, such as decimal logarithms of sizes, or words, which are equal or are not. reach: before
    data, the distance over which the smooth part changes; two words are at distance 1."""

    values: NDArray[Any]
    reach: float

    @property
    def is_word(self) -> bool:
        """Whether values are equal or not, and no more."""
        return self.values.dtype.kind == "U"

    def squares(self, other: Coordinate) -> Array:
        """(n, m) squared distances."""
        if not self.is_word:
            return np.asarray((self.values[:, None] - other.values) ** 2)
        _, codes = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        return np.asarray(codes[: len(self.values), None] != codes[len(self.values) :], dtype=float)


#: By name; what is missing is zero, or a word of its own.
Coordinates = Mapping[Hashable, Coordinate]


@dataclass(frozen=True)
class Inputs:
    """n points. base: (n,) what is known of a value without data. columns: of the line, with their priors. coordinates:
    of the smooth part. steps: equal for replicates of one step."""

    base: Array
    columns: Columns
    coordinates: Coordinates
    steps: Sequence[Hashable]

    def __len__(self) -> int:
        return len(self.base)

    def rows(self, index: NDArray[np.intp]) -> Inputs:
        """Some of the points."""
        return Inputs(
            self.base[index],
            {name: (column[index], prior) for name, (column, prior) in self.columns.items()},
            {name: replace(one, values=one.values[index]) for name, one in self.coordinates.items()},
            [self.steps[place] for place in index],
        )


def aligned(one: Coordinates, other: Coordinates) -> tuple[Coordinates, Coordinates]:
    """Both with the names of both."""
    known = {**other, **one}
    sizes = (len(next(iter(group.values())).values) for group in (one, other))
    first, second = (
        {name: group.get(name, replace(like, values=np.zeros(size, like.values.dtype))) for name, like in known.items()}
        for group, size in zip((one, other), sizes, strict=True)
    )
    return first, second


def joined(one: Coordinates, other: Coordinates) -> Coordinates:
    """The points of both."""
    first, second = aligned(one, other)
    return {
        name: replace(coordinate, values=np.concatenate([coordinate.values, second[name].values]))
        for name, coordinate in first.items()
    }


def matrix(columns: Sequence[tuple[Array, float]], rows: int) -> Array:
    """(rows, k): columns in units of their priors."""
    return np.stack([column * prior for column, prior in columns], axis=1) if columns else np.zeros((rows, 0))


def places(steps: Sequence[Hashable]) -> NDArray[np.intp]:
    """(n,) the number of each step, in the order in which they first appear."""
    numbers = {step: number for number, step in enumerate(dict.fromkeys(steps))}
    return np.array([numbers[step] for step in steps], dtype=np.intp)


def pooled(inputs: Inputs, values: Array, noise: Array) -> tuple[Inputs, Array, Array]:
    """Replicates as one observation of their step each, weighted by their `noise` (n,), which are variances.

    Columns are averaged like the values, so that this loses nothing but what replicates in different sessions say of
    the sessions.
    """
    place = places(inputs.steps)
    _, first = np.unique(place, return_index=True)
    total = np.bincount(place, 1 / noise)

    def mean(column: Array) -> Array:
        return np.asarray(np.bincount(place, column / noise) / total)

    columns = {name: (mean(column), prior) for name, (column, prior) in inputs.columns.items()}
    return replace(inputs.rows(first), base=mean(inputs.base), columns=columns), mean(values), 1 / total
