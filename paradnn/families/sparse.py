"""Kernels of sparse matrices: their product with a dense one, and pruned fully connected layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.core.schema import option
from paradnn.errors import ConfigError
from paradnn.families import Family
from paradnn.families.built import BuiltModel
from paradnn.families.kernels import (
    ALONE,
    BATCHED,
    LARGEST,
    Kernel,
    Work,
    check_work,
    framework_operations,
    kernel_workload,
    normal,
    product_work,
)
from paradnn.families.operations import Operation

if TYPE_CHECKING:
    import numpy as np

#: Bytes of an index, in the least format that the frameworks' sparse matrices have: rows compressed, 32 bits.
_INDEX_BYTES = 4


@dataclass(frozen=True)
class SparseGemm(Kernel):
    """C = A B, a sparse m x k matrix by a dense k x n matrix: CSR in PyTorch, coordinates in TensorFlow and JAX."""

    is_sparse: ClassVar[bool] = True

    name: str = option("sparse_gemm", "the kernel", choices=("sparse_gemm",))
    m: int = option(7680, "rows of the product", low=1, high=LARGEST)
    n: int = option(1, "columns of the product", low=1, high=LARGEST)
    k: int = option(2560, "length of the sums", low=1, high=LARGEST)
    density: float = option(0.05, "share of A's elements that are not 0, at random places", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        check_work("model.m", self.m, f"model.n={self.n} model.k={self.k}", 2 * self.m * self.n * self.k)
        _check_density(self.density, self.m, self.k)

    @property
    def size(self) -> str:
        """Short description of the product's size."""
        return f"{self.m}x{self.n}x{self.k} d{self.density:g}"

    def work(self, batch_size: int) -> Work:
        """Of the dense matrix no more rows are read than there are elements that meet them."""
        return _sparse_work(self.m, self.n, self.k, self.density)

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        """As a product whose sums are as long as a row's elements are many."""
        stored = _stored_elements(self.density, self.m, self.k)
        return self.posed(batch_size, precision, "sparse", self.m, self.n, max(1, stored // self.m))

    def build(self) -> BuiltModel:
        """A sparse (m, k) and a dense (k, n) matrix -> (m, n)."""
        operations, dtype = framework_operations()
        m, n, k = self.m, self.n, self.k
        stored = _stored_elements(self.density, m, k)

        def draw(generator: np.random.Generator, _: int) -> list[np.ndarray]:
            return [*_places(generator, m, k, stored), *normal(generator, (stored,), (k, n))]

        def prepare(operands: list[Any]) -> list[Any]:
            counts, columns, values, dense = operands
            values, dense = operations.cast(values, dtype), operations.cast(dense, dtype)
            return [operations.sparse(counts, columns, values, (m, k)), dense]

        return kernel_workload(operations.sparse_matmul, draw, prepare)


@dataclass(frozen=True)
class SparseFullyConnected(Kernel):
    """`layers` pruned layers of `nodes` units each, rectified but for the last; of one layer it is the product alone.

    Weights are zero but for a share, at random places. They are stored sparse, as in `SparseGemm`, or dense: the same
    layer computed in full, which is what a sparse one has to beat.
    """

    has_batch: ClassVar[bool] = True
    is_sparse: ClassVar[bool] = True

    name: str = option("sparse_fc", "the kernel", choices=("sparse_fc",))
    layers: int = option(1, "layers, each of `nodes` units", low=1, high=10_000)
    nodes: int = option(4096, "units of a layer", low=1, high=LARGEST)
    input_size: int = option(9216, "features of an example", low=1, high=LARGEST)
    density: float = option(0.09, "share of each layer's weights that are not 0, at random places", low=0.0, high=1.0)
    storage: str = option("sparse", "of the weights: those that are not 0, or all (dense)", choices=("sparse", "dense"))

    def __post_init__(self) -> None:
        work = 2 * self.nodes * (self.input_size + (self.layers - 1) * self.nodes)
        check_work("model.nodes", self.nodes, f"model.input_size={self.input_size} for each example", work)
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

    def work(self, batch_size: int) -> Work:
        """Layer by layer; stored dense the zeros count as well."""
        if self.storage == "dense":
            return reduce(add, (product_work(self.nodes, batch_size, width) for width in self.widths))
        return reduce(add, (_sparse_work(self.nodes, batch_size, width, self.density) for width in self.widths))

    def build(self) -> BuiltModel:
        """Examples (input_size, batch), a column each, and weights (nodes, width) of each layer -> (nodes, batch)."""
        import numpy as np

        operations, dtype = framework_operations()
        nodes, widths, is_sparse = self.nodes, self.widths, self.storage == "sparse"

        def draw(generator: np.random.Generator, batch_size: int) -> list[np.ndarray]:
            drawn = normal(generator, (widths[0], batch_size))
            for width in widths:
                stored = _stored_elements(self.density, nodes, width)
                counts, columns = _places(generator, nodes, width, stored)
                # Results are then of the size of the inputs, however many layers there are.
                values = normal(generator, (stored,))[0] * np.float32(math.sqrt(nodes / stored))
                drawn += [counts, columns, values] if is_sparse else [_filled((nodes, width), counts, columns, values)]
            return drawn

        def prepare(operands: list[Any]) -> list[Any]:
            examples, *drawn = operands
            if not is_sparse:
                return [operations.cast(operand, dtype) for operand in operands]
            layers = zip(widths, drawn[::3], drawn[1::3], drawn[2::3], strict=True)
            return [
                operations.cast(examples, dtype),
                *(
                    operations.sparse(counts, columns, operations.cast(values, dtype), (nodes, width))
                    for width, counts, columns, values in layers
                ),
            ]

        def compute(examples: Any, first: Any, *others: Any) -> Any:
            product = operations.sparse_matmul if is_sparse else operations.matmul
            results = product(first, examples)
            for weights in others:
                results = product(weights, operations.relu(results))
            return results

        return kernel_workload(compute, draw, prepare)


def _stored_elements(density: float, rows: int, columns: int) -> int:
    """Elements of a sparse matrix that are stored."""
    return round(density * rows * columns)


def _check_density(density: float, rows: int, columns: int) -> None:
    """ConfigError where nothing of a matrix stays."""
    if not _stored_elements(density, rows, columns):
        reason = f"leaves none of {rows * columns:,} elements"
        raise ConfigError("model.density", density, reason, "choose a larger value")


def _sparse_work(m: int, n: int, k: int, density: float) -> Work:
    stored = _stored_elements(density, m, k)
    return Work(stored * n, stored + min(stored, k) * n + m * n, _INDEX_BYTES * (stored + m + 1))


def _filled(shape: tuple[int, int], counts: np.ndarray, columns: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The whole matrix of a sparse one."""
    import numpy as np

    matrix = np.zeros(shape, np.float32)
    matrix[np.repeat(np.arange(shape[0]), counts), columns] = values
    return matrix


def _places(generator: np.random.Generator, rows: int, columns: int, stored: int) -> list[np.ndarray]:
    """Elements of each row, and their columns row by row, of `stored` places drawn evenly from all; int32."""
    import numpy as np

    counts = generator.multivariate_hypergeometric([columns] * rows, stored, method="marginals")
    drawn = [np.sort(generator.choice(columns, count, replace=False, shuffle=False)) for count in counts]
    return [counts.astype(np.int32), np.concatenate(drawn).astype(np.int32)]


FAMILY = (
    Family(
        "sparse_gemm",
        SparseGemm,
        "vectors",
        ("density", "m", "n"),
        "model.density=0.05,0.1,0.2,0.5 model.n=1,16,64",
        place=17,
        words="A kernel: one product of a sparse m x k and a dense k x n matrix.",
        chosen=ALONE,
    ),
    Family(
        "sparse_fc",
        SparseFullyConnected,
        "vectors",
        ("density", "nodes", "input_size"),
        "model.density=0.05,0.1,0.2,0.5 model.storage=sparse,dense batch_size=1,64",
        place=18,
        words="A kernel: pruned fully connected layers, whose weights are stored sparse, or dense to compare with.",
        chosen=BATCHED,
    ),
)
