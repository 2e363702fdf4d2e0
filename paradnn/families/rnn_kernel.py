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
from collections.abc import Sequence
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
    check_work,
    framework_operations,
    kernel_workload,
    normal,
)
from paradnn.families.operations import Operation

if TYPE_CHECKING:
    import numpy as np

#: Products of the width of a state in one step of a cell.
_GATES = {"vanilla": 1, "lstm": 4, "gru": 3}
#: How many states a step hands on, and how many series `backward_input` takes beside gradients and gates.
_STATES, _KEPT = {"vanilla": 1, "lstm": 2, "gru": 1}, {"vanilla": 1, "lstm": 1, "gru": 2}


@dataclass(frozen=True)
class RecurrentKernel(Kernel):
    """A kernel: one recurrent layer without its input product, or the gradient of its input or of its weights."""

    has_batch: ClassVar[bool] = True
    shown: ClassVar[str] = "{cell} {hidden} t{steps} {direction}"

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
        """Of the operands and of the results.

        Forward: inputs, weights, first states -> outputs (and an LSTM's last memory). Backward input: gradients of the
        outputs, weights, what the forward pass has kept -> gradients before the gates and of the first states. Backward
        weights: the states before each step, the gradients before the gates -> that of the weights.
        """
        weights, states = (self.hidden, self.gates), [(batch_size, self.hidden)] * _STATES[self.cell]
        series, gated = (self.steps, batch_size, self.hidden), (self.steps, batch_size, self.gates)
        if self.direction == "forward":
            return [series, weights, *states], [series, *states[1:]]
        if self.direction == "backward_input":
            kept = [series] * _KEPT[self.cell]
            return [series, weights, *([] if self.cell == "vanilla" else [gated]), *kept], [gated, *states]
        return [series, gated], [weights]

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        operands, results = self.shapes(batch_size)
        macs = self.steps * batch_size * self.hidden * self.gates
        return 2 * macs, width * sum(map(math.prod, [*operands, *results]))

    def as_operation(self, batch_size: int, precision: str) -> Operation:
        variant = f"{self.cell} {self.direction}"
        return self.posed(batch_size, precision, variant, batch_size, self.gates, self.hidden, self.steps)

    def build(self) -> BuiltModel:
        """What `shapes` says; see the module for the formulas."""
        import numpy as np

        operations, _ = framework_operations()
        weights = 1 if self.direction != "backward_weights" else None

        def draw(generator: np.random.Generator, count: int) -> list[np.ndarray]:
            arrays = normal(generator, *self.shapes(count)[0])
            # Weights of this size let states neither grow nor vanish.
            scale = np.float32(1 / math.sqrt(self.hidden))
            return [array * scale if place == weights else array for place, array in enumerate(arrays)]

        compute = getattr(_Cells(self.cell, operations), self.direction)
        return kernel_workload(compute, draw)


class _Cells:
    """The kernels of a cell, in one framework's operations."""

    def __init__(self, cell: str, operations: Any) -> None:
        self._cell, self._do = cell, operations

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
        r, z = self._do.sigmoid(x + r), self._do.sigmoid(x + z)
        n = self._do.tanh(x + r * n)
        return ((1 - z) * n + z * states[0],)

    def backward_input(self, gradients: Any, weights: Any, *kept: Any) -> Any:
        """Gradients before the gates, and of the first states; of GRU those of the three products, so that the inputs'
        gradient has that before n's tangent in place of the product's.

        kept: of vanilla the outputs; of LSTM the gates i, f, g, o and the memories before the steps; of GRU the gates
        r, z, n, the states before the steps, and the products h u_n, which the reset gate multiplies.
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
        """The gradient before the gates, that of the state beside theirs, and those of other states."""
        return self._do.where_positive(output, hidden), None

    def _lstm_back(self, hidden: Any, carried: Any, gated: Any, memory: Any) -> tuple[Any, ...]:
        i, f, g, o = _parts(gated, 4)
        bent = self._do.tanh(f * memory + i * g)
        cell = carried[0] + hidden * o * (1 - bent * bent)
        parts = cell * g * i * (1 - i), cell * memory * f * (1 - f), cell * i * (1 - g * g)
        return self._do.concatenate([*parts, hidden * bent * o * (1 - o)]), None, cell * f

    def _gru_back(self, hidden: Any, _: Any, gated: Any, state: Any, product: Any) -> tuple[Any, ...]:
        r, z, n = _parts(gated, 3)
        bent = hidden * (1 - z) * (1 - n * n)
        parts = bent * product * r * (1 - r), hidden * (state - n) * z * (1 - z), bent * r
        return self._do.concatenate(parts), hidden * z

    def backward_weights(self, states: Any, gradients: Any) -> Any:
        """(hidden, gates): the states before each step with the gradients before the gates."""
        return self._do.matmul(self._do.flat(states), self._do.flat(gradients), True, False)


def _parts(values: Any, count: int) -> list[Any]:
    """The columns of each gate."""
    if count == 1:
        return [values]
    width = values.shape[-1] // count
    return [values[:, gate * width : (gate + 1) * width] for gate in range(count)]


_SWEPT, _SWEEP = ("hidden", "steps"), "model.hidden=256,512,1024 batch_size=4,16,64"
FAMILY = Family("rnn_kernel", RecurrentKernel, "vectors", _SWEPT, _SWEEP, place=16, chosen=BATCHED)
