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
    """Rules by which a kind of work accepts or rejects points (configurations to measure).

    A kind of work is, for example, a training step or serving. It inherits from this class, which
    is a role (`Workload.role`), to override the rules.

    Attributes:
        own_inputs: Inputs that only this kind of work accepts, by their name in `data=NAME`.
        can_start_cold: Whether caches can be filled with other data before each timed step.
        hosts_may_be_processes: Whether processes of this host may replace the hosts of a point if
            no other hosts are available.
    """

    own_inputs: ClassVar[Mapping[str, type[Input]]] = {}
    can_start_cold: ClassVar[bool] = False
    hosts_may_be_processes: ClassVar[bool] = False

    def check_model(self, model: Model) -> None:
        """Check that a model supports this kind of work.

        Args:
            model: The options of the model.

        Raises:
            ConfigError: If it does not. By default, all models are supported.
        """

    def reject_unused_keys(self, config: Mapping[str, Any]) -> None:
        """Reject options of this kind of work in a configuration that selects another kind.

        By default, nothing is checked.

        Args:
            config: The composed configuration, as nested mappings.

        Raises:
            ConfigError: If the configuration sets such an option.
        """

    def canonical(self, point: Point) -> Point:
        """Return a point in canonical form, in which equal measurements are equal points.

        Args:
            point: A configuration to measure with this kind of work.

        Returns:
            The point with unused settings reset to their defaults; by default unchanged.

        Raises:
            ConfigError: If two values of the point contradict each other.
        """
        return point

    def check(self, point: Point) -> None:
        """Check that this kind of work supports a point.

        Args:
            point: A configuration to measure, in canonical form.

        Raises:
            ConfigError: If it does not. By default, all points are supported.
        """

    def distributable_processes(self, point: Point) -> tuple[str, int]:
        """Return how many processes of a point are distributed over its hosts.

        Args:
            point: A configuration with several hosts.

        Returns:
            The key that sets the total number of processes, and this number.

        Raises:
            ConfigError: If all processes of this kind of work must run on one host.
        """
        reason = "is possible only for training steps and for messages (model=channel)"
        raise ConfigError("hosts", point.hosts, reason, "set hosts=1")


def require_time(group: str, min_seconds: float, point: Point) -> None:
    """Check that the minimum duration of a load test is below the time limit of the measurement.

    Args:
        group: Prefix of the key `min_seconds`, such as "server", for the error message.
        min_seconds: Minimum duration of the load test in seconds.
        point: The configuration to measure; `measure.timeout` is its time limit.

    Raises:
        ConfigError: If the minimum duration is not below the time limit.
    """
    timeout = point.measure.timeout
    if min_seconds >= timeout:
        reason = f"must be less than measure.timeout={timeout:g}"
        remedy = "lower it, or raise measure.timeout"
        raise ConfigError(f"{group}.min_seconds", min_seconds, reason, remedy)


@cache
def input_types() -> Mapping[str, type[Input]]:
    """Return the classes of inputs by name, as in `data=NAME`; inputs of timed steps come first."""
    types: dict[str, type[Input]] = {"synthetic": Synthetic, "images": ImageFiles}
    for work in WORKLOADS.values():
        types.update(work.role(PointRules).own_inputs)
    return types
