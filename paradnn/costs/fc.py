"""Layers of the fully connected family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paradnn.costs.layers import Layer

__all__ = ["dense", "fc_layers"]


def fc_layers(model: Mapping[str, Any]) -> list[Layer]:
    """Hidden layers and output; see `paradnn.worker.models.fc`."""
    size, nodes = model["input_size"], model["nodes"]
    layers = [dense("dense_0", size, nodes, is_first=True)]
    layers += [dense(f"dense_{index}", nodes, nodes) for index in range(1, model["layers"])]
    return [*layers, dense("logits", nodes, model["output_size"], is_last=True)]


def dense(
    name: str,
    inputs: int,
    outputs: int,
    *,
    tokens: int = 1,
    bias: bool = True,
    is_first: bool = False,
    is_last: bool = False,
) -> Layer:
    """A dense layer over `tokens` positions; a first layer's input gradient is not computed.

    The outputs are kept: a rectifier's gradient needs them, the next product's as well, and of the last layer's the
    loss needs either the logits or their gradient.
    """
    return Layer(
        name,
        macs=tokens * inputs * outputs,
        input_macs=0 if is_first else None,
        parameters=(inputs + bias) * outputs,
        weights=0 if is_first else inputs * outputs,
        read=tokens * inputs,
        written=tokens * outputs,
        kept=tokens * outputs,
        is_first=is_first,
        is_last=is_last,
        targets=tokens if is_last else 0,
    )
