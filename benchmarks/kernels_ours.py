"""ParaDnn's side of `benchmarks.kernels`: the worker's own step of `model=gemm`."""

from __future__ import annotations

import argparse

from benchmarks.turns import Step, take_part
from paradnn.config.identity import request_of
from paradnn.config.point import read_point
from paradnn.core.versions import FRAMEWORKS
from paradnn.worker import frameworks


def point(framework: str, compile_mode: str, size: str):
    """The point of a product, M x N x K."""
    m, n, k = map(int, size.split("x"))
    return read_point(
        {
            "model": {"name": "gemm", "m": m, "n": n, "k": k},
            "batch_size": 1,
            "mode": "inference",
            "compile": compile_mode,
            "framework": {"name": framework},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("compile")
    given, _ = parser.parse_known_args()
    framework = frameworks.load(given.framework)
    from paradnn.families import build
    from paradnn.worker.step import synthetic_batch

    def make(size: str) -> Step:
        request = request_of(point(given.framework, given.compile, size))
        framework.open_device(request["platform"])
        workload = build(request["model"])
        step = framework.make_step(workload, synthetic_batch(workload, 1, 0), request)

        def run(steps: int) -> float:
            step.run(steps)  # waits for the product
            return 0.0

        return Step(run, ())

    take_part(make, parser)


if __name__ == "__main__":
    main()
