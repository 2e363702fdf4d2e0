"""Operations, whose times are measured as kernels and predicted for models.

A step is a list of operations (`Model.product_list`), and a kernel is a single operation
(`Kernel.as_operation`). Sizes of models and kernels determine both, without a framework. In a
training step, each product of a layer becomes three operations, which compute the output, the
gradient of the weights, and the gradient of the inputs. The first layer does not need the last of
these. In attention, each head of each example has separate matrices, which a framework multiplies
as one batch.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from paradnn.core.layers import COMPUTE_BYTES, Convolve, Layer, Multiply

#: Operations of a product in a training step: its result, and the gradients of its two operands.
DIRECTIONS = ("forward", "backward_weights", "backward_input")


@dataclass(frozen=True)
class Operation:
    """A product of matrices, a convolution, a recurrent layer or an elementwise operation.

    Attributes:
        kind: Name of the kernel that measures the operation, such as "gemm".
        variant: Variant of the kernel. A matrix product has one letter per operand, as in BLAS: n,
            or t if it is transposed. A sparse product has the storage of the sparse matrix. A
            convolution has its direction. A recurrent layer has its cell and direction. An
            elementwise operation has "product".
        m: Rows of the product.
        n: Columns of the product.
        k: Inner size of the product. Convolutions and recurrent layers have the sizes m x k by k x
            n of their forward product in every direction. This product multiplies unrolled images
            by filters, or states by weights.
        flops: FLOPs of the whole operation.
        bytes: Bytes of all operands and results, each counted once.
        batch: Number of independent products.
        calls: Number of consecutive products; each needs the result of the previous product.
        images: Number of images of a convolution.
        window: Elements of a filter in one channel.
        stride: Vertical stride times horizontal stride.
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
        """Sizes of the matrix product that the operation computes, forward or backward.

        They are m, n and k of the product, and the number of consecutive products. The variant of
        the operation determines the direction.
        """
        if self.variant.endswith("backward_weights"):
            # In this direction, a recurrent layer computes one product over all its steps.
            return self.k, self.n, self.m * self.calls, 1
        if self.variant.endswith("backward_input"):
            inner = self.n * self.window
            return self.m * self.stride, max(1, self.k // self.window), inner, self.calls
        return self.m, self.n, self.k, self.calls

    @property
    def shape(self) -> str:
        """The shape as text, such as "1760x128x1760 nn"."""
        if self.kind == "elementwise":
            return f"{self.m}"
        text = f"{self.m}x{self.n}x{self.k} {self.variant}"
        if self.batch > 1:
            text = f"{self.batch} of {text}"
        if self.window > 1:
            text += f" w{self.window}"
        if self.calls > 1:
            text += f" t{self.calls}"
        return text


@dataclass(frozen=True)
class RepeatedOperation:
    """An operation of a layer, and how often it runs in a step.

    Attributes:
        layer: Name of the layer.
        operation: The operation.
        count: Mean number of times that the operation runs in a step.
    """

    layer: str
    operation: Operation
    count: float


def elementwise_operation(moved_bytes: float, precision: str) -> Operation:
    """Return an elementwise operation that reads two tensors and writes one.

    Args:
        moved_bytes: Total bytes of the three tensors.
        precision: Type of the elements.
    """
    elements = max(1, round(moved_bytes / (3 * COMPUTE_BYTES[precision])))
    return Operation(
        "elementwise",
        "product",
        m=elements,
        n=1,
        k=1,
        flops=float(elements),
        bytes=moved_bytes,
    )


def product_operations(
    layers: Sequence[Layer], batch_size: int, precision: str, mode: str
) -> list[RepeatedOperation]:
    """Return the products and convolutions of one step, in the order of the layers.

    Args:
        layers: Layers of the model in forward order.
        batch_size: Number of examples of a step.
        precision: Type of operands and results.
        mode: `train` or `inference`.
    """
    width = COMPUTE_BYTES[precision]
    directions = DIRECTIONS if mode == "train" else ("forward",)
    operations = []
    for layer in layers:
        for product in layer.products:
            for direction in directions:
                if direction == "backward_input" and layer.input_macs == 0:
                    continue
                count = 1
                if isinstance(product, Multiply):
                    operation = _matrix_product(product, direction, batch_size, width)
                    count = product.times
                    if direction == "backward_input":
                        count -= product.constant
                else:
                    operation = convolution(product, direction, batch_size, width)
                name = f"{layer.name} {direction}"
                operations.append(RepeatedOperation(name, operation, count))
    return operations


@functools.lru_cache(maxsize=4096)  # products recur in the layers of a model and in a sweep
def _matrix_product(product: Multiply, direction: str, batch_size: int, width: int) -> Operation:
    """Return Y = X W (forward), dW = X' dY (backward_weights) or dX = dY W' (backward_input).

    The apostrophe denotes the transpose. In attention, every example has several separate pairs of
    matrices. In other layers, all examples share one W.

    Args:
        product: The product in the forward pass.
        direction: One of `DIRECTIONS`.
        batch_size: Number of examples.
        width: Bytes per element.
    """
    if product.pairs:
        batch = batch_size * product.pairs
        rows = product.rows
    else:
        batch = 1
        rows = batch_size * product.rows
    inputs = product.inputs
    outputs = product.outputs
    m, n, k, variant = {
        "forward": (rows, outputs, inputs, "nn"),
        "backward_weights": (inputs, outputs, rows, "tn"),
        "backward_input": (rows, inputs, outputs, "nt"),
    }[direction]
    moved_bytes = width * batch * (m * k + k * n + m * n)
    return Operation(
        "gemm",
        variant,
        m=m,
        n=n,
        k=k,
        flops=2.0 * batch * m * n * k,
        bytes=float(moved_bytes),
        batch=batch,
    )


def convolution(product: Convolve, direction: str, batch_size: int, width: int) -> Operation:
    """Return a convolution as a product of unrolled images and filters (im2col).

    The unrolled images have a row for each position of the output, and a column for each element of
    a filter.

    Args:
        product: The convolution of one image.
        direction: One of `DIRECTIONS`.
        batch_size: Number of images.
        width: Bytes per element.
    """
    output_height, output_width = product.output
    window = product.kernel[0] * product.kernel[1]
    return Operation(
        "conv2d",
        direction,
        m=batch_size * output_height * output_width,
        n=product.filters,
        k=product.channels * window,
        flops=float(2 * product.macs(batch_size)),
        bytes=float(width * product.elements(batch_size)),
        images=batch_size,
        window=window,
        stride=product.stride[0] * product.stride[1],
    )
