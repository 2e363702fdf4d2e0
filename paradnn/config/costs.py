"""What is known of a point before it is built: its costs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from paradnn.config.point import Point
from paradnn.core.layers import Costs
from paradnn.families import Model


def costs_of(point: Point) -> Costs:
    """The analytic costs of one step of `point`."""
    return _costs(
        point.model,
        batch_size=point.batch_size,
        precision=point.precision,
        mode=point.workload.mode,
        optimizer=point.optimizer.name,
        momentum=point.optimizer.momentum,
        devices=point.devices,
        **point.workload.cost_keys(),
    )


def prefill_costs_of(point: Point) -> Costs:
    """The analytic costs of reading the prompts of a point that generates."""
    return point.model.prefill_costs(
        batch_size=point.batch_size, precision=point.precision, **point.workload.cost_keys()
    )


@lru_cache(maxsize=65536)
def _costs(model: Model, **others: Any) -> Costs:
    """Computed once for points that differ in nothing that costs: the arguments are all that does."""
    return model.costs(**others)
