"""Over which devices a step is distributed: how many, in which processes, and which cores each may use.

On a CPU a device is a number of cores: `platform.threads` of them where that is given, else an even share of all. The
process that holds the devices is bound to their cores, so that two devices never have more of the machine than two.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paradnn.worker.errors import Unavailable

__all__ = ["DeviceLayout", "layout_of"]


@dataclass(frozen=True)
class DeviceLayout:
    """The devices of a point, as process number `rank` sees them.

    `threads` is what each device may use on a CPU, `cores` those of all devices in their order, `addresses` where each
    process listens (transport grpc).
    """

    devices: int
    transport: str
    threads: int
    cores: tuple[int, ...]
    rank: int = 0
    addresses: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        """How many processes hold the devices."""
        return self.devices if self.transport == "grpc" else 1

    @property
    def local_devices(self) -> int:
        """How many devices each process holds."""
        return self.devices // self.processes

    def of_rank(self, rank: int) -> DeviceLayout:
        """The same as process number `rank` sees it."""
        return replace(self, rank=rank)

    def shard(self, local: int, batch_size: int) -> slice:
        """The examples of this process' device number `local`."""
        share = batch_size // self.devices
        begin = (self.rank * self.local_devices + local) * share
        return slice(begin, begin + share)

    def bind(self) -> None:
        """Let this process and the threads it will start use its devices' cores alone, where the system can."""
        if hasattr(os, "sched_setaffinity"):
            each = len(self.cores) // self.processes
            os.sched_setaffinity(0, self.cores[self.rank * each : (self.rank + 1) * each])


def layout_of(point: Mapping[str, Any]) -> DeviceLayout | None:
    """The layout of a point, None for one device; Unavailable where the machine has too few cores for it."""
    devices, transport, platform = int(point.get("devices", 1)), point.get("transport", "local"), point["platform"]
    if devices == 1:
        return None
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    threads = int(platform["threads"] or max(1, len(cores) // devices))
    on_cpu = platform["name"] == "cpu"
    if on_cpu and platform["threads"] and devices * threads > len(cores):
        raise Unavailable(
            f"devices={devices} with platform.threads={threads} each need {devices * threads} cores, "
            f"this process may use {len(cores)}"
        )
    if transport == "grpc" and not on_cpu:
        raise Unavailable(f"transport=grpc is for platform=cpu here; devices of a {platform['name']} meet locally")
    # Without platform.threads there may be more devices than cores: they take turns.
    given = tuple(cores[index % len(cores)] for index in range(devices * threads))
    addresses = _free_addresses(devices) if transport == "grpc" else ()
    return DeviceLayout(devices, transport, threads, given, addresses=addresses)


def _free_addresses(count: int) -> tuple[str, ...]:
    """Free addresses on loopback; all are held until the last is chosen, so none comes twice."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return tuple(f"127.0.0.1:{entry.getsockname()[1]}" for entry in sockets)
    finally:
        for entry in sockets:
            entry.close()
