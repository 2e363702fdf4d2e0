"""The record of a planted point: what is stored of answers that no worker gave."""

from collections.abc import Mapping

from paradnn.config.outcome import PointResult
from paradnn.config.point import Point, costs_of
from paradnn.platform.environment import Environment
from paradnn.session.measured import Measured
from paradnn.session.record import make_record
from paradnn.store.runs import Record


def recorded(point: Point, *results: PointResult, peaks: Mapping[str, float] | None = None) -> Record:
    environment, costs = Environment("a processor", {}, {}, {}), costs_of(point)
    return make_record(Measured(point, environment, costs, results, {}, peaks or {}, None, 0, 1))
