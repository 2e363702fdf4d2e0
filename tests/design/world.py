"""A planted machine with a real store of files, which follows a design like a session.

No framework is used.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from paradnn.config.identity import Identity, point_id
from paradnn.config.point import Measure, Point, step_costs
from paradnn.config.settings import Settings, Sweep, Tracking
from paradnn.config.tasks import SweepInfo
from paradnn.designs.adaptive import AdaptiveSweep
from paradnn.families.fc import FullyConnected
from paradnn.forecast.table import point_params
from paradnn.session.design import DesignPoint, RecordedPoint, SweepDesign
from paradnn.session.environments import current_environments
from paradnn.session.record import point_tags
from paradnn.store.journal import Journal
from paradnn.store.runs import Claim, Record
from tests.forecast.planted import QUICK, Machine

__all__ = ["World", "space"]

#: Memory of the framework in bytes.
BASE = 2.0**29
#: Factor on the analytic lower bound of the memory of a point.
FACTOR = 1.4


def space(
    layers: Sequence[int] = (1, 2, 4, 8, 16),
    nodes: Sequence[int] = (32, 128, 512, 2048),
    sizes: Sequence[int] = (16, 64, 256, 1024),
    measure: Measure = QUICK,
) -> list[Point]:
    """Return a full factorial of fully connected points; `sizes` are batch sizes."""
    return [
        Point(FullyConnected(layers=depth, nodes=width), batch_size=size, measure=measure)
        for depth in layers
        for width in nodes
        for size in sizes
    ]


class World:
    """A planted machine and the folder of its records.

    Attributes:
        measured: Points that were measured, including those that ran out of memory.
        excluded: Points that a design excluded without a measurement.
    """

    def __init__(self, folder: Path, noise: float = 0.02) -> None:
        self.folder = folder
        self.machine = Machine(np.random.default_rng(5), noise=noise, session=0.0)
        self.measured: list[Point] = []
        self.excluded: list[Point] = []

    def settings(self, **ends: object) -> Settings:
        """Return the settings of an adaptive sweep that is recorded in the folder."""
        tracking = Tracking(name="offline", folder=str(self.folder))
        return Settings(tracking=tracking, ceilings=False, sweep=Sweep(design="adaptive", **ends))  # type: ignore[arg-type]

    def design(self, candidates: Sequence[Point], **ends: object) -> AdaptiveSweep:
        """Return the design of a new driver."""
        return AdaptiveSweep(
            candidates, self.settings(**ends), SweepInfo(f"s{time.monotonic_ns()}", "planted", "")
        )

    def follow(self, design: SweepDesign) -> Iterator[DesignPoint]:
        """Measure the visits that a design requests until it ends.

        Yields each visit after its claim and before its record.
        """
        tracker = Journal(self.folder)
        rows = []
        visits = design.batch(rows)
        while visits:
            rows = []
            for visit in visits:
                if design.wants(visit, False):
                    claim = self.claim(tracker, visit.point)
                else:
                    claim = None
                if claim is None:
                    continue
                if not design.wants(visit, True):
                    tracker.abandon(claim, "")
                    continue
                yield visit
                rows.append(self._measure(tracker, claim, visit))
            visits = design.batch(rows)

    def peak(self, point: Point) -> float:
        """Return the peak memory of a point in bytes."""
        return BASE + FACTOR * step_costs(point).memory_lower_bound_bytes

    def claim(self, tracker: Journal, point: Point) -> Claim | None:
        """Claim a point; return None if another driver claimed it or it is measured."""
        [environment] = current_environments([point]).values()
        identity = Identity(point_id(point), environment.environment_id, point.replicate)
        found = tracker.begin(identity, "", {}, lambda tags: "outcome" in tags)
        return found if isinstance(found, Claim) else None

    def _measure(self, tracker: Journal, claim: Claim, visit: DesignPoint) -> RecordedPoint:
        point = visit.point
        [environment] = current_environments([point]).values()
        run = self.machine.run(point, len(self.measured))
        limit = point.measure.memory_limit
        if visit.excluded:
            outcome = "oom_predicted"
            self.excluded.append(point)
        else:
            self.measured.append(point)
            if isinstance(limit, int) and self.peak(point) > limit:
                outcome = "oom_host"
            else:
                outcome = "ok"
        tags = {
            **point_tags(point, environment),
            **visit.tags,
            "outcome": outcome,
            "steady": "true",
        }
        speed = 1e3 * point.batch_size / run.metrics["step_time_ms"]
        measured = {
            **run.metrics,
            "examples_per_second": speed,
            "peak_memory_bytes": self.peak(point),
        }
        metrics = measured if outcome == "ok" else {}
        now = int(time.time() * 1000)
        record = Record(
            "a point", outcome, visit.excluded, point_params(point), metrics, tags, {}, now, now
        )
        return RecordedPoint.of_record(tracker.record(claim, record, dict), record)
