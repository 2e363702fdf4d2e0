"""What a step costs, by arithmetic: parameters, FLOPs, memory traffic, a lower bound of memory. No framework.

FLOPs are the model's own: twice the multiply-accumulates of matrix products and convolutions, forward and backward,
as Chowdhery et al. (PaLM, appendix B) count model FLOPs. Attention's two products, of queries with keys and of
probabilities with values, are among them, and a causal mask halves neither, since a framework's plain attention
computes all of both (a fused kernel may skip what is masked, and makes the scores again in the backward pass; neither
counts). Padding counts as work, as in TensorFlow's profiler; biases, activations, normalisation, pooling, the loss and
the optimizer do not count: on these models they are a few percent of the arithmetic and none of a platform's matmul
peak. The backward pass has a product for the weights and one for the input of every layer; the first layer's input
gradient is not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paradnn.costs.attention import decode_layers, gpt_layers, prefill_layers, transformer_layers, vit_layers
from paradnn.costs.cnn import cnn_layers
from paradnn.costs.fc import fc_layers
from paradnn.costs.kernels import KERNELS, kernel_costs
from paradnn.costs.layers import Costs, Layer, LayerWork, sum_costs, work_of
from paradnn.costs.operations import Counted, product_operations
from paradnn.costs.rnn import rnn_layers
from paradnn.costs.vision import (
    densenet121_layers,
    mobilenet_layers,
    resnet50_layers,
    retinanet_layers,
    squeezenet_layers,
)

__all__ = [
    "Costs",
    "LayerWork",
    "example_sizes",
    "layer_count",
    "layer_work",
    "model_costs",
    "model_operations",
    "prefill_costs",
]

_LAYERS: dict[str, Callable[[Mapping[str, Any]], Sequence[Layer]]] = {
    "fc": fc_layers,
    "residual": cnn_layers,
    "bottleneck": cnn_layers,
    "rnn": rnn_layers,
    "lstm": rnn_layers,
    "gru": rnn_layers,
    "transformer": transformer_layers,
    "gpt": gpt_layers,
    "vit": vit_layers,
    "resnet50": resnet50_layers,
    "densenet121": densenet121_layers,
    "mobilenet": mobilenet_layers,
    "squeezenet": squeezenet_layers,
    "retinanet": retinanet_layers,
}
#: Optimizer variables of the size of each weight: Keras' RMSprop keeps a mean square and, with momentum, a velocity;
#: Adam a mean and a mean square.
_SLOTS = {"rmsprop": 2, "momentum": 1, "sgd": 0, "adam": 2}


def model_costs(
    model: Mapping[str, Any],
    *,
    batch_size: int,
    precision: str,
    mode: str,
    optimizer: str,
    momentum: float = 0.9,
    devices: int = 1,
    prompt: int = 0,
    tokens: int = 0,
) -> Costs:
    """Costs of one step of `model` (a validated mapping with its `name`).

    `precision` is float32, bfloat16 or float16, `mode` train, inference or generate, `optimizer` rmsprop, momentum, sgd
    or adam. With a `momentum` of 0 Keras' RMSprop and SGD keep no velocity.

    A step of a generation, of `tokens` after a `prompt`, makes a token of each example; its memory is also that of
    reading the prompt (`prefill_costs`). ValueError for a family that generates none.

    `batch_size` is that of the step over all `devices`, which divide it evenly. FLOPs, traffic and memory are those of
    all devices together: each has weights and optimizer variables of its own, and reads and writes them; what the
    all-reduce moves between devices is left out.
    """
    if model["name"] in KERNELS:
        return kernel_costs(model, batch_size, precision)
    if mode == "generate":
        _check_generates(model)
        step = sum_costs(decode_layers(model, prompt + tokens), batch_size, precision, mode, slots=0)
        first = prefill_costs(model, batch_size=batch_size, precision=precision, prompt=prompt, tokens=tokens)
        memory = max(step.memory_lower_bound_bytes, first.memory_lower_bound_bytes)
        return replace(step, memory_lower_bound_bytes=memory)
    slots = _SLOTS[optimizer] - (1 if momentum == 0 and optimizer in ("rmsprop", "momentum") else 0)
    one = sum_costs(_LAYERS[model["name"]](model), batch_size // devices, precision, mode, slots=slots)
    return one.times(devices)


def prefill_costs(model: Mapping[str, Any], *, batch_size: int, precision: str, prompt: int, tokens: int) -> Costs:
    """Costs of reading a batch of prompts into a cache that has room for `tokens` more, and of the first of these."""
    _check_generates(model)
    return sum_costs(prefill_layers(model, prompt, prompt + tokens), batch_size, precision, "generate", slots=0)


def _check_generates(model: Mapping[str, Any]) -> None:
    if model["name"] != "gpt":
        raise ValueError(f"{model['name']} generates no tokens")


def model_operations(model: Mapping[str, Any], *, batch_size: int, precision: str, mode: str) -> list[Counted]:
    """The matrix products and convolutions of one step of `model`, in the order of its layers; of no kernel.

    `mode` is train or inference; ValueError for a generation, whose operations `analysis` extrapolates to no device.
    """
    if mode == "generate":
        raise ValueError("a step of a generation is not told as a list of operations")
    return product_operations(_LAYERS[model["name"]](model), batch_size, precision, mode)


def layer_count(model: Mapping[str, Any]) -> int:
    """How many layers `model` is counted as: what building and compiling it grows with."""
    return 1 if model["name"] in KERNELS else len(_LAYERS[model["name"]](model))


def layer_work(model: Mapping[str, Any]) -> tuple[LayerWork, ...]:
    """FLOPs and gradients of each layer of `model`, in the order of the forward pass; ValueError for a kernel."""
    if model["name"] in KERNELS:
        raise ValueError(f"{model['name']} has no layers")
    return tuple(work_of(layer) for layer in _LAYERS[model["name"]](model))


def example_sizes(model: Mapping[str, Any]) -> tuple[int, int]:
    """How many numbers an example's input has, and a target with a one for its class among zeros."""
    layers = _LAYERS[model["name"]](model)
    classes = sum(layer.written // max(layer.targets, 1) for layer in layers if layer.is_last)
    return sum(layer.read for layer in layers if layer.is_first), classes
