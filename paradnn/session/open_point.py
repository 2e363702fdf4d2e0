"""Claimed points until they are recorded: results so far, the next request, and the record.

Also reports the progress of a point while a worker measures it.
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

_PAUSE = 2.0  # minimum seconds between two progress messages


class ProgressPrinter:
    """Progress messages and metric history of one point, at most once every two seconds.

    Args:
        work: Kind of work, which formats messages and extracts metrics.
        store_snapshots: Callback that stores new metric snapshots.
    """

    def __init__(
        self, work: RunRecords, store_snapshots: Callable[[Sequence[MetricSnapshot]], None]
    ) -> None:
        self._work = work
        self._store_snapshots = store_snapshots
        self._messages: list[WorkloadMessage] = []
        self._written = 0
        self._last = 0.0

    def accept(self, message: WorkloadMessage) -> str | None:
        """Accept a message from a worker.

        Returns:
            The text for the terminal; None if the previous text is too recent. Snapshots that were
            not stored by then are stored with the record.
        """
        self._messages.append(message)
        now = time.monotonic()
        if now - self._last < _PAUSE:
            return None
        snapshots = self._work.metric_history(self._messages)
        self._store_snapshots(snapshots[self._written :])
        self._written = len(snapshots)
        self._last = now
        return self._work.progress_text(message)


@dataclass
class OpenPoint:
    """Claimed point.

    Attributes:
        point: The point.
        environment: Environment in which it is measured.
        ceilings: Ceilings it is compared with; None if unknown.
        claim: Claim in the store.
        tags: Tags with which its run begins.
        costs: FLOPs, bytes and parameters of a step.
        excluded: Reason why this visit counts as out of memory without a trial; None if tried.
        turns: Turns that this visit shares with another; None without any.
        results: Results of the processes so far.
        load: Load average of the host at the start; None if unknown.
        memory_limit: Limit of the host memory of the last process, in bytes.
        system_samples: Samples of the system while its processes ran.
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
        """Number of further processes that are known to be needed."""
        return max(0, self.point.measure.processes - len(self.results))

    @property
    def is_complete(self) -> bool:
        """Whether the point needs no further process.

        A failure completes the point. Otherwise it needs the requested number of processes. After
        that, a goal for the interval may need more, up to the maximum number of processes.
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
        seen = measurements([each.answer for each in self.results if each.answer])
        return not seen or narrow_enough(
            adjusted_times([one.timing for one in seen]), measure.relative_interval
        )

    def request(self) -> dict[str, Any]:
        """Return the request to the next process.

        Only the first process profiles. If a point has several processes, none extends its
        measurement to narrow its interval, and each has a separate schedule of queries.
        """
        measure = self.point.measure
        if measure.processes > 1:
            measure = replace(measure, relative_interval=None)
        if self.results:
            measure = replace(measure, profile=False, keep_trace=False)
        work = self.point.workload.for_process(self.point.replicate, len(self.results))
        return point_request(replace(self.point, measure=measure, workload=work))

    def record(self) -> Record:
        """Return the record of the run."""
        point = self.point
        environment = self.environment
        costs = self.costs
        results = self.results
        tags = {**self.tags, **(self.ceilings.tags(point.precision) if self.ceilings else {})}
        own = (self.load, self.claim.start_time, int(time.time() * 1000), self.memory_limit)
        seen = measurements([each.answer for each in results if each.answer])
        if seen and seen[0].counted:  # counted in the program, if no formula exists
            costs, tags["costs"] = seen[0].counted, "counted"
        peaks = device_peaks(point, environment, self.ceilings)
        idle_watts = self.ceilings.idle_watts if self.ceilings else None
        while True:
            try:
                record = make_record(
                    Measured(point, environment, costs, results, tags, peaks, *own, idle_watts)
                )
                break
            except (ArithmeticError, ValueError) as error:
                if results[-1].answer is None:
                    raise
                # Values that admit no computation end this point, not the sweep.
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
