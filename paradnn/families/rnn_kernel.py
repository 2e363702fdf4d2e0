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

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.core.schema import option
from paradnn.families import Family
from paradnn.families.built import BuiltModel
from paradnn.families.kernels import (
    BATCHED,
    DIRECTION,
    DIRECTIONS,
    LARGEST,
    Kernel,
    Work,
    check_work,
    framework_operations,
    kernel_workload,
    normal,
)
from paradnn.families.operations import Operation

if TYPE_CHECKING:
    import numpy as np

    from paradnn.families.parts.operations import Operations

#: Products of the width of a state in one step of a cell.
_GATES = {"vanilla": 1, "lstm": 4, "gru": 3}

Shape = tuple[str, ...]
_WEIGHTS, _STATE = ("hidden", "gates"), ("batch", "hidden")
_SERIES, _GATED = ("steps", "batch", "hidden"), ("steps", "batch", "gates")
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


@dataclass(frozen=True)
class RecurrentKernel(Kernel):
    """A recurrent layer without its input product: inputs, as wide as the cell, are added to every gate as they are."""

    has_batch: ClassVar[bool] = True

    name: str = option("rnn_kernel", "the kernel", choices=("rnn_kernel",))
    cell: str = option("lstm", "vanilla has a rectifier", choices=("vanilla", "lstm", "gru"))
    hidden: int = option(512, "units of the cell", low=1, high=LARGEST)
    steps: int = option(25, "steps in time", low=1, high=LARGEST)
    direction: str = option("forward", DIRECTION, choices=DIRECTIONS)

    def __post_init__(self) -> None:
        work = 8 * self.hidden * self.hidden * self.steps
        check_work("model.hidden", self.hidden, f"model.steps={self.steps} for each example", work)

    @property
    def size(self) -> str:
        """Short description of the layer's size."""
        return f"{self.cell} {self.hidden} t{self.steps} {self.direction}"

    @property
    def gates(self) -> int:
        """Columns of the weights."""
        return _GATES[self.cell] * self.hidden

    def work(self, batch_size: int) -> Work:
        """Elements of the operands and results of `_Cells`."""
        gates, state = _GATES[self.cell], batch_size * self.hidden
        weights, series = self.hidden * self.gates, self.steps * state
        elements = {
            # Inputs and outputs, the state before the first step.
            "forward": 2 * series + state,
            # Gradients of outputs and of gates, the gates' values; of LSTM the cells', of GRU states and products too.
            "backward_input": (1 + 2 * gates + {"vanilla": 0, "lstm": 1, "gru": 2}[self.cell]) * series + state,
            "backward_weights": (1 + gates) * series,
        }[self.direction]
        if self.cell == "lstm":  # the cell's state before and after, and its gradient
            elements += {"forward": 2, "backward_input": 1, "backward_weights": 0}[self.direction] * state
        return Work(self.steps * batch_size * weights, elements + weights)

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        """Products of states with the weights, one after the other."""
        variant = f"{self.cell} {self.direction}"
        return self.posed(batch_size, precision, variant, batch_size, self.gates, self.hidden, self.steps)

    def build(self) -> BuiltModel:
        """See `_Cells`: what it computes, of which operands."""
        import numpy as np

        operations, dtype = framework_operations()
        compute, shapes = _operation(self.cell, self.direction, operations)
        sizes = {"steps": self.steps, "hidden": self.hidden, "gates": self.gates}

        def draw(generator: np.random.Generator, count: int) -> list[np.ndarray]:
            known = {**sizes, "batch": count}
            arrays = [normal(generator, tuple(known[name] for name in names))[0] for names in shapes]
            # Weights of this size let states neither grow nor vanish.
            scale = np.float32(1 / math.sqrt(self.hidden))
            return [
                array * scale if array.ndim == 2 and names[0] == "hidden" else array
                for array, names in zip(arrays, shapes, strict=True)
            ]

        return kernel_workload(
            compute, draw, lambda operands: [operations.cast(operand, dtype) for operand in operands]
        )


def _operation(cell: str, direction: str, operations: Operations) -> tuple[Callable[..., Any], tuple[Shape, ...]]:
    """What a kernel computes, and the shapes of its operands in the words of its sizes."""
    if direction == "backward_weights":
        # The states before each step, the gradients before the gates.
        return _Cells(operations).weights, (_SERIES, _GATED)
    compute = getattr(_Cells(operations), f"{cell}_{direction}")
    return compute, _OPERANDS[cell, direction]


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


FAMILY = Family(
    "rnn_kernel",
    RecurrentKernel,
    "vectors",
    ("hidden", "steps"),
    "model.hidden=256,512,1024 batch_size=4,16,64",
    place=16,
    words="A kernel: one recurrent layer without its input product, or the gradient of its input or of its weights.",
    chosen=BATCHED,
)
