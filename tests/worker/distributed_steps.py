"""`python -m tests.worker.distributed_steps FRAMEWORK COMPILE DEVICES SEED OUT.npz FAMILY...`

Steps over several devices: three of the paper's optimizer on weights of NumPy's, on the batch drawn from SEED. Writes
for each family the losses, and the weights before and after. DEVICES is a number, or "shards of N": one device of
TensorFlow that calls the model for each of N shards in turn and averages their losses, which is what N replicas with
batch statistics of their own should come to.
"""

import sys
from typing import Any

import numpy as np

from paradnn.worker import frameworks
from paradnn.worker.affinity import layout_of
from tests.worker.families import BATCH, MODELS
from tests.worker.one_step import draw

RULE = {"name": "rmsprop", "learning_rate": 0.01, "decay": 0.9, "momentum": 0.9, "epsilon": 1.0}
STEPS = 3


def fresh(framework: Any, family: str) -> Any:
    from paradnn.families import build

    with framework.scope():
        workload = build(MODELS[family])
    generator = np.random.default_rng(7)
    for variable in workload.model.trainable_variables:
        variable.assign(draw(variable, generator))
    return workload


def read(workload: Any) -> list[np.ndarray]:
    from keras import ops

    variables = workload.model.trainable_variables
    return [np.array(ops.convert_to_numpy(ops.convert_to_tensor(variable))) for variable in variables]


def shards_in_turn(workload: Any, batch: Any, count: int) -> Any:
    import tensorflow as tf

    from paradnn.worker.optimizers import make_optimizer

    variables = workload.model.trainable_variables
    optimizer = make_optimizer({"optimizer": RULE, "precision": "float32"}, variables)
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


def main(name: str, compile_mode: str, devices: str, seed: int, target: str, families: list[str]) -> None:
    plain = frameworks.load(name)
    from paradnn.worker.step import synthetic_batch

    shards = int(devices.removeprefix("shards of ")) if devices.startswith("shards") else 0
    point = {
        "mode": "train",
        "compile": compile_mode,
        "precision": "float32",
        "optimizer": RULE,
        "batch_size": BATCH,
        "platform": {"name": "cpu", "threads": None, "index": 0},
        "devices": 1 if shards else int(devices),
    }
    several = int(point["devices"]) > 1
    framework = frameworks.distributed(plain, layout_of(point["devices"], point["platform"])) if several else plain
    framework.open_device(point["platform"])
    found: dict[str, Any] = {}
    for family in families:
        workload = fresh(framework, family)
        batch = synthetic_batch(workload, BATCH, seed)
        step: Any = shards_in_turn(workload, batch, shards) if shards else framework.make_step(workload, batch, point)
        found |= {f"{family}/start/{index}": values for index, values in enumerate(read(workload))}
        found[f"{family}/losses"] = [step.run(1) for _ in range(STEPS)]
        if name == "jax":
            step.assign(step.values())
        found |= {f"{family}/weight/{index}": values for index, values in enumerate(read(workload))}
    np.savez(target, **found)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), sys.argv[5], sys.argv[6:])
