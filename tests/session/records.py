"""Planted answers of workers, and the record of a point with these answers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paradnn.config.outcome import PointResult
from paradnn.config.point import Point, step_costs
from paradnn.core.messages import Answer, Compilation, Measurement, Timing
from paradnn.platform.environment import Environment
from paradnn.session.measured import Measured
from paradnn.session.record import make_record
from paradnn.store.runs import Record


def timing(blocks: Sequence[float], steps: int = 1, **more: Any) -> Timing:
    """Return the timing of steady blocks.

    Args:
        blocks: Block times in seconds.
        steps: Number of steps per block.
        more: Fields that differ from the defaults.
    """
    return replace(Timing(steps, [], [], list(blocks), True, "", None), **more)


def answered(timing: Timing, measured: Mapping[str, Any] | None = None, **more: Any) -> PointResult:
    """Return the result of a process that succeeded.

    Args:
        timing: Timing of the process.
        measured: Fields of the measurement that differ from the defaults.
        more: Fields of the answer that differ from the defaults.
    """
    measurement = Measurement(
        1, Compilation([1.0], [1], None), {}, None, timing, None, "unavailable"
    )
    answer = Answer(
        "ok", None, {"compile": 1.0}, measurement=replace(measurement, **(measured or {}))
    )
    return PointResult("ok", None, replace(answer, **more))


def recorded(
    point: Point,
    *results: PointResult,
    peaks: Mapping[str, float] | None = None,
    memory_limit: int | None = None,
) -> Record:
    """Return the record of a point that was measured in one process per result."""
    environment = Environment("a processor", {}, {}, {})
    costs = step_costs(point)
    measured = Measured(point, environment, costs, results, {}, peaks or {}, None, 0, 1)
    return make_record(replace(measured, memory_limit=memory_limit))
