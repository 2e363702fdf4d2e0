"""What is known of a point before it is built: its costs, and whether they fit the memory that it may take."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from paradnn.config.point import Point
from paradnn.core.schema import memory_bytes
from paradnn.families import Model
from paradnn.families.layers import Costs
from paradnn.platform.environment import available_memory

__all__ = ["costs_of", "exceeds_memory", "memory_limit", "prefill_costs_of"]

#: The share of free memory that a point may take when `measure.memory_limit` is auto.
_SAFE_SHARE = 0.9


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


def memory_limit(point: Point) -> int:
    """Bytes of host memory that `point` may take now."""
    given = memory_bytes(point.measure.memory_limit, "measure.memory_limit")
    return given if given is not None else int(_SAFE_SHARE * available_memory())


def exceeds_memory(point: Point, costs: Costs, limit: int | None) -> str | None:
    """Why a point is out of memory by arithmetic alone; None where it is to be tried."""
    bound = costs.memory_lower_bound_bytes / point.hosts
    if point.platform.name != "cpu" or not point.measure.predict_oom or limit is None or bound <= limit:
        return None
    return f"needs at least {bound / 2**30:,.2f} GiB, the limit is {limit / 2**30:.2f} GiB"
