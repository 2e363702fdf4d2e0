"""`python -m tests.worker.one_step FRAMEWORK COMPILE OUT.npz FAMILY...`: real steps on weights that NumPy draws.

Writes for each family: the weights, the loss, the gradients, and the losses of three steps of the paper's optimizer.
A gradient is read off a step of SGD whose rate is a power of two so large that rounding the weight does not blur it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from paradnn.worker import frameworks
from tests.worker.families import BATCH, MODELS

RATE = 2.0**12


def point(compile_mode: str, **optimizer: Any) -> dict[str, Any]:
    return {"mode": "train", "compile": compile_mode, "precision": "float32", "optimizer": optimizer}


def draw(variable: Any, generator: np.random.Generator) -> np.ndarray:
    """Values of the size that initialisers give; a variable of one dimension is a bias, or a scale near one."""
    if len(variable.shape) == 1:
        base = 1.0 if variable.name == "gamma" else 0.0
        return (base + 0.1 * generator.standard_normal(variable.shape)).astype("float32")
    fan_in = np.prod(variable.shape[:-1])
    return (generator.standard_normal(variable.shape) / np.sqrt(fan_in)).astype("float32")


def main(name: str, compile_mode: str, target: str, families: list[str]) -> None:
    framework = frameworks.load(name)
    from keras import ops

    from paradnn.worker.data import synthetic_batch
    from paradnn.worker.models import build

    framework.open_device({"name": "cpu", "threads": None, "index": 0})
    found: dict[str, Any] = {}

    def read(variable: Any) -> np.ndarray:
        return np.array(ops.convert_to_numpy(variable.value))

    def fresh(family: str) -> Any:
        workload = build(MODELS[family])
        generator = np.random.default_rng(7)
        for variable in workload.model.trainable_variables:
            variable.assign(draw(variable, generator))
        return workload

    for family in families:
        workload = fresh(family)
        variables = workload.model.trainable_variables
        before = [read(variable) for variable in variables]
        batch = synthetic_batch(workload, BATCH, 3)
        step: Any = framework.make_step(workload, batch, point(compile_mode, name="sgd", learning_rate=RATE))
        found[f"{family}/loss"] = step.run(1)
        if name == "jax":
            step.write_back()
        for index, (variable, old) in enumerate(zip(variables, before, strict=True)):
            found[f"{family}/weight/{index}"] = old
            found[f"{family}/gradient/{index}"] = (old.astype("float64") - read(variable)) / RATE
        rule = {"name": "rmsprop", "learning_rate": 0.01, "decay": 0.9, "momentum": 0.9, "epsilon": 1.0}
        step = framework.make_step(fresh(family), batch, point(compile_mode, **rule))
        found[f"{family}/losses"] = [step.run(1) for _ in range(3)]
    np.savez(target, **found)


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4:])
