"""Epochs as metrics of a run, and as the curve that the UI draws: docs/learning.md says what each means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paradnn.config.learn import Learn
from paradnn.config.outcome import PointResult
from paradnn.config.point import Point
from paradnn.core.words import counted
from paradnn.worker.learning.messages import Epoch, last_epoch
from paradnn.worker.messages import Answer

__all__ = ["Moment", "curve", "has_ended", "learning_metrics", "learning_tags", "learning_words"]


@dataclass(frozen=True)
class Moment:
    """Metrics as they were at a step, which is an epoch, at a time in Unix milliseconds."""

    step: int
    time: int
    metrics: Mapping[str, float]


def curve(settings: Learn, epochs: Sequence[Epoch]) -> list[Moment]:
    """What is known after each epoch."""
    moments, seconds = [], 0.0
    for epoch in epochs:
        seconds += _counted(settings, epoch)
        metrics = {
            "heldout_accuracy": epoch.accuracy,
            "heldout_loss": epoch.heldout_loss,
            "train_loss": epoch.train_loss,
            "learning_seconds": seconds,
        }
        moments.append(Moment(epoch.number, round(1e3 * epoch.ended), metrics))
    return moments


def learning_metrics(point: Point, answers: Sequence[Answer]) -> dict[str, float]:
    """What it took to the target, where it was reached, and what the accuracy did before and after."""
    epochs = next((answer.epochs for answer in answers if answer.epochs), None)
    if not epochs or point.learn is None:
        return {}
    accuracies = [epoch.accuracy for epoch in epochs]
    metrics = {
        "epochs": float(len(epochs)),
        "best_accuracy": max(accuracies),
        "evaluation_seconds": sum(epoch.evaluation_seconds for epoch in epochs),
    }
    reached = next((place for place, value in enumerate(accuracies, 1) if value >= point.learn.target), None)
    if reached is None:
        return metrics
    until = epochs[:reached]
    steps = sum(epoch.steps for epoch in until)
    metrics |= {
        "seconds_to_target": sum(_counted(point.learn, epoch) for epoch in until),
        "epochs_to_target": float(reached),
        "steps_to_target": float(steps),
        "examples_to_target": float(steps * point.batch_size),
        "epochs_below_target": float(sum(value < point.learn.target for value in accuracies[reached:])),
    }
    joules = [epoch.joules for epoch in until if epoch.joules is not None]
    return metrics | ({"energy_to_target_joules": sum(joules)} if len(joules) == reached else {})


def learning_tags(answers: Sequence[Answer]) -> dict[str, str]:
    """After which epochs the training was interrupted, if it was."""
    resumed = [str(epoch.number - 1) for answer in answers for epoch in answer.epochs or () if epoch.resumed]
    return {"resumed_after_epoch": ", ".join(resumed)} if resumed else {}


def has_ended(settings: Learn, result: PointResult) -> bool:
    """Whether a training came to an end of its own: what was cut short, or never began, may go on another time."""
    epochs = (result.answer.epochs if result.answer else None) or []
    if result.outcome in ("ok", "nan"):
        return True
    return len(epochs) >= last_epoch(epochs, settings.target, settings.epochs, settings.epochs_after)


def _counted(settings: Learn, epoch: Epoch) -> float:
    """Seconds of an epoch that count."""
    return epoch.train_seconds + (epoch.evaluation_seconds if settings.evaluate_inside else 0.0)


def learning_words(metrics: Mapping[str, float]) -> str:
    """How it went, in a line; empty where nothing was learnt."""
    if "best_accuracy" not in metrics:
        return ""
    best = f"best accuracy {metrics['best_accuracy']:.4f} in {counted(round(metrics['epochs']), 'epoch')}"
    if "seconds_to_target" not in metrics:
        return best
    epochs = counted(round(metrics["epochs_to_target"]), "epoch")
    words = f"target reached in {metrics['seconds_to_target']:.3f} s, {epochs}, {metrics['steps_to_target']:,.0f} steps"
    below = round(metrics["epochs_below_target"])
    return f"{words}; {best}" + (f", {below} of them below the target after it was reached" if below else "")
