"""The memory of a point: its peak as a process on its own would have it, and that of its steps.

A fork begins with the anonymous pages of its parent, but without those of files, because Linux does
not copy their page tables. File pages count for the child only once it uses them. So every file
page that the fork server holds and the child does not is added to the peak, and growth is counted
without files.
"""

import contextlib
import ctypes
import gc
import mmap
import os
import sys

#: Parameters of mallopt from glibc's malloc.h: how much may stay free at the end of the heap, and
#: from which size on a block is mapped on its own.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_PAGE_BYTES = mmap.PAGESIZE
#: Entries of /proc/self/pagemap have eight bytes. The last one has a bit for a page in memory
#: (0x80) and one for a page of a file (0x20). Maps this byte to whether both are set.
_ENTRY_BYTES = 8
_IS_FILE_PAGE = bytes(flags & 0xA0 == 0xA0 for flags in range(256))
#: The fork server's mappings of files: first byte and length.
_mappings: list[tuple[int, int]] = []
#: The pages of each mapping that the fork server holds, one bit per page.
_server_pages: list[int] = []


def release_free_memory() -> None:
    """Return the free part of the heap to the system, so that later allocations show."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Let malloc keep freed blocks of up to 32 MiB, 512 MiB in total.

    Otherwise the behavior depends on earlier deallocations. After small blocks alone, calls of gRPC
    with 1 MiB take 1.2 to 3 times as long.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 512 << 20)


def remember_file_pages() -> None:
    """Note which file pages this process holds, for the children that it forks; takes 25 ms."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as mappings:
        for line in mappings:
            if "/" in line:
                first, end = (int(address, 16) for address in line.split()[0].split("-"))
                _mappings.append((first, end - first))
    _server_pages[:] = _held_file_pages()


def _held_file_pages() -> list[int]:
    """Return which pages of the server's mappings this process holds, one bit per page.

    If the kernel does not provide it, returns those of the server, so that nothing is added.
    """
    with contextlib.suppress(OSError), open("/proc/self/pagemap", "rb", buffering=0) as table:
        pages = []
        for first, size in _mappings:
            count = size // _PAGE_BYTES * _ENTRY_BYTES
            offset = first // _PAGE_BYTES * _ENTRY_BYTES
            entries = os.pread(table.fileno(), count, offset)
            flags = entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES].translate(_IS_FILE_PAGE)
            pages.append(int.from_bytes(flags, "little"))
        return pages
    return _server_pages


class MemoryMeter:
    """Counts the memory of this process from its creation on.

    Attributes:
        reference_bytes: Bytes of this process that do not belong to the point.
    """

    def __init__(self) -> None:
        self.reference_bytes = 0
        self._compile_peak = 0
        self._released = 0
        self._baseline = _anonymous_bytes(_status(), "VmRSS")

    def begin_steps(self) -> None:
        """Start a new peak for the steps, after what compiling has freed is released."""
        status = _status()
        self._compile_peak = status.get("VmHWM", 0)
        release_free_memory()
        self._released = max(0, status.get("VmRSS", 0) - _status().get("VmRSS", 0))
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as control:
            control.write("5")  # resets the peak to the present value

    def peak_bytes(self) -> tuple[int | None, int | None]:
        """Return the peak so far, and the growth of anonymous memory in the steps, in bytes.

        Both are None if the system does not provide them.
        """
        status = _status()
        if "VmHWM" not in status:
            return None, None
        # A process on its own releases nothing, so what compiling has freed is still in its peak.
        peak = max(self._compile_peak, status["VmHWM"] + self._released)
        for server, own in zip(_server_pages, _held_file_pages(), strict=True):
            peak += _PAGE_BYTES * (server & ~own).bit_count()
        growth = _anonymous_bytes(status, "VmHWM") - self._baseline
        return peak - self.reference_bytes, max(0, growth - self.reference_bytes)


def _status() -> dict[str, int]:
    """Return bytes by name from /proc/self/status; empty on other systems."""
    if not sys.platform.startswith("linux"):
        return {}
    with open("/proc/self/status") as status:
        rows = [line.split() for line in status if line.startswith(("Vm", "Rss"))]
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}


def _anonymous_bytes(status: dict[str, int], total: str) -> int:
    """Return the bytes that belong to no file, now (VmRSS) or at the peak (VmHWM).

    Pages of files are those of now in both cases, as they rarely go away.
    """
    return status.get(total, 0) - status.get("RssFile", 0)
