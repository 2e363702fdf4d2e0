"""Open points and the progress of their measurement.

A point is one configuration to measure. It is open while this process has claimed it in the store
but has not recorded its result.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paradnn.config.identity import point_request
from paradnn.config.outcome import PointResult
from paradnn.config.point import Measure, Point
from paradnn.core.layers import Costs
from paradnn.core.messages import WorkloadMessage
from paradnn.core.metric import MetricSnapshot
from paradnn.platform.environment import Environment
from paradnn.platform.load import load_average
from paradnn.session.hardware_peaks import (
    Ceilings,
    device_peaks,
    idle_power_tags,
    overrun_tags,
)
from paradnn.session.measured import Measured, measurements, narrow_enough
from paradnn.session.record import make_record
from paradnn.session.run_records import RunRecords
from paradnn.session.turns import BlockTurns
from paradnn.store.runs import Claim, Record
from paradnn.worker.series import adjusted_times

_PAUSE_SECONDS = 2.0  # minimum time between two progress messages


class ProgressPrinter:
    """Progress text and metric history of a measurement, updated at most every two seconds.

    Args:
        work: Formats the messages of the point's kind of work and extracts metrics from them.
        store_snapshots: Stores metric snapshots. It is called with the snapshots since its
            previous call.
    """

    def __init__(
        self, work: RunRecords, store_snapshots: Callable[[Sequence[MetricSnapshot]], None]
    ) -> None:
        self._work = work
        self._store_snapshots = store_snapshots
        self._messages: list[WorkloadMessage] = []
        self._stored_count = 0
        self._last_update = 0.0  # monotonic seconds

    def accept(self, message: WorkloadMessage) -> str | None:
        """Accept a worker's message; store new metric values if the last update is old enough.

        Values that are not stored here are not lost, because the final record holds all of them.

        Args:
            message: Progress of the point's workload.

        Returns:
            The text for the terminal; None if the last update is too recent.
        """
        self._messages.append(message)
        now = time.monotonic()
        if now - self._last_update < _PAUSE_SECONDS:
            return None
        snapshots = self._work.metric_history(self._messages)
        self._store_snapshots(snapshots[self._stored_count :])
        self._stored_count = len(snapshots)
        self._last_update = now
        return self._work.progress_text(message)


@dataclass
class OpenPoint:
    """A point (configuration to measure) that is claimed in the store but not recorded.

    Attributes:
        point: The configuration to measure.
        environment: Hardware and software versions under which it is measured.
        ceilings: Peak rates of the platform, with which the point's speed is compared; None if
            unknown.
        claim: Reservation of the point in the store.
        tags: Tags with which its run begins.
        costs: Analytic FLOPs, bytes and parameters of a step.
        excluded: Reason why the point counts as out of memory without a trial; None if it is to be
            measured.
        turns: Alternates blocks (steps that are timed together) of this point and of another
            point; None if the point is measured alone.
        results: Results of the processes so far.
        load: Load average of the host at the start; None if unknown.
        memory_limit: Limit of the host memory of the latest process in bytes; None if no limit has
            been set yet.
        system_samples: Use of CPU, memory, disk, network and GPU while the processes ran.
    """

    point: Point
    environment: Environment
    ceilings: Ceilings | None
    claim: Claim
    tags: Mapping[str, str]
    costs: Costs
    excluded: str | None = None
    turns: BlockTurns | None = None
    results: list[PointResult] = field(default_factory=list)
    load: float | None = field(default_factory=load_average)
    memory_limit: int | None = None
    system_samples: list[MetricSnapshot] = field(default_factory=list)

    @property
    def missing_processes(self) -> int:
        """Number of processes that must still run until `measure.processes` have run."""
        return max(0, self.point.measure.processes - len(self.results))

    @property
    def is_complete(self) -> bool:
        """Whether the point needs no further process.

        A failure completes the point. Otherwise it needs `measure.processes` processes. If
        `measure.relative_interval` is set, more processes follow until the 95% interval of the step
        time is narrow enough, up to `measure.max_processes`.
        """
        measure: Measure = self.point.measure
        failed = bool(self.results) and self.results[-1].outcome != "ok"
        if failed or self.missing_processes:
            return failed
        if (
            measure.relative_interval is None
            or not 1 < measure.processes <= len(self.results) < measure.max_processes
        ):
            return True
        timed = measurements([result.answer for result in self.results if result.answer])
        if not timed:
            return True
        step_times = adjusted_times([measurement.timing for measurement in timed])
        return narrow_enough(step_times, measure.relative_interval)

    def request(self) -> dict[str, Any]:
        """Return the request to a worker for the next process of the point.

        Only the first process records a profile. If a point has several processes, no process
        extends its measurement to narrow an interval. Each process gets a different schedule of
        inference queries.
        """
        measure = self.point.measure
        if measure.processes > 1:
            measure = replace(measure, relative_interval=None)
        if self.results:
            measure = replace(measure, profile=False, keep_trace=False)
        work = self.point.workload.for_process(self.point.replicate, len(self.results))
        return point_request(replace(self.point, measure=measure, workload=work))

    def record(self) -> Record:
        """Return the content of the point's run: params, metrics, tags and artifacts.

        If the worker reported impossible values, the outcome of the point is `crash`.
        """
        point = self.point
        environment = self.environment
        costs = self.costs
        results = self.results
        end_time = int(time.time() * 1000)
        tags = dict(self.tags)
        idle_watts = None
        if self.ceilings:
            tags |= self.ceilings.tags(point.precision)
            idle_watts = self.ceilings.idle_watts
        timed = measurements([result.answer for result in results if result.answer])
        if timed and timed[0].counted:  # the worker counted the costs, since they have no formula
            costs = timed[0].counted
            tags["costs"] = "counted"
        peaks = device_peaks(point, environment, self.ceilings)
        while True:
            try:
                record = make_record(
                    Measured(
                        point=point,
                        environment=environment,
                        costs=costs,
                        results=results,
                        tags=tags,
                        peaks=peaks,
                        load=self.load,
                        start_time=self.claim.start_time,
                        end_time=end_time,
                        memory_limit=self.memory_limit,
                        idle_watts=idle_watts,
                    )
                )
                break
            except (ArithmeticError, ValueError) as error:
                if results[-1].answer is None:
                    raise
                # Invalid values make this point a crash; they must not end the sweep.
                reason = f"the worker reports an impossible measurement: {error}"
                results = [
                    *results[:-1],
                    replace(results[-1], outcome="crash", reason=reason, answer=None, news=[]),
                ]
        return replace(
            record,
            tags={
                **record.tags,
                **overrun_tags(point, environment, record.metrics),
                **idle_power_tags(point, environment, self.ceilings, record.metrics),
            },
            history=[*record.history, *self.system_samples],
        )
