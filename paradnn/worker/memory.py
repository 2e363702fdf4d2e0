"""Memory of a measured process: the peak that it would have without a fork server, and its growth.

A forked child begins with the anonymous pages of its parent, but without pages of files, because
Linux does not copy their page tables. A file page counts for the child only once the child uses it.
File pages that are in the memory of the fork server only are therefore added to the peak. The
growth excludes file pages.
"""

import contextlib
import ctypes
import gc
import mmap
import os
import sys

#: Parameters of mallopt from glibc's malloc.h: the free memory that may remain at the end of the
#: heap, and the size above which a block gets its own mapping.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_PAGE_BYTES = mmap.PAGESIZE
#: Bytes of an entry of /proc/self/pagemap.
_ENTRY_BYTES = 8
#: Translates the last byte of a pagemap entry to 1 or 0. The result is 1 if the page is in memory
#: (bit 0x80) and belongs to a file (bit 0x20).
_IS_FILE_PAGE = bytes(flags & 0xA0 == 0xA0 for flags in range(256))
#: The fork server's mappings of files: address and length in bytes.
_mappings: list[tuple[int, int]] = []
#: For each mapping, the pages that the fork server has in memory, as an integer with one byte per
#: page: 1 if the page is in memory, else 0.
_server_pages: list[int] = []


def release_free_memory() -> None:
    """Return free heap memory to the system, so that later allocations increase the peak."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Let malloc reuse freed blocks of up to 32 MiB, 512 MiB in total, instead of returning them.

    By default, glibc adapts these limits to earlier deallocations. If only small blocks were freed
    before, gRPC calls with 1 MiB take 1.2 to 3 times as long.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 512 << 20)


def remember_file_pages() -> None:
    """Record which file pages are in the memory of this process, the fork server.

    The call takes about 25 ms.
    """
    with contextlib.suppress(OSError), open("/proc/self/maps") as mappings:
        for line in mappings:
            if "/" in line:
                first, end = (int(address, 16) for address in line.split()[0].split("-"))
                _mappings.append((first, end - first))
    _server_pages[:] = _resident_file_pages()


def _resident_file_pages() -> list[int]:
    """Return which pages of the fork server's mapped files are in the memory of this process.

    The result has one integer per mapping, with one byte per page: 1 if the page is in memory, else
    0. If the kernel does not provide the information, the result is `_server_pages`, so that the
    peak does not change.
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
    """Measures the memory of this process, and its growth since the meter was created.

    Attributes:
        reference_bytes: Bytes that are subtracted from all results, because they do not belong to
            the measured model: arrays of reference kernels, and the array that fills caches.
    """

    def __init__(self) -> None:
        self.reference_bytes = 0
        self._compile_peak_bytes = 0
        self._released_bytes = 0
        self._baseline_bytes = _anonymous_bytes(_status(), "VmRSS")

    def begin_steps(self) -> None:
        """Release the memory that compilation has freed, and reset the peak before timed steps.

        `peak_bytes` still includes the peak before this call.
        """
        status = _status()
        self._compile_peak_bytes = status.get("VmHWM", 0)
        release_free_memory()
        self._released_bytes = max(0, status.get("VmRSS", 0) - _status().get("VmRSS", 0))
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as control:
            control.write("5")  # resets the peak to the current value (proc(5))

    def peak_bytes(self) -> tuple[int | None, int | None]:
        """Return the peak memory so far, and the growth of anonymous memory, in bytes.

        The growth is the peak of anonymous memory since `begin_steps`, minus its size when the
        meter was created. Both values are None if the system does not provide them.
        """
        status = _status()
        if "VmHWM" not in status:
            return None, None
        # Without a fork server the process would not have released memory, so add it to the peak.
        peak = max(self._compile_peak_bytes, status["VmHWM"] + self._released_bytes)
        for server, own in zip(_server_pages, _resident_file_pages(), strict=True):
            peak += _PAGE_BYTES * (server & ~own).bit_count()
        growth = _anonymous_bytes(status, "VmHWM") - self._baseline_bytes
        return peak - self.reference_bytes, max(0, growth - self.reference_bytes)


def _status() -> dict[str, int]:
    """Return memory sizes in bytes by their names in /proc/self/status; empty except on Linux."""
    if not sys.platform.startswith("linux"):
        return {}
    with open("/proc/self/status") as status:
        rows = [line.split() for line in status if line.startswith(("Vm", "Rss"))]
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}


def _anonymous_bytes(status: dict[str, int], total: str) -> int:
    """Return the bytes of memory that do not belong to files.

    Args:
        status: Memory sizes in bytes, as `_status` returns them.
        total: "VmRSS" for the current memory, "VmHWM" for the peak. The current file pages are
            subtracted even from the peak, because the system rarely drops file pages.
    """
    return status.get(total, 0) - status.get("RssFile", 0)
