"""Kernels: models whose step is a single operation, as in DeepBench.

See github.com/baidu-research/DeepBench. A kernel is not trained. It is an operation of the
framework, without a Keras layer. Operands are drawn in float32, placed on the device, and converted
there to the type and layout that the operation needs. Every step takes the operands as arguments
and returns the whole result, so that no compiler can compute the result only once for all steps.
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

#: The largest size that every library accepts: BLAS stores sizes as signed 32-bit integers.
LARGEST = 2**31 - 1
#: Defaults of the point for kernels without a batch, and for kernels with a batch.
UNBATCHED_DEFAULTS = {"step": {"mode": "inference", "batch_size": 1}}
BATCHED_DEFAULTS = {"step": {"mode": "inference", "batch_size": 16}}
#: Help text and values of an option `direction`.
DIRECTION = "the result: the output, or the gradient of the input or of the weights"
DIRECTIONS = ("forward", "backward_input", "backward_weights")
#: Bytes of an index of a sparse matrix. The most compact format that the frameworks offer is CSR
#: (compressed rows) with 32-bit indices.
_INDEX_BYTES = 4
#: Number of gates of a cell. The weights have `hidden` columns for each gate.
_GATES = {"vanilla": 1, "lstm": 4, "gru": 3}
#: Number of states that a time step passes to the next.
_STATES = {"vanilla": 1, "lstm": 2, "gru": 1}
#: Number of series of width `hidden` that `backward_input` reads, besides gradients and gates.
_SAVED_SERIES = {"vanilla": 1, "lstm": 1, "gru": 2}


@dataclass(frozen=True)
class Kernel(Model):
    """Base class for the options of kernels.

    Attributes:
        has_batch: Whether the size of the kernel depends on `batch_size`.
        instead_of_batch: Key that sets the size of a kernel without a batch. If the user sets
            `batch_size` for such a kernel, the error message suggests this key.
    """

    is_kernel: ClassVar[bool] = True
    has_batch: ClassVar[bool] = False
    instead_of_batch: ClassVar[str] = "model.n"

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        """Return the FLOPs of one step, and the bytes that it reads and writes.

        A multiply-accumulate counts as two FLOPs. Bytes count every operand and result once,
        including the indices of sparse operands.

        Args:
            batch_size: Number of examples; ignored if the kernel has no batch.
            width: Bytes per element.
        """
        raise NotImplementedError

    def costs(self, *, batch_size: int, precision: str, **others: Any) -> Costs:
        flops, moved_bytes = self.work(batch_size, COMPUTE_BYTES[precision])
        is_forward = getattr(self, "direction", "forward") == "forward"
        return Costs(
            parameters=0,
            non_trainable_parameters=0,
            forward_flops=flops if is_forward else 0,
            backward_flops=0 if is_forward else flops,
            flops_per_step=flops,
            bytes_per_step=moved_bytes,
            memory_lower_bound_bytes=moved_bytes,
        )

    def operation(
        self,
        batch_size: int,
        precision: str,
        *,
        variant: str,
        m: int,
        n: int,
        k: int,
        calls: int = 1,
    ) -> Operation:
        """Return this kernel as an `Operation`.

        Args:
            batch_size: Number of examples; ignored if the kernel has no batch.
            precision: Type of the elements.
            variant: Variant of the kernel, such as "nt" for a product with transposed right matrix.
            m: Rows of the product.
            n: Columns of the product.
            k: Inner size of the product.
            calls: Number of consecutive products; each needs the result of the previous product.
        """
        flops, moved_bytes = self.work(batch_size, COMPUTE_BYTES[precision])
        return Operation(
            self.name,
            variant,
            m=m,
            n=n,
            k=k,
            flops=float(flops),
            bytes=float(moved_bytes),
            calls=calls,
        )

    def layer_count(self) -> int:
        return 1

    def canonical_point(self, point: Any) -> Any:
        """Return `point` with the default optimizer, because kernels use no optimizer.

        Args:
            point: A `Point`, one configuration to measure, whose model is this kernel.

        Raises:
            ConfigError: If the mode is not inference, the point has several devices, or batch_size
                is set for a kernel without a batch.
        """
        kernel = f"model={self.name}"
        remedy = f"omit it, and set {self.instead_of_batch}"
        batch = 1 if self.has_batch else point.batch_size
        mode = point.workload.mode
        limit = "cannot generate tokens" if mode == "generate" else "cannot be trained"
        require_value(
            "mode",
            mode,
            required="inference",
            reason=f"{kernel} {limit}",
        )
        require_value(
            "batch_size", batch, required=1, reason=f"{kernel} has no batch", remedy=remedy
        )
        require_value("devices", point.devices, required=1, reason=f"{kernel} is for one device")
        return replace(point, optimizer=type(point.optimizer)())


@dataclass(frozen=True)
class Messages(Kernel):
    """Base class for steps that exchange messages with other processes.

    Such a step is neither compiled nor profiled.
    """

    is_communication: ClassVar[bool] = True

    def canonical_point(self, point: Any) -> Any:
        """Return `point` with the default `compile`, and without a profile.

        Compilation does not affect messages, and they have no operations to profile. Presets such
        as measure=quick enable the profile.

        Args:
            point: A `Point`, one configuration to measure, whose model sends these messages.

        Raises:
            ConfigError: As for other kernels, or if measure.keep_trace is true.
        """
        point = super().canonical_point(point)
        reason = f"model={self.name} has no operations to profile"
        require_value("measure.keep_trace", point.measure.keep_trace, required=False, reason=reason)
        default_compile = type(point).__dataclass_fields__["compile"].default
        return replace(
            point, measure=replace(point.measure, profile=False), compile=default_compile
        )


@dataclass(frozen=True)
class Gemm(Kernel):
    """A kernel: C = A B, the product of an m x k matrix A and a k x n matrix B, both in row-major
    order. model.transpose_a and model.transpose_b store the transposed matrix instead.
    """

    name: str = "gemm"
    m: int = option(1760, "rows of the product", low=1, high=LARGEST)
    n: int = option(
        128, "columns of the product (DeepBench: mostly the batch)", low=1, high=LARGEST
    )
    k: int = option(1760, "inner size of the product", low=1, high=LARGEST)
    transpose_a: bool = option(False, "the left matrix is stored as k x m")
    transpose_b: bool = option(False, "the right matrix is stored as n x k")

    def __post_init__(self) -> None:
        check_flops(
            "model.m",
            self.m,
            others=f"model.n={self.n} model.k={self.k}",
            flops=2 * self.m * self.n * self.k,
        )

    @property
    def size(self) -> str:
        return f"{self.m}x{self.n}x{self.k} {self._transpose_letters}"

    @property
    def _transpose_letters(self) -> str:
        """One letter per matrix, as in BLAS: n, or t if the matrix is transposed."""
        first = "t" if self.transpose_a else "n"
        second = "t" if self.transpose_b else "n"
        return first + second

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return 2 * self.m * self.n * self.k, width * elements

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        return self.operation(
            batch_size, precision, variant=self._transpose_letters, m=self.m, n=self.n, k=self.k
        )

    def build(self) -> BuiltModel:
        """Build the product: operands (m, k) and (k, n), or their transposes; result (m, n)."""
        operations, _ = framework_operations()
        left = (self.k, self.m) if self.transpose_a else (self.m, self.k)
        right = (self.n, self.k) if self.transpose_b else (self.k, self.n)

        def compute(a: Any, b: Any) -> Any:
            return operations.matmul(a, b, self.transpose_a, self.transpose_b)

        def draw(generator: np.random.Generator, _batch_size: int) -> list[np.ndarray]:
            return normal(generator, left, right)

        return kernel_workload(compute, draw)


@dataclass(frozen=True)
class SparseGemm(Kernel):
    """A kernel: C = A B with a sparse m x k matrix A and a dense k x n matrix B. By default, A has
    the CSR format in PyTorch, and the coordinate format in other frameworks.
    """

    is_sparse: ClassVar[bool] = True

    name: str = "sparse_gemm"
    m: int = option(7680, "rows of the product", low=1, high=LARGEST)
    n: int = option(1, "columns of the product", low=1, high=LARGEST)
    k: int = option(2560, "inner size of the product", low=1, high=LARGEST)
    density: float = option(
        0.05, "share of A's elements that are not 0, at random positions", low=0.0, high=1.0
    )
    storage: str = option(
        "sparse",
        "format of A: sparse (CSR in PyTorch, coordinates in other frameworks), "
        "csr (compressed rows), or dense (including zeros)",
        choices=("sparse", "csr", "dense"),
    )

    def __post_init__(self) -> None:
        check_flops(
            "model.m",
            self.m,
            others=f"model.n={self.n} model.k={self.k}",
            flops=2 * self.m * self.n * self.k,
        )
        if not self.stored_elements:
            reason = f"makes all elements of the {self.m:,} x {self.k:,} matrix zero"
            raise ConfigError("model.density", self.density, reason, "choose a larger value")

    @property
    def stored_elements(self) -> int:
        """Number of elements of the sparse matrix that are not 0."""
        return round(self.density * self.m * self.k)

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        """Return the FLOPs of one step, and the bytes that it reads and writes.

        Each nonzero element of A multiplies one row of B. If A has fewer nonzero elements than B
        has rows, the step reads only one row of B per nonzero element. With dense storage, zeros
        are read and multiplied, too.

        Args:
            batch_size: Ignored, because the kernel has no batch.
            width: Bytes per element.
        """
        if self.storage == "dense":
            elements = self.m * self.k + self.k * self.n + self.m * self.n
            return 2 * self.m * self.n * self.k, width * elements
        stored = self.stored_elements
        elements = stored + min(stored, self.k) * self.n + self.m * self.n
        index_bytes = _INDEX_BYTES * (stored + self.m + 1)
        return 2 * stored * self.n, width * elements + index_bytes

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        """Return the product as an `Operation`.

        The inner size of the operation is the mean number of nonzero elements in a row of A,
        rounded down, but at least 1. With dense storage, the inner size is k.

        Args:
            batch_size: Ignored, because the kernel has no batch.
            precision: Type of the elements.
        """
        inner = max(1, self.stored_elements // self.m)
        if self.storage == "dense":
            inner = self.k
        return self.operation(
            batch_size, precision, variant=self.storage, m=self.m, n=self.n, k=inner
        )

    @property
    def size(self) -> str:
        text = f"{self.m}x{self.n}x{self.k} d{self.density:g}"
        if self.storage == "sparse":
            return text
        return f"{text} {self.storage}"

    def build(self) -> BuiltModel:
        """Build the product of a sparse (m, k) and a dense (k, n) matrix; the result is (m, n)."""
        import numpy as np

        operations, dtype = framework_operations()
        shape = (self.m, self.k)

        def draw(generator: np.random.Generator, _batch_size: int) -> list[np.ndarray]:
            counts = generator.multivariate_hypergeometric(
                [self.k] * self.m, self.stored_elements, method="marginals"
            )
            columns = [
                np.sort(generator.choice(self.k, count, replace=False, shuffle=False))
                for count in counts
            ]
            values, dense = normal(generator, (self.stored_elements,), (self.k, self.n))
            return [
                counts.astype(np.int32),
                np.concatenate(columns).astype(np.int32),
                values,
                dense,
            ]

        def prepare(operands: list[Any]) -> list[Any]:
            counts, columns, values, dense = operands
            values = operations.cast(values, dtype)
            dense = operations.cast(dense, dtype)
            make_sparse = operations.csr if self.storage == "csr" else operations.sparse
            return [make_sparse(counts, columns, values, shape), dense]

        def draw_dense(generator: np.random.Generator, batch_size: int) -> list[np.ndarray]:
            counts, columns, values, dense = draw(generator, batch_size)
            stored = np.zeros(shape, np.float32)
            stored[np.repeat(np.arange(self.m), counts), columns] = values
            return [stored, dense]

        if self.storage == "dense":
            return kernel_workload(operations.matmul, draw_dense)
        if self.storage == "csr":
            return kernel_workload(operations.csr_matmul, draw, prepare)
        return kernel_workload(operations.sparse_matmul, draw, prepare)


@dataclass(frozen=True)
class Conv2d(Kernel):
    """A kernel: one convolution of images, or the gradient of its input or weights. A pair of
    numbers is a vertical and a horizontal size.
    """

    has_batch: ClassVar[bool] = True
    convolves: ClassVar[bool] = True

    name: str = "conv2d"
    channels: int = option(64, "channels of the input", low=1, high=LARGEST)
    height: int = option(56, "height of the input", low=1, high=LARGEST)
    width: int = option(56, "width of the input", low=1, high=LARGEST)
    filters: int = option(64, "channels of the output", low=1, high=LARGEST)
    kernel: tuple[int, ...] = option(
        (3, 3), "height and width of a filter", low=1, high=LARGEST, length=2
    )
    stride: tuple[int, ...] = option(
        (1, 1), "vertical and horizontal stride", low=1, high=LARGEST, length=2
    )
    padding: tuple[int, ...] = option(
        (1, 1), "rows above and below, columns left and right", low=0, high=LARGEST, length=2
    )
    layout: str = option(
        "NHWC",
        "layout of images in memory: channels last, or first (DeepBench)",
        choices=("NHWC", "NCHW"),
    )
    direction: str = option("forward", DIRECTION, choices=DIRECTIONS)

    def __post_init__(self) -> None:
        names = ("height", "width")
        sizes = (self.height, self.width)
        for name, size, kernel, padding in zip(
            names, sizes, self.kernel, self.padding, strict=True
        ):
            if size + 2 * padding < kernel:
                raise ConfigError(
                    "model.kernel",
                    list(self.kernel),
                    f"a filter of {name} {kernel} does not fit model.{name}={size} "
                    f"with padding {padding}",
                    "choose a smaller filter, or more padding",
                )
        check_flops(
            "model.filters",
            self.filters,
            others=f"model.channels={self.channels} for one image",
            flops=2 * self.product.macs(1),
        )

    @property
    def product(self) -> Convolve:
        """The convolution of one image."""
        return Convolve(
            channels=self.channels,
            height=self.height,
            width=self.width,
            filters=self.filters,
            kernel=self.kernel,
            stride=self.stride,
            padding=self.padding,
        )

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """Shape of the filters: height, width, input channels, output channels."""
        return (*self.kernel, self.channels, self.filters)

    def images(
        self, count: int, size: tuple[int, int] | None = None, channels: int | None = None
    ) -> tuple[int, ...]:
        """Return the shape of an array of images in the layout of the kernel.

        Args:
            count: Number of images.
            size: Height and width; by default the height and width of the input.
            channels: Number of channels; by default the channels of the input.
        """
        height, width = size or (self.height, self.width)
        channels = channels or self.channels
        if self.layout == "NHWC":
            return (count, height, width, channels)
        return (count, channels, height, width)

    @property
    def size(self) -> str:
        kernel = f"{self.filters}k{self.kernel[0]}x{self.kernel[1]}"
        if self.stride != (1, 1):
            kernel += f" s{self.stride[0]}x{self.stride[1]}"
        return f"{self.channels}x{self.height}x{self.width} {kernel} {self.direction}"

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        return 2 * self.product.macs(batch_size), width * self.product.elements(batch_size)

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        return convolution(self.product, self.direction, batch_size, COMPUTE_BYTES[precision])

    def build(self) -> BuiltModel:
        """Build the convolution, or one of its gradients, depending on `direction`.

        The arrays are images, filters (height, width, channels, filters), and outputs. In the
        forward direction, the operands are images and filters, and the result is the outputs. In
        the backward directions, the gradient of the outputs is an operand, and the result is the
        gradient of the images or of the filters.
        """
        operations, dtype = framework_operations()
        direction = self.direction
        layout = self.layout

        def draw(generator: np.random.Generator, count: int) -> list[np.ndarray]:
            inputs = self.images(count)
            outputs = self.images(count, self.product.output, self.filters)
            operands = {
                "forward": (inputs, self.filter_shape),
                "backward_input": (outputs, self.filter_shape),
                "backward_weights": (inputs, outputs),
            }
            return normal(generator, *operands[direction])

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
    """A kernel: a b b ... b, elementwise products of tensors, one after another. Any operation
    without a matrix product that moves the same number of bytes takes about the same time.
    """

    instead_of_batch: ClassVar[str] = "model.elements"
    size_template: ClassVar[str] = "{elements} x{operations}"

    name: str = "elementwise"
    elements: int = option(1_000_000, "elements of each tensor", low=1, high=LARGEST)
    operations: int = option(1, "products, one after another", low=1, high=256)

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        """Return FLOPs and bytes of the products if they are not fused.

        Each product then reads two tensors and writes one.

        Args:
            batch_size: Ignored, because the kernel has no batch.
            width: Bytes per element.
        """
        products = self.operations * self.elements
        return products, 3 * width * products

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        return self.operation(
            batch_size,
            precision,
            variant="product",
            m=self.elements,
            n=1,
            k=1,
            calls=self.operations,
        )

    def build(self) -> BuiltModel:
        """Build the products; operands are near 1, so that products fit into 16-bit types."""
        import numpy as np

        def compute(a: Any, b: Any) -> Any:
            for _ in range(self.operations):
                a = a * b
            return a

        def draw(generator: np.random.Generator, _batch_size: int) -> list[np.ndarray]:
            return [
                generator.uniform(0.99, 1.01, self.elements).astype(np.float32) for _ in range(2)
            ]

        return kernel_workload(compute, draw)


@dataclass(frozen=True)
class RecurrentKernel(Kernel):
    """A kernel: one recurrent layer without its input product, or the gradient of its input or of
    its weights.

    Inputs x have the width of the state and are added to every gate, as in DeepBench (cuDNN's
    CUDNN_SKIP_INPUT). With states h, and one block of weight columns u per gate:

    - vanilla: h' = relu(x + h u)
    - LSTM: i, f, o = sigmoid(x + h u_ifo), g = tanh(x + h u_g), c' = f c + i g, h' = o tanh(c')
    - GRU: r, z = sigmoid(x + h u_rz), n = tanh(x + r (h u_n)), h' = (1 - z) n + z h

    `backward_input` computes gradients from the last time step to the first, using values that the
    forward pass saved. It returns the gradients of the gates' pre-activations. Their sum over
    the gates is the gradient of the inputs. `backward_weights` is one matrix product of the states
    and these gradients.
    """

    has_batch: ClassVar[bool] = True
    size_template: ClassVar[str] = "{cell} {hidden} t{steps} {direction}"

    name: str = "rnn_kernel"
    cell: str = option(
        "lstm", "type of cell; vanilla has a rectifier (ReLU)", choices=("vanilla", "lstm", "gru")
    )
    hidden: int = option(512, "units of the cell", low=1, high=LARGEST)
    steps: int = option(25, "time steps", low=1, high=LARGEST)
    direction: str = option("forward", DIRECTION, choices=DIRECTIONS)

    def __post_init__(self) -> None:
        check_flops(
            "model.hidden",
            self.hidden,
            others=f"model.steps={self.steps} for each example",
            flops=8 * self.hidden * self.hidden * self.steps,
        )

    @property
    def gates(self) -> int:
        """Number of columns of the weights: `hidden` times the number of gates."""
        return _GATES[self.cell] * self.hidden

    def shapes(self, batch_size: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Return the shapes of operands and results in the kernel's direction.

        A series over time is (steps, batch, width). "Gradients of the gates" are the gradients of
        their values before the activation.

        - forward: the operands are inputs, weights and initial states. The results are the outputs,
          and for an LSTM the last cell state.
        - backward_input: the operands are gradients of the outputs, weights, and saved values of
          the forward pass. The results are the gradients of the gates and of the initial states.
        - backward_weights: the operands are the states before each step, and the gradients of the
          gates. The result is the gradient of the weights.

        Args:
            batch_size: Number of sequences in the batch.

        Returns:
            The shapes of the operands, and the shapes of the results.
        """
        weights = (self.hidden, self.gates)
        states = [(batch_size, self.hidden)] * _STATES[self.cell]
        series = (self.steps, batch_size, self.hidden)
        gated = (self.steps, batch_size, self.gates)
        if self.direction == "forward":
            return [series, weights, *states], [series, *states[1:]]
        if self.direction == "backward_input":
            saved = [series] * _SAVED_SERIES[self.cell]
            if self.cell != "vanilla":
                saved = [gated, *saved]
            return [series, weights, *saved], [gated, *states]
        return [series, gated], [weights]

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        operands, results = self.shapes(batch_size)
        macs = self.steps * batch_size * self.hidden * self.gates
        return 2 * macs, width * sum(map(math.prod, [*operands, *results]))

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        variant = f"{self.cell} {self.direction}"
        return self.operation(
            batch_size,
            precision,
            variant=variant,
            m=batch_size,
            n=self.gates,
            k=self.hidden,
            calls=self.steps,
        )

    def build(self) -> BuiltModel:
        """Build the recurrent layer or gradient. `shapes` gives the operands and results."""
        import numpy as np

        operations, _ = framework_operations()

        def draw(generator: np.random.Generator, count: int) -> list[np.ndarray]:
            arrays = normal(generator, *self.shapes(count)[0])
            if self.direction != "backward_weights":
                # With this standard deviation of the weights, states neither grow nor vanish.
                arrays[1] *= np.float32(1 / math.sqrt(self.hidden))
            return arrays

        return kernel_workload(getattr(_Cells(self.cell, operations), self.direction), draw)


class _Cells:
    """One recurrent layer and its two gradients, composed of the operations of one framework.

    "Gradients of the gates" are the gradients of their values before the activation.

    Args:
        cell: Type of cell: vanilla, lstm or gru.
        operations: The framework's module of operations, which `paradnn.families.parts` documents.
    """

    def __init__(self, cell: str, operations: Any) -> None:
        self._cell = cell
        self._ops = operations

    def forward(self, inputs: Any, weights: Any, *states: Any) -> Any:
        """Run the recurrent layer over all time steps.

        Args:
            inputs: (steps, batch, hidden).
            weights: (hidden, gates x hidden).
            *states: Initial states, each (batch, hidden): h, and for an LSTM also c.

        Returns:
            The outputs (steps, batch, hidden), and for an LSTM also the last cell state.
        """
        advance = getattr(self, f"_{self._cell}")

        def step(states: Any, elements: Any) -> Any:
            products = _gate_columns(self._ops.matmul(states[0], weights), _GATES[self._cell])
            states = advance(elements[0], products, states)
            return states, states[:1]

        last_states, (outputs,) = self._ops.scan(step, states, (inputs,))
        if len(last_states) == 1:
            return outputs
        return (outputs, *last_states[1:])

    def _vanilla(self, x: Any, products: Sequence[Any], states: Any) -> tuple[Any, ...]:
        return (self._ops.relu(x + products[0]),)

    def _lstm(self, x: Any, products: Sequence[Any], states: Any) -> tuple[Any, ...]:
        i = self._ops.sigmoid(x + products[0])
        f = self._ops.sigmoid(x + products[1])
        g = self._ops.tanh(x + products[2])
        o = self._ops.sigmoid(x + products[3])
        cell_state = f * states[1] + i * g
        return o * self._ops.tanh(cell_state), cell_state

    def _gru(self, x: Any, products: Sequence[Any], states: Any) -> tuple[Any, ...]:
        r = self._ops.sigmoid(x + products[0])
        z = self._ops.sigmoid(x + products[1])
        n = self._ops.tanh(x + r * products[2])
        return ((1 - z) * n + z * states[0],)

    def backward_input(self, gradients: Any, weights: Any, *saved: Any) -> Any:
        """Return the gradients of the gates, and the gradients of the initial states.

        For a GRU, the gradients of the gates are the gradients of the products h u.

        Args:
            gradients: Gradients of the outputs, (steps, batch, hidden).
            weights: (hidden, gates x hidden).
            saved: Values that the forward pass saved. A vanilla cell saves the outputs. An LSTM
                saves the gates i, f, g, o, and the cell states before the steps. A GRU saves the
                gates r, z, n, the states before the steps, and the products h u_n, which the reset
                gate multiplies.
        """
        step_back = getattr(self, f"_{self._cell}_back")

        def step(state_gradients: Any, elements: Any) -> Any:
            hidden = elements[0] + state_gradients[0]
            before_gates, bypass, *others = step_back(hidden, state_gradients[1:], *elements[1:])
            state = self._ops.matmul(before_gates, weights, False, True)
            if bypass is not None:
                state = bypass + state
            return (state, *others), (before_gates,)

        zeros = (gradients[0] * 0,) * _STATES[self._cell]
        series = (gradients, *saved)
        first_states, (before_gates,) = self._ops.scan(step, zeros, series, reverse=True)
        return before_gates, *first_states

    # Arguments of the next three methods are the gradient of the new state h, the gradients of
    # further states, and the saved values of one step. The results are the gradients of the gates,
    # the part of the gradient of h that bypasses the gates (or None), and the gradients of the
    # further states before the step.

    def _vanilla_back(self, hidden: Any, _states: Any, output: Any) -> tuple[Any, ...]:
        # The output of a rectifier is not negative. Its sign, 0 or 1, is therefore the derivative.
        return self._ops.sign(output) * hidden, None

    def _lstm_back(self, hidden: Any, states: Any, gates: Any, cell_state: Any) -> tuple[Any, ...]:
        i, f, g, o = _gate_columns(gates, 4)
        bounded = self._ops.tanh(f * cell_state + i * g)
        cell_gradient = states[0] + hidden * o * (1 - bounded * bounded)
        before_gates = [
            cell_gradient * g * i * (1 - i),
            cell_gradient * cell_state * f * (1 - f),
            cell_gradient * i * (1 - g * g),
            hidden * bounded * o * (1 - o),
        ]
        return self._ops.concatenate(before_gates, -1), None, cell_gradient * f

    def _gru_back(
        self, hidden: Any, _states: Any, gates: Any, state: Any, product: Any
    ) -> tuple[Any, ...]:
        r, z, n = _gate_columns(gates, 3)
        candidate = hidden * (1 - z) * (1 - n * n)
        before_gates = [
            candidate * product * r * (1 - r),
            hidden * (state - n) * z * (1 - z),
            candidate * r,
        ]
        return self._ops.concatenate(before_gates, -1), hidden * z

    def backward_weights(self, states: Any, gradients: Any) -> Any:
        """Return the gradient of the weights, (hidden, gates x hidden).

        It is one matrix product over all steps: the transposed states times the gradients.

        Args:
            states: States before each step, (steps, batch, hidden).
            gradients: Gradients of the gates, (steps, batch, gates x hidden).
        """
        flat_states = self._ops.reshape(states, (-1, states.shape[-1]))
        flat_gradients = self._ops.reshape(gradients, (-1, gradients.shape[-1]))
        return self._ops.matmul(flat_states, flat_gradients, True, False)


def _gate_columns(values: Any, count: int) -> list[Any]:
    """Split values (batch, count x hidden) into `count` gates (batch, hidden)."""
    if count == 1:
        return [values]
    width = values.shape[-1] // count
    return [values[:, gate * width : (gate + 1) * width] for gate in range(count)]


def check_flops(key: str, value: int, *, others: str, flops: int) -> None:
    """Raise ConfigError if the FLOPs of an operation do not fit into a signed 64-bit integer.

    Args:
        key: Key of one size, such as "model.m".
        value: Value of the key.
        others: The other sizes as text, such as "model.n=64 model.k=64".
        flops: FLOPs of the operation.
    """
    if flops >= 2**63:
        reason = (
            f"makes the operation need {flops:.3g} FLOP with {others}, "
            "but at most 2^63 - 1 are supported"
        )
        raise ConfigError(key, value, reason, "choose smaller sizes")


def kernel_workload(
    compute: Callable[..., Any],
    draw: Callable[[np.random.Generator, int], list[np.ndarray]],
    prepare: Callable[[list[Any]], list[Any]] | None = None,
) -> BuiltModel:
    """Return the `BuiltModel` of a kernel.

    Args:
        compute: Function of the prepared operands that runs the operation.
        draw: Function of a random generator and the batch size that returns the operands.
        prepare: Function that converts the operands on the device, once before the first step. By
            default it casts them to the compute type of the Keras dtype policy.
    """
    operations, dtype = framework_operations()

    def cast(operands: list[Any]) -> list[Any]:
        return [operations.cast(operand, dtype) for operand in operands]

    return BuiltModel(FunctionModel(compute), (), draw=draw, prepare=prepare or cast)


def framework_operations() -> tuple[Any, str]:
    """Return the operations of the framework that is Keras' backend.

    Returns:
        The module of operations, which `paradnn.families.parts` documents, and the name of the
        operands' type.
    """
    import keras

    module = importlib.import_module(f"paradnn.families.parts.{keras.config.backend()}_operations")
    return module, keras.config.dtype_policy().compute_dtype


def normal(generator: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Draw arrays of standard normal float32 numbers, one for each shape.

    Args:
        generator: Source of random numbers.
        shapes: Shapes of the arrays.
    """
    return [generator.standard_normal(shape, dtype="float32") for shape in shapes]


FAMILY = (
    Family(
        "gemm",
        Gemm,
        "vectors",
        swept=("m", "n", "k"),
        sweep="model.m=512,1024,2048,4096 model.n=16,64,256,1024",
        order=14,
        defaults=UNBATCHED_DEFAULTS,
    ),
    Family(
        "conv2d",
        Conv2d,
        "vectors",
        swept=("channels", "filters", "height"),
        sweep="model.filters=16,64,256 batch_size=4,16,64",
        order=15,
        defaults=BATCHED_DEFAULTS,
    ),
    Family(
        "rnn_kernel",
        RecurrentKernel,
        "vectors",
        swept=("hidden", "steps"),
        sweep="model.hidden=256,512,1024 batch_size=4,16,64",
        order=16,
        defaults=BATCHED_DEFAULTS,
    ),
    Family(
        "sparse_gemm",
        SparseGemm,
        "vectors",
        swept=("density", "m", "n"),
        sweep="model.density=0.05,0.1,0.2,0.5 model.n=1,16,64",
        order=17,
        defaults=UNBATCHED_DEFAULTS,
    ),
    Family(
        "elementwise",
        Elementwise,
        "vectors",
        swept=("elements", "operations"),
        sweep="model.elements=1000,100000,10000000",
        order=19,
        defaults=UNBATCHED_DEFAULTS,
    ),
)
