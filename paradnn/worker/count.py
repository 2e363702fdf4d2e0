"""`python -m paradnn.worker.count`: count the matrix products and convolutions of any model.

`paradnn ask` runs this command for models whose layers ParaDnn does not know. Standard input is
JSON with framework, model and batch size. Standard output is JSON with the number of parameters,
and with category, FLOPs and operand sizes of each product of a forward pass. If they cannot be
counted, the output has the reason (`why`). PyTorch runs the forward pass on the CPU; other
frameworks only trace it.
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
    """Count the matrix products and convolutions of a model's forward pass, and its parameters.

    Args:
        request: Mapping with the keys `framework` (name of the framework), `model` (the `model`
            settings of a configuration) and `batch_size` (number of examples).

    Returns:
        Mapping with the keys `products` and `parameters`. `products` has one tuple per product:
        category, FLOPs, and number of elements of each operand and of the result. `parameters` is
        the number of the model's parameters.

    Raises:
        UnavailableError: If the model comes from an ONNX file, or the framework cannot run it.
            Building the model may raise other exceptions.
    """
    backend = FRAMEWORKS[request["framework"]].backend  # builds the models of an engine
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
            "the matrix products of an ONNX file cannot be counted: "
            "specify the model from which the file was exported"
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
    os.dup2(2, 1)  # redirect the output of frameworks and models to standard error
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
