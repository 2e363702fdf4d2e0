"""What measuring a plan will take: each point's time, the time before the first, and the whole on several hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paradnn.config.point import Settings
from paradnn.forecast.history import History
from paradnn.forecast.past_runs import PastRuns
from paradnn.forecast.phases import PointTimes, point_times
from paradnn.forecast.predict import StepTimeModel
from paradnn.forecast.regression import Array
from paradnn.forecast.status import SweepStatus, rates_of
from paradnn.forecast.table import table_of_points

__all__ = ["LIKELY", "MOST_POINTS", "MOST_RUNS", "Forecast", "forecast", "tasks_of", "wall_seconds"]

#: Past runs that a prediction looks at: the newest.
MOST_RUNS = 4000
#: Points that are predicted: of more, so many drawn at random. Draws of all of them together.
MOST_POINTS, _DRAWS = 5000, 1_250_000
#: The share of draws in which the limit ends a point from which that is expected.
LIKELY = 0.5
#: Seconds from a command's start to its first point (interpreter, configuration, store, the framework's import), and of
#: measuring ceilings, once for an environment: typical values, and the standard deviations of their logarithms.
_START, _CEILINGS = (6.5, 0.3), (35.0, 0.25)


@dataclass(frozen=True)
class Forecast:
    """Draws of what is to come, for the points of `status` in their order.

    where: (m,) the points to run that were predicted, all of them or some drawn at random, each of which stands for
    `weight` points. seconds: (m, draws). late: how many are likely to time out. phases: name -> (draws,) seconds of all
    measured points. start: (draws,) seconds before a task's first point.
    ceilings: (draws,) seconds of measuring them. runs: past runs behind the prediction by family; those of other
    environments under "". times_of: what is predicted of the points with these indices.
    """

    status: SweepStatus
    where: NDArray[np.intp]
    weight: float
    seconds: Array
    late: int
    phases: Mapping[str, Array]
    start: Array
    ceilings: Array
    runs: Mapping[str, int]
    times_of: Callable[[Sequence[int]], PointTimes]

    def wall(self, hosts: int, chunk: int | None = None) -> Array:
        """(draws,) seconds on `hosts` hosts with a driver each.

        Without `chunk` drivers share the sweep point by point; with it a cluster gives them tasks of so many points,
        each with a start of its own.
        """
        if not len(self.seconds):
            return np.zeros(self.start.shape)
        workers = {id(self.status.workers[index]): self.status.workers[index] for index in self.where}
        start, seconds = len(set(workers.values())) * self.start, self.weight * self.seconds
        if chunk is None:
            return wall_seconds(seconds, hosts, start) + self.ceilings
        grouped = max(1, round(chunk / self.weight))  # as many as stand for a task, or one that stands for several
        return wall_seconds(tasks_of(seconds, grouped, start * self.weight * grouped / chunk), hosts) + self.ceilings


def forecast(status: SweepStatus, settings: Settings, history: History) -> Forecast:
    """Predict what measuring the points of `status` will take."""
    where = np.flatnonzero(status.to_run)
    total = len(where)
    if total > MOST_POINTS:
        where = np.sort(np.random.default_rng(0).choice(where, MOST_POINTS, replace=False))
    rates = rates_of(status)
    environments = [*{id(place): place for place in status.environments}.values()]
    runs = PastRuns.of(history.past({environment.device for environment in environments}, MOST_RUNS), rates)
    draws = int(np.clip(_DRAWS // max(len(where), 1), 100, 1000))
    model = StepTimeModel.fit(runs)

    def times_of(indices: Sequence[int]) -> PointTimes:
        places = [status.environments[index] for index in indices]
        ids, devices = [place.environment_id for place in places], [place.device for place in places]
        points = table_of_points([status.points[index] for index in indices], ids, devices, rates)
        times = point_times(runs, points, draws, steps=model.predict(points))
        # A point that is out of memory by arithmetic is scheduled and recorded, no more.
        is_measured = np.array([status.status[index] == "missing" for index in indices], dtype=bool)[:, None]
        brief = times.phases["schedule"] + times.phases["record"]
        phases = {name: np.where(is_measured, values, 0.0) for name, values in times.phases.items()}
        seconds = np.where(is_measured, times.seconds, brief)
        return replace(times, phases=phases, seconds=seconds, timed_out=times.timed_out & is_measured)

    times, weight = times_of([int(index) for index in where]), total / max(len(where), 1)
    random = np.random.default_rng(1)
    lacking = sum(ceilings is None for ceilings in status.ceilings.values()) if settings.ceilings and len(where) else 0
    here = {environment.environment_id for environment in environments}
    families = zip(runs.table.families, runs.table.environments, strict=True)
    return Forecast(
        status=status,
        where=where,
        weight=weight,
        seconds=times.seconds,
        late=round(weight * (times.timed_out.mean(axis=1) > LIKELY).sum()) if total else 0,
        phases={name: weight * values.sum(axis=0) for name, values in times.phases.items()},
        start=_START[0] * np.exp(_START[1] * random.standard_normal(draws)),
        ceilings=lacking * _CEILINGS[0] * np.exp(_CEILINGS[1] * random.standard_normal(draws)),
        runs=Counter(family if environment in here else "" for family, environment in families),
        times_of=times_of,
    )


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
