"""What one operation costs, by arithmetic: its FLOPs, and the bytes of its operands and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from paradnn.config.families.kernels import stored_elements
from paradnn.costs.layers import COMPUTE_BYTES, Costs

__all__ = ["GATES", "KERNELS", "kernel_costs"]

#: Products of the width of a state in one step of a cell.
GATES = {"vanilla": 1, "lstm": 4, "gru": 3}
#: Bytes of an index, in the least format that the frameworks' sparse matrices have: rows compressed, 32 bits.
_INDEX_BYTES = 4


@dataclass(frozen=True)
class _Operation:
    """Multiply-accumulates of one operation, and elements that it reads and writes; index_bytes: what is no element,
    such as the indices of a sparse one; products: of single numbers, which are added to nothing."""

    macs: int
    elements: int
    index_bytes: int = 0
    products: int = 0


def _gemm(model: Mapping[str, Any], batch_size: int) -> _Operation:
    m, n, k = model["m"], model["n"], model["k"]
    return _Operation(m * n * k, m * k + k * n + m * n)


def _conv2d(model: Mapping[str, Any], batch_size: int) -> _Operation:
    """Any direction reads two of input, filters and output, or of their gradients, and writes the third."""
    sizes = zip((model["height"], model["width"]), model["kernel"], model["stride"], model["padding"], strict=True)
    height, width = ((size + 2 * padding - kernel) // stride + 1 for size, kernel, stride, padding in sizes)
    weights = model["filters"] * model["channels"] * model["kernel"][0] * model["kernel"][1]
    images = model["channels"] * model["height"] * model["width"] + model["filters"] * height * width
    return _Operation(batch_size * height * width * weights, batch_size * images + weights)


def _rnn_kernel(model: Mapping[str, Any], batch_size: int) -> _Operation:
    """Elements of the operands and results in `paradnn.worker.models.kernels`."""
    hidden, gates = model["hidden"], GATES[model["cell"]]
    weights, state = gates * hidden * hidden, batch_size * hidden
    series = model["steps"] * state
    elements = {
        # Inputs and outputs, the state before the first step.
        "forward": 2 * series + state,
        # Gradients of outputs and of gates, the gates' values; of LSTM the cells', of GRU states and products too.
        "backward_input": (1 + 2 * gates + {"vanilla": 0, "lstm": 1, "gru": 2}[model["cell"]]) * series + state,
        "backward_weights": (1 + gates) * series,
    }[model["direction"]]
    if model["cell"] == "lstm":  # the cell's state before and after, and its gradient
        elements += {"forward": 2, "backward_input": 1, "backward_weights": 0}[model["direction"]] * state
    return _Operation(model["steps"] * batch_size * weights, elements + weights)


def _sparse_gemm(model: Mapping[str, Any], batch_size: int) -> _Operation:
    """Of the dense matrix no more rows are read than there are elements that meet them."""
    return _sparse_product(model["m"], model["n"], model["k"], model["density"])


def _sparse_product(m: int, n: int, k: int, density: float) -> _Operation:
    stored = stored_elements(density, m, k)
    elements = stored + min(stored, k) * n + m * n
    return _Operation(stored * n, elements, _INDEX_BYTES * (stored + m + 1))


def _sparse_fc(model: Mapping[str, Any], batch_size: int) -> _Operation:
    """Layer by layer; stored dense the zeros count as well."""
    nodes = model["nodes"]
    widths = [model["input_size"], *[nodes] * (model["layers"] - 1)]
    if model["storage"] == "dense":
        layers = [_gemm({"m": nodes, "n": batch_size, "k": width}, batch_size) for width in widths]
    else:
        layers = [_sparse_product(nodes, batch_size, width, model["density"]) for width in widths]
    return _Operation(*(sum(getattr(layer, part.name) for layer in layers) for part in fields(_Operation)))


def _elementwise(model: Mapping[str, Any], batch_size: int) -> _Operation:
    """Every product reads two tensors and writes one, as if none were fused with the next."""
    products = model["operations"] * model["elements"]
    return _Operation(0, 3 * products, products=products)


def _channel(model: Mapping[str, Any], batch_size: int) -> _Operation:
    """A message is held once by each who sends or receives it; how often it is copied is the transport's affair."""
    return _Operation(0, 0, index_bytes=model["bytes"])


#: By name; `batch_size` is 1 where it is none of the kernel's sizes.
KERNELS: dict[str, Callable[[Mapping[str, Any], int], _Operation]] = {
    "gemm": _gemm,
    "conv2d": _conv2d,
    "rnn_kernel": _rnn_kernel,
    "sparse_gemm": _sparse_gemm,
    "sparse_fc": _sparse_fc,
    "elementwise": _elementwise,
    "channel": _channel,
}


def kernel_costs(model: Mapping[str, Any], batch_size: int, precision: str) -> Costs:
    """Costs of one kernel in `precision`: twice its multiply-accumulates, as FLOPs of its direction.

    Bytes are those of operands and result, each once, as wide as `precision`: what crosses the memory bus at least,
    and what must exist at the end. The weights of a recurrent kernel are read once as well, though every step in time
    multiplies by them. What a library adds, such as a transformed convolution's workspace, comes on top.
    """
    operation = KERNELS[model["name"]](model, batch_size)
    flops = 2 * operation.macs + operation.products
    forward = flops if model.get("direction", "forward") == "forward" else 0
    size = COMPUTE_BYTES[precision] * operation.elements + operation.index_bytes
    return Costs(0, 0, forward, flops - forward, flops, size, size)
