"""Compile time from the seconds of steps, by hand."""

from __future__ import annotations

import pytest

from paradnn.record.measured import compiling_metrics
from paradnn.worker.messages import Compilation, InputMeasurement, Measurement, PipelinePart, Timing

#: Ten steps a block: an ordinary step takes 0.1 s.
TIMING = Timing(10, [], [], [0.9, 1.0, 1.1], True, "", None)
FED = InputMeasurement([0.1], [0.05], [0.1], [PipelinePart(8, 0.5, 0.25)], {}, 2, 8, 0, None)


@pytest.mark.parametrize(
    ("seconds", "programs", "fed", "expected"),
    [
        ([3.0, 0.2], [1, 0], None, (2.9, 1, 1)),
        ([3.0, 0.1, 1.0, 0.2], [2, 0, 1, 0], None, (3.8, 3, 3)),
        ([0.5], [0], None, (0.4, 1, 0)),  # what a first step costs that compiles nothing
        ([0.05], [0], None, (0.0, 1, 0)),
        ([3.0, 0.2], [1, 0], FED, (2.95, 1, 1)),  # of a step that waits for its input only what it computes
    ],
)
def test_compile_time_is_what_compiling_steps_take_beyond_ordinary_ones(
    seconds: list[float], programs: list[int], fed: InputMeasurement | None, expected: tuple[float, int, int]
) -> None:
    measurement = Measurement(1, Compilation(seconds, programs, None), {}, None, None, TIMING, None, "none")
    metrics = compiling_metrics(measurement, fed)
    assert tuple(metrics.values()) == pytest.approx(expected)
