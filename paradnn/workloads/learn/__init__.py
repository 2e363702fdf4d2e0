"""Training until a target accuracy on held-out examples is reached (`task=learn`).

docs/how-to/learning.md explains the use.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.config.identity import point_id
from paradnn.config.learning_sets import DIGEST_TAG, SETS, Pictures, set_digest, set_file
from paradnn.config.rules import PointRules
from paradnn.core.channel import plain_fields
from paradnn.core.errors import ConfigError, DataError, require_value
from paradnn.core.messages import WorkloadMessage
from paradnn.core.metric import MetricSnapshot
from paradnn.core.results import ResultDescription, ResultText
from paradnn.core.schema import option
from paradnn.core.words import counted
from paradnn.core.workload import Workload
from paradnn.families import Model
from paradnn.forecast.workload import PhaseForecast
from paradnn.session.run_records import RunRecords
from paradnn.worker.workload import WorkerSide
from paradnn.workloads.learn.messages import Epoch, last_epoch
from paradnn.workloads.learn.metrics import METRICS

if TYPE_CHECKING:
    from paradnn.config.outcome import PointResult
    from paradnn.config.point import Point
    from paradnn.session.measured import Measured
    from paradnn.session.overview.drawing import BarChart, Chart
    from paradnn.worker.point import PointRun


@dataclass(frozen=True)
class Learn(Workload, PointRules, WorkerSide, RunRecords, ResultDescription, PhaseForecast):
    """Train until a target accuracy is reached; evaluate the accuracy after every epoch."""

    name = "learn"
    group = "learn"
    key = "task"
    order = 40
    mode = "train"
    unit = "training step"
    conflict_reason = "trains"
    is_resumable = True
    declared_metrics = METRICS
    own_inputs = SETS
    message_types = (Epoch,)
    phases: ClassVar[Mapping[str, str]] = {"learn": "latency"}
    objectives = ("cost_of_learning", "learning_seconds", "best_accuracy")
    added_defaults: ClassVar[Mapping[str, Any]] = {
        "learn.schedule": "constant",
        "learn.warmup_epochs": 0,
        "learn.start": None,
        "learn.save": None,
    }

    metric: str = option(
        "accuracy",
        "share of held-out examples whose true class has the highest score (accuracy), or one of "
        "the five highest (top5)",
        choices=("accuracy", "top5"),
    )
    target: float = option(
        0.97,
        "value of learn.metric at which the training has reached its target",
        low=1e-3,
        high=1.0,
    )
    epochs: int = option(
        100,
        "maximum number of epochs; if none reaches the target, the outcome is timeout",
        low=1,
        high=1_000_000,
    )
    epochs_after: int = option(
        0, "further epochs after the target is reached", low=0, high=1_000_000
    )
    evaluate_inside: bool = option(
        False, "whether evaluations count towards the time and energy to the target"
    )
    schedule: str = option(
        "constant",
        "schedule of the learning rate over learn.epochs: constant at optimizer.learning_rate, or "
        "decay from it to 0 (cosine, linear)",
        choices=("constant", "cosine", "linear"),
    )
    warmup_epochs: int = option(
        0, "initial epochs in which the learning rate rises to optimizer.learning_rate", low=0
    )
    start: str | None = option(
        None,
        "file, written by learn.save, with the initial values of variables of equal name and "
        "shape; null: random initial weights",
    )
    save: str | None = option(
        None,
        "folder in which each point writes its trained weights as MODEL-IDENTIFIER.npz; null: none",
    )

    def check_model(self, model: Model) -> None:
        if model.is_kernel or model.is_communication:
            reason = f"model={model.name} cannot be trained"
            raise ConfigError("task", "learn", reason, "omit it, or choose another model")

    def canonical(self, point: Point) -> Point:
        return replace(point, measure=replace(point.measure, profile=False))

    def check(self, point: Point) -> None:
        data = point.data
        if not isinstance(data, Pictures):
            reason = "has no held-out examples, which task=learn needs"
            raise ConfigError("data", data.name, reason, f"choose one of {', '.join(SETS)}")
        require_value("devices", point.devices, required=1, reason="task=learn is for one device")
        require_value(
            "measure.processes",
            point.measure.processes,
            required=1,
            reason="task=learn trains once",
            remedy="set measure.processes=1; to repeat the training, sweep seed",
        )
        require_value(
            "measure.keep_trace",
            point.measure.keep_trace,
            required=False,
            reason="task=learn profiles no step",
        )
        if getattr(data, "path", "") is None:
            reason = f"data={data.name} reads files from disk"
            raise ConfigError("data.path", "null", reason, "set it to the path of the files")
        data.check(point.model)
        if self.warmup_epochs >= self.epochs:
            reason = f"must be less than learn.epochs={self.epochs}"
            remedy = "lower it, or raise learn.epochs"
            raise ConfigError("learn.warmup_epochs", self.warmup_epochs, reason, remedy)
        if point.batch_size > data.sizes.training:
            reason = f"exceeds the {data.sizes.training:,} training examples of data={data.name}"
            raise ConfigError("batch_size", point.batch_size, reason, "choose a smaller batch size")

    def measure(self, run: PointRun) -> None:
        from paradnn.workloads.learn.training import measure_training

        measure_training(run)

    def request_fields(self, point: Point) -> dict[str, Any]:
        assert isinstance(point.data, Pictures)
        fields = {"learning_set": str(set_file(point.data))}
        if self.start is not None:
            fields["start_weights"] = str(Path(self.start).absolute())
        if self.save is not None:
            fields["saved_weights"] = str(self._saved_file(point))
        return fields

    def _saved_file(self, point: Point) -> Path:
        assert self.save is not None
        return Path(self.save).absolute() / f"{point.model.name}-{point_id(point)}.npz"

    def progress_text(self, message: WorkloadMessage) -> str:
        assert isinstance(message, Epoch)
        return f"epoch {message.number}, {self.metric} {message.accuracy:.4f} of {self.target:g}"

    def metric_history(self, messages: Sequence[WorkloadMessage]) -> list[MetricSnapshot]:
        snapshots = []
        seconds = 0.0
        for epoch in messages:
            assert isinstance(epoch, Epoch)
            seconds += self._counted_seconds(epoch)
            metrics = {
                "heldout_accuracy": epoch.accuracy,
                "heldout_loss": epoch.heldout_loss,
                "train_loss": epoch.train_loss,
                "learning_seconds": seconds,
            }
            snapshots.append(MetricSnapshot(epoch.number, round(1e3 * epoch.ended), metrics))
        return snapshots

    def is_finished(self, result: PointResult) -> bool:
        """Return whether a training is complete, so that it must not be resumed.

        Args:
            result: Result of the process that trained.

        Returns:
            True if the training reached its target or its last epoch, or diverged. False if it was
            interrupted or never began.
        """
        if result.outcome in ("ok", "nan"):
            return True
        epochs = _epochs(result)
        return len(epochs) >= last_epoch(epochs, self.target, self.epochs, self.epochs_after)

    def name_parts(self, point: Point) -> list[str]:
        optimizer = point.optimizer
        parts = [
            *super().name_parts(point),
            f"to {self.target:g}",
            optimizer.name,
            f"lr {optimizer.learning_rate:g}",
        ]
        if point.seed:
            parts.append(f"seed {point.seed}")
        return parts

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        epochs = next(filter(None, map(_epochs, measured.results)), None)
        if not epochs:
            return {}
        accuracies = [epoch.accuracy for epoch in epochs]
        metrics = {
            "epochs": float(len(epochs)),
            "best_accuracy": max(accuracies),
            "evaluation_seconds": sum(epoch.evaluation_seconds for epoch in epochs),
        }
        if max(accuracies) < self.target:
            return metrics
        reached = next(
            position for position, value in enumerate(accuracies) if value >= self.target
        )
        counted_epochs = epochs[: reached + 1]
        steps = sum(epoch.steps for epoch in counted_epochs)
        below = sum(value < self.target for value in accuracies[reached + 1 :])
        metrics |= {
            "seconds_to_target": sum(map(self._counted_seconds, counted_epochs)),
            "epochs_to_target": float(len(counted_epochs)),
            "steps_to_target": float(steps),
            "examples_to_target": float(steps * measured.point.batch_size),
            "epochs_below_target": float(below),
        }
        joules = [epoch.joules for epoch in counted_epochs if epoch.joules is not None]
        # A sum of 0 means that the counter does not advance.
        if len(joules) == len(counted_epochs) and sum(joules) > 0:
            metrics["energy_to_target_joules"] = sum(joules)
        return metrics

    def _counted_seconds(self, epoch: Epoch) -> float:
        """Return the seconds of an epoch that count towards `seconds_to_target`.

        The evaluation counts only with learn.evaluate_inside=true.
        """
        if self.evaluate_inside:
            return epoch.train_seconds + epoch.evaluation_seconds
        return epoch.train_seconds

    def tags(self, measured: Measured) -> dict[str, str]:
        resumed = [
            str(epoch.number - 1)
            for result in measured.results
            for epoch in _epochs(result)
            if epoch.resumed
        ]
        data = measured.point.data
        tags = {}
        if isinstance(data, Pictures) and getattr(data, "path", None):
            with contextlib.suppress(DataError):  # the point's outcome names the missing file
                tags[DIGEST_TAG] = set_digest(data)
        if resumed:
            tags["resumed_after_epoch"] = ", ".join(resumed)
        starts = {epoch.start for result in measured.results for epoch in _epochs(result)} - {""}
        if starts:
            tags["start_weights"] = ", ".join(sorted(starts))
        if self.save is not None and self._saved_file(measured.point).is_file():
            tags["saved_weights"] = str(self._saved_file(measured.point))
        return tags

    def artifacts(self, measured: Measured, title: str) -> dict[str, Any]:
        epochs = _epochs(measured.results[0])
        if not epochs:
            return {}
        return {"epochs.json": {"unit": "s", "epochs": [plain_fields(epoch) for epoch in epochs]}}

    def charts(self, measured: Measured, metrics: Mapping[str, float]) -> list[Chart | BarChart]:
        from paradnn.session.overview.drawing import BLUE, GRAY, ORANGE, Chart, ChartAxis

        epochs = _epochs(measured.results[0])
        if not epochs:
            return []
        number = ChartAxis.linear(
            "epoch", [0, *(epoch.number for epoch in epochs)], "{:,.0f}".format
        )
        accuracy = [(epoch.number, epoch.accuracy) for epoch in epochs]
        shown = [self.target, *(value for _, value in accuracy)]
        curve = Chart(
            f"Held-out {self.metric}", number, ChartAxis.linear(self.metric, shown, "{:.4g}".format)
        )
        text = f"target {self.target:g}"
        curve.line(
            [(number.low, self.target), (number.high, self.target)], GRAY, dashes="6 4", tip=text
        )
        curve.note(number.low, self.target, text)
        curve.line(accuracy, BLUE)
        curve.dots(accuracy, BLUE, [f"epoch {epoch}: {value:.4f}" for epoch, value in accuracy])
        losses = {
            "training": (ORANGE, [(epoch.number, epoch.train_loss) for epoch in epochs]),
            "held out": (BLUE, [(epoch.number, epoch.heldout_loss) for epoch in epochs]),
        }
        positive = [value for _, points in losses.values() for _, value in points]
        loss = Chart("Loss", number, ChartAxis.log("loss", positive, "{:.3g}".format))
        for name, (color, points) in losses.items():
            finite = [point for point in points if math.isfinite(point[1])]
            loss.line(finite, color)
            loss.dots(finite, color, [f"epoch {epoch}: {value:.4g}" for epoch, value in finite])
            loss.legend.append((name, color))
        return [curve, loss]

    def describe(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        if "best_accuracy" not in metrics:
            return None
        epochs = counted(round(metrics["epochs"]), "epoch")
        best = f"best accuracy {metrics['best_accuracy']:.4f} in {epochs}"
        below = round(metrics.get("epochs_below_target", 0))
        if below:
            best += f", {below} of them below the target after it was reached"
        clauses = [best]
        if "seconds_to_target" in metrics:
            clauses = [_target_clause(metrics), best]
        return ResultText("learning", clauses, verdict="; ".join(clauses))

    def require_predictable(self) -> None:
        reason = "cannot be planned, because the number of epochs of a training is unknown"
        remedy = "plan its steps with task=step (a training takes at most measure.timeout)"
        raise ConfigError("task", "learn", reason, remedy)


def _target_clause(metrics: Mapping[str, float]) -> str:
    """Return the time, epochs and steps that the training needed to reach the target, as text.

    The accuracy is evaluated only at the end of an epoch. If the first epoch reached the target,
    its duration is an upper bound of the time.

    Args:
        metrics: Metrics of the run by name.
    """
    seconds = metrics["seconds_to_target"]
    steps = counted(round(metrics["steps_to_target"]), "step")
    epochs = round(metrics["epochs_to_target"])
    if epochs == 1:
        return f"target reached in at most {seconds:.3f} s, within the first epoch of {steps}"
    return f"target reached in {seconds:.3f} s, {counted(epochs, 'epoch')}, {steps}"


def _epochs(result: PointResult) -> list[Epoch]:
    return [epoch for epoch in result.news if isinstance(epoch, Epoch)]


LEARN = Learn()
