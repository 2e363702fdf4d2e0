"""Binding a point to some of the host's cores (`platform.cores`), before any device is opened.

Threads inherit the cores of the one that starts them, and frameworks make their pools as large as
the cores that they may use when the device is opened. PyTorch counts them earlier, when it is
imported, so it is told how many there are.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paradnn.core.errors import UnavailableError
from paradnn.core.words import core_list, core_text


def bind_cores(platform: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let this process and the threads it will start use `platform.cores` alone; the platform with
    as many threads. Raises UnavailableError where this process may not use one of them, or where the
    system cannot bind.
    """
    given = platform.get("cores")
    if given is None:
        return platform
    if not hasattr(os, "sched_setaffinity"):
        raise UnavailableError(f"platform.cores={given}: this system binds no process to cores")
    cores = core_list(given)
    allowed = os.sched_getaffinity(0)
    missing = sorted(set(cores) - allowed)
    if missing:
        may = core_text(allowed)
        raise UnavailableError(
            f"platform.cores={given}: core {missing[0]} is none that this process may use: {may}"
        )
    os.sched_setaffinity(0, cores)
    return {**platform, "threads": platform["threads"] or len(cores)}


@dataclass(frozen=True)
class DeviceLayout:
    """The devices of this process over which a step is distributed; of a CPU each is `threads` of
    its `cores`, in their order: `platform.threads` where that is given, else an even share of all.
    """

    devices: int
    threads: int
    cores: tuple[int, ...]


def layout_of(devices: int, platform: Mapping[str, Any]) -> DeviceLayout:
    """The layout of so many devices; UnavailableError where the machine has too few cores for it."""
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = list(range(os.cpu_count() or 1))
    threads = int(platform["threads"] or max(1, len(cores) // devices))
    if platform["name"] == "cpu" and platform["threads"] and devices * threads > len(cores):
        need = (
            f"devices={devices} with platform.threads={threads} each need {devices * threads} cores"
        )
        raise UnavailableError(f"{need}, this process may use {len(cores)}")
    # Without platform.threads there may be more devices than cores: they take turns.
    return DeviceLayout(
        devices, threads, tuple(cores[index % len(cores)] for index in range(devices * threads))
    )


def bind(cores: Sequence[int]) -> None:
    """Let this process and the threads it will start use these cores alone, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
