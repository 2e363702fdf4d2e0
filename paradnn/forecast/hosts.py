"""How long several hosts take: tasks go, in the order of the sweep, to whichever driver is free first.

That is what claims do between drivers of one store, point by point, and what a cluster does with tasks of many points.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["tasks_of", "wall_seconds"]

Array = NDArray[np.float64]


def tasks_of(seconds: Array, chunk: int, start: Array) -> Array:
    """(tasks, draws) from the (points, draws) of their points: `chunk` in a row each, and each with its `start`."""
    edges = np.arange(0, len(seconds), chunk)
    return np.asarray(np.add.reduceat(seconds, edges, axis=0) + start) if len(seconds) else seconds


def wall_seconds(tasks: Array, hosts: int, start: Array | float = 0.0) -> Array:
    """(draws,) until the last of `hosts` drivers is done with `tasks` (tasks, draws); each begins after `start`.

    At least the mean load, and the longest task; at most 2 - 1/hosts times the best schedule (Graham 1966).
    """
    draws = tasks.shape[1]
    busy = np.tile(np.asarray(start, dtype=float), (hosts, 1)) * np.ones((1, draws))
    if len(tasks) < hosts:  # the others are not needed
        busy = busy[: max(1, len(tasks))]
    every = np.arange(draws)
    for task in tasks:
        busy[busy.argmin(axis=0), every] += task
    return np.asarray(busy.max(axis=0))
