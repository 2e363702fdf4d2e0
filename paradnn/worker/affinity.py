"""Bind a point to some of the host's cores (`platform.cores`) before any device is opened.

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
        platform: The platform of the point.

    Returns:
        The platform. If `threads` was unset, it is now the number of these cores.

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
    """The devices of this process over which a step is distributed.

    Attributes:
        devices: Number of devices.
        threads: Threads of each CPU device: `platform.threads`, by default an equal share of the
            cores.
        cores: Numbers of the cores. The first `threads` cores belong to the first device, the next
            `threads` cores to the second, and so on.
    """

    devices: int
    threads: int
    cores: tuple[int, ...]


def device_layout(devices: int, platform: Mapping[str, Any], hosts: int = 1) -> DeviceLayout:
    """Return the layout of devices on this machine.

    Args:
        devices: Number of devices per host of the point.
        platform: The platform of the point.
        hosts: Number of hosts of the point whose processes run on this machine.

    Raises:
        UnavailableError: If this process may use fewer cores than the layout needs.
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
    """Restrict this process and its future threads to `cores`; do nothing if the system cannot."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
