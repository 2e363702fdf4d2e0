"""Memory of a point: the peak that a process of its own would have had, and what its steps took of it.

A fork begins with its parent's anonymous pages, but without those of files (Linux does not copy their page tables):
code that the fork server has loaded comes into the child's count page by page, as it is used. So the child's own peak
lacks what a process that imports the framework itself would hold, and grows by what belongs to no step. Hence pages of
files and anonymous ones are kept apart here.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from dataclasses import dataclass

__all__ = ["MemoryMeter", "Taken", "give_back", "keep_freed", "remember_file_pages"]

#: glibc's malloc.h: what may be free at the heap's end, and from which size on a block is mapped by itself.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

#: In the last byte of an entry of /proc/self/pagemap: the page is in memory, and is a file's.
_PRESENT, _OF_FILE = 0x80, 0x20
_IN_MEMORY = bytes(bool(flags & _PRESENT) for flags in range(256))
_FILE_IN_MEMORY = bytes(flags & (_PRESENT | _OF_FILE) == _PRESENT | _OF_FILE for flags in range(256))

#: Where the fork server has files mapped, and which of those pages were in memory: (first byte, length, a bit a page).
_remembered: list[tuple[int, int, int]] = []


@dataclass(frozen=True)
class Taken:
    """Bytes of a process or of several; None where the system does not tell."""

    peak: int | None
    steps: int | None

    def __add__(self, other: Taken) -> Taken:
        return Taken(_sum(self.peak, other.peak), _sum(self.steps, other.steps))


def give_back() -> None:
    """Return the heap that is free to the system, so that what is taken from now on shows."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed() -> None:
    """Let malloc keep what is freed, blocks of up to 32 MiB and 512 MiB in all, and not ask the kernel for each again.

    What it keeps otherwise depends on the largest block that the process has ever freed; gRPC's calls with 1 MiB take
    1.2 to 3 times as long where that was a small one.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 512 << 20)


def remember_file_pages() -> None:
    """Note which pages of files this process holds, for the children that it forks later. Some 25 ms."""
    _remembered.clear()
    with contextlib.suppress(OSError), open("/proc/self/maps") as mappings:
        for row in mappings:
            addresses, *_, path = row.split(maxsplit=5)
            if not path.startswith("/"):
                continue
            first, end = (int(address, 16) for address in addresses.split("-"))
            _remembered.append((first, end - first, 0))
    with _Pages() as pages:
        _remembered[:] = [(first, size, pages.bits(first, size, _FILE_IN_MEMORY)) for first, size, _ in _remembered]


class MemoryMeter:
    """Of this process, from now on: `compiled` is called once, before the steps that count."""

    def __init__(self) -> None:
        self._compile_peak = 0
        self._given_back = 0
        self._baseline = _anonymous(_status(), "VmRSS")

    def compiled(self) -> None:
        """The steps begin: their peak is one of its own, and what compiling has freed is given back to the system."""
        status = _status()
        self._compile_peak = status.get("VmHWM", 0)
        give_back()
        self._given_back = max(0, status.get("VmRSS", 0) - _status().get("VmRSS", 0))
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as control:
            control.write("5")  # the peak is now what is held

    def taken(self) -> Taken:
        """The peak so far, and how far anonymous memory has grown since the beginning."""
        status = _status()
        if "VmHWM" not in status:
            return Taken(None, None)
        # A process of its own gives nothing back: what compiling has freed is in its peak still.
        peak = max(self._compile_peak, status["VmHWM"] + self._given_back) + _untouched()
        return Taken(peak, max(0, _anonymous(status, "VmHWM") - self._baseline))


def _untouched() -> int:
    """Bytes of files that the fork server holds and this process, forked from it, does not."""
    with _Pages() as pages:
        missing = sum((held & ~pages.bits(first, size, _IN_MEMORY)).bit_count() for first, size, held in _remembered)
    return missing * pages.size


class _Pages:
    """The kernel's table of this process' pages; empty where it cannot be read."""

    size = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

    def __enter__(self) -> _Pages:
        self._table = None
        with contextlib.suppress(OSError):
            self._table = os.open("/proc/self/pagemap", os.O_RDONLY)
        return self

    def __exit__(self, *_: object) -> None:
        if self._table is not None:
            os.close(self._table)

    def bits(self, first: int, length: int, wanted: bytes) -> int:
        """A byte for each page of `length` bytes from address `first` on, as one number: 1 where `wanted` says so."""
        if self._table is None:
            return 0
        entries = os.pread(self._table, length // self.size * 8, first // self.size * 8)
        return int.from_bytes(entries[7::8].translate(wanted), "little")


def _status() -> dict[str, int]:
    """Bytes by name in /proc/self/status; nothing where there is none."""
    if not sys.platform.startswith("linux"):
        return {}
    with open("/proc/self/status") as status:
        rows = [row.split() for row in status if row.startswith(("Vm", "Rss"))]
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}


def _anonymous(status: dict[str, int], total: str) -> int:
    """What is no file's, of the memory held now (VmRSS) or at the peak (VmHWM); files' pages come and seldom go."""
    return status.get(total, 0) - status.get("RssFile", 0)


def _sum(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right
