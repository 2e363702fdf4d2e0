"""Kernels: one operation of the framework, called as it is, without Keras' layers around it.

Operands are drawn on the host in float32, placed on the device, and made there what the operation takes: of the
point's precision, in its layout, sparse. Every step has them as arguments and returns its whole result, so that no
compiler can compute either once for all steps.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from paradnn.worker.models.kernels import recurrent
from paradnn.worker.models.kernels.operations import Convolution, Operations
from paradnn.worker.models.workload import Kernel, Workload

__all__ = [
    "build_conv2d",
    "build_elementwise",
    "build_gemm",
    "build_rnn_kernel",
    "build_sparse_fc",
    "build_sparse_gemm",
]


def build_gemm(model: Mapping[str, Any]) -> Workload:
    """A (m, k) and B (k, n), each transposed in memory where so said -> (m, n)."""
    operations, dtype = _operations()
    flip_a, flip_b = model["transpose_a"], model["transpose_b"]
    left, right = (model["m"], model["k"]), (model["k"], model["n"])
    return _workload(
        lambda a, b: operations.matmul(a, b, flip_a, flip_b),
        lambda generator, _: _normal(generator, left[::-1] if flip_a else left, right[::-1] if flip_b else right),
        lambda operands: [operations.cast(operand, dtype) for operand in operands],
    )


def build_conv2d(model: Mapping[str, Any]) -> Workload:
    """Two of images, filters (height, width, channels, filters) and output or its gradient -> the third."""
    operations, dtype = _operations()
    kernel, stride, padding = (tuple(model[key]) for key in ("kernel", "stride", "padding"))
    size = (model["height"], model["width"])
    sides = zip(size, kernel, stride, padding, strict=True)
    output = tuple((side + 2 * pad - filter) // step + 1 for side, filter, step, pad in sides)
    filters = (*kernel, model["channels"], model["filters"])
    direction, layout = model["direction"], model["layout"]

    def images(count: int, size: tuple[int, ...], channels: int) -> tuple[int, ...]:
        return (count, *size, channels) if layout == "NHWC" else (count, channels, *size)

    def draw(generator: np.random.Generator, count: int) -> list[np.ndarray]:
        inputs, outputs = images(count, size, model["channels"]), images(count, output, model["filters"])
        given = {
            "forward": (inputs, filters),
            "backward_input": (outputs, filters),
            "backward_weights": (inputs, outputs),
        }
        return _normal(generator, *given[direction])

    def prepare(operands: list[Any]) -> list[Any]:
        first, second = (operations.cast(operand, dtype) for operand in operands)
        arrange = operations.images if direction == "backward_weights" else operations.filters
        return [operations.images(first, layout), arrange(second, layout)]

    def compute(first: Any, second: Any) -> Any:
        shape = images(first.shape[0], size, model["channels"])
        return getattr(operations, f"convolution_{direction}")(
            first, second, Convolution(stride, padding, layout, shape, filters)
        )

    return _workload(compute, draw, prepare)


def build_rnn_kernel(model: Mapping[str, Any]) -> Workload:
    """See `recurrent`: what it computes, of which operands."""
    operations, dtype = _operations()
    compute, shapes = recurrent.operation(model["cell"], model["direction"], operations)
    sizes = {
        "steps": model["steps"],
        "hidden": model["hidden"],
        "gates": recurrent.GATES[model["cell"]] * model["hidden"],
    }

    def draw(generator: np.random.Generator, count: int) -> list[np.ndarray]:
        known = {**sizes, "batch": count}
        arrays = [_normal(generator, tuple(known[name] for name in names))[0] for names in shapes]
        # Weights of this size let states neither grow nor vanish.
        scale = np.float32(1 / math.sqrt(model["hidden"]))
        return [
            array * scale if array.ndim == 2 and names[0] == "hidden" else array
            for array, names in zip(arrays, shapes, strict=True)
        ]

    return _workload(compute, draw, lambda operands: [operations.cast(operand, dtype) for operand in operands])


def build_sparse_gemm(model: Mapping[str, Any]) -> Workload:
    """A sparse (m, k) and a dense (k, n) matrix -> (m, n)."""
    operations, dtype = _operations()
    m, n, k = model["m"], model["n"], model["k"]
    stored = round(model["density"] * m * k)

    def draw(generator: np.random.Generator, _: int) -> list[np.ndarray]:
        return [*_places(generator, m, k, stored), *_normal(generator, (stored,), (k, n))]

    def prepare(operands: list[Any]) -> list[Any]:
        counts, columns, values, dense = operands
        values, dense = operations.cast(values, dtype), operations.cast(dense, dtype)
        return [operations.sparse(counts, columns, values, (m, k)), dense]

    return _workload(operations.sparse_matmul, draw, prepare)


def build_sparse_fc(model: Mapping[str, Any]) -> Workload:
    """Examples (input_size, batch), a column each, and the weights of each layer (nodes, width) -> (nodes, batch)."""
    operations, dtype = _operations()
    nodes, is_sparse = model["nodes"], model["storage"] == "sparse"
    widths = [model["input_size"], *[nodes] * (model["layers"] - 1)]

    def draw(generator: np.random.Generator, batch_size: int) -> list[np.ndarray]:
        drawn = _normal(generator, (widths[0], batch_size))
        for width in widths:
            stored = round(model["density"] * nodes * width)
            counts, columns = _places(generator, nodes, width, stored)
            # Results are then of the size of the inputs, however many layers there are.
            values = _normal(generator, (stored,))[0] * np.float32(math.sqrt(nodes / stored))
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

    return _workload(compute, draw, prepare)


def _filled(shape: tuple[int, int], counts: np.ndarray, columns: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The whole matrix of a sparse one."""
    matrix = np.zeros(shape, np.float32)
    matrix[np.repeat(np.arange(shape[0]), counts), columns] = values
    return matrix


def build_elementwise(model: Mapping[str, Any]) -> Workload:
    """a and b, near 1 so that no product of many leaves the range of a type -> a b b ... b, of the same shape."""
    operations, dtype = _operations()

    def compute(a: Any, b: Any) -> Any:
        for _ in range(model["operations"]):
            a = a * b
        return a

    def draw(generator: np.random.Generator, _: int) -> list[np.ndarray]:
        return [generator.uniform(0.99, 1.01, model["elements"]).astype(np.float32) for _ in range(2)]

    return _workload(compute, draw, lambda operands: [operations.cast(operand, dtype) for operand in operands])


def _workload(compute: Callable[..., Any], draw: Any, prepare: Callable[[list[Any]], list[Any]]) -> Workload:
    return Workload(Kernel(compute), (), (), _no_loss, draw, prepare)


def _no_loss(targets: Sequence[Any], outputs: Any) -> Any:
    raise TypeError("a kernel has no loss")


def _operations() -> tuple[Operations, str]:
    """The operations of the framework that Keras stands on, and the type of the operands."""
    module = importlib.import_module(f"paradnn.worker.models.kernels.{keras.config.backend()}_operations")
    operations: Operations = module.make()
    return operations, keras.config.dtype_policy().compute_dtype


def _normal(generator: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]


def _places(generator: np.random.Generator, rows: int, columns: int, stored: int) -> list[np.ndarray]:
    """Elements of each row, and their columns row by row, of `stored` places drawn evenly from all; int32."""
    counts = generator.multivariate_hypergeometric([columns] * rows, stored, method="marginals")
    drawn = [np.sort(generator.choice(columns, count, replace=False, shuffle=False)) for count in counts]
    return [counts.astype(np.int32), np.concatenate(drawn).astype(np.int32)]
