"""What else the machine did while a point's blocks were measured, read just before the first and just after the last.

Three things take cores away from a point: other processes, the hypervisor (steal) and the quota of a control group.
Whatever the cores were neither idle nor stolen nor the point's own was foreign: other processes, and the kernel's own
work. Idle and stolen time are counted by the kernel as time, not as samples at its ticks, and the point's own is
exact, so the difference is known to about 0.01 s a core (measured: docs/check.md). Linux alone tells; elsewhere
nothing is said. Standard library alone: this runs in the interpreter under test.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paradnn.worker.messages import Contention

__all__ = ["ContentionWatch", "Counters", "between", "read_counters"]

#: Shares of the capacity of the point's cores beyond which its blocks are contended (docs/check.md says why these).
FOREIGN = 0.05
STEAL = 0.05
#: Share of the time in which a quota stopped the point.
THROTTLED = 0.01
#: On many cores one busy core is a small share, and still each step waits for the thread that shares it: so many cores
#: taken count where the point and the others together fill so much of the capacity.
TAKEN_CORES = 0.5
FULL = 0.9
#: Core-seconds by which what a core was given may be miscounted: in a short phase a larger share.
UNSURE = 0.0125

_ROOT = Path("/")


@dataclass(frozen=True)
class Counters:
    """One moment: seconds on a clock, and counters that only grow; None where the system does not tell.

    `idle`, `steal` and `counted` (all that the kernel accounts for) are core-seconds of the `cores` that may be used,
    `own` those that the point's processes took, `throttled` seconds in which a quota stopped them; `mhz` is no counter.
    `stops` is how often this process was stopped and continued while a watch was there to see it.
    """

    seconds: float
    cores: int
    own: float
    idle: float | None
    steal: float | None
    counted: float | None
    switches: int
    throttled: float | None
    mhz: float | None
    stops: int = 0


class ContentionWatch:
    """Watches a measurement: `start` before its first block, `stop` after its last."""

    def __init__(self) -> None:
        self.seen: Contention | None = None
        self._before: Counters | None = None
        self._stops = 0
        self._handler: Any = None

    def start(self) -> None:
        """A measurement begins."""
        self._stops = 0
        # Time in which a process is stopped (SIGSTOP) shows in no counter; that it goes on again is a signal.
        with contextlib.suppress(ValueError):  # not the main thread
            self._handler = signal.signal(signal.SIGCONT, self._continued)
            signal.siginterrupt(signal.SIGCONT, False)
        self._before = read_counters()

    def stop(self) -> Contention | None:
        """It has ended: what happened meanwhile, None where nothing is known."""
        if self._before is None:
            return None
        after = replace(read_counters(), stops=self._stops)
        self._end()
        self.seen = between(self._before, after)
        return self.seen

    def _continued(self, *_: object) -> None:
        self._stops += 1

    def _end(self) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGCONT, self._handler)
            self._handler = None


def read_counters(root: Path = _ROOT) -> Counters:
    """The counters now; `root` is where proc and sys are mounted."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    # First, as the frequency falls as soon as nothing runs.
    mhz = _frequency(root, cores)
    idle, steal, counted = _core_seconds(root, cores)
    return Counters(
        time.perf_counter(),
        len(cores),
        _own_seconds(root),
        idle,
        steal,
        counted,
        resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        _throttled_seconds(root),
        mhz,
    )


def between(before: Counters, after: Counters) -> Contention:
    """What happened between two moments, with the verdict."""
    seconds = after.seconds - before.seconds
    capacity = seconds * after.cores
    own = (after.own - before.own) / capacity if capacity else None
    steal = _rate(before.steal, after.steal, capacity)
    idle = _rate(before.idle, after.idle, capacity)
    counted = _rate(before.counted, after.counted, capacity)
    foreign = None
    # A sandbox may show counters that stand still.
    if own is not None and idle is not None and counted is not None and counted > 0.5:
        # A core that wakes up may wait for the hypervisor and be idle at once: not below nothing.
        foreign = max(0.0, 1 - idle - (steal or 0.0) - own)
    else:
        steal = None
    throttled = _rate(before.throttled, after.throttled, seconds)
    switches = (after.switches - before.switches) / seconds if seconds else None
    frequencies = [mhz for mhz in (before.mhz, after.mhz) if mhz is not None]
    mhz = statistics.fmean(frequencies) if frequencies else None
    stops = after.stops - before.stops
    reason = _reason(after.cores, seconds, own, foreign, steal, throttled)
    if stops:
        reason = "; ".join(
            filter(None, [reason, f"the point was stopped (SIGSTOP) {stops} time{'s' if stops > 1 else ''}"])
        )
    return Contention(after.cores, own, foreign, steal, switches, throttled, mhz, reason, stops)


def _reason(
    cores: int, seconds: float, own: float | None, foreign: float | None, steal: float | None, throttled: float | None
) -> str | None:
    """Why the blocks are contended; None where they are not."""
    reasons = []
    taken = foreign or 0.0
    unsure = UNSURE / seconds if seconds else math.inf
    if taken > max(FOREIGN, unsure) or (taken * cores > TAKEN_CORES and taken + (own or 0.0) > FULL):
        reasons.append(f"other processes took {taken * cores:.1f} of {cores} core{'s' if cores > 1 else ''}")
    if steal is not None and steal > max(STEAL, unsure):
        reasons.append(f"the hypervisor took {steal:.0%} of the cores' time (steal)")
    if throttled is not None and throttled > THROTTLED:
        reasons.append(f"the control group's CPU quota stopped the point for {throttled:.0%} of the time")
    return "; ".join(reasons) or None


def _rate(before: float | None, after: float | None, per: float) -> float | None:
    return (after - before) / per if before is not None and after is not None and per else None


def _core_seconds(root: Path, cores: list[int]) -> tuple[float | None, float | None, float | None]:
    """Idle, stolen and all core-seconds of `cores`, from /proc/stat; see proc(5)."""
    names = {f"cpu{core}" for core in cores}
    try:
        rows = [row.split() for row in (root / "proc/stat").read_text().splitlines() if row.startswith("cpu")]
    except OSError:
        return None, None, None
    found = [[int(count) for count in row[1:9]] for row in rows if row[0] in names]
    if not found or len(found[0]) < 8:
        return None, None, None
    tick = os.sysconf("SC_CLK_TCK")
    # user nice system idle iowait irq softirq steal; guests are in user and nice already.
    return (
        sum(row[3] + row[4] for row in found) / tick,
        sum(row[7] for row in found) / tick,
        sum(map(sum, found)) / tick,
    )


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
        try:
            children = [int(child) for child in path.read_text().split()]
        except OSError:
            continue
        for child in children:
            yield child
            yield from _descendants(root, child)


def _throttled_seconds(root: Path) -> float | None:
    """Seconds in which the quota of this process's control group stopped it; None where there is none."""
    try:
        rows = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for row in rows:
        _, controllers, path = row.split(":", 2)
        if not controllers:
            files = [root / "sys/fs/cgroup" / path.strip("/") / "cpu.stat", root / "sys/fs/cgroup/cpu.stat"]
        elif "cpu" in controllers.split(","):
            files = [root / "sys/fs/cgroup" / folder / path.strip("/") / "cpu.stat" for folder in (controllers, "cpu")]
        else:
            continue
        for file in files:
            with contextlib.suppress(OSError, ValueError):
                counters = dict(line.split() for line in file.read_text().splitlines())
                if "throttled_usec" in counters:
                    return int(counters["throttled_usec"]) / 1e6
                if "throttled_time" in counters:
                    return int(counters["throttled_time"]) / 1e9
    return None


def _frequency(root: Path, cores: list[int]) -> float | None:
    """Mean clock frequency of `cores` in MHz: cpufreq's, else that of /proc/cpuinfo; None where neither tells."""
    known = []
    for core in cores:
        with contextlib.suppress(OSError, ValueError):
            path = root / f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"
            known.append(int(path.read_text()) / 1e3)
    if not known:
        with contextlib.suppress(OSError, ValueError):
            rows = (root / "proc/cpuinfo").read_text().splitlines()
            shown = [float(row.partition(":")[2]) for row in rows if row.startswith("cpu MHz")]
            known = [mhz for core, mhz in enumerate(shown) if core in cores]
    return statistics.fmean(known) if known else None
