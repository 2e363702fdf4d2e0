"""Compute the results of kernels for given operands.

Usage: `python -m tests.worker.kernel_results FRAMEWORK COMPILE,... IN.npz OUT.npz`

IN holds `CASE/model`, the kernel's options as JSON, and `CASE/0`, `CASE/1` ..., its operands in the
kernel's own layout. OUT holds `COMPILE/CASE/0` ..., the results of a compiled step, and
`COMPILE/CASE/flops`, the FLOPs of the program's products. If a case fails, OUT holds
`COMPILE/CASE/error` instead.
"""

import json
import sys
from typing import Any

import numpy as np

from paradnn.worker import frameworks


def step_outputs(framework: str, step: Any, compile_mode: str) -> list[Any]:
    """Return all outputs of one step."""
    if framework == "tensorflow":
        outputs = step.function(*step.arguments)
        return list(outputs[1:] if compile_mode == "xla" else outputs)
    if framework == "jax":
        outputs = step.function(*step._state, *step._constants)
    else:
        outputs = step.function(step._batch)
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def forget_products(framework: str) -> None:
    """Clear PyTorch's product counts, which assume one point per process."""
    if framework == "torch":
        from paradnn.worker.frameworks.torch import products

        products.costs.clear()


def main(name: str, modes: list[str], source: str, target: str) -> None:
    framework = frameworks.load(name)
    from paradnn.families import build

    framework.open_device({"name": "cpu", "threads": None, "index": 0})
    results: dict[str, Any] = {}
    with np.load(source) as operand_file:
        cases = {
            key.removesuffix("/model"): str(operand_file[key])
            for key in operand_file
            if key.endswith("/model")
        }
        for case, options in cases.items():
            operands = [
                operand_file[f"{case}/{index}"]
                for index in range(len(operand_file))
                if f"{case}/{index}" in operand_file
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
                    for index, result in enumerate(step_outputs(name, step, mode)):
                        results[f"{mode}/{case}/{index}"] = np.asarray(result)
                    results[f"{mode}/{case}/flops"] = sum(
                        cost.product_flops for cost in step.products()
                    )
                except Exception as error:
                    results[f"{mode}/{case}/error"] = str(error)
    np.savez(target, **results)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), *sys.argv[3:])
