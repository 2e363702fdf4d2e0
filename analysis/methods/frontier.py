"""What no other choice beats: of choices with two or more quantities each, as far as their intervals say so.

A choice beats another where it is no worse in any quantity and better in one (Pareto dominance). Of quantities with
intervals there are three kinds: choices that some other beats whatever the true values within the intervals, those that
none beats whatever they are, and those of which it depends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Box", "Standing", "beats", "efficient", "standings"]

Floats = NDArray[np.float64]


class Standing(StrEnum):
    """How a choice stands among the others."""

    ON = "on the frontier"
    UNDECIDED = "undecided"
    BEATEN = "beaten"


@dataclass(frozen=True)
class Box:
    """Choices (n,) in quantities (k,) of which less is better: `value`, `low` and `high` are (n, k).

    Ends are NaN where no interval is known: then the value stands for what the choice might do to others, and nothing
    is sure of the choice itself.
    """

    value: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, columns: Sequence[tuple[Floats, Floats, Floats]], less: Sequence[bool]) -> Box:
        """Columns of values with their ends, (n,) each; `less` says of which quantities less is better."""
        turned = [
            (value, low, high) if better else (-value, -high, -low)
            for (value, low, high), better in zip(columns, less, strict=True)
        ]
        value, low, high = (np.column_stack([entry[place] for entry in turned]) for place in range(3))
        return cls(value, low, high)


def standings(box: Box) -> list[Standing]:
    """How each choice stands; ties beat each other in nothing."""
    surely = beats(np.where(np.isnan(box.high), np.inf, box.high), np.where(np.isnan(box.low), -np.inf, box.low))
    maybe = beats(np.where(np.isnan(box.low), box.value, box.low), np.where(np.isnan(box.high), np.inf, box.high))
    beaten, open_to = _by_others(surely), _by_others(maybe)
    return [
        Standing.BEATEN if lost else Standing.UNDECIDED if unsure else Standing.ON
        for lost, unsure in zip(beaten, open_to, strict=True)
    ]


def efficient(box: Box) -> NDArray[np.bool_]:
    """(n,) which choices no other beats, taken at their values."""
    return ~_by_others(beats(box.value, box.value))


def beats(of: Floats, against: Floats) -> NDArray[np.bool_]:
    """(n, n) whether choice i at the ends `of` (n, k) beats choice j at the ends `against`."""
    one, other = of[:, None, :], against[None, :, :]
    return np.asarray((one <= other).all(axis=2) & (one < other).any(axis=2))


def _by_others(table: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n,) whether any other choice does it."""
    return np.asarray((table & ~np.eye(len(table), dtype=bool)).any(axis=0))
