"""Several devices: the share of a step that each performs, and the messages between them.

- `parallel=data`: each device holds all weights and takes an equal share of the batch. In training,
  all-reduces sum the gradients in buckets, while the backward pass still runs (Li et al. 2020,
  PyTorch Distributed, section 3.2).
- `parallel=tensor`: each device holds a share of the heads, of the hidden units and of the
  vocabulary of a transformer, and processes the whole batch. The outputs of attention and of
  feed-forward layers, and the embeddings, need all-reduces (Shoeybi et al. 2019, Megatron-LM,
  section 3). The backward pass of training has the same number of all-reduces.

Normalizations and residual additions are repeated on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.atlas import TimingGroup, make_operation
from analysis.atlas.kernels import collective
from analysis.atlas.parts import StepPart
from paradnn.core.layers import Layer, Multiply
from paradnn.families import Model
from paradnn.families.operations import RepeatedOperation

#: Ways to divide a step among devices.
PARALLEL = ("data", "tensor")
#: Name of the part of a step in which devices wait for each other.
COMMUNICATION = "communication"

#: Bytes of a bucket of gradients, PyTorch's default.
_BUCKET_BYTES = 25 * 2**20
#: Layers whose outputs are divided among devices, and layers whose inputs are divided.
_COLUMN_LAYERS = ("query_key_value", "query", "key_value", "hidden", "gates_hidden", "logits")
_ROW_LAYERS = ("attended", "output")
#: Fields of a layer that are divided among devices, by kind of layer.
_COLUMN_FIELDS = ("macs", "parameters", "weights", "borrowed", "written", "kept")
_ROW_FIELDS = ("macs", "parameters", "weights", "read")
_HEAD_FIELDS = ("macs", "read", "written", "kept", "backward_only", "reread_outputs", "cached")
_TABLE_FIELDS = ("parameters", "borrowed")


@dataclass(frozen=True)
class AllReduces:
    """Equal all-reduces (sums over all devices) within one step.

    Attributes:
        size: Bytes that each device contributes to one all-reduce.
        count: Number of all-reduces in a step.
        is_overlapped: Whether the all-reduces run at the same time as the backward pass.
    """

    size: float
    count: float
    is_overlapped: bool = False


def parallel_error(model: Model, batch: int, devices: int, parallel: str) -> str:
    """Return why a step cannot be divided among devices, with a remedy; empty if it can.

    Args:
        model: The model whose step is divided.
        batch: Number of examples in a step, over all devices.
        devices: Number of devices.
        parallel: "data" to divide the batch, or "tensor" to divide each layer.
    """
    if devices == 1:
        return ""
    if parallel == "data":
        if batch % devices:
            return (
                f"batch_size={batch} cannot be divided among {devices} devices; "
                f"use batch_size={devices * (batch // devices + 1)}, or parallel=tensor"
            )
        return ""
    heads = getattr(model, "heads", None)
    if heads is None:
        return f"parallel=tensor divides only transformers, not {model.name}; use parallel=data"
    for name, count in (("heads", heads), ("key_heads", getattr(model, "key_heads", heads))):
        if count % devices:
            return (
                f"model.{name}={count} cannot be divided among {devices} devices; "
                f"use devices={_largest_power_of_two_divisor(count, below=devices)}"
            )
    return ""


def _largest_power_of_two_divisor(count: int, below: int) -> int:
    """Return the largest power of two that is smaller than `below` and divides `count`."""
    divisor = 1
    while 2 * divisor < below and count % (2 * divisor) == 0:
        divisor *= 2
    return divisor


def tensor_layers(layers: Sequence[Layer], devices: int) -> list[Layer]:
    """Return one device's share of the layers of a transformer that several devices divide.

    Args:
        layers: Layers of the model, for one example.
        devices: Number of devices; it divides the number of heads.
    """
    return [_layer_share(layer, devices) for layer in layers]


def _layer_share(layer: Layer, devices: int) -> Layer:
    if layer.name in _COLUMN_LAYERS:
        return _divided(layer, devices, _COLUMN_FIELDS, "outputs")
    if layer.name in _ROW_LAYERS:
        return _divided(layer, devices, _ROW_FIELDS, "inputs")
    if layer.name in ("attention", "cache"):
        return _divided(layer, devices, _HEAD_FIELDS, "pairs")
    if layer.name == "head_normalization":
        return _divided(layer, devices, ("read", "written"), "")
    if layer.name == "embedding":
        return _divided(layer, devices, _TABLE_FIELDS, "")
    return layer


def _divided(layer: Layer, devices: int, fields: Sequence[str], product_field: str) -> Layer:
    """Return a device's share of a layer, with quotients rounded up.

    Args:
        layer: The whole layer.
        devices: Number of devices.
        fields: Fields of the layer to divide.
        product_field: Field of each product to divide; empty to leave the products unchanged.
    """
    share: dict[str, Any] = {name: -(-getattr(layer, name) // devices) for name in fields}
    if product_field:
        products = []
        for product in layer.products:
            assert isinstance(product, Multiply)  # transformers have no convolutions
            divided = -(-getattr(product, product_field) // devices)
            products.append(replace(product, **{product_field: divided}))
        share["products"] = tuple(products)
    return replace(layer, **share)


def tensor_messages(layers: Sequence[Layer], batch: int, width: int, mode: str) -> list[AllReduces]:
    """Return the all-reduces in a step of a transformer whose layers several devices divide.

    This is parallel=tensor.

    Args:
        layers: Layers of the whole model, for one example.
        batch: Batch size.
        width: Bytes of an activation.
        mode: "train", "inference" or "generate". Training has twice the number of all-reduces.
    """
    # Outputs of attention and of feed-forward layers are as wide as the model.
    elements = max(layer.written for layer in layers if layer.name == "attended")
    names = (*_ROW_LAYERS, "embedding")
    count = sum(layer.name in names for layer in layers)
    if mode == "train":
        count *= 2
    return [AllReduces(size=float(width * batch * elements), count=count)]


def gradient_messages(parameters: int, width: int) -> list[AllReduces]:
    """Return the all-reduces of gradients in a training step whose batch several devices divide.

    This is parallel=data.

    Args:
        parameters: Number of trained parameters; the list is empty for 0.
        width: Bytes of a gradient.
    """
    if not parameters:
        return []
    total = float(width * parameters)
    size = min(total, _BUCKET_BYTES)
    return [AllReduces(size=size, count=total / size, is_overlapped=True)]


def communication_parts(
    group: TimingGroup, all_reduces: Sequence[AllReduces], devices: int
) -> list[StepPart]:
    """Return the parts of a step in which devices communicate, with the timings that predict them.

    Args:
        group: Timings of collectives, such as all-reduces.
        all_reduces: The all-reduces of a step.
        devices: Number of devices.
    """
    parts = []
    for equal in all_reduces:
        columns = collective("all_reduce", devices, equal.size)
        operation = make_operation("collective", columns, "all_reduce")
        part = StepPart(
            COMMUNICATION,
            group,
            [RepeatedOperation("", operation, equal.count)],
            is_overlapped=equal.is_overlapped,
        )
        parts.append(part)
    return parts


def timed_device_counts(group: TimingGroup) -> list[int]:
    """Return the numbers of devices over which all-reduces were timed, in ascending order.

    Args:
        group: Timings of collectives.
    """
    is_all_reduce = group.timings["variant"].eq("all_reduce")
    # Collectives store the number of devices in the column m (`kernels.collective`).
    device_counts = group.timings.loc[is_all_reduce, "m"]
    return sorted(int(count) for count in device_counts.unique())
