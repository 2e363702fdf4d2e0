"""Train until a target is reached: epochs of real batches, each followed by an evaluation.

The steps are timed, and with learn.evaluate_inside=true also the evaluations. Before the first
epoch, all programs are compiled with a synthetic batch, which is fed to the step like real batches.
Then the variables of the model are reset.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from paradnn.core.errors import PointEnded
from paradnn.core.messages import Timing, Trial
from paradnn.core.words import counted
from paradnn.worker.energy import EnergyMeter
from paradnn.worker.evaluation import Arrays, evaluate, fit_examples, read_arrays
from paradnn.worker.frameworks import Step
from paradnn.worker.measure import AttemptRecorder, NotFinite, compile_steps
from paradnn.worker.point import PointRun, TimedSteps
from paradnn.worker.step import prepare_step, product_flops, synthetic_batch
from paradnn.workloads.learn.checkpoint import Checkpoint
from paradnn.workloads.learn.messages import Epoch, last_epoch
from paradnn.workloads.learn.weights import require_writable, save_weights, start_from

#: Inputs and targets of a step.
Batch = tuple[list[np.ndarray], list[np.ndarray]]
#: Maximum number of examples in one forward pass of an evaluation.
_EVALUATION_BATCH = 512
#: `learn.metric` -> an answer is correct if the true class is among this number of classes with the
#: highest scores.
_LIKELIEST = {"accuracy": 1, "top5": 5}


class NotReached(PointEnded):
    """No epoch, up to the maximum number of epochs, has reached the target."""

    outcome = "timeout"


class Learner:
    """Trains a model with a step, and evaluates it on held-out examples.

    A learner also has all attributes of the step. `compile_steps` therefore accepts it in place
    of the step.

    Args:
        step: A training step of the model.
        examples: Training and held-out examples, as `fit_examples` returns them.
        point: Configuration to measure, as the driver sends it.
        synthetic: A batch of arbitrary values, for compilation.
        names: The names of the model's variables, in the order of `Step.values`.

    Attributes:
        steps: Number of steps per epoch.
    """

    def __init__(
        self,
        step: Step,
        examples: Arrays,
        point: Mapping[str, Any],
        synthetic: Batch,
        names: Sequence[str] = (),
    ) -> None:
        self._step = step
        self._examples = examples
        self._point = point
        self._synthetic = synthetic
        self._settings = point["learn"]
        self._evaluation_batch = min(_EVALUATION_BATCH, len(examples["heldout"]))
        self._checkpoint = Checkpoint(point.get("checkpoint"))
        self._names = names
        self._initial_values = step.values()
        self._start = ""
        if point.get("start_weights"):
            path = Path(point["start_weights"])
            self._initial_values, count = start_from(path, names, self._initial_values)
            self._start = f"{count} of {len(names)} variables from {path}"
        self.steps = len(examples["training"]) // point["batch_size"]

    def run(self, steps: int) -> float | None:
        """Run steps on the synthetic batch, like `Step.run`.

        Each step copies the batch to the device, as the steps of an epoch do.

        Args:
            steps: Number of steps.

        Returns:
            The loss of the last step.
        """
        return self._step.feed(steps, lambda: self._synthetic)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def restart(self) -> None:
        """Compile the evaluation's forward pass, then reset the variables to initial values."""
        self.evaluate()
        self._step.assign(self._initial_values)

    def evaluate(self) -> tuple[float, float]:
        """Evaluate the model on the held-out examples.

        Returns:
            The value of learn.metric (0..1), and the mean cross entropy.
        """
        return evaluate(
            self._step.outputs,
            self._examples,
            batch_size=self._evaluation_batch,
            likeliest=_LIKELIEST[self._settings["metric"]],
        )

    def learn(self, meter: EnergyMeter, report: Callable[[Epoch], None]) -> None:
        """Train until the target is reached, then for learn.epochs_after further epochs.

        Resumes from the checkpoint if there is one, and saves the weights if learn.save is set.

        Args:
            meter: Measures the energy of each epoch.
            report: Called with each epoch of the checkpoint, then with each new epoch when it ends.

        Raises:
            NotFinite: If the loss is infinite or NaN.
            NotReached: If no epoch reached the target.
            UnavailableError: If the weights cannot be saved.
        """
        generator = np.random.default_rng(self._point["seed"])
        epochs, values = self._checkpoint.load(self._initial_values) or ([], self._initial_values)
        self._step.assign(values)
        for epoch in epochs:
            # Advance the generator, so that the next epochs use the same order of examples as an
            # uninterrupted training.
            generator.permutation(len(self._examples["training"]))
            report(epoch)
        restored = len(epochs)
        while len(epochs) < self._last_epoch(epochs):
            is_resumed = restored > 0 and len(epochs) == restored
            epoch = self._epoch(len(epochs) + 1, generator, meter, is_resumed=is_resumed)
            epochs.append(epoch)
            report(epoch)
            if not math.isfinite(epoch.train_loss):
                raise NotFinite(
                    f"the loss is {epoch.train_loss} at the end of epoch {len(epochs)}; lower "
                    "optimizer.learning_rate"
                )
            self._checkpoint.save(epochs, self._step.values)
        if self._point.get("saved_weights"):
            save_weights(Path(self._point["saved_weights"]), self._names, self._step.values())
        self._check_reached(epochs)

    def _last_epoch(self, epochs: Sequence[Epoch]) -> int:
        settings = self._settings
        return last_epoch(
            epochs,
            target=settings["target"],
            max_epochs=settings["epochs"],
            epochs_after=settings["epochs_after"],
        )

    def _check_reached(self, epochs: Sequence[Epoch]) -> None:
        """Check that an epoch reached the target.

        Args:
            epochs: All epochs of the training.

        Raises:
            NotReached: If no epoch reached it.
        """
        settings = self._settings
        best = max(epoch.accuracy for epoch in epochs)
        if best < settings["target"]:
            raise NotReached(
                f"learn.target={settings['target']:g} was not reached: the best "
                f"{settings['metric']} is {best:.4f} in {counted(len(epochs), 'epoch')}; raise "
                "learn.epochs, or lower learn.target"
            )

    def _epoch(
        self, number: int, generator: np.random.Generator, meter: EnergyMeter, *, is_resumed: bool
    ) -> Epoch:
        """Train one epoch, evaluate the model, and return the epoch with its measurements.

        An epoch uses the training examples in a new random order. The last examples are omitted if
        they do not fill a batch.

        Args:
            number: Number of the epoch, from 1.
            generator: Source of the random order.
            meter: Measures the energy.
            is_resumed: Whether this is the first epoch after an interruption.
        """
        meter.start()
        start = time.perf_counter()
        examples = self._examples["training"]
        classes = self._examples["training_classes"]
        order = generator.permutation(len(examples))
        batches = np.split(order[: self.steps * self._point["batch_size"]], self.steps)
        arguments = (([examples[batch]], [classes[batch]]) for batch in batches)
        loss = self._step.feed(self.steps, lambda: next(arguments))
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
            resumed=is_resumed,
            start=self._start,
        )


def measure_training(run: PointRun) -> None:
    """Build and compile the model, then train it to the target.

    Every epoch counts as a timed block of steps, and is reported to the driver when it ends.

    Args:
        run: Context of the measurement in the worker; it collects the results.

    Raises:
        NotFinite: If the loss is infinite or NaN.
        NotReached: If no epoch reached the target.
        UnavailableError: If a file of weights cannot be read or written.
    """
    phases = run.phases
    if run.request.get("saved_weights"):
        require_writable(Path(run.request["saved_weights"]))
    arrays = read_arrays(run.request["learning_set"])
    point = _with_schedule(run.request, examples=len(arrays["training"]))
    with phases("build"):
        workload, step = prepare_step(point, run.framework)
    with phases("input"):
        examples = fit_examples(arrays, workload.inputs[0].shape)
        synthetic = synthetic_batch(workload, point["batch_size"], point["seed"])
        names = [variable.path for variable in step.model_variables(workload.model)]
        learner = Learner(step, examples, point, synthetic, names)
    with phases("compile"):
        compilation, _ = compile_steps(cast("Step", learner))
        products = product_flops(step)
        learner.restart()
    run.memory.begin_steps()
    meter = run.energy_meter()
    epochs: list[Epoch] = []
    recorder = AttemptRecorder(EnergyMeter(meter.source), step.compilations)

    def report(epoch: Epoch) -> None:
        epochs.append(epoch)
        phases.report(epoch, None)

    with phases("learn"):
        recorder.start()
        try:
            learner.learn(meter, report)
        finally:
            recorder.stop()
    joules = [epoch.joules for epoch in epochs if epoch.joules is not None]
    energy = sum(joules) if len(joules) == len(epochs) else None
    timing = recorder.checked(_timing(epochs))
    timed = TimedSteps(timing, energy, meter.source, recorder.contention)
    run.note_measured(timed, workload, compilation, products)
    run.note_memory()


def _with_schedule(request: Mapping[str, Any], examples: int) -> dict[str, Any]:
    """Add the learning rate schedule, converted from epochs to steps, to a configuration.

    Args:
        request: Configuration to measure, as the driver sends it.
        examples: Number of training examples.
    """
    learn = request["learn"]
    steps = examples // request["batch_size"]
    schedule = {
        "shape": learn["schedule"],
        "rise": steps * learn["warmup_epochs"],
        "steps": steps * learn["epochs"],
    }
    return {**request, "optimizer": {**request["optimizer"], "schedule": schedule}}


def _timing(epochs: Sequence[Epoch]) -> Timing:
    """Convert epochs to a `Timing` whose timed blocks are the epochs.

    A training is timed as a whole, so it counts as steady even if the times of its epochs differ.
    """
    blocks = [epoch.train_seconds for epoch in epochs]
    first = Trial(epochs[0].steps, blocks[0])
    return Timing(
        steps_per_block=first.steps,
        calibration=[first],
        warmup=[],
        blocks=blocks,
        steady=True,
        steady_reason="a training is timed as a whole",
        final_loss=epochs[-1].train_loss,
    )
