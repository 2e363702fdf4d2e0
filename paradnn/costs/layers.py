"""A model as a list of layers, and what a list of layers costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Costs", "Layer", "sum_costs"]

#: Optimizer variables of the size of each weight: Keras' RMSprop keeps a mean square and, with momentum, a velocity.
_SLOTS = {"rmsprop": 2, "momentum": 1, "sgd": 0}
_MASTER_BYTES = 4
_COMPUTE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Layer:
    """One layer, per example.

    macs: multiply-accumulates of the forward pass in matrix products and convolutions. input_macs: those of the
    gradient of its inputs (0 where nobody asks for it), by default as many as forward. saved: output elements that
    the backward pass needs again. read: input elements. is_input: the batch itself, kept in its own 4-byte type.
    """

    name: str
    macs: int = 0
    input_macs: int | None = None
    parameters: int = 0
    fixed_parameters: int = 0
    read: int = 0
    written: int = 0
    saved: int = 0
    is_input: bool = False


@dataclass(frozen=True)
class Costs:
    """Costs of one step: counts, FLOP and bytes; `flops_per_step` is forward and, in training, backward."""

    parameters: int
    non_trainable_parameters: int
    forward_flops: int
    backward_flops: int
    flops_per_step: int
    bytes_per_step: int
    memory_lower_bound_bytes: int


def sum_costs(layers: Sequence[Layer], batch_size: int, precision: str, mode: str, optimizer: str) -> Costs:
    """Costs of one step over all layers.

    bytes_per_step is compulsory traffic, as if every tensor crossed the memory bus once for each of its uses and
    everything else stayed in caches: forward reads weights and inputs and writes outputs; backward reads the weights
    and what was saved, reads and writes a gradient for each activation, writes the weights' gradients, and the update
    reads and writes weights and optimizer variables. Left out are workspaces, unfused temporaries and mixed
    precision's casts.

    memory_lower_bound_bytes is what must exist at one moment: weights and optimizer variables throughout; in training
    the saved activations at the end of the forward pass with the batch, in inference the largest single layer's
    output with the batch. Gradients, workspaces and the framework itself come on top.
    """
    parameters = sum(layer.parameters for layer in layers)
    fixed = sum(layer.fixed_parameters for layer in layers)
    forward = 2 * batch_size * sum(layer.macs for layer in layers)
    backward = 2 * batch_size * sum(_backward_macs(layer) for layer in layers)
    training = mode == "train"
    width, slots = _COMPUTE_BYTES[precision], _SLOTS[optimizer]
    batch = 4 * batch_size * sum(layer.written for layer in layers if layer.is_input)
    inner = [layer for layer in layers if not layer.is_input]
    moved = sum(layer.read + layer.written for layer in inner) * batch_size * width
    traffic = batch + (parameters + fixed) * _MASTER_BYTES + moved
    if training:
        # Once more for what was saved, and a gradient read and written for every activation.
        again = sum(layer.saved for layer in inner) + sum(layer.read + layer.written for layer in inner)
        traffic += parameters * (width + _MASTER_BYTES * (2 + 2 * slots)) + again * batch_size * width
        alive = sum(layer.saved for layer in inner) * batch_size * width
        memory = (parameters * (1 + slots) + fixed) * _MASTER_BYTES + batch + alive
    else:
        largest = max((layer.written for layer in inner), default=0) * batch_size * width
        memory = (parameters + fixed) * _MASTER_BYTES + batch + largest
    return Costs(
        parameters=parameters,
        non_trainable_parameters=fixed,
        forward_flops=forward,
        backward_flops=backward if training else 0,
        flops_per_step=forward + (backward if training else 0),
        bytes_per_step=traffic,
        memory_lower_bound_bytes=memory,
    )


def _backward_macs(layer: Layer) -> int:
    """The weights' gradient costs what forward costs; the inputs' gradient as much again, where it is asked for."""
    return layer.macs + (layer.macs if layer.input_macs is None else layer.input_macs)
