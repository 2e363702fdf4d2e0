"""What an input pipeline cost, as it crosses the pipe."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["InputMeasurement", "PipelinePart"]


@dataclass(frozen=True)
class PipelinePart:
    """A part of an input pipeline's work without the step: examples, elapsed and processor seconds."""

    examples: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class InputMeasurement:
    """What input cost: see docs/input.md.

    `waits` are seconds waited within each block; the step times are pairs, one a round; `stages` are seconds that each
    adds to an example on one core; `read` and `damaged` count examples.
    """

    waits: list[float]
    free_step_seconds: list[float]
    fed_step_seconds: list[float]
    alone: list[PipelinePart]
    stages: dict[str, float]
    threads: int
    read: int
    damaged: int
    memory_bytes: int | None

    def __post_init__(self) -> None:
        """Raise ValueError where no rate can be computed."""
        pairs = [*self.free_step_seconds, *self.fed_step_seconds]
        if len(self.free_step_seconds) != len(self.fed_step_seconds) or not pairs or min(pairs) <= 0:
            raise ValueError("there are no pairs of step times")
        if not self.alone or any(part.examples < 1 or part.seconds <= 0 for part in self.alone):
            raise ValueError("there is no part of the pipeline alone that took time")
