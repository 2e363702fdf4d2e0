"""What the processes of a point hold, as the driver reads it while they run.

Resident bytes are cheap to read, some twenty microseconds a process, but count pages that processes share in each of
them: thirty forks of one that holds a framework would seem to hold thirty. What each holds alone takes the kernel some
ten milliseconds, as it walks over all pages, and is asked for only where the cheap sum is above the limit.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import psutil

__all__ = ["Resident"]

#: What is shared is asked for again after so many seconds, and so many times what it took: pages part when written to.
_LEAST_PAUSE, _PAUSE = 5.0, 50


class Resident:
    """The processes of one point, children of `worker`."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._shared: dict[int, int] = {}  # bytes of a process that others have too
        self._next = 0.0

    def held(self, pid: int, limit: int | None) -> int:
        """Bytes of a child and of the processes that it started itself; above `limit` what they share counts once.

        Each of them counts with as much of files, the framework's code, as the worker holds at least, whether it has
        come to use it or not: so much would a process of its own hold (`paradnn.worker.memory` counts page by page).
        """
        each = self._each(pid)
        total = sum(each.values())
        if limit is None or total <= limit or len(each) < 2:
            return total
        begun = time.monotonic()
        if total - self._once(each) > limit or begun > self._next:
            # The first counts with all that it holds, and the others with what they alone hold.
            self._shared = {member: resident - _private(member, resident) for member, resident in each.items()}
            self._shared.pop(pid, None)
            now = time.monotonic()
            self._next = now + max(_LEAST_PAUSE, _PAUSE * (now - begun))
        return total - self._once(each)

    def _once(self, each: dict[int, int]) -> int:
        return sum(min(each[member], shared) for member, shared in self._shared.items() if member in each)

    def _each(self, pid: int) -> dict[int, int]:
        """Bytes by process."""
        try:
            members = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        except OSError:  # gone, or a system without this file
            members = [pid]
        held = {}
        with contextlib.suppress(psutil.Error):
            loaded = getattr(psutil.Process(self._worker).memory_info(), "shared", 0)
            for member in members:
                with contextlib.suppress(psutil.Error):
                    memory = psutil.Process(member).memory_info()
                    held[member] = memory.rss + max(0, loaded - getattr(memory, "shared", loaded))
        return held


def _private(pid: int, resident: int) -> int:
    """Bytes that no other process has: 0 of one that is gone, all `resident` ones where the system does not tell."""
    if not os.access("/proc/self/smaps_rollup", os.R_OK):
        return resident
    try:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except PermissionError:
        return resident
    except OSError:
        return 0
    return sum(int(row.split()[1]) * 1024 for row in rows if row.startswith("Private_"))
