"""Kernels in plain NumPy by their definitions, in float64.

Gradients of recurrent cells are finite differences.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray


def convolution(
    images: Array, filters: Array, stride: tuple[int, int], padding: tuple[int, int]
) -> Array:
    """Convolve images (n, h, w, c) with filters (r, s, c, k) into an array (n, p, q, k).

    Sums over the filter's positions.
    """
    padded = np.pad(images, ((0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)))
    height, width = (
        (size - kernel) // step + 1
        for size, kernel, step in zip(padded.shape[1:3], filters.shape[:2], stride, strict=True)
    )
    output = np.zeros((images.shape[0], height, width, filters.shape[3]))
    for row in range(filters.shape[0]):
        for column in range(filters.shape[1]):
            rows = slice(row, row + height * stride[0] - stride[0] + 1, stride[0])
            columns = slice(column, column + width * stride[1] - stride[1] + 1, stride[1])
            output += padded[:, rows, columns] @ filters[row, column]
    return output


def gradient(function: Callable[[Array], float], at: Array, small: float = 1e-6) -> Array:
    """Return central differences of an array function in float64; exact for linear functions."""
    found = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        moved = [at.copy(), at.copy()]
        moved[0][index] += small
        moved[1][index] -= small
        found[index] = (function(moved[0]) - function(moved[1])) / (2 * small)
    return found


def _sigmoid(values: Array) -> Array:
    return 1 / (1 + np.exp(-values))


def cell(
    name: str, inputs: Array, weights: Array, state: Array, memory: Array | None = None
) -> dict[str, Any]:
    """Run a layer step by step.

    Returns the outputs, and for each step the previous state and the gates.
    """
    kept: dict[str, list[Array]] = {
        "outputs": [],
        "states": [],
        "gates": [],
        "memories": [],
        "products": [],
    }
    for x in inputs:
        kept["states"].append(state)
        product = state @ weights
        if name == "vanilla":
            state = np.maximum(0, x + product)
        elif name == "lstm":
            i, f, g, o = np.split(product, 4, axis=1)
            i = _sigmoid(x + i)
            f = _sigmoid(x + f)
            g = np.tanh(x + g)
            o = _sigmoid(x + o)
            kept["gates"].append(np.concatenate([i, f, g, o], 1))
            kept["memories"].append(memory)
            memory = f * memory + i * g
            state = o * np.tanh(memory)
        else:
            r, z, n = np.split(product, 3, axis=1)
            kept["products"].append(n)
            r = _sigmoid(x + r)
            z = _sigmoid(x + z)
            n = np.tanh(x + r * n)
            kept["gates"].append(np.concatenate([r, z, n], 1))
            state = (1 - z) * n + z * state
        kept["outputs"].append(state)
    return {key: np.array(values) for key, values in kept.items() if values} | {"memory": memory}
