"""What a step costs, by arithmetic: parameters, FLOPs, memory traffic, a lower bound of memory. No framework.

FLOPs are the model's own: twice the multiply-accumulates of matrix products and convolutions, forward and backward,
as Chowdhery et al. (PaLM, appendix B) count model FLOPs. Padding counts as work, as in TensorFlow's profiler; biases,
activations, normalisation, pooling, the loss and the optimizer do not count: on these models they are a few percent of
the arithmetic and none of a platform's matmul peak. The backward pass has a product for the weights and one for the
input of every layer; the first layer's input gradient is computed by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paradnn.costs.cnn import cnn_layers
from paradnn.costs.fc import fc_layers
from paradnn.costs.layers import Costs, Layer, sum_costs
from paradnn.costs.rnn import rnn_layers

__all__ = ["Costs", "model_costs"]

_LAYERS: dict[str, Callable[[Mapping[str, Any]], Sequence[Layer]]] = {
    "fc": fc_layers,
    "residual": cnn_layers,
    "bottleneck": cnn_layers,
    "rnn": rnn_layers,
    "lstm": rnn_layers,
    "gru": rnn_layers,
}
#: Optimizer variables of the size of each weight: Keras' RMSprop keeps a mean square and, with momentum, a velocity.
_SLOTS = {"rmsprop": 2, "momentum": 1, "sgd": 0}


def model_costs(
    model: Mapping[str, Any], *, batch_size: int, precision: str, mode: str, optimizer: str, momentum: float = 0.9
) -> Costs:
    """Costs of one step of `model` (a validated mapping with its `name`).

    `precision` is float32, bfloat16 or float16, `mode` train or inference, `optimizer` rmsprop, momentum or sgd. With a
    `momentum` of 0 Keras' optimizers keep no velocity.
    """
    targets = model.get("sequence_length", 1)  # a class for every token, or one
    slots = _SLOTS[optimizer] - (1 if momentum == 0 and optimizer != "sgd" else 0)
    return sum_costs(_LAYERS[model["name"]](model), batch_size, precision, mode, slots=slots, targets=targets)
