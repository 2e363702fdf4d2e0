"""Rules by which a kind of work accepts or rejects points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.config.data import ImageFiles, Input, Synthetic
from paradnn.core.errors import ConfigError
from paradnn.core.workload import WORKLOADS

if TYPE_CHECKING:
    from paradnn.config.point import Point
    from paradnn.families import Model


class PointRules:
    """Rules by which a kind of work accepts or rejects points; a role of `Workload.role`.

    Attributes:
        own_inputs: Inputs that only this kind of work accepts, by their name in `data=NAME`.
        can_start_cold: Whether caches can be filled with other data before each timed step.
        hosts_may_be_processes: Whether processes of this host may stand in for the hosts of a point
            if the session has no other hosts.
    """

    own_inputs: ClassVar[Mapping[str, type[Input]]] = {}
    can_start_cold: ClassVar[bool] = False
    hosts_may_be_processes: ClassVar[bool] = False

    def check_model(self, model: Model) -> None:
        """Raise ConfigError if the model does not support this kind of work."""

    def reject_unused_keys(self, config: Mapping[str, Any]) -> None:
        """Raise ConfigError if a configuration selects other work but sets options of this kind."""

    def canonical(self, point: Point) -> Point:
        """Return the point in canonical form.

        Raises:
            ConfigError: If two values of the point contradict each other.
        """
        return point

    def check(self, point: Point) -> None:
        """Raise ConfigError if this kind of work does not support a point in canonical form."""

    def distributable_processes(self, point: Point) -> tuple[str, int]:
        """Return the key that sets the number of processes on all hosts, and this number.

        Raises:
            ConfigError: If all processes of this kind of work must run on one host.
        """
        reason = "is possible only for training steps and for messages (model=channel)"
        raise ConfigError("hosts", point.hosts, reason, "set hosts=1")


def require_time(group: str, min_seconds: float, point: Point) -> None:
    """Raise ConfigError unless the minimum duration of a load is below the point's time limit.

    Args:
        group: Prefix of the key `min_seconds`.
        min_seconds: Minimum duration of the load in seconds.
        point: The point; `measure.timeout` is its time limit.
    """
    timeout = point.measure.timeout
    if min_seconds >= timeout:
        reason = f"must be less than measure.timeout={timeout:g}"
        remedy = "lower it, or raise measure.timeout"
        raise ConfigError(f"{group}.min_seconds", min_seconds, reason, remedy)


@cache
def input_types() -> Mapping[str, type[Input]]:
    """Return the classes of inputs by their name in `data=NAME`, beginning with those of steps."""
    types: dict[str, type[Input]] = {"synthetic": Synthetic, "images": ImageFiles}
    for work in WORKLOADS.values():
        types.update(work.role(PointRules).own_inputs)
    return types
