"""Recurrent layers without their input product: inputs are as wide as the state and are added to every gate.

So DeepBench runs them (cuDNN's CUDNN_SKIP_INPUT). With h the states, u one column of the weights for each gate:

- vanilla: h' = relu(x + h u)
- LSTM: i, f, o = sigmoid(x + h u_ifo), g = tanh(x + h u_g), c' = f c + i g, h' = o tanh(c')
- GRU: r, z = sigmoid(x + h u_rz), n = tanh(x + r (h u_n)), h' = (1 - z) n + z h

The gradients are those of any sum over the outputs, written out: `backward_input` goes back through time from what the
forward pass has kept, and gives the gradients before each gate; that of the inputs is their sum over the gates.
`backward_weights` is one product of all states with these. Series are (steps, batch, width).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paradnn.worker.models.kernels.operations import Operations

__all__ = ["GATES", "operation"]

GATES = {"vanilla": 1, "lstm": 4, "gru": 3}

Shape = tuple[str, ...]
_WEIGHTS, _STATE = ("hidden", "gates"), ("batch", "hidden")
_SERIES, _GATED = ("steps", "batch", "hidden"), ("steps", "batch", "gates")


def operation(cell: str, direction: str, operations: Operations) -> tuple[Callable[..., Any], tuple[Shape, ...]]:
    """What a kernel computes, and the shapes of its operands in the words of its sizes."""
    if direction == "backward_weights":
        # The states before each step, the gradients before the gates.
        return _Cells(operations).weights, (_SERIES, _GATED)
    compute = getattr(_Cells(operations), f"{cell}_{direction}")
    return compute, _OPERANDS[cell, direction]


_OPERANDS: dict[tuple[str, str], tuple[Shape, ...]] = {
    # Inputs, weights, the first state.
    ("vanilla", "forward"): (_SERIES, _WEIGHTS, _STATE),
    ("lstm", "forward"): (_SERIES, _WEIGHTS, _STATE, _STATE),
    ("gru", "forward"): (_SERIES, _WEIGHTS, _STATE),
    # Gradients of the outputs, weights, what the forward pass has kept.
    ("vanilla", "backward_input"): (_SERIES, _WEIGHTS, _SERIES),
    ("lstm", "backward_input"): (_SERIES, _WEIGHTS, _GATED, _SERIES),
    ("gru", "backward_input"): (_SERIES, _WEIGHTS, _GATED, _SERIES, _SERIES),
}


class _Cells:
    """The kernels of all cells, in one framework's operations."""

    def __init__(self, operations: Operations) -> None:
        self._do = operations

    def weights(self, states: Any, gradients: Any) -> Any:
        """(hidden, gates): the states before each step with the gradients before the gates."""
        return self._do.matmul(self._do.flat(states), self._do.flat(gradients), True, False)

    def vanilla_forward(self, inputs: Any, weights: Any, state: Any) -> Any:
        """The states."""
        do = self._do

        def step(state: Any, given: Any) -> Any:
            output = do.relu(given[0] + do.matmul(state[0], weights))
            return (output,), (output,)

        return do.scan(step, (state,), (inputs,))[1][0]

    def vanilla_backward_input(self, gradients: Any, weights: Any, states: Any) -> Any:
        """Gradients before the rectifier, and of the first state; `states` are the forward pass' outputs."""
        do = self._do

        def step(carried: Any, given: Any) -> Any:
            gradient, output = given
            before = do.where_positive(output, gradient + carried[0])
            return (do.matmul(before, weights, False, True),), (before,)

        (first,), (before,) = do.scan(step, (gradients[0] * 0,), (gradients, states), reverse=True)
        return before, first

    def lstm_forward(self, inputs: Any, weights: Any, state: Any, memory: Any) -> Any:
        """The states, and the last memory."""
        do = self._do

        def step(state: Any, given: Any) -> Any:
            hidden, memory = state
            i, f, g, o = _parts(do.matmul(hidden, weights), 4)
            i, f, o = (do.sigmoid(given[0] + gate) for gate in (i, f, o))
            memory = f * memory + i * do.tanh(given[0] + g)
            hidden = o * do.tanh(memory)
            return (hidden, memory), (hidden,)

        (_, memory), (states,) = do.scan(step, (state, memory), (inputs,))
        return states, memory

    def lstm_backward_input(self, gradients: Any, weights: Any, gates: Any, memories: Any) -> Any:
        """Gradients before the gates, of the first state and memory.

        `gates` are i, f, g, o; `memories` those before the steps.
        """
        do = self._do

        def step(carried: Any, given: Any) -> Any:
            gradient, gated, memory = given
            i, f, g, o = _parts(gated, 4)
            bent = do.tanh(f * memory + i * g)
            hidden = gradient + carried[0]
            cell = carried[1] + hidden * o * (1 - bent * bent)
            parts = cell * g * i * (1 - i), cell * memory * f * (1 - f), cell * i * (1 - g * g)
            before = do.concatenate([*parts, hidden * bent * o * (1 - o)])
            return (do.matmul(before, weights, False, True), cell * f), (before,)

        zero = gradients[0] * 0
        (state, memory), (before,) = do.scan(step, (zero, zero), (gradients, gates, memories), reverse=True)
        return before, state, memory

    def gru_forward(self, inputs: Any, weights: Any, state: Any) -> Any:
        """The states."""
        do = self._do

        def step(state: Any, given: Any) -> Any:
            r, z, n = _parts(do.matmul(state[0], weights), 3)
            r, z = do.sigmoid(given[0] + r), do.sigmoid(given[0] + z)
            n = do.tanh(given[0] + r * n)
            output = (1 - z) * n + z * state[0]
            return (output,), (output,)

        return do.scan(step, (state,), (inputs,))[1][0]

    def gru_backward_input(self, gradients: Any, weights: Any, gates: Any, states: Any, products: Any) -> Any:
        """Gradients of the three products, and of the first state.

        `gates` are r, z, n, `states` those before the steps, `products` h u_n, which the reset gate multiplies. The
        inputs' gradient has that before n's tangent in place of the product's.
        """
        do = self._do

        def step(carried: Any, given: Any) -> Any:
            gradient, gated, state, product = given
            r, z, n = _parts(gated, 3)
            hidden = gradient + carried[0]
            bent = hidden * (1 - z) * (1 - n * n)
            before = do.concatenate([bent * product * r * (1 - r), hidden * (state - n) * z * (1 - z), bent * r])
            return (hidden * z + do.matmul(before, weights, False, True),), (before,)

        zero = gradients[0] * 0
        (first,), (before,) = do.scan(step, (zero,), (gradients, gates, states, products), reverse=True)
        return before, first


def _parts(values: Any, count: int) -> list[Any]:
    """The columns of each gate."""
    width = values.shape[-1] // count
    return [values[:, gate * width : (gate + 1) * width] for gate in range(count)]
