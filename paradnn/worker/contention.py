"""Measure contention: processor time that is taken from a measured process.

The measured process and its descendants are called the point. Counters are read just before the
first timed block of steps and just after the last. Three things take cores away from the point:
other processes, the hypervisor (steal), and the quota of a control group. Time in which a core was
neither idle, nor stolen, nor used by the point was used by other processes. The error of this time
is about 0.01 s per core (docs/how-to/check.md has the measurement). Only Linux provides the
counters; on other systems the values are unknown.
"""

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paradnn.core.control_groups import throttled_seconds
from paradnn.core.messages import Contention
from paradnn.core.words import counted

try:
    import resource
except ModuleNotFoundError:  # Windows, where the worker does not run
    resource = None  # type: ignore[assignment]

#: Blocks are contended if other processes take more than this share of the capacity of the point's
#: cores. docs/how-to/check.md explains this value and the next two.
MAX_FOREIGN_SHARE = 0.05
#: Blocks are contended if the hypervisor takes more than this share of the capacity.
MAX_STEAL_SHARE = 0.05
#: Blocks are contended if a quota stops the point for more than this share of the time.
MAX_THROTTLED_SHARE = 0.01
#: Blocks are also contended if other processes take more than this number of cores while hardly any
#: core is idle (`FULL_SHARE`). With many cores, one core is a small share of the capacity. But
#: every step waits for the thread that must share its core.
MAX_FOREIGN_CORES = 0.5
#: Hardly any core is idle if all processes together use more than this share of the capacity.
FULL_SHARE = 0.9
#: Error of the counters in core-seconds. In a short phase, it is a large share of the capacity.
UNCERTAIN_CORE_SECONDS = 0.0125
#: The time that the kernel accounts for must be at least this share of the capacity. Otherwise the
#: counters are ignored: in a sandbox they may not advance.
_MIN_ACCOUNTED_SHARE = 0.5

_ROOT = Path("/")
#: Cores that other processes of the point on this host use.
_watched_cores: set[int] = set()
#: Number of fields to read from a line of /proc/stat: user nice system idle iowait irq softirq
#: steal. The remaining fields, the time of guests, are already part of user and nice.
_STAT_FIELDS = 8


@dataclass(frozen=True)
class Counters:
    """Processor-time counters at one moment, or their growth between two moments.

    A counter that the system does not provide is None.

    Attributes:
        seconds: Value of `time.perf_counter`, in seconds.
        cores: Number of cores that the measured processes may use on this host.
        own: Core-seconds of this process and its descendants.
        idle: Core-seconds in which these cores were idle.
        steal: Core-seconds that the hypervisor took.
        accounted: Core-seconds that the kernel accounts for: idle, stolen and used.
        switches: Number of involuntary context switches of this process.
        throttled: Seconds in which the CPU quota of a control group stopped the processes.
    """

    seconds: float
    cores: int
    own: float
    idle: float | None
    steal: float | None
    accounted: float | None
    switches: int
    throttled: float | None


class ContentionMonitor:
    """Measures the processor time that is taken from this process during a measurement.

    Call `start` before the first timed block of steps and `stop` after the last.

    Attributes:
        seen: Result of the last call of `stop`; None before that.
    """

    def __init__(self) -> None:
        self.seen: Contention | None = None
        self._before: Counters | None = None
        self._stops = 0
        self._former_handler: Any = None

    def start(self) -> None:
        """Begin a measurement by reading the counters."""
        self._stops = 0
        # No counter shows the time in which a process is stopped (SIGSTOP). But the process gets
        # SIGCONT when it continues.
        with contextlib.suppress(ValueError):  # only the main thread can install a handler
            self._former_handler = signal.signal(signal.SIGCONT, self._count_stop)
            signal.siginterrupt(signal.SIGCONT, False)
        self._before = read_counters()

    def stop(self) -> Contention | None:
        """End a measurement and return its contention; None if `start` was never called."""
        if self._before is None:
            return None
        contention = contention_between(self._before, read_counters())
        if self._former_handler is not None:
            signal.signal(signal.SIGCONT, self._former_handler)
            self._former_handler = None
        if self._stops:
            reasons = [f"the point was stopped (SIGSTOP) {counted(self._stops, 'time')}"]
            if contention.reason:
                reasons.insert(0, contention.reason)
            contention = replace(contention, reason="; ".join(reasons), stops=self._stops)
        self.seen = contention
        return contention

    def _count_stop(self, *_: object) -> None:
        self._stops += 1


class TurnsMonitor:
    """Measures contention of a process that takes turns with a second measured process.

    `start` and `stop` enclose each turn of this process, so the work of the second process does not
    count as contention.
    """

    def __init__(self) -> None:
        self._before: Counters | None = None
        self._total: Counters | None = None
        self._turns = 0

    def start(self) -> None:
        """Begin a turn of this process."""
        self._before = read_counters()

    def stop(self) -> None:
        """End a turn of this process, and add its contention to the total."""
        assert self._before is not None, "start comes before stop"
        growth = counter_growth(self._before, read_counters())
        self._total = growth if self._total is None else sum_growths(self._total, growth)
        self._turns += 1

    def contention(self) -> Contention | None:
        """Return the contention of all turns together; None if there was no turn."""
        if self._total is None:
            return None
        return judge_growth(self._total, self._turns)


def watch_cores(cores: Iterable[int]) -> None:
    """Also count contention on `cores`, which other processes of the same measurement use."""
    _watched_cores.update(cores)


def read_counters(root: Path = _ROOT) -> Counters:
    """Return the current values of the counters.

    Args:
        root: The folder that contains the Linux folders `proc` and `sys`.
    """
    cores: list[int] = []
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0) | _watched_cores)
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    idle, steal, accounted = _core_seconds(root, cores)
    return Counters(
        seconds=time.perf_counter(),
        cores=len(cores),
        own=_own_seconds(root),
        idle=idle,
        steal=steal,
        accounted=accounted,
        switches=switches,
        throttled=throttled_seconds(root),
    )


def counter_growth(before: Counters, after: Counters) -> Counters:
    """Return how much each counter grew between two readings.

    A counter that the system does not provide is None. `cores` is that of the second reading.

    Args:
        before: The first reading.
        after: The second reading.
    """
    return Counters(
        seconds=after.seconds - before.seconds,
        cores=after.cores,
        own=after.own - before.own,
        idle=_difference(before.idle, after.idle),
        steal=_difference(before.steal, after.steal),
        accounted=_difference(before.accounted, after.accounted),
        switches=after.switches - before.switches,
        throttled=_difference(before.throttled, after.throttled),
    )


def sum_growths(first: Counters, second: Counters) -> Counters:
    """Return the total growth of the counters in two periods.

    A counter that the system does not provide is None. `cores` is that of the second period.

    Args:
        first: Growth in the first period.
        second: Growth in the second period.
    """
    return Counters(
        seconds=first.seconds + second.seconds,
        cores=second.cores,
        own=first.own + second.own,
        idle=_sum(first.idle, second.idle),
        steal=_sum(first.steal, second.steal),
        accounted=_sum(first.accounted, second.accounted),
        switches=first.switches + second.switches,
        throttled=_sum(first.throttled, second.throttled),
    )


def contention_between(before: Counters, after: Counters) -> Contention:
    """Return the contention between two readings of the counters.

    The field `reason` of the result says which values are too high; it is None if none is.

    Args:
        before: The first reading.
        after: The second reading.
    """
    return judge_growth(counter_growth(before, after))


def judge_growth(growth: Counters, periods: int = 1) -> Contention:
    """Return the contention that follows from the growth of the counters.

    The field `reason` of the result says which values are too high; it is None if none is.

    Args:
        growth: The growth of the counters in one period, or its sum over several periods.
        periods: The number of periods in that sum. Each adds an independent rounding error.
    """
    capacity = growth.seconds * growth.cores
    own = _ratio(growth.own, capacity)
    idle = _ratio(growth.idle, capacity)
    steal = _ratio(growth.steal, capacity)
    accounted = _ratio(growth.accounted, capacity)
    foreign = None
    is_plausible = accounted is not None and accounted > _MIN_ACCOUNTED_SHARE
    if own is not None and idle is not None and is_plausible:
        # The time of a core that wakes up may count as both stolen and idle. The difference would
        # then be negative.
        foreign = max(0.0, 1 - idle - (steal or 0.0) - own)
    else:
        steal = None
    contention = Contention(
        cores=growth.cores,
        own_cpu_fraction=own,
        foreign_cpu_fraction=foreign,
        steal_fraction=steal,
        involuntary_switches_per_second=_ratio(growth.switches, growth.seconds),
        throttled_fraction=_ratio(growth.throttled, growth.seconds),
        reason=None,
    )
    uncertain_share = math.inf
    if growth.seconds:
        uncertain_share = UNCERTAIN_CORE_SECONDS * math.sqrt(periods) / growth.seconds
    return replace(contention, reason=_reason(contention, uncertain_share))


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _ratio(value: float | None, unit: float) -> float | None:
    return None if value is None or not unit else value / unit


def _reason(contention: Contention, uncertain_share: float) -> str | None:
    """Return why a measurement counts as contended; None if no share is too high.

    Args:
        contention: The measured shares. Its `reason` is not set yet.
        uncertain_share: The error of the shares of other processes and of the hypervisor, as a
            fraction of the cores' time. A smaller share does not count.
    """
    reasons = []
    cores = contention.cores
    foreign = contention.foreign_cpu_fraction or 0.0
    is_full = foreign + (contention.own_cpu_fraction or 0.0) > FULL_SHARE
    takes_core = foreign * cores > MAX_FOREIGN_CORES and is_full
    if foreign > max(MAX_FOREIGN_SHARE, uncertain_share) or takes_core:
        plural = "s" if cores > 1 else ""
        reasons.append(f"other processes took {foreign * cores:.1f} of {cores} core{plural}")
    steal = contention.steal_fraction
    if steal is not None and steal > max(MAX_STEAL_SHARE, uncertain_share):
        reasons.append(f"the hypervisor took {steal:.0%} of the cores' time (steal)")
    throttled = contention.throttled_fraction
    if throttled is not None and throttled > MAX_THROTTLED_SHARE:
        quota = "the control group's CPU quota"
        reasons.append(f"{quota} stopped the point for {throttled:.0%} of the time")
    return "; ".join(reasons) or None


def _core_seconds(root: Path, cores: list[int]) -> tuple[float | None, float | None, float | None]:
    """Return the idle, stolen and total core-seconds of `cores` from /proc/stat (proc(5)).

    All three are None if the system does not provide them.
    """
    names = {f"cpu{core}" for core in cores}
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    counts: list[list[float]] = []
    with contextlib.suppress(OSError):
        for line in (root / "proc/stat").read_text().splitlines():
            name, *fields = line.split() or [""]
            if name in names:
                ticks = [int(field) for field in fields[:_STAT_FIELDS]]
                counts.append([count / ticks_per_second for count in ticks])
    if not counts or len(counts[0]) < _STAT_FIELDS:
        return None, None, None
    idle = sum(seconds[3] + seconds[4] for seconds in counts)
    steal = sum(seconds[7] for seconds in counts)
    return idle, steal, sum(sum(seconds) for seconds in counts)


def _own_seconds(root: Path) -> float:
    """Return the processor seconds of this process and its current and former descendants."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + ended.ru_utime + ended.ru_stime
    for pid in _descendants(root, os.getpid()):
        with contextlib.suppress(OSError):  # the process has ended in the meantime
            # The argument is the id of the process's clock, as clock_getcpuclockid(3) computes it.
            seconds += time.clock_gettime((~pid << 3) | 2)
    return seconds


def _descendants(root: Path, pid: int) -> Iterator[int]:
    """Yield the ids of a process's descendants; nothing if the kernel does not list children."""
    for path in (root / f"proc/{pid}/task").glob("*/children"):
        children: list[str] = []
        with contextlib.suppress(OSError):
            children = path.read_text().split()
        for child in map(int, children):
            yield child
            yield from _descendants(root, child)
