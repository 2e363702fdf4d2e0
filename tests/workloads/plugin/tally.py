"""A kind of work of another package: all that there is of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.config.rules import PointRules
from paradnn.core.errors import ConfigError
from paradnn.core.messages import WorkloadMessage
from paradnn.core.metric import Metric
from paradnn.core.results import ResultDescription, ResultText
from paradnn.core.schema import option
from paradnn.core.workload import Workload
from paradnn.session.run_records import RunRecords
from paradnn.worker.workload import WorkerSide

if TYPE_CHECKING:
    from paradnn.config.point import Point
    from paradnn.session.measured import Measured
    from paradnn.worker.point import PointRun


@dataclass(frozen=True)
class Tallied(WorkloadMessage):
    """The time that it took to run a number of steps one by one."""

    wire_name: ClassVar[str] = "tallied"

    steps: int
    seconds: float


@dataclass(frozen=True)
class Tally(Workload, PointRules, WorkerSide, RunRecords, ResultDescription):
    """Forward passes, one by one."""

    name: ClassVar[str] = "tally"
    key: ClassVar[str] = "task"
    group: ClassVar[str] = "tally"
    conflict_reason: ClassVar[str] = "counts forward passes"
    declared_metrics: ClassVar = (
        Metric("tally_per_second", "1/s", "higher", "steps one by one / their seconds"),
    )
    headlines: ClassVar = {"tally_per_second": "tallied/s"}
    phases: ClassVar = {"tally": "latency"}
    message_types: ClassVar = (Tallied,)
    quick_defaults: ClassVar = {"steps": 3}

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
        """Return the number of items."""
        return {"tallied": str(self.steps)}

    def describe(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        """Return the number and the rate as text."""
        if "tally_per_second" in metrics:
            return ResultText("tally", [f"{tags['tallied']} tallied"])
        return None


TALLY = Tally()
