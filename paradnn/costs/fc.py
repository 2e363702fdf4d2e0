"""Layers of the fully connected family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paradnn.costs.layers import Layer

__all__ = ["dense", "fc_layers"]


def fc_layers(model: Mapping[str, Any]) -> list[Layer]:
    """Input, hidden layers, output; see `paradnn.worker.models.fc`."""
    size, nodes = model["input_size"], model["nodes"]
    layers = [Layer("input", written=size, is_input=True), dense("dense_0", size, nodes, first=True)]
    layers += [dense(f"dense_{index}", nodes, nodes) for index in range(1, model["layers"])]
    # The logits are not saved: the loss keeps its own float32 copy, which the bound leaves out.
    return [*layers, dense("logits", nodes, model["output_size"], saved=0)]


def dense(name: str, inputs: int, outputs: int, *, first: bool = False, saved: int | None = None) -> Layer:
    """A dense layer with bias; a `first` layer's input gradient is not computed."""
    return Layer(
        name,
        macs=inputs * outputs,
        input_macs=0 if first else None,
        parameters=(inputs + 1) * outputs,
        read=inputs,
        written=outputs,
        saved=outputs if saved is None else saved,
    )
