"""Kernels: a step that is one operation, as DeepBench poses them
(github.com/baidu-research/DeepBench).

A kernel trains nothing. It is an operation of the framework, without Keras' layers around it.
Operands are drawn in float32, placed on the device, and made there what the operation takes. Every
step has them as arguments and returns its whole result, so that no compiler can compute either once
for all steps.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.core.errors import ConfigError, require_value
from paradnn.core.layers import COMPUTE_BYTES, Convolve, Costs
from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.built import BuiltModel, FunctionModel
from paradnn.families.operations import Operation, convolution

if TYPE_CHECKING:
    import numpy as np

#: Sizes that every library takes: BLAS counts in 32 bits.
LARGEST = 2**31 - 1
#: What comes with the model where a batch is none of its sizes, and where it is.
ALONE = {"step": {"mode": "inference", "batch_size": 1}}
BATCHED = {"step": {"mode": "inference", "batch_size": 16}}
DIRECTION = "the result: the output, or the gradient of the input or of the weights"
DIRECTIONS = ("forward", "backward_input", "backward_weights")
#: Bytes of an index of a sparse matrix, in the least format that the frameworks have: rows
#: compressed, 32 bits.
_INDEX_BYTES = 4
#: Products of the width of a state in one step of a cell.
_GATES = {"vanilla": 1, "lstm": 4, "gru": 3}
#: How many states a step hands on, and how many series `backward_input` takes beside gradients and
#: gates.
_STATES = {"vanilla": 1, "lstm": 2, "gru": 1}
_KEPT = {"vanilla": 1, "lstm": 1, "gru": 2}


@dataclass(frozen=True)
class Kernel(Model):
    """What the options of every kernel have in common. has_batch: whether `batch_size` is one of
    its sizes; instead_of_batch: where not, the key of the size that grows with the work.
    """

    is_kernel: ClassVar[bool] = True
    has_batch: ClassVar[bool] = False
    instead_of_batch: ClassVar[str] = "model.n"

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        """FLOPs (twice its multiply-accumulates), and bytes of operands and result, each once, with
        indices of sparse ones, of elements of `width` bytes.
        """
        raise NotImplementedError

    def costs(self, *, batch_size: int, precision: str, **others: Any) -> Costs:
        flops, moved = self.work(batch_size, COMPUTE_BYTES[precision])
        if getattr(self, "direction", "forward") == "forward":
            forward = flops
        else:
            forward = 0
        return Costs(0, 0, forward, flops - forward, flops, moved, moved)

    def posed(
        self, batch_size: int, precision: str, variant: str, m: int, n: int, k: int, calls: int = 1
    ) -> Operation:
        """It as an `Operation` of this shape."""
        flops, moved = self.work(batch_size, COMPUTE_BYTES[precision])
        return Operation(self.name, variant, m, n, k, float(flops), float(moved), calls=calls)

    def layer_count(self) -> int:
        return 1

    def canonical_point(self, point: Any) -> Any:
        """The optimizer says nothing of a kernel, so that it is the same point with any."""
        what = f"model={self.name}"
        remedy = f"leave it out, and set {self.instead_of_batch}"
        batch = 1 if self.has_batch else point.batch_size
        require_value(
            "mode",
            point.workload.mode,
            required="inference",
            reason=f"{what} trains nothing",
            remedy="leave it out, or set mode=inference",
        )
        require_value("batch_size", batch, required=1, reason=f"{what} has no batch", remedy=remedy)
        require_value("devices", point.devices, required=1, reason=f"{what} is for one device")
        return replace(point, optimizer=type(point.optimizer)())


@dataclass(frozen=True)
class Messages(Kernel):
    """A step that is messages to other processes, of which nothing is compiled or profiled."""

    is_communication: ClassVar[bool] = True

    def canonical_point(self, point: Any) -> Any:
        """`compile` says nothing of it, and presets such as measure=quick profile what there is to
        profile.
        """
        point = super().canonical_point(point)
        reason = f"model={self.name} has no operations to profile"
        require_value("measure.keep_trace", point.measure.keep_trace, required=False, reason=reason)
        compiled = type(point).__dataclass_fields__["compile"].default
        return replace(point, measure=replace(point.measure, profile=False), compile=compiled)


@dataclass(frozen=True)
class Gemm(Kernel):
    """A kernel: C = op(A) op(B), a product of an m x k and a k x n matrix; A and B by rows,
    transposed if so said.
    """

    name: str = "gemm"
    m: int = option(1760, "rows of the product", low=1, high=LARGEST)
    n: int = option(
        128, "columns of the product (DeepBench: mostly the batch)", low=1, high=LARGEST
    )
    k: int = option(1760, "length of the sums", low=1, high=LARGEST)
    transpose_a: bool = option(False, "the left matrix is stored as k x m")
    transpose_b: bool = option(False, "the right matrix is stored as n x k")

    def __post_init__(self) -> None:
        check_work(
            "model.m", self.m, f"model.n={self.n} model.k={self.k}", 2 * self.m * self.n * self.k
        )

    @property
    def size(self) -> str:
        return f"{self.m}x{self.n}x{self.k} {self._letters}"

    @property
    def _letters(self) -> str:
        return "".join("nt"[transposed] for transposed in (self.transpose_a, self.transpose_b))

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        return 2 * self.m * self.n * self.k, width * (
            self.m * self.k + self.k * self.n + self.m * self.n
        )

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        return self.posed(batch_size, precision, self._letters, self.m, self.n, self.k)

    def build(self) -> BuiltModel:
        """A (m, k) and B (k, n), each transposed in memory where so said -> (m, n)."""
        operations, _ = framework_operations()
        flip_a = self.transpose_a
        flip_b = self.transpose_b
        left = (self.m, self.k)
        right = (self.k, self.n)
        return kernel_workload(
            lambda a, b: operations.matmul(a, b, flip_a, flip_b),
            lambda generator, _: normal(
                generator, left[::-1] if flip_a else left, right[::-1] if flip_b else right
            ),
        )


@dataclass(frozen=True)
class SparseGemm(Kernel):
    """A kernel: C = A B, a sparse m x k matrix by a dense k x n matrix: CSR in PyTorch, else
    coordinates.
    """

    is_sparse: ClassVar[bool] = True
    size_template: ClassVar[str] = "{m}x{n}x{k} d{density:g}"

    name: str = "sparse_gemm"
    m: int = option(7680, "rows of the product", low=1, high=LARGEST)
    n: int = option(1, "columns of the product", low=1, high=LARGEST)
    k: int = option(2560, "length of the sums", low=1, high=LARGEST)
    density: float = option(
        0.05, "share of A's elements that are not 0, at random places", low=0.0, high=1.0
    )

    def __post_init__(self) -> None:
        check_work(
            "model.m", self.m, f"model.n={self.n} model.k={self.k}", 2 * self.m * self.n * self.k
        )
        if not self.stored_elements:
            reason = f"leaves none of {self.m * self.k:,} elements"
            raise ConfigError("model.density", self.density, reason, "choose a larger value")

    @property
    def stored_elements(self) -> int:
        """Elements of the sparse matrix that are not 0."""
        return round(self.density * self.m * self.k)

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        """Of the dense matrix no more rows are read than there are elements that meet them."""
        elements = (
            self.stored_elements + min(self.stored_elements, self.k) * self.n + self.m * self.n
        )
        return 2 * self.stored_elements * self.n, width * elements + _INDEX_BYTES * (
            self.stored_elements + self.m + 1
        )

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        """As a product whose sums are as long as a row's elements are many."""
        return self.posed(
            batch_size, precision, "sparse", self.m, self.n, max(1, self.stored_elements // self.m)
        )

    def build(self) -> BuiltModel:
        """A sparse (m, k) and a dense (k, n) matrix -> (m, n)."""
        import numpy as np

        operations, dtype = framework_operations()
        m = self.m
        n = self.n
        k = self.k

        def draw(generator: np.random.Generator, _: int) -> list[np.ndarray]:
            counts = generator.multivariate_hypergeometric(
                [k] * m, self.stored_elements, method="marginals"
            )
            drawn = [
                np.sort(generator.choice(k, count, replace=False, shuffle=False))
                for count in counts
            ]
            places = [counts.astype(np.int32), np.concatenate(drawn).astype(np.int32)]
            return [*places, *normal(generator, (self.stored_elements,), (k, n))]

        def prepare(operands: list[Any]) -> list[Any]:
            counts, columns, values, dense = operands
            values = operations.cast(values, dtype)
            dense = operations.cast(dense, dtype)
            return [operations.sparse(counts, columns, values, (m, k)), dense]

        return kernel_workload(operations.sparse_matmul, draw, prepare)


@dataclass(frozen=True)
class Conv2d(Kernel):
    """A kernel: one convolution of images, or the gradient of its input or of its weights. Pairs
    are height, width.
    """

    has_batch: ClassVar[bool] = True
    convolves: ClassVar[bool] = True

    name: str = "conv2d"
    channels: int = option(64, "of the input", low=1, high=LARGEST)
    height: int = option(56, "of the input", low=1, high=LARGEST)
    width: int = option(56, "of the input", low=1, high=LARGEST)
    filters: int = option(64, "channels of the output", low=1, high=LARGEST)
    kernel: tuple[int, ...] = option(
        (3, 3), "height and width of a filter", low=1, high=LARGEST, length=2
    )
    stride: tuple[int, ...] = option(
        (1, 1), "downwards and to the right", low=1, high=LARGEST, length=2
    )
    padding: tuple[int, ...] = option(
        (1, 1), "rows on each side, columns on each", low=0, high=LARGEST, length=2
    )
    layout: str = option(
        "NHWC", "of images in memory: channels last, or first (DeepBench)", choices=("NHWC", "NCHW")
    )
    direction: str = option("forward", DIRECTION, choices=DIRECTIONS)

    def __post_init__(self) -> None:
        sizes = (self.height, self.width)
        for size, kernel, padding, what in zip(
            sizes, self.kernel, self.padding, ("height", "width"), strict=True
        ):
            if size + 2 * padding < kernel:
                reason = f"a filter of {what} {kernel} does not fit model.{what}={size} with padding {padding}"
                raise ConfigError(
                    "model.kernel",
                    list(self.kernel),
                    reason,
                    "choose a smaller one, or more padding",
                )
        work = 2 * self.product.macs(1)
        check_work(
            "model.filters", self.filters, f"model.channels={self.channels} on each image", work
        )

    @property
    def product(self) -> Convolve:
        """The convolution of one image."""
        shape = self.channels, self.height, self.width, self.filters
        return Convolve(*shape, self.kernel, self.stride, self.padding)

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """Height, width, in, out."""
        return (*self.kernel, self.channels, self.filters)

    def images(
        self, count: int, size: tuple[int, int] | None = None, channels: int | None = None
    ) -> tuple[int, ...]:
        """The shape of so many images in the layout, by default of the input's."""
        high, wide, channels = *(size or (self.height, self.width)), channels or self.channels
        if self.layout == "NHWC":
            return (count, high, wide, channels)
        return (count, channels, high, wide)

    @property
    def size(self) -> str:
        shape = f"{self.channels}x{self.height}x{self.width} {self.filters}k{self.kernel[0]}x{self.kernel[1]}"
        if self.stride == (1, 1):
            stride = ""
        else:
            stride = f" s{self.stride[0]}x{self.stride[1]}"
        return f"{shape}{stride} {self.direction}"

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        return 2 * self.product.macs(batch_size), width * self.product.elements(batch_size)

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        return convolution(self.product, self.direction, batch_size, COMPUTE_BYTES[precision])

    def build(self) -> BuiltModel:
        """Two of images, filters (height, width, channels, filters) and output or its gradient ->
        the third.
        """
        operations, dtype = framework_operations()
        direction = self.direction
        layout = self.layout

        def draw(generator: np.random.Generator, count: int) -> list[np.ndarray]:
            inputs = self.images(count)
            outputs = self.images(count, self.product.output, self.filters)
            given = ((inputs, self.filter_shape), (outputs, self.filter_shape), (inputs, outputs))
            return normal(generator, *given[DIRECTIONS.index(direction)])

        def prepare(operands: list[Any]) -> list[Any]:
            first, second = (operations.cast(operand, dtype) for operand in operands)
            if direction == "backward_weights":
                arrange = operations.images
            else:
                arrange = operations.filters
            return [operations.images(first, layout), arrange(second, layout)]

        convolve = getattr(operations, f"convolution_{direction}")
        return kernel_workload(lambda first, second: convolve(first, second, self), draw, prepare)


@dataclass(frozen=True)
class Elementwise(Kernel):
    """A kernel: a b b ... b of tensors of so many elements, product after product: what is no
    matrix product takes about as long as what moves as many bytes.
    """

    instead_of_batch: ClassVar[str] = "model.elements"
    size_template: ClassVar[str] = "{elements} x{operations}"

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
        """a and b, near 1 so that no product of many leaves the range of a type -> a b b ... b, of
        the same shape.
        """
        import numpy as np

        def compute(a: Any, b: Any) -> Any:
            for _ in range(self.operations):
                a = a * b
            return a

        def draw(generator: np.random.Generator, _: int) -> list[np.ndarray]:
            return [
                generator.uniform(0.99, 1.01, self.elements).astype(np.float32) for _ in range(2)
            ]

        return kernel_workload(compute, draw)


@dataclass(frozen=True)
class RecurrentKernel(Kernel):
    """A kernel: one recurrent layer without its input product, or the gradient of its input or of
    its weights.

    Inputs are as wide as the state and are added to every gate: so DeepBench runs them (cuDNN's
    CUDNN_SKIP_INPUT). With h the states, u one column of the weights for each gate:

    - vanilla: h' = relu(x + h u)
    - LSTM: i, f, o = sigmoid(x + h u_ifo), g = tanh(x + h u_g), c' = f c + i g, h' = o tanh(c')
    - GRU: r, z = sigmoid(x + h u_rz), n = tanh(x + r (h u_n)), h' = (1 - z) n + z h

    `backward_input` goes back through time from what the forward pass has kept, and gives the
    gradients before each gate; that of the inputs is their sum. `backward_weights` is one product
    of all states with these.
    """

    has_batch: ClassVar[bool] = True
    size_template: ClassVar[str] = "{cell} {hidden} t{steps} {direction}"

    name: str = "rnn_kernel"
    cell: str = option("lstm", "vanilla has a rectifier", choices=("vanilla", "lstm", "gru"))
    hidden: int = option(512, "units of the cell", low=1, high=LARGEST)
    steps: int = option(25, "steps in time", low=1, high=LARGEST)
    direction: str = option("forward", DIRECTION, choices=DIRECTIONS)

    def __post_init__(self) -> None:
        work = 8 * self.hidden * self.hidden * self.steps
        check_work("model.hidden", self.hidden, f"model.steps={self.steps} for each example", work)

    @property
    def gates(self) -> int:
        """Columns of the weights."""
        return _GATES[self.cell] * self.hidden

    def shapes(self, batch_size: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Of the operands and of the results; series are (steps, batch, width).

        Forward: inputs, weights, first states -> outputs (and an LSTM's last memory). Backward
        input: gradients of the outputs, weights, what forward has kept -> gradients before the
        gates and of the first states. Backward weights: the states before each step, the gradients
        before the gates -> that of the weights.
        """
        weights = (self.hidden, self.gates)
        states = [(batch_size, self.hidden)] * _STATES[self.cell]
        series = (self.steps, batch_size, self.hidden)
        gated = (self.steps, batch_size, self.gates)
        if self.direction == "forward":
            return [series, weights, *states], [series, *states[1:]]
        if self.direction == "backward_input":
            kept = [series] * _KEPT[self.cell]
            return [series, weights, *([] if self.cell == "vanilla" else [gated]), *kept], [
                gated,
                *states,
            ]
        return [series, gated], [weights]

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        operands, results = self.shapes(batch_size)
        macs = self.steps * batch_size * self.hidden * self.gates
        return 2 * macs, width * sum(map(math.prod, [*operands, *results]))

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        variant = f"{self.cell} {self.direction}"
        return self.posed(
            batch_size, precision, variant, batch_size, self.gates, self.hidden, self.steps
        )

    def build(self) -> BuiltModel:
        """What `shapes` says; see the module for the formulas."""
        import numpy as np

        operations, _ = framework_operations()

        def draw(generator: np.random.Generator, count: int) -> list[np.ndarray]:
            arrays = normal(generator, *self.shapes(count)[0])
            if (
                self.direction != "backward_weights"
            ):  # weights of this size let states neither grow nor vanish
                arrays[1] *= np.float32(1 / math.sqrt(self.hidden))
            return arrays

        return kernel_workload(getattr(_Cells(self.cell, operations), self.direction), draw)


class _Cells:
    """The kernels of a cell, in one framework's operations."""

    def __init__(self, cell: str, operations: Any) -> None:
        self._cell = cell
        self._do = operations

    def forward(self, inputs: Any, weights: Any, *states: Any) -> Any:
        """The outputs, and the last memory where there is one."""

        def step(states: Any, given: Any) -> Any:
            parts = _parts(self._do.matmul(states[0], weights), _GATES[self._cell])
            states = getattr(self, f"_{self._cell}")(given[0], parts, states)
            return states, states[:1]

        last, (outputs,) = self._do.scan(step, states, (inputs,))
        return outputs if len(last) == 1 else (outputs, *last[1:])

    def _vanilla(self, x: Any, products: Sequence[Any], states: Any) -> tuple[Any, ...]:
        return (self._do.relu(x + products[0]),)

    def _lstm(self, x: Any, products: Sequence[Any], states: Any) -> tuple[Any, ...]:
        i, f, g, o = products
        i, f, o = (self._do.sigmoid(x + gate) for gate in (i, f, o))
        memory = f * states[1] + i * self._do.tanh(x + g)
        return o * self._do.tanh(memory), memory

    def _gru(self, x: Any, products: Sequence[Any], states: Any) -> tuple[Any, ...]:
        r, z, n = products
        r = self._do.sigmoid(x + r)
        z = self._do.sigmoid(x + z)
        n = self._do.tanh(x + r * n)
        return ((1 - z) * n + z * states[0],)

    def backward_input(self, gradients: Any, weights: Any, *kept: Any) -> Any:
        """Gradients before the gates, of GRU those of the three products, and of the first states.
        kept: of vanilla the outputs; of LSTM the gates i, f, g, o and the memories before the
        steps; of GRU the gates r, z, n, the states before the steps, and the products h u_n, which
        the reset gate multiplies.
        """
        back = getattr(self, f"_{self._cell}_back")

        def step(carried: Any, given: Any) -> Any:
            before, own, *others = back(given[0] + carried[0], carried[1:], *given[1:])
            product = self._do.matmul(before, weights, False, True)
            return (product if own is None else own + product, *others), (before,)

        zero = (gradients[0] * 0,) * _STATES[self._cell]
        first, (before,) = self._do.scan(step, zero, (gradients, *kept), reverse=True)
        return before, *first

    def _vanilla_back(self, hidden: Any, _: Any, output: Any) -> tuple[Any, ...]:
        """The gradient before the gates, that of the state beside theirs, and those of other
        states.
        """
        return self._do.sign(output) * hidden, None  # an output of a rectifier is not negative

    def _lstm_back(self, hidden: Any, carried: Any, gated: Any, memory: Any) -> tuple[Any, ...]:
        i, f, g, o = _parts(gated, 4)
        bent = self._do.tanh(f * memory + i * g)
        cell = carried[0] + hidden * o * (1 - bent * bent)
        parts = cell * g * i * (1 - i), cell * memory * f * (1 - f), cell * i * (1 - g * g)
        return self._do.concatenate([*parts, hidden * bent * o * (1 - o)], -1), None, cell * f

    def _gru_back(
        self, hidden: Any, _: Any, gated: Any, state: Any, product: Any
    ) -> tuple[Any, ...]:
        r, z, n = _parts(gated, 3)
        bent = hidden * (1 - z) * (1 - n * n)
        parts = bent * product * r * (1 - r), hidden * (state - n) * z * (1 - z), bent * r
        return self._do.concatenate(parts, -1), hidden * z

    def backward_weights(self, states: Any, gradients: Any) -> Any:
        """(hidden, gates): the states before each step with the gradients before the gates."""
        flat = (self._do.reshape(series, (-1, series.shape[-1])) for series in (states, gradients))
        return self._do.matmul(*flat, True, False)


def _parts(values: Any, count: int) -> list[Any]:
    """The columns of each gate."""
    width = values.shape[-1] // count
    if count == 1:
        return [values]
    return [values[:, gate * width : (gate + 1) * width] for gate in range(count)]


def check_work(key: str, value: int, others: str, flops: int) -> None:
    """ConfigError where the operation has more FLOPs than 64 bits count."""
    if flops >= 2**63:
        reason = f"makes {flops:.3g} FLOP with {others}, more than 64 bits count"
        raise ConfigError(key, value, reason, "choose smaller sizes")


def kernel_workload(
    compute: Callable[..., Any], draw: Any, prepare: Callable[[list[Any]], list[Any]] | None = None
) -> BuiltModel:
    """What a kernel hands to the measurement; `draw` and `prepare` as in `BuiltModel`, by default a
    cast.
    """
    operations, dtype = framework_operations()
    cast = prepare or (lambda operands: [operations.cast(operand, dtype) for operand in operands])
    return BuiltModel(FunctionModel(compute), (), draw=draw, prepare=cast)


def framework_operations() -> tuple[Any, str]:
    """The operations of Keras' framework (`paradnn.families.parts`), and the type of the operands."""
    import keras

    module = importlib.import_module(f"paradnn.families.parts.{keras.config.backend()}_operations")
    return module, keras.config.dtype_policy().compute_dtype


def normal(generator: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Arrays of float32."""
    return [generator.standard_normal(shape, dtype="float32") for shape in shapes]


FAMILY = tuple(
    Family(options.name, options, "vectors", swept, sweep, order=order, defaults=chosen)
    for options, order, chosen, swept, sweep in (
        (Gemm, 14, ALONE, ("m", "n", "k"), "model.m=512,1024,2048,4096 model.n=16,64,256,1024"),
        (
            Conv2d,
            15,
            BATCHED,
            ("channels", "filters", "height"),
            "model.filters=16,64,256 batch_size=4,16,64",
        ),
        (
            RecurrentKernel,
            16,
            BATCHED,
            ("hidden", "steps"),
            "model.hidden=256,512,1024 batch_size=4,16,64",
        ),
        (
            SparseGemm,
            17,
            ALONE,
            ("density", "m", "n"),
            "model.density=0.05,0.1,0.2,0.5 model.n=1,16,64",
        ),
        (Elementwise, 19, ALONE, ("elements", "operations"), "model.elements=1000,100000,10000000"),
    )
)
