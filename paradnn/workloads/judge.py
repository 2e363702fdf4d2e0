"""Forward passes of a model that was trained, timed, and what they are worth: its accuracy on
held-out examples (`task=judge`, docs/how-to/engines.md). An engine calibrates `precision=int8` on examples
of the set's other part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.config.rules import PointRules
from paradnn.core.errors import ConfigError, UnavailableError, require_value
from paradnn.core.messages import WorkloadMessage, messages_of_kind
from paradnn.core.metric import Metric
from paradnn.core.results import ResultDescription, ResultText
from paradnn.core.workload import Workload
from paradnn.families import Model
from paradnn.session.run_records import RunRecords
from paradnn.worker.workload import WorkerSide
from paradnn.workloads.learn.sets import SETS, Pictures, set_file
from paradnn.workloads.step import measure_step

if TYPE_CHECKING:
    from paradnn.config.point import Point
    from paradnn.session.measured import Measured
    from paradnn.worker.point import PointRun


@dataclass(frozen=True)
class EvaluationResult(WorkloadMessage):
    """Accuracy over so many held-out examples."""

    wire_name: ClassVar[str] = "judged"

    accuracy: float
    examples: int


@dataclass(frozen=True)
class Evaluate(Workload, PointRules, WorkerSide, RunRecords, ResultDescription):
    """The accuracy of a model as it comes, beside what its forward pass takes."""

    name = "judge"
    key = "task"
    order = 45
    conflict_reason = "trains nothing"
    own_inputs = SETS
    message_types = (EvaluationResult,)
    phases: ClassVar[Mapping[str, str]] = {"judge": "latency"}
    declared_metrics = (
        Metric(
            "judged_accuracy",
            "1",
            "higher",
            "share of held-out examples whose class is the likeliest",
        ),
        Metric(
            "judged_error",
            "1",
            "lower",
            "share of held-out examples whose class is not the likeliest",
        ),
    )

    def check_model(self, model: Model) -> None:
        if not model.is_counted:
            reason = f"model={model.name} has random weights"
            raise ConfigError(
                "task", self.name, reason, "judge what was trained: model=own, keras_file or onnx"
            )

    def check(self, point: Point) -> None:
        if not isinstance(point.data, Pictures):
            reason = "has no held-out examples to judge by"
            raise ConfigError("data", point.data.name, reason, f"choose one of {', '.join(SETS)}")
        require_value("devices", point.devices, required=1, reason="task=judge is for one device")

    def request_fields(self, point: Point) -> dict[str, Any]:
        assert isinstance(point.data, Pictures)
        return {"learning_set": str(set_file(point.data))}

    def measure(self, run: PointRun) -> None:
        import numpy as np

        from paradnn.workloads.learn.training import evaluate, fitted_examples, read_arrays

        examples: dict[str, Any] = {}
        name = f"data={run.request['data']['name']}"
        size = run.request["batch_size"]

        def ready(workload: Any, step: Any) -> None:
            wanted = tuple(workload.inputs[0].shape)
            with contextlib.suppress(ValueError):  # pictures that cannot be repeated to fill it
                examples.update(fitted_examples(read_arrays(run.request["learning_set"]), wanted))
            if not examples or len(workload.inputs) > 1 or examples["heldout"].shape[1:] != wanted:
                raise UnavailableError(f"{name} has no examples for the model's input of {wanted}")
            step.calibrate(examples["training"])

        def beside(_: Any, step: Any) -> Any:
            found = step.outputs(
                [examples["training"][np.arange(size) % len(examples["training"])]]
            ).shape
            if len(found) != 2 or found[1] <= (last := examples["heldout_classes"].max()):
                raise UnavailableError(
                    f"{name} has {last + 1} classes, the model's output is {found[1:]}"
                )

            def then(timed: Any) -> None:
                run.note_latencies(timed)
                with run.phases("judge"):
                    accuracy, _ = evaluate(step.outputs, examples, size)
                    run.note(work=EvaluationResult(accuracy, len(examples["heldout"])))

            return then

        measure_step(run, beside, ready)

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        found = [judged.accuracy for judged in messages_of_kind(measured.answers, EvaluationResult)]
        if found:
            return {"judged_accuracy": found[0], "judged_error": 1 - found[0]}
        return {}

    def describe(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        if "judged_accuracy" not in metrics:
            return None
        return ResultText(
            "accuracy", [f"{metrics['judged_accuracy']:.2%} of the held-out examples"]
        )


JUDGE = Evaluate()
