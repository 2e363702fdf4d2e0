"""Kernels as defined, in plain NumPy and float64; gradients are finite differences."""

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


def gradient(function: Callable[[Array], float], at: Array, distance: float = 1e-6) -> Array:
    """Return the gradient of a scalar function of an array by central differences.

    The result is exact for linear functions, except for rounding.
    """
    differences = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        above = at.copy()
        above[index] += distance
        below = at.copy()
        below[index] -= distance
        differences[index] = (function(above) - function(below)) / (2 * distance)
    return differences


def _sigmoid(values: Array) -> Array:
    return 1 / (1 + np.exp(-values))


def recurrent_layer(
    name: str, inputs: Array, weights: Array, state: Array, memory: Array | None = None
) -> dict[str, Any]:
    """Run a recurrent layer step by step and return its history.

    Args:
        name: "vanilla", "lstm" or "gru".
        inputs: Inputs of each step, which are added to the product of every gate.
        weights: Weights of the state.
        state: State before the first step.
        memory: Memory of an LSTM before the first step.

    Returns:
        Arrays whose first axis is the step: `outputs`, `states` before the step, `gates`,
        `memories` before the step (LSTM) and `products` (GRU). `memory` is the last memory.
    """
    history: dict[str, list[Array]] = {
        "outputs": [],
        "states": [],
        "gates": [],
        "memories": [],
        "products": [],
    }
    for x in inputs:
        history["states"].append(state)
        product = state @ weights
        if name == "vanilla":
            state = np.maximum(0, x + product)
        elif name == "lstm":
            i, f, g, o = np.split(product, 4, axis=1)
            i = _sigmoid(x + i)
            f = _sigmoid(x + f)
            g = np.tanh(x + g)
            o = _sigmoid(x + o)
            history["gates"].append(np.concatenate([i, f, g, o], 1))
            history["memories"].append(memory)
            memory = f * memory + i * g
            state = o * np.tanh(memory)
        else:
            r, z, n = np.split(product, 3, axis=1)
            history["products"].append(n)
            r = _sigmoid(x + r)
            z = _sigmoid(x + z)
            n = np.tanh(x + r * n)
            history["gates"].append(np.concatenate([r, z, n], 1))
            state = (1 - z) * n + z * state
        history["outputs"].append(state)
    return {key: np.array(values) for key, values in history.items() if values} | {"memory": memory}
