"""What a step of a model costs, by arithmetic, where the model is a mapping with its `name`: see `paradnn.families`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paradnn.families import model_of
from paradnn.families.layers import Costs, LayerWork
from paradnn.families.operations import Counted, Operation

__all__ = [
    "Costs",
    "LayerWork",
    "example_sizes",
    "kernel_operation",
    "layer_count",
    "layer_work",
    "model_costs",
    "model_operations",
    "prefill_costs",
]


def model_costs(model: Mapping[str, Any], **step: Any) -> Costs:
    """As `Model.costs`."""
    return model_of(model).costs(**step)


def prefill_costs(model: Mapping[str, Any], **step: Any) -> Costs:
    """As `Model.prefill_costs`."""
    return model_of(model).prefill_costs(**step)


def model_operations(model: Mapping[str, Any], **step: Any) -> list[Counted]:
    """As `Model.product_list`."""
    return model_of(model).product_list(**step)


def kernel_operation(model: Mapping[str, Any], batch_size: int, precision: str) -> Operation:
    """As `Model.as_operation`."""
    return model_of(model).as_operation(batch_size, precision)


def layer_count(model: Mapping[str, Any]) -> int:
    """As `Model.layer_count`."""
    return model_of(model).layer_count()


def layer_work(model: Mapping[str, Any]) -> tuple[LayerWork, ...]:
    """As `Model.layer_work`."""
    return model_of(model).layer_work()


def example_sizes(model: Mapping[str, Any]) -> tuple[int, int]:
    """As `Model.example_sizes`."""
    return model_of(model).example_sizes()
