"""Kernels: a step that is one operation, as DeepBench poses them (github.com/baidu-research/DeepBench).

A kernel trains nothing: it has no loss, no optimizer and no parameters. It is an operation of the framework, called as
it is, without Keras' layers around it. Operands are drawn on the host in float32, placed on the device, and made there
what the operation takes: of the point's precision, in its layout, sparse. Every step has them as arguments and returns
its whole result, so that no compiler can compute either once for all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from paradnn.core.schema import option
from paradnn.core.workload import expect
from paradnn.errors import ConfigError
from paradnn.families import Family, Model
from paradnn.families.built import BuiltModel
from paradnn.families.built import Kernel as Computed
from paradnn.families.layers import COMPUTE_BYTES, Convolve, Costs
from paradnn.families.operations import Operation, convolution

if TYPE_CHECKING:
    import numpy as np

PointT = TypeVar("PointT")
#: Sizes that every library takes: BLAS counts in 32 bits.
LARGEST = 2**31 - 1
#: What comes with the model where a batch is none of its sizes, and where it is.
ALONE = {"step": {"mode": "inference", "batch_size": 1}}
BATCHED = {"step": {"mode": "inference", "batch_size": 16}}
DIRECTION = "the result: the output, or the gradient of the input or of the weights"
DIRECTIONS = ("forward", "backward_input", "backward_weights")
#: Bytes of an index of a sparse matrix, in the least format that the frameworks have: rows compressed, 32 bits.
_INDEX_BYTES = 4


@dataclass(frozen=True)
class Kernel(Model):
    """What the options of every kernel have in common.

    has_batch: whether `batch_size` is one of its sizes; where not, a step has one example, the operation.
    instead_of_batch: the key of the size that grows with the work, where there is no batch.
    """

    is_kernel: ClassVar[bool] = True
    has_batch: ClassVar[bool] = False
    instead_of_batch: ClassVar[str] = "model.n"

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        """FLOPs (twice its multiply-accumulates), and bytes of operands and result, each once, with indices of sparse
        ones, of elements of `width` bytes; `batch_size` is 1 where it is none of the kernel's sizes."""
        raise NotImplementedError

    def costs(self, *, batch_size: int, precision: str, **others: Any) -> Costs:
        flops, moved = self.work(batch_size, COMPUTE_BYTES[precision])
        forward = flops if getattr(self, "direction", "forward") == "forward" else 0
        return Costs(0, 0, forward, flops - forward, flops, moved, moved)

    def posed(self, batch_size: int, precision: str, variant: str, m: int, n: int, k: int, calls: int = 1) -> Operation:
        """It as an `Operation` of this shape."""
        flops, moved = self.work(batch_size, COMPUTE_BYTES[precision])
        return Operation(self.name, variant, m, n, k, float(flops), float(moved), calls=calls)

    def layer_count(self) -> int:
        return 1

    def in_point(self, point: PointT) -> PointT:
        """The optimizer says nothing of a kernel, so that it is the same point with any."""
        given: Any = point
        what, remedy = f"model={self.name}", f"leave it out, and set {self.instead_of_batch}"
        batch = 1 if self.has_batch else given.batch_size
        expect(
            ("mode", given.workload.mode, "inference", f"{what} trains nothing", "leave it out, or set mode=inference"),
            ("batch_size", batch, 1, f"{what} has no batch", remedy),
            ("devices", given.devices, 1, f"{what} is for one device"),
        )
        same: PointT = replace(given, optimizer=type(given.optimizer)())
        return same


@dataclass(frozen=True)
class Messages(Kernel):
    """A step that is messages to other processes, of which nothing is compiled or profiled."""

    is_communication: ClassVar[bool] = True

    def in_point(self, point: PointT) -> PointT:
        """`compile` says nothing of it, and presets such as measure=quick profile what there is to profile."""
        given: Any = point
        reason = f"model={self.name} has no operations to profile"
        expect(("measure.keep_trace", given.measure.keep_trace, False, reason))
        given = super().in_point(given)
        compiled = type(given).__dataclass_fields__["compile"].default
        same: PointT = replace(given, measure=replace(given.measure, profile=False), compile=compiled)
        return same


@dataclass(frozen=True)
class Gemm(Kernel):
    """A kernel: C = op(A) op(B), a product of an m x k and a k x n matrix; A and B are stored by rows, transposed if so
    said."""

    name: str = "gemm"
    m: int = option(1760, "rows of the product", low=1, high=LARGEST)
    n: int = option(128, "columns of the product (DeepBench: mostly the batch)", low=1, high=LARGEST)
    k: int = option(1760, "length of the sums", low=1, high=LARGEST)
    transpose_a: bool = option(False, "the left matrix is stored as k x m")
    transpose_b: bool = option(False, "the right matrix is stored as n x k")

    def __post_init__(self) -> None:
        check_work("model.m", self.m, f"model.n={self.n} model.k={self.k}", 2 * self.m * self.n * self.k)

    @property
    def size(self) -> str:
        return f"{self.m}x{self.n}x{self.k} {self._letters}"

    @property
    def _letters(self) -> str:
        return "".join("nt"[transposed] for transposed in (self.transpose_a, self.transpose_b))

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        return 2 * self.m * self.n * self.k, width * (self.m * self.k + self.k * self.n + self.m * self.n)

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        return self.posed(batch_size, precision, self._letters, self.m, self.n, self.k)

    def build(self) -> BuiltModel:
        """A (m, k) and B (k, n), each transposed in memory where so said -> (m, n)."""
        operations, _ = framework_operations()
        flip_a, flip_b = self.transpose_a, self.transpose_b
        left, right = (self.m, self.k), (self.k, self.n)
        return kernel_workload(
            lambda a, b: operations.matmul(a, b, flip_a, flip_b),
            lambda generator, _: normal(generator, left[::-1] if flip_a else left, right[::-1] if flip_b else right),
        )


@dataclass(frozen=True)
class SparseGemm(Kernel):
    """A kernel: C = A B, a sparse m x k matrix by a dense k x n matrix: CSR in PyTorch, coordinates in TensorFlow and
    JAX."""

    is_sparse: ClassVar[bool] = True
    shown: ClassVar[str] = "{m}x{n}x{k} d{density:g}"

    name: str = "sparse_gemm"
    m: int = option(7680, "rows of the product", low=1, high=LARGEST)
    n: int = option(1, "columns of the product", low=1, high=LARGEST)
    k: int = option(2560, "length of the sums", low=1, high=LARGEST)
    density: float = option(0.05, "share of A's elements that are not 0, at random places", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        check_work("model.m", self.m, f"model.n={self.n} model.k={self.k}", 2 * self.m * self.n * self.k)
        if not self.stored_elements:
            reason = f"leaves none of {self.m * self.k:,} elements"
            raise ConfigError("model.density", self.density, reason, "choose a larger value")

    @property
    def stored_elements(self) -> int:
        """Elements of the sparse matrix that are not 0."""
        return round(self.density * self.m * self.k)

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        """Of the dense matrix no more rows are read than there are elements that meet them."""
        elements = self.stored_elements + min(self.stored_elements, self.k) * self.n + self.m * self.n
        return 2 * self.stored_elements * self.n, width * elements + _INDEX_BYTES * (self.stored_elements + self.m + 1)

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        """As a product whose sums are as long as a row's elements are many."""
        return self.posed(batch_size, precision, "sparse", self.m, self.n, max(1, self.stored_elements // self.m))

    def build(self) -> BuiltModel:
        """A sparse (m, k) and a dense (k, n) matrix -> (m, n)."""
        import numpy as np

        operations, dtype = framework_operations()
        m, n, k = self.m, self.n, self.k

        def draw(generator: np.random.Generator, _: int) -> list[np.ndarray]:
            """Elements of each row, their columns row by row at places drawn evenly from all, values, and B."""
            counts = generator.multivariate_hypergeometric([k] * m, self.stored_elements, method="marginals")
            drawn = [np.sort(generator.choice(k, count, replace=False, shuffle=False)) for count in counts]
            places = [counts.astype(np.int32), np.concatenate(drawn).astype(np.int32)]
            return [*places, *normal(generator, (self.stored_elements,), (k, n))]

        def prepare(operands: list[Any]) -> list[Any]:
            counts, columns, values, dense = operands
            values, dense = operations.cast(values, dtype), operations.cast(dense, dtype)
            return [operations.sparse(counts, columns, values, (m, k)), dense]

        return kernel_workload(operations.sparse_matmul, draw, prepare)


@dataclass(frozen=True)
class Conv2d(Kernel):
    """A kernel: one convolution of a batch of images, or the gradient of its input or of its weights. Pairs are height,
    width."""

    has_batch: ClassVar[bool] = True
    convolves: ClassVar[bool] = True

    name: str = "conv2d"
    channels: int = option(64, "of the input", low=1, high=LARGEST)
    height: int = option(56, "of the input", low=1, high=LARGEST)
    width: int = option(56, "of the input", low=1, high=LARGEST)
    filters: int = option(64, "channels of the output", low=1, high=LARGEST)
    kernel: tuple[int, ...] = option((3, 3), "height and width of a filter", low=1, high=LARGEST, length=2)
    stride: tuple[int, ...] = option((1, 1), "downwards and to the right", low=1, high=LARGEST, length=2)
    padding: tuple[int, ...] = option((1, 1), "rows on each side, columns on each", low=0, high=LARGEST, length=2)
    layout: str = option("NHWC", "of images in memory: channels last, or first (DeepBench)", choices=("NHWC", "NCHW"))
    direction: str = option("forward", DIRECTION, choices=DIRECTIONS)

    def __post_init__(self) -> None:
        sizes = (self.height, self.width)
        for size, kernel, padding, what in zip(sizes, self.kernel, self.padding, ("height", "width"), strict=True):
            if size + 2 * padding < kernel:
                reason = f"a filter of {what} {kernel} does not fit model.{what}={size} with padding {padding}"
                raise ConfigError("model.kernel", list(self.kernel), reason, "choose a smaller one, or more padding")
        work = 2 * self.product.macs(1)
        check_work("model.filters", self.filters, f"model.channels={self.channels} on each image", work)

    @property
    def product(self) -> Convolve:
        """The convolution of one image."""
        shape = (self.channels, self.height, self.width, self.filters)
        return Convolve(*shape, self.kernel, self.stride, self.padding)

    @property
    def size(self) -> str:
        shape = f"{self.channels}x{self.height}x{self.width} {self.filters}k{self.kernel[0]}x{self.kernel[1]}"
        stride = "" if self.stride == (1, 1) else f" s{self.stride[0]}x{self.stride[1]}"
        return f"{shape}{stride} {self.direction}"

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        return 2 * self.product.macs(batch_size), width * self.product.elements(batch_size)

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        return convolution(self.product, self.direction, batch_size, COMPUTE_BYTES[precision])

    def build(self) -> BuiltModel:
        """Two of images, filters (height, width, channels, filters) and output or its gradient -> the third."""
        from paradnn.families.parts.operations import Convolution

        operations, dtype = framework_operations()
        size, output = (self.height, self.width), self.product.output
        filters = (*self.kernel, self.channels, self.filters)
        direction, layout = self.direction, self.layout

        def images(count: int, size: tuple[int, ...], channels: int) -> tuple[int, ...]:
            return (count, *size, channels) if layout == "NHWC" else (count, channels, *size)

        def draw(generator: np.random.Generator, count: int) -> list[np.ndarray]:
            inputs, outputs = images(count, size, self.channels), images(count, output, self.filters)
            given = ((inputs, filters), (outputs, filters), (inputs, outputs))
            return normal(generator, *given[DIRECTIONS.index(direction)])

        def prepare(operands: list[Any]) -> list[Any]:
            first, second = (operations.cast(operand, dtype) for operand in operands)
            arrange = operations.images if direction == "backward_weights" else operations.filters
            return [operations.images(first, layout), arrange(second, layout)]

        def compute(first: Any, second: Any) -> Any:
            shape = images(first.shape[0], size, self.channels)
            given = Convolution(self.stride, self.padding, layout, shape, filters)
            return getattr(operations, f"convolution_{direction}")(first, second, given)

        return kernel_workload(compute, draw, prepare)


@dataclass(frozen=True)
class Elementwise(Kernel):
    """A kernel: a b b ... b of tensors of so many elements, product after product: what is no matrix product takes
    about as long as what moves as many bytes."""

    instead_of_batch: ClassVar[str] = "model.elements"
    shown: ClassVar[str] = "{elements} x{operations}"

    name: str = "elementwise"
    elements: int = option(1_000_000, "of each tensor", low=1, high=LARGEST)
    operations: int = option(1, "products, one after the other", low=1, high=256)

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        """Every product reads two tensors and writes one, as if none were fused with the next."""
        products = self.operations * self.elements
        return products, 3 * width * products

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        return self.posed(batch_size, precision, "product", self.elements, 1, 1, self.operations)

    def build(self) -> BuiltModel:
        """a and b, near 1 so that no product of many leaves the range of a type -> a b b ... b, of the same shape."""
        import numpy as np

        def compute(a: Any, b: Any) -> Any:
            for _ in range(self.operations):
                a = a * b
            return a

        def draw(generator: np.random.Generator, _: int) -> list[np.ndarray]:
            return [generator.uniform(0.99, 1.01, self.elements).astype(np.float32) for _ in range(2)]

        return kernel_workload(compute, draw)


def check_work(key: str, value: int, others: str, flops: int) -> None:
    """ConfigError where the operation has more FLOPs than 64 bits count."""
    if flops >= 2**63:
        reason = f"makes {flops:.3g} FLOP with {others}, more than 64 bits count"
        raise ConfigError(key, value, reason, "choose smaller sizes")


def kernel_workload(
    compute: Callable[..., Any], draw: Any, prepare: Callable[[list[Any]], list[Any]] | None = None
) -> BuiltModel:
    """What a kernel hands to the measurement; `draw` and `prepare` as in `BuiltModel`, by default a cast."""
    operations, dtype = framework_operations()

    def cast(operands: list[Any]) -> list[Any]:
        return [operations.cast(operand, dtype) for operand in operands]

    return BuiltModel(Computed(compute), (), (), _no_loss, draw, prepare or cast)


def _no_loss(targets: Sequence[Any], outputs: Any) -> Any:
    raise TypeError("a kernel has no loss")


def framework_operations() -> tuple[Any, str]:
    """The operations of the framework that Keras stands on (`paradnn.families.parts.operations`), and the type of the
    operands."""
    import importlib

    import keras

    module = importlib.import_module(f"paradnn.families.parts.{keras.config.backend()}_operations")
    return module, keras.config.dtype_policy().compute_dtype


def normal(generator: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Arrays of float32."""
    return [generator.standard_normal(shape, dtype="float32") for shape in shapes]


FAMILY = tuple(
    Family(options.name, options, "vectors", swept, sweep, place=place, chosen=chosen)
    for options, place, chosen, swept, sweep in (
        (Gemm, 14, ALONE, ("m", "n", "k"), "model.m=512,1024,2048,4096 model.n=16,64,256,1024"),
        (Conv2d, 15, BATCHED, ("channels", "filters", "height"), "model.filters=16,64,256 batch_size=4,16,64"),
        (SparseGemm, 17, ALONE, ("density", "m", "n"), "model.density=0.05,0.1,0.2,0.5 model.n=1,16,64"),
        (Elementwise, 19, ALONE, ("elements", "operations"), "model.elements=1000,100000,10000000"),
    )
)
