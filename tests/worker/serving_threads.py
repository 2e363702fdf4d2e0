"""`python -m tests.worker.serving_threads FRAMEWORK`: how many programs a second instance of a server compiles.

Prints a JSON list: what was compiled while it was prepared, and after that by two rounds of all its batches.
"""

from __future__ import annotations

import json
import sys
from threading import Thread
from typing import Any

from paradnn.worker import frameworks
from tests.worker.families import MODELS

BATCH = 8


def main(name: str) -> None:
    framework = frameworks.load(name)
    from paradnn.families import build
    from paradnn.worker.single_steps import compile_steps
    from paradnn.worker.step import synthetic_batch
    from paradnn.workloads.serve.load import batch_sizes, compile_service

    point: dict[str, Any] = {"mode": "inference", "compile": "graph", "precision": "float32", "batch_size": BATCH}
    point |= {"platform": {"name": "cpu", "threads": None, "index": 0}, "devices": 1, "optimizer": {}}
    framework.open_device(point["platform"])
    workload = build(MODELS["fc"])

    def make(size: int) -> frameworks.Step:
        return framework.make_step(workload, synthetic_batch(workload, size, 0), point)

    step = make(BATCH)
    compile_steps(step)
    service = compile_service("server", {}, BATCH, step, make)(0.1)
    counts = [step.compilations()]

    def instance() -> None:
        service.prepare()
        counts.append(step.compilations())
        for queries in 2 * batch_sizes(BATCH):
            service.run(queries)
        counts.append(step.compilations())

    thread = Thread(target=instance)
    thread.start()
    thread.join()
    print(json.dumps([counts[1] - counts[0], counts[2] - counts[1]]))


if __name__ == "__main__":
    main(sys.argv[1])
