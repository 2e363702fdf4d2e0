"""Accuracy of a trained model, measured together with its forward pass (`task=judge`).

For `precision=int8`, an engine is calibrated on training examples. docs/how-to/engines.md explains
the use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.config.learning_sets import SETS, Pictures, set_file
from paradnn.config.rules import PointRules
from paradnn.core.errors import ConfigError, UnavailableError, require_value
from paradnn.core.messages import WorkloadMessage, messages_of_kind
from paradnn.core.metric import Metric, in_section
from paradnn.core.results import ResultDescription, ResultText
from paradnn.core.workload import Workload
from paradnn.families import Model
from paradnn.session.run_records import RunRecords
from paradnn.worker.workload import WorkerSide
from paradnn.workloads.step import measure_step

if TYPE_CHECKING:
    from paradnn.config.point import Point
    from paradnn.session.measured import Measured
    from paradnn.worker.point import PointRun


@dataclass(frozen=True)
class EvaluationResult(WorkloadMessage):
    """The accuracy of a model over held-out examples.

    Attributes:
        accuracy: Fraction (0..1) of the examples whose true class has the highest score.
        examples: Number of held-out examples.
    """

    wire_name: ClassVar[str] = "judged"

    accuracy: float
    examples: int


METRICS = (
    Metric(
        "judged_accuracy",
        "1",
        "higher",
        "share of held-out examples whose true class has the highest score",
    ),
    *in_section(
        "learning",
        Metric(
            "judged_error",
            "1",
            "lower",
            "share of held-out examples whose true class does not have the highest score",
        ),
    ),
)


@dataclass(frozen=True)
class Evaluate(Workload, PointRules, WorkerSide, RunRecords, ResultDescription):
    """Time the forward pass of a trained model, then evaluate its accuracy."""

    name = "judge"
    key = "task"
    order = 45
    conflict_reason = "trains nothing"
    own_inputs = SETS
    message_types = (EvaluationResult,)
    phases: ClassVar[Mapping[str, str]] = {"judge": "latency"}
    declared_metrics = METRICS

    def check_model(self, model: Model) -> None:
        if not model.is_counted:
            reason = f"needs a trained model, but model={model.name} has random weights"
            remedy = "choose model=own, model=keras_file or model=onnx"
            raise ConfigError("task", self.name, reason, remedy)

    def check(self, point: Point) -> None:
        if not isinstance(point.data, Pictures):
            reason = "has no held-out examples, which task=judge needs"
            raise ConfigError("data", point.data.name, reason, f"choose one of {', '.join(SETS)}")
        require_value("devices", point.devices, required=1, reason="task=judge is for one device")

    def request_fields(self, point: Point) -> dict[str, Any]:
        assert isinstance(point.data, Pictures)
        return {"learning_set": str(set_file(point.data))}

    def measure(self, run: PointRun) -> None:
        from paradnn.worker.evaluation import evaluate, fit_examples, read_arrays

        examples: dict[str, Any] = {}
        data = f"data={run.request['data']['name']}"
        batch_size = run.request["batch_size"]

        def prepare(workload: Any, step: Any) -> None:
            """Convert the examples to the model's input shape, and calibrate the step with them.

            Args:
                workload: The `BuiltModel`.
                step: The step that runs its forward pass.
            """
            shape = tuple(workload.inputs[0].shape)
            # fit_examples raises ValueError for pictures that cannot be repeated to fill the input.
            with contextlib.suppress(ValueError):
                examples.update(fit_examples(read_arrays(run.request["learning_set"]), shape))
            is_fitting = bool(examples) and examples["heldout"].shape[1:] == shape
            if len(workload.inputs) > 1 or not is_fitting:
                raise UnavailableError(
                    f"{data} has no examples that fit the model's input of shape {shape}; choose "
                    "another data set or model"
                )
            step.calibrate(examples["training"])

        def after_compiling(_: Any, step: Any) -> Callable[[Any], None]:
            _check_classes(data, step, examples, batch_size)

            def measure_accuracy(timed: Any) -> None:
                run.note_latencies(timed)
                with run.phases("judge"):
                    accuracy, _ = evaluate(step.outputs, examples, batch_size)
                    run.note(work=EvaluationResult(accuracy, len(examples["heldout"])))

            return measure_accuracy

        measure_step(run, after_compiling, prepare)

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        results = messages_of_kind(measured.answers, EvaluationResult)
        if not results:
            return {}
        accuracy = results[0].accuracy
        return {"judged_accuracy": accuracy, "judged_error": 1 - accuracy}

    def describe(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        if "judged_accuracy" not in metrics:
            return None
        accuracy = metrics["judged_accuracy"]
        return ResultText("accuracy", [f"{accuracy:.2%} of the held-out examples"])


def _check_classes(data: str, step: Any, examples: Mapping[str, Any], batch_size: int) -> None:
    """Check that the model's output has a score for each class of the data.

    Args:
        data: The data set in messages, such as "data=cifar10".
        step: The compiled step, whose `outputs` runs the forward pass.
        examples: Arrays of examples and classes, as `fit_examples` returns them.
        batch_size: Number of examples per forward pass.

    Raises:
        UnavailableError: If the output has another shape or fewer scores than classes.
    """
    import numpy as np

    training = examples["training"]
    batch = training[np.arange(batch_size) % len(training)]
    output = step.outputs([batch]).shape
    last_class = examples["heldout_classes"].max()
    if len(output) != 2 or output[1] <= last_class:
        raise UnavailableError(
            f"{data} has {last_class + 1} classes, but the model's output has shape {output[1:]}; "
            "choose another data set or model"
        )


JUDGE = Evaluate()
