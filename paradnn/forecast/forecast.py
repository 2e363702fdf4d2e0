"""What measuring a plan will take: each point's time, the time before the first, and the whole on several hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradnn.config.point import Settings
from paradnn.forecast.history import History
from paradnn.forecast.hosts import tasks_of, wall_seconds
from paradnn.forecast.past_runs import Known, known_of
from paradnn.forecast.predict import Forecast, predict
from paradnn.forecast.rates import Rates
from paradnn.forecast.status import Survey
from paradnn.forecast.table import of_points

__all__ = ["Outlook", "look_ahead"]

Array = NDArray[np.float64]

#: Past runs that a prediction looks at: the newest.
MOST_RUNS = 4000
#: Numbers drawn for all points together: fewer draws for more points.
_DRAWN, _FEWEST, _MOST = 2_500_000, 100, 1000
#: Seconds from a command's start to its first point: interpreter, configuration, store and the framework's import; the
#: log spread before data. Of it the first point of a session records some as its start, with so much noise.
_START, _START_SPREAD, _START_RECORDED, _START_NOISE = 6.5, 0.3, 2.5, 0.5
#: Seconds of measuring ceilings, once for an environment.
_CEILINGS, _CEILINGS_SPREAD = 35.0, 0.25


@dataclass(frozen=True)
class Outlook:
    """Draws of what is to come, for the points of `survey` in their order.

    seconds, step: (points, draws), 0 for a point that needs no measuring. outcomes: stored or expected. phases: name ->
    (draws,) seconds of all measured points. start: (draws,) seconds before a task's first point. ceilings: (draws,)
    seconds of measuring them. runs: past runs behind the prediction by family; those of other environments under "".
    """

    survey: Survey
    seconds: Array
    step: Array
    outcomes: Sequence[str]
    phases: Mapping[str, Array]
    start: Array
    ceilings: Array
    runs: Mapping[str, int]

    @property
    def open(self) -> NDArray[np.bool_]:
        """(points,) which are still to be run, if only to be recorded as out of memory."""
        return np.array([status in ("missing", "oom_predicted") for status in self.survey.status], dtype=bool)

    def wall(self, hosts: int, chunk: int | None = None) -> Array:
        """(draws,) seconds on `hosts` hosts with a driver each.

        Without `chunk` drivers share the sweep point by point; with it a cluster gives them tasks of so many points,
        each with a start of its own.
        """
        seconds = self.seconds[self.open]
        if not len(seconds):
            return np.zeros(self.start.shape)
        imports = len({worker for worker, is_open in zip(self.survey.workers, self.open, strict=True) if is_open})
        start = imports * self.start
        if chunk is None:
            return wall_seconds(seconds, hosts, start) + self.ceilings
        return wall_seconds(tasks_of(seconds, chunk, start), hosts) + self.ceilings


def look_ahead(survey: Survey, settings: Settings, history: History, load: float = 0.0) -> Outlook:
    """Predict what measuring the points of `survey` will take; `load` is that of the host beside the sweep."""
    devices = {environment.device for environment in survey.environments}
    known = known_of(history.past(devices, MOST_RUNS))
    where = np.flatnonzero([status in ("missing", "oom_predicted") for status in survey.status])
    forecast = _forecast(survey, known, where, load)
    draws = forecast.seconds.shape[1]
    random = np.random.default_rng(1)
    start = _start(known, draws, random)
    lacking = sum(found is None for found in survey.ceilings.values()) if settings.ceilings and len(where) else 0
    return Outlook(
        survey=survey,
        seconds=_at(where, _seconds(survey, forecast, where), len(survey.points)),
        step=_at(where, forecast.step, len(survey.points)),
        outcomes=_outcomes(survey, forecast, where),
        phases=_phases(survey, forecast, where),
        start=start,
        ceilings=_CEILINGS * lacking * np.exp(_CEILINGS_SPREAD * random.standard_normal(draws)),
        runs=_behind(known, {environment.environment_id for environment in survey.environments}),
    )


def _forecast(survey: Survey, known: Known, where: NDArray[np.intp], load: float) -> Forecast:
    places = [survey.environments[index] for index in where]
    rows = [survey.rows[index] for index in where]
    table = of_points(rows, [survey.costs[index] for index in where], [place.environment_id for place in places])
    peaks = Rates(survey).peaks((known.table, known.devices), (table, [place.device for place in places]))
    draws = int(np.clip(_DRAWN // max(len(where), 1), _FEWEST, _MOST))
    return predict(known, table, peaks, np.concatenate([known.load, np.full(len(where), load)]), draws)


def _seconds(survey: Survey, forecast: Forecast, where: NDArray[np.intp]) -> Array:
    """A point that is out of memory by arithmetic is scheduled and recorded, no more."""
    refused = np.array([survey.status[index] == "oom_predicted" for index in where], dtype=bool)
    brief = forecast.phases["schedule"] + forecast.phases["record"]
    return np.where(refused[:, None], brief, forecast.seconds)


def _phases(survey: Survey, forecast: Forecast, where: NDArray[np.intp]) -> dict[str, Array]:
    measured = np.array([survey.status[index] == "missing" for index in where], dtype=bool)
    return {name: values[measured].sum(axis=0) for name, values in forecast.phases.items()}


def _outcomes(survey: Survey, forecast: Forecast, where: NDArray[np.intp]) -> list[str]:
    found = list(survey.outcomes)
    for index, late in zip(where, forecast.timed_out.mean(axis=1) > 0.5, strict=True):
        if late and found[index] == "ok":
            found[index] = "timeout"
    return found


def _start(known: Known, draws: int, random: np.random.Generator) -> Array:
    """(draws,) seconds from a command's start to its first point, as past sessions' waits for their import tell."""
    seen = np.log(known.imports() / _START_RECORDED)
    certainty = 1 / _START_SPREAD**2 + len(seen) / _START_NOISE**2
    mean = float(seen.sum()) / _START_NOISE**2 / certainty
    return np.asarray(_START * np.exp(mean + random.standard_normal(draws) / np.sqrt(certainty)))


def _behind(known: Known, environments: set[str]) -> Counter[str]:
    pairs = zip(known.table.family, known.table.environment, strict=True)
    return Counter(str(family) if environment in environments else "" for family, environment in pairs)


def _at(where: NDArray[np.intp], values: Array, count: int) -> Array:
    found = np.zeros((count, values.shape[1]))
    found[where] = values
    return found
