"""Over which devices of this process a step is distributed, and which cores each may use.

On a CPU a device is a number of cores: `platform.threads` of them where that is given, else an even share of all. The
process that holds the devices is bound to their cores, so that two devices never have more of the machine than two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paradnn.worker.errors import Unavailable


@dataclass(frozen=True)
class DeviceLayout:
    """So many devices; on a CPU `threads` each, on `cores` in their order."""

    devices: int
    threads: int
    cores: tuple[int, ...]

    def shard(self, number: int, batch_size: int) -> slice:
        """The examples of device `number`."""
        share = batch_size // self.devices
        return slice(number * share, (number + 1) * share)


def layout_of(devices: int, platform: Mapping[str, Any]) -> DeviceLayout:
    """The layout of so many devices; Unavailable where the machine has too few cores for it."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    threads = int(platform["threads"] or max(1, len(cores) // devices))
    if platform["name"] == "cpu" and platform["threads"] and devices * threads > len(cores):
        raise Unavailable(
            f"devices={devices} with platform.threads={threads} each need {devices * threads} cores, "
            f"this process may use {len(cores)}"
        )
    # Without platform.threads there may be more devices than cores: they take turns.
    return DeviceLayout(devices, threads, tuple(cores[index % len(cores)] for index in range(devices * threads)))


def bind(cores: Sequence[int]) -> None:
    """Let this process and the threads it will start use these cores alone, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
