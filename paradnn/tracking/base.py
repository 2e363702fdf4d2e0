"""What a session needs of a tracker, which keeps its results; implemented on MLflow and on files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paradnn.config.identity import Identity
from paradnn.core.workload import Moment
from paradnn.record.record import Record

__all__ = ["AcceptsRun", "Claim", "ClaimedElsewhere", "Finished", "RecordingMetrics", "Tracker"]

#: Whether a stored run, given its tags, is accepted as the measurement of the point that is to be claimed.
AcceptsRun = Callable[[Mapping[str, str]], bool]
#: Metrics of the recording itself, asked for at the last moment.
RecordingMetrics = Callable[[], Mapping[str, float]]


@dataclass(frozen=True)
class Claim:
    """The right to measure a point. `start_time` is in Unix milliseconds; `repeats`: whatever the store holds.

    `files` is the address of its files and `tags` are those that it bears, as far as they are known.
    """

    run_id: str
    identity: Identity
    start_time: int
    repeats: bool = False
    files: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Finished:
    """The store holds an outcome of the point; `tags` are those that `RunIndex` reads."""

    run_id: str
    tags: Mapping[str, str]


@dataclass(frozen=True)
class ClaimedElsewhere:
    """Another driver is measuring the point."""

    run_id: str


class Tracker(Protocol):
    """Keeps runs. Methods raise StoreError when the store does not answer."""

    @property
    def where(self) -> str:
        """Where the runs are, as it may be shown."""

    def finished(self, environment_ids: Iterable[str], sweep_id: str | None = None) -> dict[Identity, list[Finished]]:
        """Every run with an outcome in these environments; of a sweep, in whichever."""

    def fetch(self, run_id: str) -> tuple[dict[str, float], dict[str, str]]:
        """Metrics and tags of one run."""

    def open_sweep(self, name: str, description: str, tags: Mapping[str, str]) -> str:
        """Start the parent of the runs that follow; its id."""

    def close_sweep(
        self,
        status: str,
        description: str,
        metrics: Mapping[str, float],
        artifacts: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> None:
        """End the parent; `status` is an MLflow run status, `artifacts` are as those of a `Record`."""

    def enter_sweep(self, parent: str, name: str, description: str, tags: Mapping[str, str]) -> None:
        """Let the runs that follow be children of a parent that another process opened and will close."""

    def drop_sweep(self) -> None:
        """Remove the parent, to which nothing was recorded."""

    def report_task(self, task: int, report: Mapping[str, Any]) -> None:
        """Report to the parent how one of its tasks ended; a later attempt's report replaces an earlier one's."""

    def task_reports(self) -> dict[int, dict[str, Any]]:
        """What the tasks of the sweep have reported."""

    def sweep_rows(self, sweep_id: str) -> list[dict[str, Any]]:
        """The finished points of a sweep: run_id, name, tags and metrics in one mapping each."""

    def release(self, sweep_id: str) -> int:
        """Close what a sweep left open, now that none of its tasks lives; how many runs there were."""

    def begin(
        self, identity: Identity, name: str, tags: Mapping[str, str], timeout: float, accepts: AcceptsRun | None
    ) -> Claim | Finished | ClaimedElsewhere:
        """Claim a point; with `accepts` None it is measured whatever the store holds."""

    def renew(self, claim: Claim, timeout: float) -> None:
        """Let a claim hold for so many seconds from now on."""

    def tell(self, claim: Claim, moments: Sequence[Moment]) -> None:
        """Let who looks at a point that is being measured see what its epochs gave so far; `record` keeps all of it."""

    def record(self, claim: Claim, record: Record, recording_metrics: RecordingMetrics) -> str:
        """Keep a finished point; the run's id."""

    def abandon(self, claim: Claim, reason: str) -> None:
        """Give a point back without an outcome."""

    def close_abandoned(self) -> int:
        """Close what dead drivers left open; how many there were."""
