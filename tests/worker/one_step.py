"""Run real steps on weights drawn by NumPy and write their results.

Usage: `python -m tests.worker.one_step FRAMEWORK COMPILE OUT.npz SEED NUDGE FAMILY...`

Writes the weights, the loss and the gradients of each family. For some families it also writes the
losses of three steps of the paper's optimizer and of Adam.

A gradient is derived from a step of SGD. The learning rate is a power of two, so large that the
rounding of the weight does not matter. The batch is drawn with SEED. NUDGE is the relative change
of each input, up or down.
"""

import sys
from typing import Any

import numpy as np

from paradnn.worker import frameworks
from tests.worker.families import BATCH
from tests.worker.families import MODELS as FAMILIES

RATE = 2.0**12
#: CNNs with few activations. Fewer activations make it less likely that rounding moves one across
#: its rectifier's kink.
MODELS = {
    name: {**model, "image_size": 32} if "filters" in model else model
    for name, model in FAMILIES.items()
}
#: Families with different kinds of variables: weights, scales and offsets, gates, embeddings.
UPDATED = ("fc", "residual", "lstm", "gpt")
#: Adam's epsilon is so large that a gradient of pure rounding errors does not move its weight.
OPTIMIZERS = [
    {"name": "rmsprop", "learning_rate": 0.01, "decay": 0.9, "momentum": 0.9, "epsilon": 1.0},
    {"name": "adam", "learning_rate": 0.01, "decay": 0.999, "momentum": 0.9, "epsilon": 1e-3},
]


def point(compile_mode: str, **optimizer: Any) -> dict[str, Any]:
    return {
        "mode": "train",
        "compile": compile_mode,
        "precision": "float32",
        "framework": {},
        "optimizer": optimizer,
    }


def draw(variable: Any, generator: np.random.Generator) -> np.ndarray:
    """Draw values as large as those of a usual initialization.

    A vector is a scale near one if it is named gamma, and else a bias near zero.
    """
    if len(variable.shape) == 1:
        base = 1.0 if variable.name == "gamma" else 0.0
        return (base + 0.1 * generator.standard_normal(variable.shape)).astype("float32")
    fan_in = np.prod(variable.shape[:-1])
    return (generator.standard_normal(variable.shape) / np.sqrt(fan_in)).astype("float32")


def build_workload(framework: Any, model: dict[str, Any]) -> Any:
    """Return the workload of a model, with weights drawn by NumPy."""
    from paradnn.families import build

    with framework.scope():
        workload = build(model)
    generator = np.random.default_rng(7)
    for variable in workload.model.trainable_variables:
        variable.assign(draw(variable, generator))
    return workload


def read_variable(variable: Any) -> np.ndarray:
    from keras import ops

    return np.array(ops.convert_to_numpy(ops.convert_to_tensor(variable)))


def nudged(values: np.ndarray, nudge: float) -> np.ndarray:
    if values.dtype != np.float32:
        return values
    signs = np.random.default_rng(0).choice([-1.0, 1.0], values.shape)
    return (values * (1 + nudge * signs)).astype("float32")


def main(
    name: str, compile_mode: str, target: str, seed: int, nudge: float, families: list[str]
) -> None:
    framework = frameworks.load(name)
    from paradnn.worker.step import synthetic_batch

    framework.open_device({"name": "cpu", "threads": None, "index": 0})
    results: dict[str, Any] = {}
    for family in families:
        workload = build_workload(framework, MODELS[family])
        variables = workload.model.trainable_variables
        before = [read_variable(variable) for variable in variables]
        inputs, targets = synthetic_batch(workload, BATCH, seed)
        batch = [nudged(values, nudge) for values in inputs], targets
        step: Any = framework.make_step(
            workload, batch, point(compile_mode, name="sgd", learning_rate=RATE)
        )
        results[f"{family}/loss"] = step.run(1)
        if name == "jax":
            step.assign(step.values())
        for index, (variable, old) in enumerate(zip(variables, before, strict=True)):
            results[f"{family}/weight/{index}"] = old
            results[f"{family}/gradient/{index}"] = (
                old.astype("float64") - read_variable(variable)
            ) / RATE
        if family in UPDATED:
            for optimizer in OPTIMIZERS:
                workload = build_workload(framework, MODELS[family])
                step = framework.make_step(workload, batch, point(compile_mode, **optimizer))
                results[f"{family}/losses/{optimizer['name']}"] = [step.run(1) for _ in range(3)]
    np.savez(target, **results)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), float(sys.argv[5]), sys.argv[6:])
