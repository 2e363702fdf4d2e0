"""Training until an accuracy on held-out examples is reached (`task=learn`): docs/how-to/learning.md says
what each means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.config.rules import PointRules
from paradnn.core.channel import plain_fields
from paradnn.core.errors import ConfigError, require_value
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
from paradnn.workloads.learn.sets import SETS, Pictures, set_file

if TYPE_CHECKING:
    from paradnn.config.outcome import PointResult
    from paradnn.config.point import Point
    from paradnn.session.measured import Measured
    from paradnn.worker.point import PointRun


@dataclass(frozen=True)
class Learn(Workload, PointRules, WorkerSide, RunRecords, ResultDescription, PhaseForecast):
    """The accuracy on held-out examples that ends the clock; it is looked at after every epoch."""

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
    }

    metric: str = option(
        "accuracy",
        "share of held-out examples whose class is the likeliest, or among the five likeliest",
        choices=("accuracy", "top5"),
    )
    target: float = option(0.97, "the first epoch that reaches it counts", low=1e-3, high=1.0)
    epochs: int = option(100, "give up after so many: outcome timeout", low=1, high=1_000_000)
    epochs_after: int = option(
        0, "train on for so many once the target is reached", low=0, high=1_000_000
    )
    evaluate_inside: bool = option(
        False, "whether evaluating is part of the time and energy to the target"
    )
    schedule: str = option(
        "constant",
        "what becomes of optimizer.learning_rate until learn.epochs: it stays, or falls to 0 (cosine, linear)",
        choices=("constant", "cosine", "linear"),
    )
    warmup_epochs: int = option(
        0, "epochs in which the learning rate rises to optimizer.learning_rate", low=0
    )

    def check_model(self, model: Model) -> None:
        if model.is_kernel or model.is_communication:
            reason = f"model={model.name} trains nothing"
            raise ConfigError("task", "learn", reason, "leave it out, or choose another model")

    def canonical(self, point: Point) -> Point:
        return replace(point, measure=replace(point.measure, profile=False))

    def check(self, point: Point) -> None:
        data = point.data
        model = point.model
        if not isinstance(data, Pictures):
            sets = ", ".join(SETS)
            raise ConfigError(
                "data", data.name, "has no held-out examples to learn for", f"choose one of {sets}"
            )
        require_value("devices", point.devices, required=1, reason="task=learn is for one device")
        require_value(
            "measure.processes",
            point.measure.processes,
            required=1,
            reason="task=learn trains once",
            remedy="set measure.processes=1; sweep seed for more",
        )
        require_value(
            "measure.keep_trace",
            point.measure.keep_trace,
            required=False,
            reason="task=learn profiles no step",
        )
        if getattr(data, "path", "") is None:
            reason = f"data={data.name} is read from files"
            raise ConfigError("data.path", "null", reason, "name the folder that holds them")
        data.check(model)
        if self.warmup_epochs >= self.epochs:
            reason = f"leaves none of learn.epochs={self.epochs}"
            raise ConfigError("learn.warmup_epochs", self.warmup_epochs, reason, "choose fewer")
        if point.batch_size > (training := data.known.training):
            reason = f"is more than the {training:,} training examples of data={data.name}"
            raise ConfigError("batch_size", point.batch_size, reason, "choose a smaller one")

    def measure(self, run: PointRun) -> None:
        from paradnn.workloads.learn.training import measure_training

        measure_training(run)

    def request_fields(self, point: Point) -> dict[str, Any]:
        assert isinstance(point.data, Pictures)
        return {"learning_set": str(set_file(point.data))}

    def progress_text(self, news: WorkloadMessage) -> str:
        assert isinstance(news, Epoch)
        return f"epoch {news.number}, {self.metric} {news.accuracy:.4f} of {self.target:g}"

    def metric_history(self, news: Sequence[WorkloadMessage]) -> list[MetricSnapshot]:
        moments = []
        seconds = 0.0
        for epoch in news:
            assert isinstance(epoch, Epoch)
            seconds += self._counted(epoch)
            metrics = {
                "heldout_accuracy": epoch.accuracy,
                "heldout_loss": epoch.heldout_loss,
                "train_loss": epoch.train_loss,
                "learning_seconds": seconds,
            }
            moments.append(MetricSnapshot(epoch.number, round(1e3 * epoch.ended), metrics))
        return moments

    def is_finished(self, result: PointResult) -> bool:
        """What was cut short, or never began, may go on another time."""
        epochs = _epochs(result)
        if result.outcome in ("ok", "nan"):
            return True
        return len(epochs) >= last_epoch(epochs, self.target, self.epochs, self.epochs_after)

    def name_parts(self, point: Point) -> list[str]:
        words = [*super().name_parts(point), f"to {self.target:g}", point.optimizer.name]
        return [*words, f"lr {point.optimizer.learning_rate:g}"] + (
            [f"seed {point.seed}"] if point.seed else []
        )

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
        reached = next(
            (place for place, value in enumerate(accuracies, 1) if value >= self.target), None
        )
        if reached is None:
            return metrics
        until = epochs[:reached]
        steps = sum(epoch.steps for epoch in until)
        metrics |= {
            "seconds_to_target": sum(self._counted(epoch) for epoch in until),
            "epochs_to_target": float(reached),
            "steps_to_target": float(steps),
            "examples_to_target": float(steps * measured.point.batch_size),
            "epochs_below_target": float(
                sum(value < self.target for value in accuracies[reached:])
            ),
        }
        joules = [epoch.joules for epoch in until if epoch.joules is not None]
        return metrics | (
            {"energy_to_target_joules": sum(joules)} if len(joules) == reached else {}
        )

    def _counted(self, epoch: Epoch) -> float:
        """Seconds of an epoch that count."""
        return epoch.train_seconds + (epoch.evaluation_seconds if self.evaluate_inside else 0.0)

    def tags(self, measured: Measured) -> dict[str, str]:
        resumed = [
            str(epoch.number - 1)
            for result in measured.results
            for epoch in _epochs(result)
            if epoch.resumed
        ]
        return {"resumed_after_epoch": ", ".join(resumed)} if resumed else {}

    def artifacts(self, measured: Measured, title: str) -> dict[str, Any]:
        epochs = _epochs(measured.results[0])
        if epochs:
            return {
                "epochs.json": {"unit": "s", "epochs": [plain_fields(epoch) for epoch in epochs]}
            }
        return {}

    def describe(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        if "best_accuracy" not in metrics:
            return None
        epochs = counted(round(metrics["epochs"]), "epoch")
        clauses = [f"best accuracy {metrics['best_accuracy']:.4f} in {epochs}"]
        below = round(metrics.get("epochs_below_target", 0))
        if below:
            clauses[0] += f", {below} of them below the target after it was reached"
        if "seconds_to_target" in metrics:
            clauses.insert(0, _target_clause(metrics))
        return ResultText("learning", clauses, verdict="; ".join(clauses))

    def require_predictable(self) -> None:
        reason = "has no forecast: how many epochs a training takes is not known before"
        remedy = "each takes measure.timeout at most; plan task=step for its steps"
        raise ConfigError("task", "learn", reason, remedy)


def _target_clause(metrics: Mapping[str, float]) -> str:
    """Return when the target was reached, as text.

    The accuracy is evaluated after whole epochs. If the first one reached the target, its time is
    an upper bound and there is no lower one.
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
