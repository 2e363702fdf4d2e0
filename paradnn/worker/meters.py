"""What else the machine did while a point's blocks were measured, read just before the first and
just after the last.

Three things take cores away from a point: other processes, the hypervisor (steal) and the quota of
a control group. Whatever the cores were neither idle nor stolen nor the point's own was foreign,
known to about 0.01 s a core (measured: docs/how-to/check.md). Linux alone tells; elsewhere nothing is
said.
"""

import contextlib
import ctypes
import gc
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paradnn.core.control_groups import throttled_seconds
from paradnn.core.messages import Contention
from paradnn.core.words import counted

#: Shares of the capacity of the point's cores, and of the time in which a quota stopped it, beyond
#: which its blocks are contended (docs/how-to/check.md says why these).
FOREIGN = 0.05
STEAL = 0.05
THROTTLED = 0.01
#: On many cores one busy core is a small share, and still each step waits for the thread that
#: shares it: so many cores taken count where the point and the others together fill so much of the
#: capacity.
TAKEN_CORES = 0.5
FULL = 0.9
#: Core-seconds by which what a core was given may be miscounted: in a short phase a larger share.
UNSURE = 0.0125

_ROOT = Path("/")


@dataclass(frozen=True)
class Counters:
    """One moment: seconds on a clock, and counters that only grow, None where the system does not
    tell. `idle`, `steal` and `counted` (all that the kernel accounts for) are core-seconds of the
    `cores` that may be used, `own` those that the point's processes took, `throttled` seconds in
    which a quota stopped them.
    """

    seconds: float
    cores: int
    own: float
    idle: float | None
    steal: float | None
    counted: float | None
    switches: int
    throttled: float | None


class ContentionMonitor:
    """Watches a measurement: `start` before its first block, `stop` after its last."""

    def __init__(self) -> None:
        self.seen: Contention | None = None
        self._before: Counters | None = None
        self._stops = 0
        self._handler: Any = None

    def start(self) -> None:
        self._stops = 0
        # Time in which a process is stopped (SIGSTOP) shows in no counter; that it goes on again is
        # a signal.
        with contextlib.suppress(ValueError):  # not the main thread
            self._handler = signal.signal(signal.SIGCONT, self._continued)
            signal.siginterrupt(signal.SIGCONT, False)
        self._before = read_counters()

    def stop(self) -> Contention | None:
        """It has ended: what happened meanwhile, None where it never began."""
        if self._before is None:
            return None
        self.seen = between(self._before, read_counters())
        if self._handler is not None:
            signal.signal(signal.SIGCONT, self._handler)
            self._handler = None
        if self._stops:
            stopped = f"the point was stopped (SIGSTOP) {counted(self._stops, 'time')}"
            if self.seen.reason:
                reason = f"{self.seen.reason}; {stopped}"
            else:
                reason = stopped
            self.seen = replace(self.seen, reason=reason, stops=self._stops)
        return self.seen

    def _continued(self, *_: object) -> None:
        self._stops += 1


class TurnsMonitor:
    """Watches the turns of a point that alternates with another one.

    `start` and `stop` enclose each turn. What the other point takes in between does not count.
    """

    def __init__(self) -> None:
        self._before: Counters | None = None
        self._total: Counters | None = None
        self._turns = 0

    def start(self) -> None:
        """A turn begins."""
        self._before = read_counters()

    def stop(self) -> None:
        """The turn ends."""
        assert self._before is not None, "start comes before stop"
        spent = difference(self._before, read_counters())
        self._total = spent if self._total is None else total(self._total, spent)
        self._turns += 1

    def contention(self) -> Contention | None:
        """What others took in all turns together; None without a turn."""
        if self._total is None:
            return None
        return contention_of(self._total, self._turns)


def difference(before: Counters, after: Counters) -> Counters:
    """What the counters grew by; None for a counter that the system does not report."""

    def grown(name: str) -> float | None:
        first = getattr(before, name)
        last = getattr(after, name)
        return None if first is None or last is None else last - first

    return Counters(
        seconds=after.seconds - before.seconds,
        cores=after.cores,
        own=after.own - before.own,
        idle=grown("idle"),
        steal=grown("steal"),
        counted=grown("counted"),
        switches=after.switches - before.switches,
        throttled=grown("throttled"),
    )


def total(first: Counters, second: Counters) -> Counters:
    """The sum of two differences of counters."""

    def added(name: str) -> float | None:
        one = getattr(first, name)
        other = getattr(second, name)
        return None if one is None or other is None else one + other

    return Counters(
        seconds=first.seconds + second.seconds,
        cores=second.cores,
        own=first.own + second.own,
        idle=added("idle"),
        steal=added("steal"),
        counted=added("counted"),
        switches=first.switches + second.switches,
        throttled=added("throttled"),
    )


def read_counters(root: Path = _ROOT) -> Counters:
    """The counters now; `root` is where proc and sys are mounted."""
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = []
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    times = _core_seconds(root, cores)
    return Counters(
        time.perf_counter(),
        len(cores),
        _own_seconds(root),
        *times,
        switches,
        throttled_seconds(root),
    )


def between(before: Counters, after: Counters) -> Contention:
    """What happened between two moments, with the verdict."""
    return contention_of(difference(before, after))


def contention_of(spent: Counters, periods: int = 1) -> Contention:
    """What happened while the counters grew by `spent`, with the verdict.

    Args:
        spent: a difference of counters, or the sum of several.
        periods: the number of differences. Each adds its own rounding error, independently.
    """
    seconds = spent.seconds
    cores = spent.cores

    def rate(value: float | None, per: float) -> float | None:
        return None if value is None or not per else value / per

    own, steal, idle, counted = (
        rate(value, seconds * cores)
        for value in (spent.own, spent.steal, spent.idle, spent.counted)
    )
    foreign = None
    # A sandbox may show counters that stand still.
    if own is not None and idle is not None and counted is not None and counted > 0.5:
        # A core that wakes up may wait for the hypervisor and be idle at once: not below nothing.
        foreign = max(0.0, 1 - idle - (steal or 0.0) - own)
    else:
        steal = None
    throttled = rate(spent.throttled, seconds)
    reasons = []
    taken = foreign or 0.0
    unsure = UNSURE * math.sqrt(periods) / seconds if seconds else math.inf
    if taken > max(FOREIGN, unsure) or (
        taken * cores > TAKEN_CORES and taken + (own or 0.0) > FULL
    ):
        reasons.append(
            f"other processes took {taken * cores:.1f} of {cores} core{'s' if cores > 1 else ''}"
        )
    if steal is not None and steal > max(STEAL, unsure):
        reasons.append(f"the hypervisor took {steal:.0%} of the cores' time (steal)")
    if throttled is not None and throttled > THROTTLED:
        reasons.append(
            f"the control group's CPU quota stopped the point for {throttled:.0%} of the time"
        )
    return Contention(
        cores,
        own,
        foreign,
        steal,
        rate(spent.switches, seconds),
        throttled,
        "; ".join(reasons) or None,
    )


def _core_seconds(root: Path, cores: list[int]) -> tuple[float | None, float | None, float | None]:
    """Idle, stolen and all core-seconds of `cores`, from /proc/stat; see proc(5)."""
    names = {f"cpu{core}" for core in cores}
    tick = os.sysconf("SC_CLK_TCK")
    found = []
    with contextlib.suppress(OSError):
        rows = (row.split() for row in (root / "proc/stat").read_text().splitlines())
        found = [
            [int(count) / tick for count in row[1:9]] for row in rows if row and row[0] in names
        ]
    if not found or len(found[0]) < 8:
        return None, None, None
    # user nice system idle iowait irq softirq steal; guests are in user and nice already.
    return sum(row[3] + row[4] for row in found), sum(row[7] for row in found), sum(map(sum, found))


def _own_seconds(root: Path) -> float:
    """Processor seconds of this process, of all below it, and of those that it has waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + ended.ru_utime + ended.ru_stime
    for pid in _descendants(root, os.getpid()):
        with contextlib.suppress(OSError):  # gone meanwhile
            # The clock of another process, as clock_getcpuclockid(3) makes it.
            seconds += time.clock_gettime((~pid << 3) | 2)
    return seconds


def _descendants(root: Path, pid: int) -> Iterator[int]:
    """Processes below one; none where the kernel does not list children."""
    for path in (root / f"proc/{pid}/task").glob("*/children"):
        children: list[str] = []
        with contextlib.suppress(OSError):
            children = path.read_text().split()
        for child in map(int, children):
            yield child
            yield from _descendants(root, child)


# Energy of a stretch of work, where the machine counts it: RAPL packages of a CPU, NVML for an
# NVIDIA GPU. Counters belong to the whole package or board: on a shared machine the neighbours'
# work is in them.

_POWERCAP = Path("/sys/class/powercap")


@dataclass
class EnergyMeter:
    """Joules since `start`. `source` is "rapl", "nvml", or "unavailable: why"."""

    source: str
    _read: Callable[[], list[tuple[float, float]]] | None = None
    _begin: list[tuple[float, float]] | None = None

    def start(self) -> None:
        self._begin = self._read() if self._read else None

    def joules(self) -> float | None:
        """Energy since `start`, None where it is unavailable; a counter that wrapped round once is
        unwrapped.
        """
        if self._read is None or self._begin is None:
            return None
        total = 0.0
        for (before, _), (after, largest) in zip(self._begin, self._read(), strict=True):
            total += after - before if after >= before else after + largest - before
        return total


def open_meter(platform: str, index: int, root: Path = _POWERCAP) -> EnergyMeter:
    """The meter of a platform: "cpu" (every package of the host), or "gpu" number `index`."""
    if platform == "cpu":
        return _rapl(root)
    if platform == "gpu":
        return _nvml(index)
    return EnergyMeter(f"unavailable: no counter is known for {platform}")


def _rapl(root: Path) -> EnergyMeter:
    def read() -> list[tuple[float, float]]:
        kinds = ("energy_uj", "max_energy_range_uj")
        counts = (
            [int((package / kind).read_text()) * 1e-6 for kind in kinds] for package in packages
        )
        return [(now, largest) for now, largest in counts]

    try:
        # intel-rapl:0 is a package, intel-rapl:0:0 a part of it; AMD's kernels use the same names.
        # A zone named psys counts the whole board, the packages once more.
        zones = sorted(path for path in root.glob("intel-rapl:*") if path.name.count(":") == 1)
        packages = [path for path in zones if (path / "name").read_text().strip() != "psys"]
        read()
    except OSError as error:
        return EnergyMeter(f"unavailable: {error.filename}: {error.strerror}")
    if packages:
        return EnergyMeter("rapl", read)
    return EnergyMeter("unavailable: this host shows no RAPL counter")


def _nvml(index: int) -> EnergyMeter:
    try:
        import pynvml

        pynvml.nvmlInit()
        # NVML sees every board of the host, the framework those that CUDA_VISIBLE_DEVICES names, in
        # its order.
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        if given is None:
            boards = [str(index)]
        else:
            boards = [board for entry in given.split(",") if (board := entry.strip())]
        board = boards[0 if given is None else index]
        by_index = pynvml.nvmlDeviceGetHandleByIndex
        by_id = pynvml.nvmlDeviceGetHandleByUUID
        handle = by_index(int(board)) if board.isdigit() else by_id(board)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except ImportError:
        return EnergyMeter("unavailable: NVML needs the package nvidia-ml-py")
    except IndexError:
        return EnergyMeter(f"unavailable: CUDA_VISIBLE_DEVICES={given} has no device {index}")
    except Exception as error:
        return EnergyMeter(f"unavailable: NVML: {error}")
    # Millijoules since the driver was loaded, in 64 bits.
    return EnergyMeter(
        "nvml", lambda: [(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) * 1e-3, 0.0)]
    )


# Memory of a point: the peak that a process of its own would have had, and what its steps took of
# it. A fork begins with its parent's anonymous pages, but without those of files (Linux does not
# copy their page tables), which come into the child's count as they are used. So every page of a
# file that the server holds and the child does not is added, and what grows is counted without
# files.

#: glibc's malloc.h: what may be free at the heap's end, and from which size on a block is mapped by
#: itself.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_PAGE = os.sysconf("SC_PAGE_SIZE")
#: By the last byte of an entry of /proc/self/pagemap: whether the page is in memory (0x80) and a
#: file's (0x20).
_OF_FILE = bytes(flags & 0xA0 == 0xA0 for flags in range(256))
#: Where the fork server has files mapped, first byte and length, and which of those pages it holds,
#: a bit each.
_mapped: list[tuple[int, int]] = []
_held: list[int] = []


def give_back() -> None:
    """Return the heap that is free to the system, so that what is taken from now on shows."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed() -> None:
    """Let malloc keep what is freed, blocks of up to 32 MiB and 512 MiB in all, whatever was freed
    before: where that were small blocks alone, gRPC's calls with 1 MiB take 1.2 to 3 times as long.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 512 << 20)


def remember_file_pages() -> None:
    """Note which pages of files this process holds, for the children that it forks later. Some 25
    ms.
    """
    with contextlib.suppress(OSError), open("/proc/self/maps") as mappings:
        for row in mappings:
            if "/" in row:
                first, end = (int(address, 16) for address in row.split()[0].split("-"))
                _mapped.append((first, end - first))
    _held[:] = _file_pages()


def _file_pages() -> list[int]:
    """Pages that this process holds of what the fork server had mapped; none where the kernel does
    not tell.
    """
    with contextlib.suppress(OSError), open("/proc/self/pagemap", "rb", buffering=0) as table:
        entries = (
            os.pread(table.fileno(), size // _PAGE * 8, first // _PAGE * 8)
            for first, size in _mapped
        )
        return [int.from_bytes(each[7::8].translate(_OF_FILE), "little") for each in entries]
    return _held


class MemoryMeter:
    """Of this process, from now on: `compiled` is called once, before the steps that count.
    `beside`: bytes that it holds and that are none of the point's.
    """

    def __init__(self) -> None:
        self.beside = 0
        self._compile_peak = 0
        self._given_back = 0
        self._baseline = _anonymous(_status(), "VmRSS")

    def compiled(self) -> None:
        """The steps begin: their peak is one of its own, and what compiling has freed is given back
        to the system.
        """
        status = _status()
        self._compile_peak = status.get("VmHWM", 0)
        give_back()
        self._given_back = max(0, status.get("VmRSS", 0) - _status().get("VmRSS", 0))
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as control:
            control.write("5")  # the peak is now what is held

    def taken(self) -> tuple[int | None, int | None]:
        """Bytes of the peak so far, and how far anonymous memory has grown; None where the system
        does not tell.
        """
        status = _status()
        if "VmHWM" not in status:
            return None, None
        # A process of its own gives nothing back: what compiling has freed is in its peak still.
        peak = max(self._compile_peak, status["VmHWM"] + self._given_back)
        peak += _PAGE * sum(
            (held & ~own).bit_count() for held, own in zip(_held, _file_pages(), strict=True)
        )
        steps = _anonymous(status, "VmHWM") - self._baseline
        return peak - self.beside, max(0, steps - self.beside)


def _status() -> dict[str, int]:
    """Bytes by name in /proc/self/status; nothing where there is none."""
    if not sys.platform.startswith("linux"):
        return {}
    with open("/proc/self/status") as status:
        rows = [row.split() for row in status if row.startswith(("Vm", "Rss"))]
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}


def _anonymous(status: dict[str, int], total: str) -> int:
    """What is no file's, of the memory held now (VmRSS) or at the peak (VmHWM); files' pages come
    and seldom go.
    """
    return status.get(total, 0) - status.get("RssFile", 0)
