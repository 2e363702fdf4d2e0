"""A point between its claim and its record: the processes that measured it so far, and whether they are enough."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paradnn.config.identity import request_of
from paradnn.config.outcome import PointResult
from paradnn.config.point import Measure, Point
from paradnn.families.layers import Costs
from paradnn.platform.environment import Environment, load_average
from paradnn.record.measured import Measured, step_times
from paradnn.record.record import Record, make_record
from paradnn.record.statistics import narrow_enough
from paradnn.session.hardware_peaks import Ceilings, device_peaks, overrun_tags, single_device
from paradnn.store.runs import Claim

__all__ = ["OpenPoint"]


@dataclass
class OpenPoint:
    """A claimed point. `reference`: it is measured again with every group of points, until the last. `excluded`: why it
    is out of memory without being tried.

    `longest`: seconds for which its claim holds from `claimed` on (on the monotonic clock).
    """

    point: Point
    environment: Environment
    ceilings: Ceilings | None
    claim: Claim
    tags: Mapping[str, str]
    costs: Costs
    reference: bool = False
    last_group: bool = False
    excluded: str | None = None
    results: list[PointResult] = field(default_factory=list)
    load: float | None = field(default_factory=load_average)
    longest: float = 0.0
    claimed: float = field(default_factory=time.monotonic)

    @property
    def wanted(self) -> int:
        """How many more processes are known to be needed."""
        return max(0, self.point.measure.processes - len(self.results))

    @property
    def is_complete(self) -> bool:
        """Whether nothing more is to be measured: a process failed, or there are as many as were asked for."""
        if self.results and self.results[-1].outcome != "ok":
            return True
        return (not self.reference or self.last_group) and not self.wanted and not self._too_wide()

    def request(self) -> dict[str, Any]:
        """What the next process is asked: the first alone profiles; of several, none measures on for its interval, and
        each has a schedule of queries of its own."""
        measure = self.point.measure
        if measure.processes > 1:
            measure = replace(measure, relative_interval=None)
        if self.results:
            measure = replace(measure, profile=False, keep_trace=False)
        work = self.point.workload.of_process(self.point.replicate, len(self.results))
        return request_of(replace(self.point, measure=measure, workload=work))

    def record(self) -> Record:
        """All that the run is to hold."""
        tags = dict(self.tags)
        if self.reference:
            tags["reference_point"] = "true"
        if self.ceilings:
            tags["ceilings_run"] = self.ceilings.run_id
            if self.ceilings.contended:
                tags["ceilings_contended"] = f"the ceilings are too low: {self.ceilings.contended}"
            if share := self.ceilings.emulated(self.point.precision):
                tags["emulation_note"] = (
                    f"{self.point.precision} products are emulated here: {share:.2f} of float32's rate"
                )
        peaks = device_peaks(self.point, self.environment, self.ceilings)
        times = self.claim.start_time, int(time.time() * 1000)
        results = self.results
        while True:
            measured = Measured(self.point, self.environment, self.costs, results, tags, peaks, self.load, *times)
            try:
                record = make_record(measured)
                break
            except (ArithmeticError, ValueError) as error:
                # Numbers of which nothing can be computed end this point, not the sweep.
                if results[-1].answer is None:
                    raise
                reason = f"what its worker measured cannot be: {error}"
                results = [*results[:-1], replace(results[-1], outcome="crash", reason=reason, answer=None)]
        overrun = overrun_tags(single_device(self.point, self.environment), record.metrics)
        return replace(record, tags={**record.tags, **overrun})

    def steps(self) -> list[tuple[float, float]]:
        """When each process that was measured began, in Unix seconds, and its median step time in seconds."""
        begun = [result.begun for result in self.results if result.outcome == "ok"]
        return list(zip(begun, map(statistics.median, self._step_times()), strict=True))

    def _too_wide(self) -> bool:
        """Whether further processes are asked for until the interval is narrow enough."""
        measure: Measure = self.point.measure
        if measure.relative_interval is None or not 1 < measure.processes <= len(self.results) < measure.max_processes:
            return False
        return not narrow_enough(self._step_times(), measure.relative_interval)

    def _step_times(self) -> list[list[float]]:
        """Seconds of a step in each block of each process that was measured."""
        answers = [result.answer for result in self.results if result.outcome == "ok"]
        return [step_times(answer.measurement.timing) for answer in answers if answer and answer.measurement]
