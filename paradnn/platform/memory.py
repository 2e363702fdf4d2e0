"""How much memory a point may take, and whether arithmetic alone says that it does not fit."""

from __future__ import annotations

from paradnn.config.point import Point
from paradnn.core.schema import memory_bytes
from paradnn.families.layers import Costs
from paradnn.platform.environment import available_memory

#: The share of free memory that a point may take when `measure.memory_limit` is auto.
_SAFE_SHARE = 0.9


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
