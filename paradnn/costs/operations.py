"""A step as a list of operations, and a kernel as one: what a model of operation times is fitted on and asked for.

    kernel_operation(model, batch_size, precision)      # of `model=gemm|conv2d|rnn_kernel|sparse_gemm|elementwise`
    model_operations(model, batch_size=.., precision=.., mode=..)      # products of a step, each with how often

By arithmetic alone, of the shapes that `paradnn.costs` follows. A dense layer has three products in a training step:
its output, the gradient of its weights and that of its inputs, the last not in a first layer; so has a convolution.
Of attention every head of every example has products of its own, which a framework calls at once. What is done element
by element (biases, activations, normalisation, the update) is no product: what it moves is `Costs.bytes_per_step`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paradnn.costs.kernels import GATES, kernel_costs
from paradnn.costs.layers import COMPUTE_BYTES, Convolve, Layer, Multiply

__all__ = ["Counted", "Operation", "elementwise_operation", "kernel_operation", "product_operations"]


@dataclass(frozen=True)
class Operation:
    """One operation. kind: the kernel that poses it. variant: which matrices are transposed, or the direction.

    m, n, k: the product of its forward direction, of m x k by k x n: of a convolution unrolled images by filters, of a
    recurrent layer states by weights. batch: products beside each other, calls: one after the other, images: in all.
    window, stride: of a filter, in elements and as the product of both strides. flops, bytes: in all and of its own
    direction; bytes are operands and result once.
    """

    kind: str
    variant: str
    m: int
    n: int
    k: int
    flops: float
    bytes: float
    batch: int = 1
    calls: int = 1
    images: int = 1
    window: int = 1
    stride: int = 1

    @property
    def product(self) -> tuple[int, int, int, int]:
        """m, n, k of the product that its own direction computes, and how many of these follow one another."""
        m, n, k, calls = self.m, self.n, self.k, self.calls
        if self.variant.endswith("backward_weights"):  # of recurrent layers one product over all steps
            return k, n, m * calls, 1
        if self.variant.endswith("backward_input"):
            return m * self.stride, max(1, k // self.window), n * self.window, calls
        return m, n, k, calls

    @property
    def shape(self) -> str:
        """In words, such as "1760x128x1760 nn"."""
        if self.kind == "elementwise":
            return f"{self.m}"
        many = f"{self.batch} of " if self.batch > 1 else ""
        steps = f" t{self.calls}" if self.calls > 1 else ""
        window = f" w{self.window}" if self.window > 1 else ""
        return f"{many}{self.m}x{self.n}x{self.k} {self.variant}{window}{steps}"


@dataclass(frozen=True)
class Counted:
    """An operation of a layer, and how often it runs in a step, on average over steps."""

    layer: str
    operation: Operation
    count: float


def kernel_operation(model: Mapping[str, Any], batch_size: int, precision: str) -> Operation:
    """The operation that a kernel is; `model` is a validated mapping with its `name`."""
    name, costs = model["name"], kernel_costs(model, batch_size, precision)
    work = (float(costs.flops_per_step), float(costs.bytes_per_step))
    if name == "gemm":
        variant = "".join("nt"[model[f"transpose_{side}"]] for side in "ab")
        return Operation(name, variant, model["m"], model["n"], model["k"], *work)
    if name == "conv2d":
        return _convolution(model, batch_size, *work)
    if name == "rnn_kernel":
        return _recurrent(model, batch_size, *work)
    if name == "sparse_gemm":
        stored = round(model["density"] * model["m"] * model["k"])
        return Operation(name, "sparse", model["m"], model["n"], max(1, stored // model["m"]), *work)
    return Operation(name, "product", model["elements"], 1, 1, *work, calls=model["operations"])


def elementwise_operation(moved: float, precision: str) -> Operation:
    """What moves so many bytes, as two tensors to a third."""
    elements = max(1, round(moved / (3 * COMPUTE_BYTES[precision])))
    return Operation("elementwise", "product", elements, 1, 1, float(elements), moved)


def product_operations(layers: Sequence[Layer], batch_size: int, precision: str, mode: str) -> list[Counted]:
    """The products and convolutions of one step over all layers, in the order of the layers; `mode` as a point's."""
    width, found = COMPUTE_BYTES[precision], []
    for layer in layers:
        for product in layer.products:
            directions = _DIRECTIONS if mode == "train" else _DIRECTIONS[:1]
            if isinstance(product, Multiply):
                made = _multiplied(product, batch_size, width)
            else:
                made = _convolved(product, batch_size, precision)
            for direction, (operation, count) in zip(directions, made, strict=False):
                if direction == "backward_input" and layer.input_macs == 0:
                    continue
                found.append(Counted(f"{layer.name} {direction}", operation, count))
    return found


_DIRECTIONS = ("forward", "backward_weights", "backward_input")


def _multiplied(product: Multiply, batch_size: int, width: int) -> Iterator[tuple[Operation, int]]:
    """Y = X W, dW = X'Y, dX = Y W'; of attention's heads the same for each of `own` pairs of matrices per example."""
    many = batch_size * product.own if product.own else 1
    rows = product.rows if product.own else batch_size * product.rows
    inputs, outputs, times = product.inputs, product.outputs, product.times
    yield _gemm(rows, outputs, inputs, "nn", width, many), times
    yield _gemm(inputs, outputs, rows, "tn", width, many), times
    yield _gemm(rows, inputs, outputs, "nt", width, many), times - product.constant


def _gemm(m: int, n: int, k: int, variant: str, width: int, batch: int) -> Operation:
    moved = width * batch * (m * k + k * n + m * n)
    return Operation("gemm", variant, m, n, k, 2.0 * batch * m * n * k, float(moved), batch)


def _convolved(product: Convolve, batch_size: int, precision: str) -> Iterator[tuple[Operation, int]]:
    model = {
        "name": "conv2d",
        "channels": product.channels,
        "height": product.height,
        "width": product.width,
        "filters": product.filters,
        "kernel": (product.kernel, product.kernel),
        "stride": (product.stride, product.stride),
        "padding": (product.padding, product.padding),
    }
    for direction in _DIRECTIONS:
        yield kernel_operation({**model, "direction": direction}, batch_size, precision), 1


def _convolution(model: Mapping[str, Any], batch_size: int, flops: float, moved: float) -> Operation:
    """Unrolled: a row for each place of the output, a column for each element of a window over all channels."""
    sizes = zip((model["height"], model["width"]), model["kernel"], model["stride"], model["padding"], strict=True)
    height, width = ((size + 2 * pad - kernel) // stride + 1 for size, kernel, stride, pad in sizes)
    window, stride = model["kernel"][0] * model["kernel"][1], model["stride"][0] * model["stride"][1]
    m, n, k = batch_size * height * width, model["filters"], model["channels"] * window
    shape = {"images": batch_size, "window": window, "stride": stride}
    return Operation("conv2d", model["direction"], m, n, k, flops, moved, **shape)


def _recurrent(model: Mapping[str, Any], batch_size: int, flops: float, moved: float) -> Operation:
    hidden, variant = model["hidden"], f"{model['cell']} {model['direction']}"
    gates = GATES[model["cell"]] * hidden
    return Operation("rnn_kernel", variant, batch_size, gates, hidden, flops, moved, calls=model["steps"])
