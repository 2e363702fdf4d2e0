"""Bind this process to some of the host's cores (`platform.cores`) before any device is opened.

Threads inherit the cores of the thread that starts them. Frameworks create their thread pools when
the device is opened, with one thread per core of the process. PyTorch counts the cores earlier,
when it is imported, so the number of threads is set explicitly.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paradnn.core.errors import UnavailableError
from paradnn.core.words import core_list, core_text


def bind_cores(platform: Mapping[str, Any]) -> Mapping[str, Any]:
    """Restrict this process, and the threads that it starts later, to `platform.cores`.

    Args:
        platform: The `platform` settings of the measured configuration. `cores` is a list of cores,
            such as "0-3,6"; if it is None or absent, nothing is restricted. `threads` is the number
            of threads; None if unset.

    Returns:
        The settings. If `cores` is set and `threads` was unset, `threads` is now the number of
        cores.

    Raises:
        UnavailableError: If the process may not use one of the cores, or the system cannot pin
            processes.
    """
    text = platform.get("cores")
    if text is None:
        return platform
    if not hasattr(os, "sched_setaffinity"):
        raise UnavailableError(
            f"platform.cores={text}: this system cannot pin processes to cores; omit platform.cores"
        )
    cores = core_list(text)
    allowed = os.sched_getaffinity(0)
    forbidden = sorted(set(cores) - allowed)
    if forbidden:
        reason = f"core {forbidden[0]} is outside this process's affinity mask"
        raise UnavailableError(f"platform.cores={text}: {reason}; choose from {core_text(allowed)}")
    os.sched_setaffinity(0, cores)
    return {**platform, "threads": platform["threads"] or len(cores)}


@dataclass(frozen=True)
class DeviceLayout:
    """Devices over which each step of a model is distributed, with their threads and cores.

    Attributes:
        devices: Number of devices.
        threads: Threads of each CPU device.
        cores: Numbers of the cores. The first `threads` cores belong to the first device, the next
            `threads` cores to the second, and so on.
    """

    devices: int
    threads: int
    cores: tuple[int, ...]


def device_layout(devices: int, platform: Mapping[str, Any], hosts: int = 1) -> DeviceLayout:
    """Divide the cores that this process may use among devices.

    Args:
        devices: Number of devices per host.
        platform: The `platform` settings of the measured configuration. `name` is the kind of
            device. `threads` is the number of threads per device; if it is None, each device gets
            an equal share of the cores.
        hosts: Number of hosts whose processes all run on this machine. The layout contains the
            devices of all these hosts.

    Returns:
        The layout. If there are more devices than cores, the devices share cores.

    Raises:
        UnavailableError: If `threads` is set for CPU devices, and the process may use fewer cores
            than the devices need.
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
            setting = f"hosts={hosts} on this machine, {setting}"
        raise UnavailableError(
            f"{setting} needs {needed} cores in total, but this process may use only {len(cores)}: "
            "lower or omit platform.threads"
        )
    # Without platform.threads there may be more devices than cores. Devices then share cores.
    device_cores = tuple(cores[index % len(cores)] for index in range(needed))
    return DeviceLayout(total, threads, device_cores)


def pin_to_cores(cores: Sequence[int]) -> None:
    """Restrict this process and its future threads to `cores`, if the system supports this."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
