"""Layers of the fully connected family."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from paradnn.costs.layers import Layer, Multiply

__all__ = ["dense", "fc_layers"]


def fc_layers(model: Mapping[str, Any]) -> list[Layer]:
    """Hidden layers and output; see `paradnn.worker.models.fc`."""
    nodes = model["nodes"]
    widths = [model["input_size"], *([nodes] * model["layers"] if isinstance(nodes, int) else nodes)]
    layers = [
        dense(f"dense_{index}", before, width, is_first=index == 0)
        for index, (before, width) in enumerate(itertools.pairwise(widths))
    ]
    return [*layers, dense("logits", widths[-1], model["output_size"], is_last=True)]


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
        products=(Multiply(tokens, inputs, outputs),),
    )
