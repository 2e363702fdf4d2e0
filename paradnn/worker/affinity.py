"""Binds a point to some of the host's cores (`platform.cores`) before any device is opened.

Threads inherit the cores of the thread that starts them. Frameworks make their thread pools as
large as the number of cores when the device is opened. PyTorch counts the cores earlier, when it is
imported, so it receives the number of threads.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paradnn.core.errors import UnavailableError
from paradnn.core.words import core_list, core_text


def bind_cores(platform: Mapping[str, Any]) -> Mapping[str, Any]:
    """Restrict this process, and the threads that it will start, to `platform.cores`.

    Returns:
        The platform, by default with one thread per core.

    Raises:
        UnavailableError: If the process may not use one of the cores, or the system cannot bind.
    """
    text = platform.get("cores")
    if text is None:
        return platform
    if not hasattr(os, "sched_setaffinity"):
        raise UnavailableError(f"platform.cores={text}: this system cannot pin processes to cores")
    cores = core_list(text)
    allowed = os.sched_getaffinity(0)
    forbidden = sorted(set(cores) - allowed)
    if forbidden:
        reason = f"core {forbidden[0]} is outside this process's affinity mask"
        raise UnavailableError(f"platform.cores={text}: {reason} {core_text(allowed)}")
    os.sched_setaffinity(0, cores)
    return {**platform, "threads": platform["threads"] or len(cores)}


@dataclass(frozen=True)
class DeviceLayout:
    """The devices of this process over which a step is distributed.

    Attributes:
        devices: Number of devices.
        threads: Threads of each CPU device: `platform.threads`, by default an even share of the
            cores.
        cores: The cores of the devices, `threads` of them for each device in turn.
    """

    devices: int
    threads: int
    cores: tuple[int, ...]


def device_layout(devices: int, platform: Mapping[str, Any], hosts: int = 1) -> DeviceLayout:
    """Return the layout of a number of devices.

    Args:
        devices: Number of devices of a host.
        platform: The platform of the point.
        hosts: Number of hosts of the point that are processes of this machine. They share it.

    Raises:
        UnavailableError: If the process may use too few cores.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = list(range(os.cpu_count() or 1))
    total = devices * hosts
    threads = int(platform["threads"] or max(1, len(cores) // total))
    needed = total * threads
    if platform["name"] == "cpu" and platform["threads"] and needed > len(cores):
        setting = f"devices={devices} with platform.threads={threads}"
        if hosts > 1:
            setting = f"hosts={hosts} on this one, devices={devices}, platform.threads={threads}"
        raise UnavailableError(
            f"{setting} each need {needed} cores, this process may use {len(cores)}"
        )
    # Without platform.threads there may be more devices than cores, which then share cores.
    device_cores = tuple(cores[index % len(cores)] for index in range(needed))
    return DeviceLayout(total, threads, device_cores)


def pin_to_cores(cores: Sequence[int]) -> None:
    """Restrict this process, and the threads that it will start, to cores if the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
