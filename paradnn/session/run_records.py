"""Interface by which a kind of work adds metrics, tags, files and progress to its runs."""

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
    """Base class for the part of a kind of work that records results (`Workload.role`).

    A kind of work is, for example, training steps or inference under load. A point is one
    configuration to measure. The default methods add no results.

    Attributes:
        is_resumable: Whether the worker saves its progress in a file (field `checkpoint` of the
            request), from which a later worker can continue.
        is_profile_complete: Whether a profile of a step shows every matrix product.
        can_take_turns: Whether points are timed only in blocks of steps, so that blocks of two
            points can alternate.
    """

    is_resumable: ClassVar[bool] = False
    is_profile_complete: ClassVar[bool] = True
    can_take_turns: ClassVar[bool] = False

    def request_fields(self, point: Point) -> dict[str, Any]:
        """Return additional fields of the request that makes a worker measure a point.

        Args:
            point: The point. The request already contains its configuration.

        Raises:
            DataError: If the data of the point is missing or invalid.
        """
        return {}

    def progress_text(self, message: WorkloadMessage) -> str:
        """Return the progress that a worker's message reports, as text for the terminal.

        Args:
            message: Message of this kind of work.
        """
        return ""

    def metric_history(self, messages: Sequence[WorkloadMessage]) -> list[MetricSnapshot]:
        """Return the metrics that a worker's messages report, one snapshot per message."""
        return []

    def series(self, measured: Measured) -> list[MetricSnapshot]:
        """Return metrics with one value per block of steps or time window, for MLflow's charts.

        Args:
            measured: The measured configuration (point) with the results of its processes.
        """
        return []

    def is_finished(self, result: PointResult) -> bool:
        """Return whether the work is complete; otherwise a later process may resume it.

        Args:
            result: Result of the latest process.
        """
        return True

    def name_parts(self, point: Point) -> list[str]:
        """Return further parts of a run's name, after model, size, batch size and platform.

        Args:
            point: The configuration that the run measures.
        """
        return [
            part for part in (point.workload.mode, point.data.name) if part not in _OMITTED_PARTS
        ]

    def are_steps_valid(self, outcome: str, last_answer: Answer | None) -> bool:
        """Return whether the timed steps of a point are valid and are recorded.

        Args:
            outcome: Outcome of the point, such as "ok".
            last_answer: Answer of the last process; None if it sent none.
        """
        return outcome == "ok"

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics that this kind of work adds to a run.

        Args:
            measured: The measured configuration (point) with the results of its processes.
            known: Metrics computed so far: those of every point, and those of the timed steps if
                they are valid.
        """
        return {}

    def tags(self, measured: Measured) -> dict[str, str]:
        """Return the tags that this kind of work adds to a run.

        Args:
            measured: The measured configuration (point) with the results of its processes.
        """
        return {}

    def artifacts(self, measured: Measured, title: str) -> dict[str, Any]:
        """Return the files that this kind of work adds to a run, such as raw values.

        Args:
            measured: The measured configuration (point) with the results of its processes.
            title: Name of the run.

        Returns:
            File name -> content.
        """
        return {}

    def charts(self, measured: Measured, metrics: Mapping[str, float]) -> list[Chart | BarChart]:
        """Return charts for the overview of the run, the most important first.

        Args:
            measured: The measured configuration (point) with the results of its processes.
            metrics: All metrics of the run.
        """
        return []

    def find_contradictions(self, costs: Costs, answer: Answer) -> list[str]:
        """Return contradictions within one process's answer, or between the answer and the costs.

        Args:
            costs: Analytic or counted FLOPs, bytes and parameters of a step.
            answer: Message of the process with its outcome and all of its measurements.

        Returns:
            One line of text per contradiction.
        """
        return []


def has_valid_steps(measured: Measured) -> bool:
    """Return whether the timed steps of a measured point are valid and are recorded.

    Args:
        measured: The measured configuration (point) with the results of its processes.
    """
    outcome, _ = measured.ending()
    records = measured.point.workload.role(RunRecords)
    return records.are_steps_valid(outcome, measured.results[-1].answer)
