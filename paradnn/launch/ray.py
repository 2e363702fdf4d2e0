"""Tasks of a sweep that have several hosts of a Ray cluster, reserved all at once: no two tasks wait for each other's.

What the launcher starts takes nothing itself. It waits for the hosts, has the task measure on the first while every
other serves it, and begins again where one of them is lost: the task then continues with what is missing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.types import TaskFunction
from omegaconf import DictConfig

from paradnn.execution.hosts import HOSTS, KEY, start_server


def run_together(
    task: TaskFunction, hosts: int, resources: Mapping[str, float], retries: int, config: DictConfig
) -> Any:
    """What `task` returns on so many hosts, of each of which it takes `resources` (CPU, GPU)."""
    from ray.exceptions import NodeDiedError, RayActorError, WorkerCrashedError

    for _ in range(retries):
        try:
            return _run_once(task, hosts, resources, config)
        except (NodeDiedError, RayActorError, WorkerCrashedError):
            pass
    return _run_once(task, hosts, resources, config)


def _run_once(task: TaskFunction, hosts: int, resources: Mapping[str, float], config: DictConfig) -> Any:
    """Raises one of Ray's errors where a host is lost."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([dict(resources)] * hosts, strategy="STRICT_SPREAD")
    options = {"num_cpus": resources["CPU"], "num_gpus": resources.get("GPU", 0)}
    try:
        ray.get(group.ready())
        first, *others = (PlacementGroupSchedulingStrategy(group, place) for place in range(hosts))
        key = secrets.token_hex()
        servers = [ray.remote(_Server).options(**options, scheduling_strategy=place).remote(key) for place in others]
        addresses = ray.get([server.address.remote() for server in servers])
        fresh = {"max_retries": 0, "max_calls": 1}  # a process of its own, which is not begun again by itself
        measuring = ray.remote(**options, **fresh, scheduling_strategy=first)(_measure)
        returned = ray.get(measuring.remote(task, config, addresses, key))
        ray.get([server.address.remote() for server in servers])  # a task whose server is gone ends without a word
        return returned
    finally:
        remove_placement_group(group)


class _Server:
    """A server on a host of Ray, which ends with this actor."""

    def __init__(self, key: str) -> None:
        import ray

        self._server, self._address = start_server(ray.util.get_node_ip_address(), key)

    def address(self) -> str:
        """Where it listens."""
        return self._address


def _measure(task: TaskFunction, config: DictConfig, addresses: Sequence[str], key: str) -> Any:
    os.environ[HOSTS], os.environ[KEY] = ",".join(addresses), key
    return task(config)
