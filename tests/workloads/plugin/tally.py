"""A kind of work of another package: all that there is of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.core.errors import ConfigError
from paradnn.core.metric import Metric
from paradnn.core.schema import option
from paradnn.core.workload import ResultText, Workload, WorkloadMessage

if TYPE_CHECKING:
    from paradnn.config.point import Point
    from paradnn.session.measured import Measured
    from paradnn.worker.point import PointRun


@dataclass(frozen=True)
class Tallied(WorkloadMessage):
    """How long it took to run so many steps one by one."""

    of: ClassVar[str] = "tallied"

    steps: int
    seconds: float


@dataclass(frozen=True)
class Tally(Workload):
    """Forward passes, one by one."""

    name: ClassVar[str] = "tally"
    key: ClassVar[str] = "task"
    group: ClassVar[str] = "tally"
    reason: ClassVar[str] = "counts forward passes"
    declares: ClassVar = (
        Metric("tally_per_second", "1/s", "higher", "steps one by one / their seconds"),
    )
    headlines: ClassVar = {"tally_per_second": "tallied/s"}
    phases: ClassVar = {"tally": "latency"}
    parts: ClassVar = (Tallied,)
    brief: ClassVar = {"steps": 3}

    steps: int = option(5, "steps that are tallied", low=1, high=1000)

    def check(self, point: Point) -> None:
        """On one device."""
        if point.devices > 1:
            raise ConfigError(
                "devices", point.devices, "task=tally is for one device", "set devices=1"
            )

    def measure(self, run: PointRun) -> None:
        """A forward pass as any other's, then some one by one."""
        from paradnn.workloads.step import measure_step

        def tally(steps: Any) -> None:
            with run.phases("tally"):
                begin = time.perf_counter()
                for _ in range(self.steps):
                    steps(1)
                run.note(work=Tallied(self.steps, time.perf_counter() - begin))

        measure_step(run, lambda *_: tally)

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        """The rate."""
        found = [answer.work for answer in measured.answers if isinstance(answer.work, Tallied)]
        if found:
            return {"tally_per_second": found[0].steps / found[0].seconds}
        return {}

    def tags(self, measured: Measured) -> dict[str, str]:
        """How many."""
        return {"tallied": str(self.steps)}

    def words(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        """How many, how fast."""
        if "tally_per_second" in metrics:
            return ResultText("tally", [f"{tags['tallied']} tallied"])
        return None


TALLY = Tally()
