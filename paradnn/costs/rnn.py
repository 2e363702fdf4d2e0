"""Layers of the recurrent families; see `paradnn.worker.models.rnn`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paradnn.costs.fc import dense
from paradnn.costs.layers import Layer, Multiply

__all__ = ["rnn_layers"]

_GATES = {"rnn": 1, "lstm": 4, "gru": 3}
#: Bias vectors of a gate: Keras' GRU with reset_after has one for the input and one for the recurrent product.
_BIASES = {"rnn": 1, "lstm": 1, "gru": 2}


def rnn_layers(model: Mapping[str, Any]) -> list[Layer]:
    """Embedding, stacked cells, output per token.

    Every time step has an input and a recurrent product, forward and for the weights' gradient. The recurrent
    product's input gradient is needed at every step but the first, whose state is the constant zero: a cell's
    backward pass has one product less than twice its forward.

    A cell is one use of its weights, which stay in caches over the time steps.
    """
    name, width, length, vocabulary = (
        model["name"],
        model["embedding_size"],
        model["sequence_length"],
        model["vocab_size"],
    )
    embedding = Layer(
        "embedding",
        parameters=vocabulary * width,
        rows=length * width,
        read=length,
        written=length * width,
        kept=length * width,
        is_first=True,
    )
    product = _GATES[name] * width * width
    inner, reread = _saved(name, length)
    cell = Layer(
        name,
        macs=2 * length * product,
        input_macs=(2 * length - 1) * product,
        parameters=_GATES[name] * width * (2 * width + _BIASES[name]),
        weights=2 * product,
        read=length * width,
        written=length * width,
        inner=inner * width,
        reread=reread * width,
        kept=(inner + reread) * width,
        products=(
            Multiply(1, width, _GATES[name] * width, times=length),
            Multiply(1, width, _GATES[name] * width, times=length, constant=1),
        ),
    )
    return [embedding, *[cell] * model["layers"], dense("logits", width, vocabulary, tokens=length, is_last=True)]


def _saved(name: str, length: int) -> tuple[int, int]:
    """Vectors over `length` steps that a cell's backward pass cannot do without: its inner ones, and its outputs.

    - rnn: the state h, its output, at every step: the tanh's gradient is made from it.
    - lstm, c' = f c + i g, h = o tanh(c'): i, g and o at every step; f and the cell state c before it at every step but
      the first, where c is zero. Each h follows elementwise from o, f, c, i and g.
    - gru, h' = z h + (1 - z) tanh(x + r s) with s the recurrent product: z, r and the tanh at every step; s and the
      state h before it at every step but the first, where s is a bias and h is zero.

    A gate may be kept as the sum that it is made from, which is as large.
    """
    later = length - 1
    return {"rnn": (0, length), "lstm": (3 * length + 2 * later, 0), "gru": (3 * length + later, later)}[name]
