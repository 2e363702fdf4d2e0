"""One session measures points one after the other and records each: claim, measure, record, say so.

Nothing else runs while a child measures. What the stack itself costs is part of the record: every second between two
points falls into one of the phases schedule, start and record.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paradnn import environment as environments
from paradnn.config import Point, Settings
from paradnn.costs import Costs, model_costs
from paradnn.environment import Environment, available_memory, describe_environment, software_versions
from paradnn.identity import Identity, point_id, request_of
from paradnn.record import Record, make_record, point_tags, run_name
from paradnn.runner import Answer, Limits, WorkerKey, WorkerPool
from paradnn.schema import memory_bytes
from paradnn.sweep import SweepInfo
from paradnn.terminal import Reporter
from paradnn.tracking import MlflowTracker, Ticket

__all__ = ["Interrupted", "Summary", "measure_points"]

#: The share of free memory that a point may take when `measure.memory_limit` is auto.
_SAFE_SHARE = 0.9


class Interrupted(KeyboardInterrupt):
    """The user or the system asked the sweep to end (Ctrl-C, SIGTERM)."""


@dataclass
class Summary:
    """What became of the points of a session."""

    total: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0
    where: str = ""

    @property
    def outcomes(self) -> Counter[str]:
        """How many points ended in each outcome."""
        return Counter(row["outcome"] for row in self.rows)

    @property
    def exit_code(self) -> int:
        """0 when every point has an outcome, 130 after an interruption."""
        return 130 if self.interrupted else int(len(self.rows) < self.total)


def measure_points(points: Sequence[Point], settings: Settings, sweep: SweepInfo | None) -> Summary:
    """Measure and record `points` in the given order; `sweep` is None for a single point outside a multirun.

    Raises ParadnnError for what the user can mend before anything is measured.
    """
    surroundings = {WorkerKey.of(point): _environment(point) for point in points}
    with WorkerPool() as pool, _interruptible():
        # The framework's import runs while the driver imports MLflow and opens the store.
        pool.prepare(WorkerKey.of(points[0]))
        reporter = Reporter(len(points), sweep.name if sweep else None)
        tracker = MlflowTracker(settings.tracking)
        session = _Session(pool, tracker, surroundings, reporter, Summary(len(points), where=tracker.where), sweep)
        return session.run(points)


class _Session:
    def __init__(
        self,
        pool: WorkerPool,
        tracker: MlflowTracker,
        surroundings: Mapping[WorkerKey, Environment],
        reporter: Reporter,
        summary: Summary,
        sweep: SweepInfo | None,
    ) -> None:
        self._pool = pool
        self._tracker = tracker
        self._surroundings = surroundings
        self._reporter = reporter
        self._summary = summary
        self._sweep = sweep
        self._free_since = time.perf_counter()

    def run(self, points: Sequence[Point]) -> Summary:
        begin = time.perf_counter()
        if self._sweep:
            tags = {"sweep_id": self._sweep.sweep_id, "command": self._sweep.command}
            self._tracker.open_sweep(self._sweep.name, f"`{self._sweep.command}`\n\nrunning ...", tags)
        self._free_since = time.perf_counter()
        with self._reporter:
            try:
                for point in points:
                    self._one(point)
            except KeyboardInterrupt:
                self._summary.interrupted = True
        self._summary.seconds = time.perf_counter() - begin
        self._close_sweep()
        return self._summary

    def _one(self, point: Point) -> None:
        """Claim, measure and record one point."""
        environment = self._surroundings[WorkerKey.of(point)]
        identity = Identity(point_id(point), environment.environment_id, point.replicate)
        tags = point_tags(point, environment) | ({"sweep_id": self._sweep.sweep_id} if self._sweep else {})
        self._reporter.begin(run_name(point))
        ticket = self._tracker.begin(identity, run_name(point), tags, point.measure.timeout, None)
        assert isinstance(ticket, Ticket)
        try:
            record = self._measure(point, environment, ticket)
            recording = time.perf_counter()
            run_id = self._tracker.record(ticket, record, lambda: self._late(record, recording))
        except BaseException:
            with contextlib.suppress(Exception):
                self._tracker.abandon(ticket, "interrupted before its end")
            raise
        self._done(record, run_id)

    def _measure(self, point: Point, environment: Environment, ticket: Ticket) -> Record:
        costs = model_costs(
            request_of(point)["model"],
            batch_size=point.batch_size,
            precision=point.precision,
            mode=point.mode,
            optimizer=point.optimizer.name,
        )
        load = environments.load_average()
        limits = Limits(point.measure.timeout, _memory_limit(point))
        schedule = time.perf_counter() - self._free_since
        answer = self._predicted(point, costs, limits) or self._pool.measure(
            WorkerKey.of(point), request_of(point), limits, self._reporter.phase
        )
        self._free_since = time.perf_counter()
        answer = Answer(
            answer.outcome,
            answer.reason,
            answer.result,
            {**answer.phases, "schedule": schedule},
            answer.stderr,
            answer.peak_memory_bytes,
        )
        return make_record(
            point, environment, costs, answer, load=load, start_time=ticket.start_time, end_time=int(time.time() * 1000)
        )

    @staticmethod
    def _predicted(point: Point, costs: Costs, limits: Limits) -> Answer | None:
        """Out of memory by arithmetic: no build is tried."""
        bound, limit = costs.memory_lower_bound_bytes, limits.memory_bytes
        if point.platform.name != "cpu" or not point.measure.predict_oom or limit is None or bound <= limit:
            return None
        reason = f"needs at least {bound / 2**30:,.2f} GiB, the limit is {limit / 2**30:.2f} GiB"
        return Answer("oom_predicted", reason, {}, {})

    def _late(self, record: Record, recording: float) -> dict[str, float]:
        """Metrics of the recording itself; what follows them falls into the next point's schedule."""
        now = time.perf_counter()
        spent = now - recording
        overhead = spent + sum(record.metrics.get(f"phase_{name}_seconds", 0.0) for name in ("schedule", "start"))
        self._free_since = now
        return {"phase_record_seconds": spent, "overhead_seconds": overhead}

    def _done(self, record: Record, run_id: str) -> None:
        row = {
            "run_id": run_id,
            "name": record.name,
            "outcome": record.outcome,
            "reason": record.reason,
            "steady": record.tags.get("steady"),
            "checks": record.tags.get("checks"),
            **record.metrics,
        }
        self._summary.rows.append(row)
        self._reporter.done(row)

    def _close_sweep(self) -> None:
        if not self._sweep:
            return
        summary = self._summary
        counts = ", ".join(f"{count} {name}" for name, count in summary.outcomes.most_common())
        state = "interrupted" if summary.interrupted else "finished"
        text = (
            f"`{self._sweep.command}`\n\nA sweep of {summary.total} points, {state} after {summary.seconds:.0f} s: "
            f"{counts or 'none measured'}."
        )
        metrics = {"points": float(summary.total)} | {
            f"points.{name}": float(n) for name, n in summary.outcomes.items()
        }
        columns = list(dict.fromkeys(key for row in summary.rows for key in row))
        table = {"columns": columns, "data": [[row.get(key) for key in columns] for row in summary.rows]}
        self._tracker.close_sweep("KILLED" if summary.interrupted else "FINISHED", text, metrics, table)


def _environment(point: Point) -> Environment:
    key = WorkerKey.of(point)
    return describe_environment(key.platform, software_versions(key.python, key.framework))


def _memory_limit(point: Point) -> int:
    given = memory_bytes(point.measure.memory_limit, "measure.memory_limit")
    return given if given is not None else int(_SAFE_SHARE * available_memory())


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the session as Ctrl-C does."""

    def stop(*_: Any) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
