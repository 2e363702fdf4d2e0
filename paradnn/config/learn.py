"""What it means to have learnt, typed: the keys of `task=learn`, and what a point must be to train to an accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paradnn.config.sets import SETS, Arrays
from paradnn.core.schema import option, read
from paradnn.errors import ConfigError

__all__ = ["LEARN", "STEP", "Learn", "check_learn", "read_learn"]

STEP, LEARN = "step", "learn"


@dataclass(frozen=True)
class Learn:
    """The accuracy on held-out examples that ends the clock; it is looked at after every epoch."""

    metric: str = option(
        "accuracy",
        "share of held-out examples whose class is the likeliest, or among the five likeliest",
        choices=("accuracy", "top5"),
    )
    target: float = option(0.97, "the first epoch that reaches it counts", low=1e-3, high=1.0)
    epochs: int = option(100, "give up after so many: outcome timeout", low=1, high=1_000_000)
    epochs_after: int = option(0, "train on for so many once the target is reached", low=0, high=1_000_000)
    evaluate_inside: bool = option(False, "whether evaluating is part of the time and energy to the target")
    schedule: str = option(
        "constant",
        "what becomes of optimizer.learning_rate until learn.epochs: it stays, or falls to 0 (cosine, linear)",
        choices=("constant", "cosine", "linear"),
    )
    warmup_epochs: int = option(0, "epochs in which the learning rate rises to optimizer.learning_rate", low=0)


def read_learn(config: Mapping[str, Any]) -> Learn | None:
    """The keys of `learn` in a composed configuration; None where the task is another."""
    return read(Learn, config.get("learn", {}), "learn") if config.get("task", STEP) == LEARN else None


def check_learn(point: Any) -> None:
    """Raises ConfigError where `point`, a `Point`, cannot learn, or has a set to learn from and does not."""
    data, model = point.data, point.model
    if point.learn is None:
        if isinstance(data, Arrays):
            raise ConfigError("data", data.name, "is a set to learn from", "add task=learn, or use data=synthetic")
        return
    if model.is_kernel:
        raise ConfigError("task", LEARN, f"model={model.name} is one operation, which learns nothing", "choose a model")
    if not isinstance(data, Arrays):
        sets = ", ".join(SETS)
        raise ConfigError("data", data.name, "has no held-out examples to learn for", f"choose one of {sets}")
    for key, value, usual, why in (
        ("mode", point.mode, "train", "trains"),
        ("devices", point.devices, 1, "is for one device"),
        ("measure.processes", point.measure.processes, 1, "trains once"),
        ("measure.keep_trace", point.measure.keep_trace, False, "profiles no step"),
    ):
        if value != usual:
            more = "; sweep seed for more" if key == "measure.processes" else ""
            raise ConfigError(key, value, f"task=learn {why}", f"set {key}={str(usual).lower()}{more}")
    if getattr(data, "path", "") is None:
        reason = f"data={data.name} is read from files"
        raise ConfigError("data.path", "null", reason, "name the folder that holds them")
    data.check(model)
    if point.learn.warmup_epochs >= point.learn.epochs:
        reason = f"leaves none of learn.epochs={point.learn.epochs}"
        raise ConfigError("learn.warmup_epochs", point.learn.warmup_epochs, reason, "choose fewer")
    if point.batch_size > (training := data.counts(model).training):
        reason = f"is more than the {training:,} training examples of data={data.name}"
        raise ConfigError("batch_size", point.batch_size, reason, "choose a smaller one")
