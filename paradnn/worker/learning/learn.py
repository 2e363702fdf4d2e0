"""Training until an accuracy is reached: epochs of real batches, each followed by an evaluation on what is held out.

The clock runs while steps do. Before it starts everything was compiled on a synthetic batch, through the same path as
real ones, and the model is put back to where it was: its first step on the clock is the first that it learns from.
A training that was cut short goes on from its checkpoint, with the clock where it stood.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from paradnn.worker.energy import EnergyMeter
from paradnn.worker.frameworks import LearningStep
from paradnn.worker.learning.checkpoint import Checkpoint
from paradnn.worker.learning.examples import Batch, Examples, Part, training_count
from paradnn.worker.learning.messages import Epoch, last_epoch
from paradnn.worker.measure import NotFinite

__all__ = ["Learner", "NotReached", "judge", "with_course"]

#: Held-out examples of one forward pass; of sequences as many as a step has, whose logits fit.
_EVALUATED = 512
#: How many likeliest classes may hold the right one.
_LIKELIEST = {"accuracy": 1, "top5": 5}


class NotReached(Exception):
    """All epochs have passed, and none has reached the target."""


class Learner:
    """A step with a set to learn from; `synthetic` is a batch like any other, whose values mean nothing."""

    def __init__(self, step: LearningStep, examples: Examples, point: Mapping[str, Any], synthetic: Batch) -> None:
        self._step, self._examples, self._point, self._synthetic = step, examples, point, synthetic
        self._settings = point["learn"]
        most = _EVALUATED if examples.heldout.classes.ndim == 1 else point["batch_size"]
        self._size = min(most, len(examples.heldout))
        self._checkpoint = Checkpoint(point.get("checkpoint"))
        self._start = step.values()
        self.steps = len(examples.training) // point["batch_size"]

    def run(self, steps: int) -> float | None:
        """As `Step.run`: steps on the synthetic batch, each placed on the device again, as those of an epoch are."""
        return self._step.feed(steps, lambda: self._synthetic)

    def compilations(self) -> int:
        """As `Step.compilations`."""
        return self._step.compilations()

    def compile_note(self) -> str | None:
        """As `Step.compile_note`."""
        return self._step.compile_note()

    def restart(self) -> None:
        """Compile the forward pass too; then nothing of what the model has seen so far is left in it."""
        self.evaluate()
        self._step.assign(self._start)

    def evaluate(self) -> tuple[float, float]:
        """Accuracy and mean cross entropy over the held-out examples."""
        heldout, count = self._examples.heldout, len(self._examples.heldout)
        likeliest, known, losses = _LIKELIEST[self._settings["metric"]], [], []
        for start in range(0, count, self._size):
            # The last batch is filled with others, so that its shape is that of all.
            indices = np.arange(start, start + self._size) % count
            logits = self._step.outputs([heldout.inputs[indices]])[: count - start]
            judged = _judged(logits, heldout.classes[start : start + self._size], likeliest)
            known.append(judged[0])
            losses.append(judged[1])
        return float(np.concatenate(known).mean()), float(np.concatenate(losses).mean())

    def learn(self, meter: EnergyMeter, tell: Callable[[list[Epoch]], None]) -> None:
        """Train to the target and as many epochs after it; `tell` is called with all epochs as each ends.

        A training that has a checkpoint goes on from there, after `tell` was called for the epochs that it holds.
        Raises NotFinite for a loss that is not, NotReached where the target was not.
        """
        settings = self._settings
        generator = np.random.default_rng(self._point["seed"])
        epochs = self._resume(generator, tell)
        resumed = bool(epochs)
        while len(epochs) < last_epoch(epochs, settings["target"], settings["epochs"], settings["epochs_after"]):
            epochs.append(self._epoch(len(epochs) + 1, generator, meter, resumed))
            resumed = False
            tell(list(epochs))
            if not math.isfinite(epochs[-1].train_loss):
                raise NotFinite(f"the loss is {epochs[-1].train_loss} at the end of epoch {len(epochs)}")
            self._checkpoint.save(epochs, self._step.values)
        best = max(epoch.accuracy for epoch in epochs)
        if best < settings["target"]:
            raise NotReached(
                f"{settings['metric']} {best:.4f} at best in {len(epochs)} epochs (learn.epochs), "
                f"learn.target={settings['target']}"
            )

    def _resume(self, generator: np.random.Generator, tell: Callable[[list[Epoch]], None]) -> list[Epoch]:
        """Put the model and the order of examples where an earlier process left them; its epochs."""
        kept = self._checkpoint.load(self._start)
        if kept is None:
            return []
        self._step.assign(kept.values)
        for count in range(1, len(kept.epochs) + 1):
            generator.permutation(len(self._examples.training))
            tell(kept.epochs[:count])
        return kept.epochs

    def _epoch(self, number: int, generator: np.random.Generator, meter: EnergyMeter, resumed: bool) -> Epoch:
        meter.start()
        start = time.perf_counter()
        batches = self._examples.epoch(self._point["batch_size"], generator)
        loss = self._step.feed(self.steps, lambda: next(batches))
        trained = time.perf_counter()
        joules = meter.joules()
        accuracy, heldout_loss = self.evaluate()
        evaluated = time.perf_counter()
        if self._settings["evaluate_inside"]:
            joules = meter.joules()
        return Epoch(
            number=number,
            steps=self.steps,
            ended=time.time(),
            train_seconds=trained - start,
            evaluation_seconds=evaluated - trained,
            train_loss=math.nan if loss is None else loss,
            heldout_loss=heldout_loss,
            accuracy=accuracy,
            joules=joules,
            resumed=resumed,
        )


def judge(logits: np.ndarray, part: Part, likeliest: int = 1) -> tuple[float, float]:
    """The share of examples whose class is among the `likeliest`, and the mean cross entropy, of logits (n, classes).

    A class that is as likely as the right one counts as likelier: who says the same of all classes knows nothing.
    """
    known, losses = _judged(logits, part.classes, likeliest)
    return float(known.mean()), float(losses.mean())


def with_course(point: Mapping[str, Any]) -> dict[str, Any]:
    """`point` with what its optimizer must know of the training: over how many steps the learning rate changes."""
    learn, steps = point["learn"], training_count(point["learning_set"]) // point["batch_size"]
    course = {"shape": learn["schedule"], "rise": steps * learn["warmup_epochs"], "steps": steps * learn["epochs"]}
    return {**point, "optimizer": {**point["optimizer"], "course": course}}


def _judged(logits: np.ndarray, classes: np.ndarray, likeliest: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each class in `classes` (...): whether it is among the likeliest of logits (..., classes), and its loss."""
    logits, classes = logits.reshape(-1, logits.shape[-1]).astype("float64"), classes.ravel()
    right = logits[np.arange(len(classes)), classes]
    with np.errstate(invalid="ignore"):
        above = (logits >= right[:, None]).sum(axis=1)
        shifted = logits - logits.max(axis=1, keepdims=True)
        losses = np.log(np.exp(shifted).sum(axis=1)) - (right - logits.max(axis=1))
    return (above <= likeliest) & np.isfinite(right), losses
