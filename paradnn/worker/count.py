"""`python -m paradnn.worker.count`: the products of a forward pass of a model with unknown layers.

`paradnn ask` runs it. Standard input is JSON with framework, model and batch size. The answer is
JSON with the category, the FLOPs and the operand sizes of each product, and the number of
parameters; or a reason why nothing is known. The pass is traced on the CPU; PyTorch runs it there.
"""

import json
import math
import os
import sys
from typing import Any

from paradnn.core.errors import UnavailableError
from paradnn.core.versions import FRAMEWORKS
from paradnn.worker.frameworks import load

_MAX_REASON_CHARS = 300


def count_products(request: dict[str, Any]) -> dict[str, Any]:
    """Return the products and the parameters of a model.

    Raises:
        UnavailableError: If the products of the model cannot be counted. Building the model may
            raise other exceptions.
    """
    backend = FRAMEWORKS[request["framework"]].backend  # it builds the models of an engine, too
    framework = load(backend)
    from paradnn.worker.step import prepare_step

    framework.open_device({"name": "cpu", "threads": None, "index": 0})
    point = {
        **request,
        "seed": 0,
        "mode": "inference",
        "precision": "float32",
        "compile": "eager" if backend == "torch" else "graph",
    }
    workload, step = prepare_step(point, framework)
    if not callable(workload.model):
        raise UnavailableError(
            "the products of an ONNX file are not counted; ask for the model that it was made from"
        )
    products = [
        (cost.category, cost.product_flops, cost.operands)
        for cost in step.products()
        if cost.product_flops
    ]
    parameters = sum(math.prod(variable.shape) for variable in workload.model.variables)
    return {"products": products, "parameters": parameters}


def main() -> None:
    """Read the request from standard input, and write the answer to standard output."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what frameworks and models print is not part of the answer
    try:
        answer = count_products(json.load(sys.stdin))
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        reason = text.partition("\n")[0][:_MAX_REASON_CHARS]
        if not isinstance(error, UnavailableError):
            reason = f"{type(error).__name__}: {reason}"
        answer = {"why": reason}
    json.dump(answer, output)


if __name__ == "__main__":
    main()
