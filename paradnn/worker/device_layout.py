"""Over which devices a step is distributed: how many, in which processes, and which cores each may use.

On a CPU a device is a number of cores: `platform.threads` of them where that is given, else an even share of all. The
process that holds the devices is bound to their cores, so that two devices never have more of the machine than two.
Hosts have as many devices each; every host's processes count its own cores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from paradnn.worker.addresses import listen, with_port
from paradnn.worker.errors import Unavailable


@dataclass(frozen=True)
class RemoteProcess:
    """Process number `rank` of a point, on another host.

    `address`: host:port that is free for it; `local`: address of this host as it is known there. The connection `life`
    closes when either side exits.
    """

    rank: int
    address: str
    local: str
    channel: Connection
    life: int

    def begin(self, addresses: Sequence[str]) -> None:
        """Let it find the others at these addresses, of which its transport knows whose they are."""
        self.channel.send(tuple(addresses))

    def close(self) -> None:
        """End it."""
        os.close(self.life)
        self.channel.close()


@dataclass(frozen=True)
class DeviceLayout:
    """The devices of a point, as process number `rank` sees them.

    `threads` is what each device may use on a CPU, `cores` those of all devices of this host in their order, and in
    `addresses` each process listens (transport grpc).
    """

    devices: int
    transport: str
    threads: int
    cores: tuple[int, ...]
    rank: int = 0
    addresses: tuple[str, ...] = ()
    hosts: int = 1

    @property
    def processes(self) -> int:
        """How many processes hold the devices."""
        return self.devices if self.transport == "grpc" else 1

    @property
    def local_devices(self) -> int:
        """How many devices each process holds."""
        return self.devices // self.processes

    def with_others(self, elsewhere: Sequence[RemoteProcess]) -> DeviceLayout:
        """The same with those of other hosts, which learn where all processes listen."""
        if not elsewhere:
            return self
        own = _free_addresses(self.processes // self.hosts, elsewhere[0].local)
        addresses = (*own, *(each.address for each in elsewhere))
        for each in elsewhere:
            each.begin(addresses)
        return replace(self, addresses=addresses)

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
            here = self.processes // self.hosts
            each, place = len(self.cores) // here, self.rank % here
            os.sched_setaffinity(0, self.cores[place * each : (place + 1) * each])


def layout_of(point: Mapping[str, Any], addresses: Sequence[str] = ()) -> DeviceLayout | None:
    """The layout of a point, None for one device; Unavailable where the machine has too few cores for it.

    `addresses`: where its processes listen, if that is known.
    """
    devices, transport, platform = int(point.get("devices", 1)), point.get("transport", "local"), point["platform"]
    hosts = int(point.get("hosts", 1))
    if devices == 1:
        return None
    here = devices // hosts
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    threads = int(platform["threads"] or max(1, len(cores) // here))
    on_cpu = platform["name"] == "cpu"
    if on_cpu and platform["threads"] and here * threads > len(cores):
        share = "" if hosts == 1 else f" on {hosts} hosts"
        raise Unavailable(
            f"devices={devices}{share} with platform.threads={threads} each need {here * threads} cores, "
            f"this process may use {len(cores)}"
        )
    if transport == "grpc" and not on_cpu:
        raise Unavailable(f"transport=grpc is for platform=cpu here; devices of a {platform['name']} meet locally")
    # Without platform.threads there may be more devices than cores: they take turns.
    given = tuple(cores[index % len(cores)] for index in range(here * threads))
    if transport == "grpc" and hosts == 1:
        addresses = _free_addresses(devices, "127.0.0.1")
    return DeviceLayout(devices, transport, threads, given, addresses=tuple(addresses), hosts=hosts)


def _free_addresses(count: int, host: str) -> tuple[str, ...]:
    """Free addresses of this host; all are held until the last is chosen, so none comes twice."""
    sockets = [listen(0, host) for _ in range(count)]
    try:
        return tuple(with_port(host, entry.getsockname()[1]) for entry in sockets)
    finally:
        for entry in sockets:
            entry.close()
