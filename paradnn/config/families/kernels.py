"""Kernels: a step that is one operation, as DeepBench poses them (github.com/baidu-research/DeepBench).

A kernel trains nothing: it has no loss, no optimizer and no parameters, and its operands are the step's arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from paradnn.core.schema import option
from paradnn.errors import ConfigError

__all__ = [
    "Conv2d",
    "Gemm",
    "Kernel",
    "RecurrentKernel",
    "SparseFullyConnected",
    "SparseGemm",
    "as_kernel",
    "stored_elements",
]

PointT = TypeVar("PointT")
#: Sizes that every library takes: BLAS counts in 32 bits.
_LARGEST = 2**31 - 1
_DIRECTION = "the result: the output, or the gradient of the input or of the weights"
_DIRECTIONS = ("forward", "backward_input", "backward_weights")


class Kernel:
    """What the options of every kernel have in common.

    has_batch: whether `batch_size` is one of its sizes; where not, a step has one example, the operation.
    instead_of_batch: the key of the size that grows with the work, where there is no batch.
    """

    has_batch: ClassVar[bool] = False
    instead_of_batch: ClassVar[str] = "n"


@dataclass(frozen=True)
class Gemm(Kernel):
    """C = op(A) op(B), a product of an m x k and a k x n matrix; A and B are stored by rows, transposed if so said."""

    name: str = option("gemm", "the kernel", choices=("gemm",))
    m: int = option(1760, "rows of the product", low=1, high=_LARGEST)
    n: int = option(128, "columns of the product (DeepBench: mostly the batch)", low=1, high=_LARGEST)
    k: int = option(1760, "length of the sums", low=1, high=_LARGEST)
    transpose_a: bool = option(False, "the left matrix is stored as k x m")
    transpose_b: bool = option(False, "the right matrix is stored as n x k")

    def __post_init__(self) -> None:
        _check_work("model.m", self.m, f"model.n={self.n} model.k={self.k}", 2 * self.m * self.n * self.k)

    @property
    def size(self) -> str:
        """Short description of the product's size; letters say which matrices are transposed."""
        letters = "".join("nt"[transposed] for transposed in (self.transpose_a, self.transpose_b))
        return f"{self.m}x{self.n}x{self.k} {letters}"


@dataclass(frozen=True)
class Conv2d(Kernel):
    """A convolution of `batch_size` images, or one of its two gradients."""

    has_batch: ClassVar[bool] = True

    name: str = option("conv2d", "the kernel", choices=("conv2d",))
    channels: int = option(64, "of the input", low=1, high=_LARGEST)
    height: int = option(56, "of the input", low=1, high=_LARGEST)
    width: int = option(56, "of the input", low=1, high=_LARGEST)
    filters: int = option(64, "channels of the output", low=1, high=_LARGEST)
    kernel: tuple[int, ...] = option((3, 3), "height and width of a filter", low=1, high=_LARGEST, length=2)
    stride: tuple[int, ...] = option((1, 1), "downwards and to the right", low=1, high=_LARGEST, length=2)
    padding: tuple[int, ...] = option(
        (1, 1), "rows above and below, columns left and right", low=0, high=_LARGEST, length=2
    )
    layout: str = option("NHWC", "of images in memory: channels last, or first (DeepBench)", choices=("NHWC", "NCHW"))
    direction: str = option("forward", _DIRECTION, choices=_DIRECTIONS)

    def __post_init__(self) -> None:
        sizes = (self.height, self.width)
        for size, kernel, padding, what in zip(sizes, self.kernel, self.padding, ("height", "width"), strict=True):
            if size + 2 * padding < kernel:
                reason = f"a filter of {what} {kernel} does not fit model.{what}={size} with padding {padding}"
                raise ConfigError("model.kernel", list(self.kernel), reason, "choose a smaller one, or more padding")
        work = 2 * self.output_size[0] * self.output_size[1] * self.filters * self.channels
        work *= self.kernel[0] * self.kernel[1]
        _check_work("model.filters", self.filters, f"model.channels={self.channels} on each image", work)

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        sizes = zip((self.height, self.width), self.kernel, self.stride, self.padding, strict=True)
        height, width = ((size + 2 * padding - kernel) // stride + 1 for size, kernel, stride, padding in sizes)
        return height, width

    @property
    def size(self) -> str:
        """Short description of the convolution's size."""
        shape = f"{self.channels}x{self.height}x{self.width} {self.filters}k{self.kernel[0]}x{self.kernel[1]}"
        stride = "" if self.stride == (1, 1) else f" s{self.stride[0]}x{self.stride[1]}"
        return f"{shape}{stride} {self.direction}"


@dataclass(frozen=True)
class RecurrentKernel(Kernel):
    """A recurrent layer without its input product: inputs, as wide as the cell, are added to every gate as they are."""

    has_batch: ClassVar[bool] = True

    name: str = option("rnn_kernel", "the kernel", choices=("rnn_kernel",))
    cell: str = option("lstm", "vanilla has a rectifier", choices=("vanilla", "lstm", "gru"))
    hidden: int = option(512, "units of the cell", low=1, high=_LARGEST)
    steps: int = option(25, "steps in time", low=1, high=_LARGEST)
    direction: str = option("forward", _DIRECTION, choices=_DIRECTIONS)

    def __post_init__(self) -> None:
        work = 8 * self.hidden * self.hidden * self.steps
        _check_work("model.hidden", self.hidden, f"model.steps={self.steps} for each example", work)

    @property
    def size(self) -> str:
        """Short description of the layer's size."""
        return f"{self.cell} {self.hidden} t{self.steps} {self.direction}"


@dataclass(frozen=True)
class SparseGemm(Kernel):
    """C = A B, a sparse m x k matrix by a dense k x n matrix: CSR in PyTorch, coordinates in TensorFlow and JAX."""

    name: str = option("sparse_gemm", "the kernel", choices=("sparse_gemm",))
    m: int = option(7680, "rows of the product", low=1, high=_LARGEST)
    n: int = option(1, "columns of the product", low=1, high=_LARGEST)
    k: int = option(2560, "length of the sums", low=1, high=_LARGEST)
    density: float = option(0.05, "share of A's elements that are not 0, at random places", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        _check_work("model.m", self.m, f"model.n={self.n} model.k={self.k}", 2 * self.m * self.n * self.k)
        _check_density(self.density, self.m, self.k)

    @property
    def size(self) -> str:
        """Short description of the product's size."""
        return f"{self.m}x{self.n}x{self.k} d{self.density:g}"


@dataclass(frozen=True)
class SparseFullyConnected(Kernel):
    """`layers` pruned layers of `nodes` units each, rectified but for the last; of one layer it is the product alone.

    Weights are zero but for a share, at random places. They are stored sparse, as in `SparseGemm`, or dense: the same
    layer computed in full, which is what a sparse one has to beat.
    """

    has_batch: ClassVar[bool] = True

    name: str = option("sparse_fc", "the kernel", choices=("sparse_fc",))
    layers: int = option(1, "layers, each of `nodes` units", low=1, high=10_000)
    nodes: int = option(4096, "units of a layer", low=1, high=_LARGEST)
    input_size: int = option(9216, "features of an example", low=1, high=_LARGEST)
    density: float = option(0.09, "share of each layer's weights that are not 0, at random places", low=0.0, high=1.0)
    storage: str = option("sparse", "of the weights: those that are not 0, or all (dense)", choices=("sparse", "dense"))

    def __post_init__(self) -> None:
        work = 2 * self.nodes * (self.input_size + (self.layers - 1) * self.nodes)
        _check_work("model.nodes", self.nodes, f"model.input_size={self.input_size} for each example", work)
        for width in self.widths:
            _check_density(self.density, self.nodes, width)

    @property
    def widths(self) -> tuple[int, ...]:
        """Inputs of each layer."""
        return (self.input_size, *[self.nodes] * (self.layers - 1))

    @property
    def size(self) -> str:
        """Short description of the layers' size."""
        layers = f" {self.layers} layers" if self.layers > 1 else ""
        return f"{self.input_size}x{self.nodes}{layers} d{self.density:g} {self.storage}"


@dataclass(frozen=True)
class Elementwise(Kernel):
    """a b b ... b of tensors of so many elements, product after product: what is neither a matrix product nor one of
    the above takes about as long as what moves as many bytes. Many operations on few elements are dispatch alone."""

    instead_of_batch: ClassVar[str] = "elements"

    name: str = option("elementwise", "the kernel", choices=("elementwise",))
    elements: int = option(1_000_000, "of each tensor", low=1, high=_LARGEST)
    operations: int = option(1, "products, one after the other", low=1, high=256)

    @property
    def size(self) -> str:
        """Short description of the operations' size."""
        return f"{self.elements} x{self.operations}"


def stored_elements(density: float, rows: int, columns: int) -> int:
    """Elements of a sparse matrix that are stored."""
    return round(density * rows * columns)


def as_kernel(point: PointT) -> PointT:
    """A `Point` that is no kernel's as it is, and a kernel's in the one way that stands for it.

    Raises ConfigError where it asks for what a kernel has not. The optimizer says nothing of a kernel, so that it is
    the same point with any.
    """
    given: Any = point
    model: Any = given.model
    if not isinstance(model, Kernel):
        return point
    name = given.model.name
    if given.learn is not None:
        raise ConfigError("task", "learn", f"model={name} trains nothing", "leave it out, or choose another model")
    if given.mode != "inference":
        raise ConfigError("mode", given.mode, f"model={name} trains nothing", "leave it out, or set mode=inference")
    if given.batch_size != 1 and not model.has_batch:
        remedy = f"leave it out, and set model.{model.instead_of_batch}"
        raise ConfigError("batch_size", given.batch_size, f"model={name} has no batch", remedy)
    if given.devices != 1:
        raise ConfigError("devices", given.devices, f"model={name} is for one device", "set devices=1")
    same: PointT = replace(given, optimizer=type(given.optimizer)())
    return same


def _check_density(density: float, rows: int, columns: int) -> None:
    """ConfigError where nothing of a matrix stays."""
    if not stored_elements(density, rows, columns):
        reason = f"leaves none of {rows * columns:,} elements"
        raise ConfigError("model.density", density, reason, "choose a larger value")


def _check_work(key: str, value: int, others: str, flops: int) -> None:
    """ConfigError where the operation has more FLOPs than 64 bits count."""
    if flops >= 2**63:
        reason = f"makes {flops:.3g} FLOP with {others}, more than 64 bits count"
        raise ConfigError(key, value, reason, "choose smaller sizes")
