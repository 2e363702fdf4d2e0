"""`python -m paradnn.worker.count`: what a forward pass multiplies of a model that no arithmetic
knows (`paradnn ask`).

In and out is JSON: framework, model and batch size; of each product its category, FLOPs and the
elements of its operands and result, and the model's parameters; or why nothing is known. The pass
is traced on the CPU, and with PyTorch run there.
"""

import json
import math
import os
import sys
from typing import Any

from paradnn.core.errors import UnavailableError
from paradnn.core.versions import FRAMEWORKS
from paradnn.worker.frameworks import load


def counted(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer. Raises what building the model raises."""
    framework = load(
        name := FRAMEWORKS[asked["framework"]].backend
    )  # what builds the models of an engine
    from paradnn.worker.step import prepare_step

    framework.open_device({"name": "cpu", "threads": None, "index": 0})
    point = {
        "seed": 0,
        "mode": "inference",
        "precision": "float32",
        "compile": "eager" if name == "torch" else "graph",
    }
    workload, step = prepare_step({**asked, **point}, framework)
    if not callable(workload.model):
        raise UnavailableError(
            "what an ONNX file multiplies is not counted; ask for the model that it was made from"
        )
    products = [
        (cost.category, cost.product_flops, cost.operands)
        for cost in step.products()
        if cost.product_flops
    ]
    return {
        "products": products,
        "parameters": sum(math.prod(each.shape) for each in workload.model.variables),
    }


if __name__ == "__main__":
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever frameworks and models print is no answer
    try:
        told = counted(json.load(sys.stdin))
    except Exception as error:
        line = (str(error).strip() or type(error).__name__).partition("\n")[0][:300]
        told = {
            "why": line
            if isinstance(error, UnavailableError)
            else f"{type(error).__name__}: {line}"
        }
    json.dump(told, answer)
