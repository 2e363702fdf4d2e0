"""Run training steps over several devices and write their losses and weights.

Usage: `python -m tests.worker.distributed_steps FRAMEWORK COMPILE OUT.npz SEED DEVICES FAMILY...`

Runs three steps of the paper's optimizer, with weights drawn by NumPy and a batch drawn with SEED.
Writes the losses of each family, and its weights before and after the steps.

DEVICES is a number, or "shards of N": one TensorFlow device that calls the model for each of N
shards and averages their losses. N replicas with separate batch statistics should have the same
result. With "weights over N", N JAX devices share the weights (parallel=model).
"""

import sys
from typing import Any

import numpy as np

from paradnn.worker import frameworks
from paradnn.worker.affinity import device_layout
from tests.worker.families import BATCH, MODELS
from tests.worker.families import RMSPROP as OPTIMIZER
from tests.worker.one_step import build_workload, read_variable
from tests.worker.one_step import point as step_point

STEPS = 3


def make_sharded_step(workload: Any, batch: Any, count: int) -> Any:
    """Return a step on one TensorFlow device that averages the losses of `count` shards."""
    import tensorflow as tf

    from paradnn.worker.optimizers import make_optimizer

    variables = workload.model.trainable_variables
    optimizer = make_optimizer({"optimizer": OPTIMIZER, "precision": "float32"}, variables)
    shards = [[np.split(array, count) for array in arrays] for arrays in batch]

    class Step:
        def run(self, steps: int) -> float:
            with tf.GradientTape() as tape:
                losses = [
                    workload.loss(
                        [tf.constant(array[i]) for array in shards[1]],
                        workload.model(tf.constant(shards[0][0][i]), training=True),
                    )
                    for i in range(count)
                ]
                loss = tf.add_n(losses) / count
            optimizer.apply(tape.gradient(loss, variables), variables)
            return float(loss)

    return Step()


def main(
    name: str, compile_mode: str, target: str, seed: int, devices: str, families: list[str]
) -> None:
    single_device = frameworks.load(name)
    from paradnn.worker.step import synthetic_batch

    kind, _, number = devices.rpartition(" ")
    count = int(number)
    shards = count if kind == "shards of" else 0
    parallel = "model" if kind == "weights over" else "data"
    point = {
        **step_point(compile_mode, **OPTIMIZER),
        "batch_size": BATCH,
        "devices": 1 if shards else count,
        "platform": {"name": "cpu", "threads": None, "index": 0},
    }
    if int(point["devices"]) > 1:
        framework = frameworks.distributed(
            single_device, device_layout(point["devices"], point["platform"]), parallel
        )
    else:
        framework = single_device
    framework.open_device(point["platform"])

    results: dict[str, Any] = {}
    for family in families:
        workload = build_workload(framework, MODELS[family])
        variables = workload.model.trainable_variables
        batch = synthetic_batch(workload, BATCH, seed)
        if shards:
            step: Any = make_sharded_step(workload, batch, shards)
        else:
            step = framework.make_step(workload, batch, point)

        for index, variable in enumerate(variables):
            results[f"{family}/start/{index}"] = read_variable(variable)
        results[f"{family}/losses"] = [step.run(1) for _ in range(STEPS)]
        if name == "jax":
            step.assign(step.values())
        for index, variable in enumerate(variables):
            results[f"{family}/weight/{index}"] = read_variable(variable)
    np.savez(target, **results)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), sys.argv[5], sys.argv[6:])
