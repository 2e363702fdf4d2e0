"""Training until an accuracy is reached: epochs of real batches, each followed by an evaluation on
what is held out.

The clock runs while steps do. Before it starts everything was compiled on a synthetic batch,
through the same path as real ones, and the model is put back to where it was. A checkpoint keeps a
training after its epochs: an .npz with the variables in the order of `Step.values` and the epochs
so far as JSON, whole or not there.
"""

import contextlib
import json
import math
import os
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from paradnn.core.channel import MessageError, plain, read_message
from paradnn.core.errors import PointEnded, UnavailableError
from paradnn.core.messages import Timing, Trial
from paradnn.worker.frameworks import Step
from paradnn.worker.measure import AttemptRecorder, NotFinite, compile_steps
from paradnn.worker.meters import EnergyMeter
from paradnn.worker.point import PointRun
from paradnn.worker.step import product_flops, synthetic_batch
from paradnn.workloads.learn.messages import Epoch, last_epoch

Arrays = Mapping[str, np.ndarray]
Batch = tuple[list[np.ndarray], list[np.ndarray]]


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """The set in the file `path`; UnavailableError where it cannot be read."""
    try:
        with np.load(path) as file:
            return {
                name: file[name]
                for name in ("training", "training_classes", "heldout", "heldout_classes")
            }
    except (OSError, ValueError, KeyError) as error:
        raise UnavailableError(f"the set to learn from cannot be read: {error}") from error


def fitted_examples(arrays: Arrays, shape: tuple[int, ...]) -> Arrays:
    """A set for a model whose input has `shape` without the batch axis: flat, or pictures with
    pixels repeated. Values are standardised by the training part, of pictures each channel. Inputs
    (examples, *shape) are float32, classes (examples,) int32.
    """
    training = arrays["training"].astype("float32")
    axes = tuple(range(training.ndim - 1)) if training.ndim == 4 else None
    mean = training.mean(axes)
    scale = training.std(axes) + 1e-12
    found = {name: arrays[name].astype("int32") for name in ("training_classes", "heldout_classes")}
    for name in ("training", "heldout"):
        values = (arrays[name].astype("float32") - mean) / scale
        if len(shape) == 1:
            values = values.reshape(len(values), -1)
        else:
            times = shape[0] // values.shape[1]
            values = np.broadcast_to(
                values.repeat(times, axis=1).repeat(times, axis=2), (len(values), *shape)
            )
        found[name] = np.ascontiguousarray(values)
    return found


#: The share of the time that may go into writing: of an epoch that is shorter than 49 writes, the
#: next is waited for.
_SHARE = 0.02
_DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, MessageError)


class Checkpoint:
    """The file at `path`; None: nothing is kept."""

    def __init__(self, path: str | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._ended = -np.inf  # when the latest write did
        self._took = 0.0

    def load(self, like: Sequence[np.ndarray]) -> tuple[list[Epoch], list[np.ndarray]] | None:
        """The epochs of an earlier process whose variables are `like`, and these after them; None
        without any.
        """
        if self._path is None or not self._path.is_file():
            return None
        try:
            # Opened here: of a file that is none NumPy leaves it open.
            with self._path.open("rb") as opened, np.load(opened) as file:
                values = [file[name] for name in file.files if name != "epochs"]
                content = json.loads(file["epochs"].tobytes())
            epochs = [
                read_message(Epoch, entry, f"epochs[{place}]")
                for place, entry in enumerate(content)
            ]
        except _DAMAGED as error:
            said = f"no checkpoint, or a damaged one ({error}); starting from the beginning"
            print(f"{self._path}: {said}", file=sys.stderr)
            return None
        fits = [(value.shape, value.dtype) for value in values] == [
            (value.shape, value.dtype) for value in like
        ]
        return (epochs, values) if fits and epochs else None

    def save(self, epochs: Sequence[Epoch], values: Callable[[], Sequence[np.ndarray]]) -> None:
        """Keep the training as it is now, unless the latest write is too near; a disk that is full
        keeps nothing.
        """
        begin = self._clock()
        if self._path is None or begin - self._ended < self._took * (1 - _SHARE) / _SHARE:
            return
        arrays: Any = {f"value_{place}": value for place, value in enumerate(values())}
        text = json.dumps(plain(list(epochs))).encode()
        made = unfinished(self._path)
        try:  # whole or not at all, even where the machine goes down
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with made.open("wb") as file:
                np.savez(file, epochs=np.frombuffer(text, np.uint8), **arrays)
                file.flush()
                os.fsync(file.fileno())
            os.replace(made, self._path)
        except OSError as error:
            print(
                f"{self._path}: cannot be written ({error.strerror}); no more checkpoints",
                file=sys.stderr,
            )
            with contextlib.suppress(OSError):
                made.unlink()
            self._path = None
        self._ended = self._clock()
        self._took = self._ended - begin


def unfinished(path: Path) -> Path:
    """Where a checkpoint is written before it has its name: what is left of it where the writer was
    killed.
    """
    return path.with_suffix(".part")


#: Held-out examples of one forward pass.
_EVALUATED = 512
#: How many likeliest classes may hold the right one.
_LIKELIEST = {"accuracy": 1, "top5": 5}


class NotReached(PointEnded):
    """All epochs have passed, and none has reached the target."""

    outcome = "timeout"


class Learner:
    """A step with a set to learn from; `synthetic` is a batch like any other, whose values mean
    nothing.
    """

    def __init__(
        self, step: Step, examples: Arrays, point: Mapping[str, Any], synthetic: Batch
    ) -> None:
        self._step = step
        self._examples = examples
        self._point = point
        self._synthetic = synthetic
        self._settings = point["learn"]
        self._size = min(_EVALUATED, len(examples["heldout"]))
        self._checkpoint = Checkpoint(point.get("checkpoint"))
        self._start = step.values()
        self.steps = len(examples["training"]) // point["batch_size"]

    def run(self, steps: int) -> float | None:
        """As `Step.run`: steps on the synthetic batch, each placed on the device again, as those of
        an epoch are.
        """
        return self._step.feed(steps, lambda: self._synthetic)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def restart(self) -> None:
        """Compile the forward pass too; then nothing of what the model has seen so far is left in
        it.
        """
        self.evaluate()
        self._step.assign(self._start)

    def evaluate(self) -> tuple[float, float]:
        """Accuracy and mean cross entropy over the held-out examples."""
        return evaluate(
            self._step.outputs, self._examples, self._size, _LIKELIEST[self._settings["metric"]]
        )

    def learn(self, meter: EnergyMeter, tell: Callable[[Epoch], None]) -> None:
        """Train to the target and as many epochs after it, from where its checkpoint is; `tell` is
        called with each epoch as it ends. Raises NotFinite for a loss that is not, NotReached where
        the target was not.
        """
        settings = self._settings
        generator = np.random.default_rng(self._point["seed"])
        epochs, values = self._checkpoint.load(self._start) or ([], self._start)
        self._step.assign(values)  # model and order are where an earlier process left them
        for epoch in epochs:
            generator.permutation(len(self._examples["training"]))
            tell(epoch)
        known = len(epochs)
        while len(epochs) < last_epoch(
            epochs, settings["target"], settings["epochs"], settings["epochs_after"]
        ):
            epochs.append(
                self._epoch(len(epochs) + 1, generator, meter, resumed=len(epochs) == known > 0)
            )
            tell(epochs[-1])
            if not math.isfinite(epochs[-1].train_loss):
                raise NotFinite(
                    f"the loss is {epochs[-1].train_loss} at the end of epoch {len(epochs)}"
                )
            self._checkpoint.save(epochs, self._step.values)
        best = max(epoch.accuracy for epoch in epochs)
        if best < settings["target"]:
            reached = (
                f"{settings['metric']} {best:.4f} at best in {len(epochs)} epochs (learn.epochs)"
            )
            raise NotReached(f"{reached}, learn.target={settings['target']}")

    def _epoch(
        self, number: int, generator: np.random.Generator, meter: EnergyMeter, resumed: bool
    ) -> Epoch:
        meter.start()
        start = time.perf_counter()
        # Whole batches of all training examples in a new order; what is left over waits for another
        # epoch.
        examples = self._examples["training"]
        classes = self._examples["training_classes"]
        order = generator.permutation(len(examples))
        size = self._point["batch_size"]
        batches = np.split(order[: self.steps * size], self.steps)
        chosen = (([examples[places]], [classes[places]]) for places in batches)
        loss = self._step.feed(self.steps, lambda: next(chosen))
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


def evaluate(
    outputs: Callable[[Sequence[Any]], Any], examples: Arrays, size: int, likeliest: int = 1
) -> tuple[float, float]:
    """Accuracy and mean cross entropy over the held-out examples, by a forward pass of `size` of
    them at a time.
    """
    heldout = examples["heldout"]
    classes = examples["heldout_classes"]
    judged = []
    for start in range(0, len(heldout), size):
        # The last batch is filled with others, so that its shape is that of all.
        indices = np.arange(start, start + size) % len(heldout)
        logits = np.asarray(outputs([heldout[indices]]))[: len(heldout) - start]
        judged.append(judge(logits, classes[start : start + size], likeliest))
    known, losses = (np.concatenate(parts) for parts in zip(*judged, strict=True))
    return float(known.mean()), float(losses.mean())


def judge(
    logits: np.ndarray, classes: np.ndarray, likeliest: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Of each example whether its class is among the `likeliest` of its logits (n, classes), and
    its cross entropy. A class that is as likely as the right one counts as likelier: who says the
    same of all classes knows nothing.
    """
    logits = logits.astype("float64")
    right = logits[np.arange(len(classes)), classes]
    with np.errstate(invalid="ignore"):
        above = (logits >= right[:, None]).sum(axis=1)
        shifted = logits - logits.max(axis=1, keepdims=True)
        losses = np.log(np.exp(shifted).sum(axis=1)) - (right - logits.max(axis=1))
    return (above <= likeliest) & np.isfinite(right), losses


def measure_training(run: PointRun) -> None:
    """Build, compile, then train to the target: every epoch is a block of steps, and told as it
    ends.
    """
    from paradnn.worker.step import prepare_step

    phases = run.phases
    arrays = read_arrays(run.request["learning_set"])
    learn = run.request["learn"]
    steps = len(arrays["training"]) // run.request["batch_size"]
    schedule = {
        "shape": learn["schedule"],
        "rise": steps * learn["warmup_epochs"],
        "steps": steps * learn["epochs"],
    }
    point = {
        **run.request,
        "optimizer": {**run.request["optimizer"], "schedule": schedule},
    }  # how the rate changes
    with phases("build"):
        workload, step = prepare_step(point, run.framework)
    with phases("input"):
        examples = fitted_examples(arrays, workload.inputs[0].shape)
        synthetic = synthetic_batch(workload, point["batch_size"], point["seed"])
        learner = Learner(step, examples, point, synthetic)
    with phases("compile"):
        compilation, _ = compile_steps(cast("Step", learner))
        products = product_flops(step)
        learner.restart()
    run.memory.compiled()
    meter = run.meter()
    epochs: list[Epoch] = []
    watch = AttemptRecorder(EnergyMeter(meter.source), step.compilations)

    def tell(epoch: Epoch) -> None:
        epochs.append(epoch)
        phases.report(epoch, None)

    with phases("learn"):
        watch.start()
        try:
            learner.learn(meter, tell)
        finally:
            watch.stop()
    spent = [epoch.joules for epoch in epochs if epoch.joules is not None]
    energy = (sum(spent) if len(spent) == len(epochs) else None), meter.source
    blocks = [epoch.train_seconds for epoch in epochs]
    first = Trial(epochs[0].steps, blocks[0])
    # Whether they are steady is not asked: what is timed is the training as a whole, however it
    # went.
    why = "a training is timed as a whole"
    timing = Timing(first.steps, [first], [], blocks, True, why, epochs[-1].train_loss)
    run.note_measured(
        (watch.judged(timing), energy, watch.contention), workload, compilation, products
    )
    run.note_memory()
