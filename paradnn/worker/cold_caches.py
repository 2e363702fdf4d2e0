"""Empty the processor's caches before a step, so that its latency is that of a model which lay in memory meanwhile.

Each core that may be used writes a part of a buffer of its own: more than its private caches hold, and together more
than the last level that it shares. Writing is enough: a line that is written takes the place of another.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from paradnn.worker.affinity import core_list

__all__ = ["Caches", "part_bytes"]

#: So many times what a cache holds: its replacement is not quite that of the least recently used.
_TIMES = 2
#: Where the system does not say how large its caches are.
_USUAL = 64 * 2**20
_CPUS = Path("/sys/devices/system/cpu")


class Caches:
    """The caches of the cores that this process may use."""

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
        sizes = part_bytes(self._cores)
        ends = np.cumsum(sizes or [_TIMES * _USUAL])
        self._parts = np.split(np.zeros(int(ends[-1]), np.uint8), ends[:-1])
        self._value = 0

    def empty(self) -> None:
        """Replace what they hold; leaves this thread on the cores that it may use."""
        self._value = (self._value + 1) % 256
        if not self._cores:
            self._parts[0].fill(self._value)
            return
        try:
            for core, part in zip(self._cores, self._parts, strict=True):
                os.sched_setaffinity(0, {core})
                part.fill(self._value)
        finally:
            os.sched_setaffinity(0, self._cores)


def part_bytes(cores: list[int], root: Path = _CPUS) -> list[int]:
    """How much each of `cores` must write: its share of every cache that it shares with others of them, doubled."""
    sizes = []
    for core in cores:
        shares = [0]
        for entry in (root / f"cpu{core}/cache").glob("index*"):
            try:
                size = int((entry / "size").read_text().strip().removesuffix("K")) * 1024
                sharing = set(core_list((entry / "shared_cpu_list").read_text())) & set(cores)
            except (OSError, ValueError):
                continue
            shares.append(size // max(1, len(sharing)))
        sizes.append(_TIMES * (max(shares) or _USUAL // len(cores)))
    return sizes
