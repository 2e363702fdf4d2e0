"""What a load gave, as it crosses from worker to driver."""

from __future__ import annotations

from dataclasses import dataclass

from paradnn.worker.serving.queries import QueryLog

__all__ = ["Load", "Probe"]


@dataclass(frozen=True)
class Probe:
    """A look at one rate (queries/s) in the search of the highest: how many were served, how many later than the limit.

    latency: seconds, at the percentile of the limit. held: None where neither verdict was sure; reason: why the load
    was not what was asked for.
    """

    rate: float
    queries: int
    late: int
    seconds: float
    latency: float
    held: bool | None
    reason: str | None


@dataclass(frozen=True)
class Load:
    """What a scenario gave: the queries (`QueryLog.packed`), and the probes before them, in their order.

    rate: queries/s that were asked for; None where no schedule asks. single_seconds: what one query takes alone.
    joules: energy while they were served, None where it is not counted.
    """

    rate: float | None
    single_seconds: float
    queries: str
    probes: list[Probe]
    joules: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where the queries cannot be read."""
        self.log()

    def log(self) -> QueryLog:
        """The queries that were served."""
        return QueryLog.unpacked(self.queries)
