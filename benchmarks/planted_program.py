"""Program that `benchmarks.planted_upgrades` measures: the worker's steps on given cores.

It takes turns (`benchmarks.turns`) with a process of another number of threads. Its models are
configurations of a point as JSON, or kernels of the ceilings such as "matmul 1024".
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.turns import Step, take_part
from paradnn.config.identity import point_request
from paradnn.config.reading import read_point
from paradnn.core.words import core_list
from paradnn.worker import frameworks


def _without_loss(run: Callable[[int], Any]) -> Step:
    """Return a step whose losses are not checked: after thousands of steps they may diverge."""

    def timed(steps: int) -> float:
        run(steps)
        return 0.0

    return Step(timed, ())


def main() -> None:
    """Serve the process that schedules turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", required=True, help="cores of this process, such as 0 or 0-1")
    parser.add_argument("--cgroup", type=Path, help="a cgroup (version 1) that this process joins")
    given, _ = parser.parse_known_args()
    cores = core_list(given.cores)
    if given.cgroup is not None:
        (given.cgroup / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")
    os.sched_setaffinity(0, cores)
    framework = frameworks.load("tensorflow")
    from paradnn.worker.step import prepare_step

    def prepare(model: str) -> Step:
        if not model.startswith("{"):
            framework.open_device({"name": "cpu", "index": 0, "threads": len(cores)})
            name, size = model.split()
            return _without_loss(framework.make_kernel(name, int(size), "float32", "graph"))
        request = point_request(read_point(json.loads(model)))
        framework.open_device({**request["platform"], "threads": len(cores)})
        _, step = prepare_step(request, framework)
        return _without_loss(step.run)

    take_part(prepare, parser)


if __name__ == "__main__":
    main()
