"""What a kind of work adds to the run of a point: metrics, tags, files, and progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from paradnn.config.outcome import PointResult
    from paradnn.config.point import Point
    from paradnn.core.layers import Costs
    from paradnn.core.messages import Answer, WorkloadMessage
    from paradnn.core.metric import MetricSnapshot
    from paradnn.session.measured import Measured
    from paradnn.session.overview.drawing import BarChart, Chart

#: Default mode and input, which the name of a run omits.
_OMITTED_PARTS = ("train", "synthetic")


class RunRecords:
    """The role of a kind of work that records its own results (`Workload.role`).

    Attributes:
        is_resumable: Whether the worker saves its progress in a file (field `checkpoint` of the
            request), from which a later worker can continue.
        is_profile_complete: Whether a profile of a step shows every matrix product.
        can_take_turns: Whether the point is timed only in blocks, so that blocks of two points can
            alternate.
    """

    is_resumable: ClassVar[bool] = False
    is_profile_complete: ClassVar[bool] = True
    can_take_turns: ClassVar[bool] = False

    def request_fields(self, point: Point) -> dict[str, Any]:
        """Return the fields of a worker's request in addition to the point.

        Raises:
            DataError: If the data of the point is missing or invalid.
        """
        return {}

    def progress_text(self, message: WorkloadMessage) -> str:
        """Return the progress that a message of the worker reports, as text for the terminal."""
        return ""

    def metric_history(self, messages: Sequence[WorkloadMessage]) -> list[MetricSnapshot]:
        """Return the metrics that messages of the worker report, one snapshot per message."""
        return []

    def series(self, measured: Measured) -> list[MetricSnapshot]:
        """Return metrics with one value per block or time window, for the charts of MLflow."""
        return []

    def is_finished(self, result: PointResult) -> bool:
        """Return whether the work is complete; otherwise it may be resumed later."""
        return True

    def name_parts(self, point: Point) -> list[str]:
        """Return the parts of a run's name in addition to model, size, batch and platform."""
        return [
            part for part in (point.workload.mode, point.data.name) if part not in _OMITTED_PARTS
        ]

    def are_steps_valid(self, outcome: str, last_answer: Answer | None) -> bool:
        """Return whether the timed steps of a point that ended with `outcome` are recorded."""
        return outcome == "ok"

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of this kind.

        Args:
            measured: The point with the results of its processes.
            known: The metrics of every point, and of the timed steps if they are valid.
        """
        return {}

    def tags(self, measured: Measured) -> dict[str, str]:
        """Return the tags of this kind."""
        return {}

    def artifacts(self, measured: Measured, title: str) -> dict[str, Any]:
        """Return the files of this kind by name, such as raw values."""
        return {}

    def charts(self, measured: Measured, metrics: Mapping[str, float]) -> list[Chart | BarChart]:
        """Return charts for the overview of the run, the most important first.

        Args:
            measured: The point with the results of its processes.
            metrics: All metrics of the run.
        """
        return []

    def find_contradictions(self, costs: Costs, answer: Answer) -> list[str]:
        """Return the contradictions between a process's answer and the costs, one line each."""
        return []


def has_valid_steps(measured: Measured) -> bool:
    """Return whether the timed steps of a measured point are recorded."""
    outcome, _ = measured.ending()
    records = measured.point.workload.role(RunRecords)
    return records.are_steps_valid(outcome, measured.results[-1].answer)
