"""What measuring a plan will take: each point's time, the time before the first, and the whole on several hosts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradnn.config.point import Settings
from paradnn.forecast.history import History
from paradnn.forecast.hosts import tasks_of, wall_seconds
from paradnn.forecast.past_runs import PastRuns
from paradnn.forecast.phases import point_times
from paradnn.forecast.regression import Array
from paradnn.forecast.status import SweepStatus, rates_of
from paradnn.forecast.table import table_of_points

__all__ = ["MOST_RUNS", "Forecast", "forecast"]

#: Past runs that a prediction looks at: the newest.
MOST_RUNS = 4000
#: Seconds from a command's start to its first point (interpreter, configuration, store, the framework's import), and of
#: measuring ceilings, once for an environment: typical values, and the standard deviations of their logarithms.
_START, _CEILINGS = (6.5, 0.3), (35.0, 0.25)


@dataclass(frozen=True)
class Forecast:
    """Draws of what is to come, for the points of `status` in their order.

    seconds, step: (points, draws), 0 for a point that needs no measuring. outcomes: stored or expected. phases: name ->
    (draws,) seconds of all measured points. start: (draws,) seconds before a task's first point. ceilings: (draws,)
    seconds of measuring them. runs: past runs behind the prediction by family; those of other environments under "".
    """

    status: SweepStatus
    seconds: Array
    step: Array
    outcomes: Sequence[str]
    phases: Mapping[str, Array]
    start: Array
    ceilings: Array
    runs: Mapping[str, int]

    def wall(self, hosts: int, chunk: int | None = None) -> Array:
        """(draws,) seconds on `hosts` hosts with a driver each.

        Without `chunk` drivers share the sweep point by point; with it a cluster gives them tasks of so many points,
        each with a start of its own.
        """
        seconds = self.seconds[self.status.to_run]
        if not len(seconds):
            return np.zeros(self.start.shape)
        workers = set(itertools.compress(self.status.workers, self.status.to_run))
        start = len(workers) * self.start
        if chunk is None:
            return wall_seconds(seconds, hosts, start) + self.ceilings
        return wall_seconds(tasks_of(seconds, chunk, start), hosts) + self.ceilings


def forecast(status: SweepStatus, settings: Settings, history: History) -> Forecast:
    """Predict what measuring the points of `status` will take."""
    where = [index for index, is_open in enumerate(status.to_run) if is_open]
    places = [status.environments[index] for index in where]
    rates = rates_of(status)
    devices = {environment.device for environment in status.environments}
    runs = PastRuns.of(history.past(devices, MOST_RUNS), rates)
    points = table_of_points(
        [status.points[index] for index in where],
        [status.costs[index] for index in where],
        [place.environment_id for place in places],
        [place.device for place in places],
        rates,
    )
    # Fewer draws for more points, so that ten thousand take seconds.
    draws = int(np.clip(2_500_000 // max(len(where), 1), 100, 1000))
    times = point_times(runs, points, draws)
    is_measured: NDArray[np.bool_] = np.array([status.status[index] == "missing" for index in where], dtype=bool)
    # A point that is out of memory by arithmetic is scheduled and recorded, no more.
    brief = times.phases["schedule"] + times.phases["record"]
    outcomes = list(status.outcomes)
    for index in itertools.compress(where, is_measured & (times.timed_out.mean(axis=1) > 0.5)):
        outcomes[index] = "timeout"
    random = np.random.default_rng(1)
    lacking = sum(ceilings is None for ceilings in status.ceilings.values()) if settings.ceilings and len(where) else 0
    here = {environment.environment_id for environment in status.environments}
    families = zip(runs.table.families, runs.table.environments, strict=True)
    return Forecast(
        status=status,
        seconds=_spread_over(status, np.where(is_measured[:, None], times.seconds, brief)),
        step=_spread_over(status, times.step),
        outcomes=outcomes,
        phases={name: values[is_measured].sum(axis=0) for name, values in times.phases.items()},
        start=_START[0] * np.exp(_START[1] * random.standard_normal(draws)),
        ceilings=lacking * _CEILINGS[0] * np.exp(_CEILINGS[1] * random.standard_normal(draws)),
        runs=Counter(family if environment in here else "" for family, environment in families),
    )


def _spread_over(status: SweepStatus, values: Array) -> Array:
    """Values of the points to run, among zeros for the others."""
    every = np.zeros((len(status.points), values.shape[1]))
    every[status.to_run] = values
    return every
