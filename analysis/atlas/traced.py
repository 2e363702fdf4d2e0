"""Layers of a user's own model, from a trace of its forward pass on this machine."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from paradnn.core.errors import InsufficientData
from paradnn.core.layers import Layer, Multiply
from paradnn.families import Model


def traced_layers(framework: str, model: Model, batch: int) -> list[Layer]:
    """Return the layers of a model, found by a trace of its forward pass on this machine.

    A separate process, `paradnn.worker.count`, builds and traces the model.

    Args:
        framework: Name of the framework that builds the model, such as "torch".
        model: The model, with all its options.
        batch: Number of examples in the batch. The layers process the whole batch.

    Returns:
        One layer per matrix product, then a layer with all weights. The trace does not include the
        operations between products: each result is assumed to be read and written once more.

    Raises:
        InsufficientData: If the model cannot be built.
    """
    question = {"framework": framework, "model": vars(model), "batch_size": batch}
    trace = _trace(json.dumps(question))
    if "why" in trace:
        raise InsufficientData(trace["why"])
    layers: list[Layer] = []
    for category, flops, operand_sizes in trace["products"]:
        layers.append(
            _product_layer(category, flops, operand_sizes, is_first=not layers),
        )
    # Embedding tables are parameters too, but a forward pass reads few of their rows.
    rows_read = sum(layer.rows or 0 for layer in layers)
    return [*layers, Layer("weights", parameters=trace["parameters"], rows=rows_read)]


def _product_layer(
    category: str, flops: float, operand_sizes: Sequence[float], *, is_first: bool
) -> Layer:
    """Return the layer of a traced product.

    A traced product consists of p independent products m x k by k x n. Its operands and its result
    have p m k, p k n and p m n elements, and it has p m n k multiply-adds. These four numbers
    determine m, n, k and p. A convolution has p = 1, and its images are not unrolled, so k n, m n
    and the multiply-adds determine m, k and n. If the trace lacks the sizes of the operands and the
    result, the matrices are assumed to be square.

    Args:
        category: Category of the product, such as "convolution".
        flops: FLOP of the product, two per multiply-add.
        operand_sizes: Numbers of elements of the left operand, the right operand and the result;
            empty if unknown.
        is_first: Whether this is the first product of the model.
    """
    macs = flops / 2
    if len(operand_sizes) == 3:
        left, right, result = operand_sizes
    else:
        left = right = result = macs ** (2 / 3)
    m = macs / right
    k = macs / result
    if category == "convolution":
        n = result * right / macs
        products = 1.0
    else:
        n = macs / left
        products = left * right * result / macs**2
    rows, inputs, outputs, count = (max(1, round(size)) for size in (m, k, n, products))
    if count == 1:
        # All examples share the right matrix.
        product = Multiply(rows, inputs, outputs, pairs=0)
        shared_weights = inputs * outputs
    else:
        product = Multiply(rows, inputs, outputs, pairs=count)
        shared_weights = 0
    return Layer(
        "",
        round(macs),
        # The first product has no gradient of its input.
        0 if is_first else None,
        rows=shared_weights,
        read=count * rows * inputs,
        written=3 * count * rows * outputs,
        products=(product,),
    )


@functools.cache
def _trace(question: str) -> Mapping[str, Any]:
    """Return the output of `paradnn.worker.count`, which builds and traces a model.

    Results are cached, since the same model is estimated on several devices.

    Args:
        question: The framework, the model and the batch size, as JSON.

    Returns:
        The parsed output. If the process fails, the key "why" states the reason.
    """
    command = [sys.executable, "-m", "paradnn.worker.count"]
    process = subprocess.run(command, input=question, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(process.stdout))
    except ValueError:
        return {
            "why": f"the process that builds the model ended with exit code {process.returncode}"
        }
