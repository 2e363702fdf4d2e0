"""`python -m tests.worker.compilations MODE DEVICES FAMILY...`: how many programs each of JAX's first steps compiles.

Prints a JSON object: of each family the counts of XLA's compilations, as JAX's own monitoring reports them, each beside
what the step says.
"""

import json
import sys
from typing import Any

from paradnn.worker import frameworks
from paradnn.worker.affinity import layout_of
from tests.worker.families import BATCH, MODELS

STEPS = 3
RULE = {"name": "rmsprop", "learning_rate": 0.01, "decay": 0.9, "momentum": 0.9, "epsilon": 1.0}


def main(mode: str, devices: int, families: list[str]) -> None:
    framework = frameworks.load("jax")
    import jax

    from paradnn.families import build
    from paradnn.worker.step import synthetic_batch

    compiled: list[str] = []

    def listen(event: str, seconds: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    point = {"mode": mode, "compile": "graph", "precision": "float32", "optimizer": RULE, "batch_size": BATCH}
    point |= {"platform": {"name": "cpu", "threads": None, "index": 0}, "devices": devices}
    if devices > 1:
        framework = frameworks.distributed(framework, layout_of(devices, point["platform"]))
    framework.open_device(point["platform"])
    counts: dict[str, list[list[int]]] = {}
    for family in families:
        with framework.scope():
            workload = build(MODELS[family])
        step = framework.make_step(workload, synthetic_batch(workload, BATCH, 0), point)
        counts[family] = []
        for _ in range(STEPS):
            compiled.clear()
            before = step.compilations()
            step.run(1)
            counts[family].append([len(compiled), step.compilations() - before])
    print(json.dumps(counts))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
