"""Compute the results of kernels for given operands.

Usage: `python -m tests.worker.kernel_results FRAMEWORK COMPILE,... IN.npz OUT.npz`

IN holds `CASE/model`, its options as JSON, and `CASE/0`, `CASE/1` ..., the operands as the kernel
draws them. OUT has `COMPILE/CASE/0` ..., the results of a compiled step. It also has
`COMPILE/CASE/flops`, the FLOPs of its program's products, or `COMPILE/CASE/error`.
"""

import json
import sys
from typing import Any

import numpy as np

from paradnn.worker import frameworks


def results(framework: str, step: Any, compile_mode: str) -> list[Any]:
    """Return all outputs of one step."""
    if framework == "tensorflow":
        found = step.function(*step.arguments)
        return list(found[1:] if compile_mode == "xla" else found)
    jax = framework == "jax"
    if jax:
        found = step.function(*step._state, *step._constants)
    else:
        found = step.function(step._batch)
    return list(found) if isinstance(found, tuple) else [found]


def forget_products(framework: str) -> None:
    """Clear PyTorch's product counts, which assume one point per process."""
    if framework == "torch":
        from paradnn.worker.frameworks.torch import products

        products.costs.clear()


def main(name: str, modes: list[str], source: str, target: str) -> None:
    framework = frameworks.load(name)
    from paradnn.families import build

    framework.open_device({"name": "cpu", "threads": None, "index": 0})
    found: dict[str, Any] = {}
    with np.load(source) as given:
        cases = {
            key.removesuffix("/model"): str(given[key]) for key in given if key.endswith("/model")
        }
        for case, options in cases.items():
            operands = [
                given[f"{case}/{index}"]
                for index in range(len(given))
                if f"{case}/{index}" in given
            ]
            workload = build(json.loads(options))
            for mode in modes:
                point = {
                    "mode": "inference",
                    "compile": mode,
                    "precision": "float32",
                    "framework": {},
                }
                forget_products(name)
                try:
                    step = framework.make_step(workload, (operands, []), point)
                    step.run(2)
                    for index, result in enumerate(results(name, step, mode)):
                        found[f"{mode}/{case}/{index}"] = np.asarray(result)
                    found[f"{mode}/{case}/flops"] = sum(
                        cost.product_flops for cost in step.products()
                    )
                except Exception as error:
                    found[f"{mode}/{case}/error"] = str(error)
    np.savez(target, **found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), *sys.argv[3:])
