"""A step: training a batch, or a forward pass of one, again and again (docs/method.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from paradnn.core.workload import Workload

__all__ = ["STEP", "Step"]


@dataclass(frozen=True)
class Step(Workload):
    """Steps in blocks; of a forward pass also the latency of single ones."""

    name: ClassVar[str] = "step"
    place: ClassVar[int] = 0
    key: ClassVar[str] = "mode"
    rates: ClassVar[Mapping[str, str]] = {"examples_per_second": "examples/s"}

    mode: str = "train"

    @property
    def unit(self) -> str:
        """What is done in one step."""
        return "training step" if self.mode == "train" else "forward pass"

    @property
    def names(self) -> tuple[str, ...]:
        """Both modes."""
        return ("train", "inference")

    def of(self, config: Mapping[str, Any]) -> Step:
        """In the mode that is asked for."""
        return Step(config.get("mode", self.mode))


STEP = Step()
