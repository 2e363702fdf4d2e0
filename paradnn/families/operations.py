"""A step as a list of operations (`Model.product_list`), and a kernel as one
(`Kernel.as_operation`): what a model of operation times is fitted on and asked for.

By arithmetic alone. A layer's product has three in a training step: its output, the gradient of its
weights and that of its inputs, the last not in a first layer. Of attention every head of every
example has products of its own, which a framework calls at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paradnn.core.layers import COMPUTE_BYTES, Convolve, Layer, Multiply

#: Of what a step computes of a product: its result, and the gradients of what it was made of.
DIRECTIONS = ("forward", "backward_weights", "backward_input")


@dataclass(frozen=True)
class Operation:
    """One operation. kind: the kernel that poses it. variant: which matrices are transposed, or the
    direction.

    m, n, k: the product of its forward direction, m x k by k x n: of a convolution unrolled images
    by filters, of a recurrent layer states by weights. batch: products beside each other, calls:
    one after the other, images: in all. window, stride: elements of a filter, product of both
    strides. flops, bytes: in all; operands and result once.
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
        """m, n, k of the product that its own direction computes, and how many of these follow one
        another.
        """
        m = self.m
        n = self.n
        k = self.k
        calls = self.calls
        if self.variant.endswith(
            "backward_weights"
        ):  # of recurrent layers one product over all steps
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
class RepeatedOperation:
    """An operation of a layer, and how often it runs in a step, on average over steps."""

    layer: str
    operation: Operation
    count: float


def elementwise_operation(moved: float, precision: str) -> Operation:
    """What moves so many bytes, as two tensors to a third."""
    elements = max(1, round(moved / (3 * COMPUTE_BYTES[precision])))
    return Operation("elementwise", "product", elements, 1, 1, float(elements), moved)


def product_operations(
    layers: Sequence[Layer], batch_size: int, precision: str, mode: str
) -> list[RepeatedOperation]:
    """The products and convolutions of one step over all layers, in the order of the layers; `mode`
    as a point's.
    """
    width = COMPUTE_BYTES[precision]
    found = []
    for layer in layers:
        for product in layer.products:
            for direction in DIRECTIONS if mode == "train" else DIRECTIONS[:1]:
                if direction == "backward_input" and layer.input_macs == 0:
                    continue
                if isinstance(product, Multiply):
                    operation = _multiplied(product, direction, batch_size, width)
                    count = product.times - (
                        product.constant if direction == "backward_input" else 0
                    )
                else:
                    operation = convolution(product, direction, batch_size, width)
                    count = 1
                found.append(RepeatedOperation(f"{layer.name} {direction}", operation, count))
    return found


def _multiplied(product: Multiply, direction: str, batch_size: int, width: int) -> Operation:
    """Y = X W, dW = X'Y, dX = Y W'; of attention's heads the same for each of `own` pairs of
    matrices per example.
    """
    many = batch_size * product.own if product.own else 1
    rows = product.rows if product.own else batch_size * product.rows
    inputs = product.inputs
    outputs = product.outputs
    m, n, k, variant = {
        "forward": (rows, outputs, inputs, "nn"),
        "backward_weights": (inputs, outputs, rows, "tn"),
        "backward_input": (rows, inputs, outputs, "nt"),
    }[direction]
    moved = width * many * (m * k + k * n + m * n)
    return Operation("gemm", variant, m, n, k, 2.0 * many * m * n * k, float(moved), many)


def convolution(product: Convolve, direction: str, batch_size: int, width: int) -> Operation:
    """Unrolled: a row for each place of the output, a column for each element of a window over all
    channels.
    """
    height, base = product.output
    window = product.kernel[0] * product.kernel[1]
    stride = product.stride[0] * product.stride[1]
    m = batch_size * height * base
    k = product.channels * window
    work = (float(2 * product.macs(batch_size)), float(width * product.elements(batch_size)))
    shape = {"images": batch_size, "window": window, "stride": stride}
    return Operation("conv2d", direction, m, product.filters, k, *work, **shape)
