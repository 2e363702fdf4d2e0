"""Layers of the recurrent families; see `paradnn.worker.models.rnn`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paradnn.costs.layers import Layer

__all__ = ["rnn_layers"]

_GATES = {"rnn": 1, "lstm": 4, "gru": 3}
#: Bias vectors of a gate: Keras' GRU with reset_after has one for the input and one for the recurrent product.
_BIASES = {"rnn": 1, "lstm": 1, "gru": 2}


def rnn_layers(model: Mapping[str, Any]) -> list[Layer]:
    """Embedding, stacked cells, output per token.

    Every time step has an input and a recurrent product, forward and for the weights' gradient. The recurrent
    product's input gradient is needed at every step but the first, whose state is the constant zero: a cell's
    backward pass has one product less than twice its forward.
    """
    width, length, vocabulary, gates = (
        model["embedding_size"],
        model["sequence_length"],
        model["vocab_size"],
        _GATES[model["name"]],
    )
    layers = [
        Layer("input", written=length, is_input=True),
        Layer("embedding", parameters=vocabulary * width, read=length, written=length * width, saved=length * width),
    ]
    product = gates * width * width
    cell = Layer(
        model["name"],
        macs=2 * length * product,
        input_macs=(2 * length - 1) * product,
        parameters=gates * width * (2 * width + _BIASES[model["name"]]),
        read=length * width,
        written=length * width,
        saved=length * width,
    )
    layers += [cell] * model["layers"]
    logits = Layer(
        "logits",
        macs=length * width * vocabulary,
        parameters=(width + 1) * vocabulary,
        read=length * width,
        written=length * vocabulary,
    )
    return [*layers, logits]
