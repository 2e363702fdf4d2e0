"""Load of foreign processes on this host during an interval, and the processes that cause it.

This process, its ancestors, and all of its descendants are not foreign.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# psutil may be absent on a machine that only runs converted models.
with contextlib.suppress(ModuleNotFoundError):
    import psutil

from paradnn.core.words import counted
from paradnn.worker.contention import contention_between, read_counters

#: A host is busy if foreign processes take more than this number of cores.
BUSY_CORES = 0.3
#: A host is also busy if the hypervisor takes more than this share of the cores' capacity.
BUSY_STEAL = 0.05
#: A machine is slow as a whole if a reference kernel runs at less than this share of its best
#: speed.
SLOW = 0.75
#: Shortest observation in seconds. The kernel counts processor time in hundredths of a second.
_MIN_SECONDS = 0.2
#: Processes that take at most this number of cores are not listed.
_MIN_CORES = 0.05
#: Largest number of foreign processes that `HostLoad` lists.
_MAX_LISTED = 5
#: Largest number of foreign processes that a sentence names.
_MAX_NAMED = 2
#: Largest number of characters in the label of a process.
_MAX_LABEL = 60
#: Names of interpreters, which run a script.
_INTERPRETER = re.compile(r"(python|pypy|node|ruby|perl|java|bash|sh)[\d.]*$")
#: Labels of ParaDnn's commands that measure.
_MEASUREMENT = re.compile(r"\bparadnn( |[./](train|compare|worker|ceilings)\b|$)")


@dataclass(frozen=True)
class ForeignProcess:
    """A process on this host that is not part of the current measurement.

    Attributes:
        pid: Process id.
        name: Label of the process (`process_label`).
        cores: Mean number of cores that the process takes.
        measures: Whether it is a measurement of ParaDnn.
    """

    pid: int
    name: str
    cores: float
    measures: bool = False


@dataclass(frozen=True)
class HostLoad:
    """Load of other processes on the cores that this process may use, over an interval.

    Processes that are not part of this measurement are called foreign.

    Attributes:
        cores: Number of cores that this process may use.
        average: The one-minute load average; None if the system does not report it.
        foreign: Share of the cores' capacity that foreign processes took; None if unknown.
        steal: Share of the cores' capacity that the hypervisor took; None if unknown.
        processes: The foreign processes that took the most processor time, in descending order.
    """

    cores: int
    average: float | None
    foreign: float | None
    steal: float | None
    processes: tuple[ForeignProcess, ...]

    @property
    def foreign_cores(self) -> float:
        """Mean number of cores that processes outside this measurement took; 0 if unknown."""
        return (self.foreign or 0.0) * self.cores

    @property
    def is_busy(self) -> bool:
        """Whether other processes or the hypervisor would disturb a measurement now."""
        return self.foreign_cores > BUSY_CORES or self.has_steal

    @property
    def has_steal(self) -> bool:
        """Whether the hypervisor takes more than the share `BUSY_STEAL` of the cores' capacity."""
        return (self.steal or 0.0) > BUSY_STEAL

    def __str__(self) -> str:
        """Return the load as text: `load 3.2 on 2 cores, other processes take 1.4 of them`."""
        parts = []
        if self.average is not None:
            parts.append(f"load {self.average:.1f} on {counted(self.cores, 'core')}")
        if self.foreign_cores > BUSY_CORES:
            part = f"other processes take {self.foreign_cores:.1f} of them"
            if self.processes:
                part += f" ({', '.join(format_processes(self.processes[:_MAX_NAMED]))})"
            parts.append(part)
        if self.has_steal:
            parts.append(f"the hypervisor takes {self.steal or 0.0:.0%} (steal)")
        return ", ".join(parts)


def format_processes(processes: Sequence[ForeignProcess]) -> Iterator[str]:
    """Yield label, id and cores of each process, such as `python train.py (17) 1.4`."""
    for process in processes:
        yield f"{process.name} ({process.pid}) {process.cores:.1f}"


def slow_tags(speeds: Mapping[str, float], tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags for a run on a machine that is slow as a whole.

    The tags are `contended` and `contended_reason`. No counter shows a lower clock, or the load of
    other virtual machines on the same host. Both of these reduce the speed of reference kernels.

    Args:
        speeds: For each reference kernel, its speed as a share of its best speed on this machine.
        tags: Existing tags of the run. The new reason is appended to a reason in these tags.

    Returns:
        The tags; empty if the machine is not slow.
    """
    if not speeds:
        return {}
    slowest = min(speeds, key=lambda name: speeds[name])
    speed = speeds[slowest]
    if speed >= SLOW:
        return {}
    reason = f"the machine ran at {speed:.0%} of its best speed ({slowest})"
    known = tags.get("contended_reason")
    return {"contended": "true", "contended_reason": f"{known}; {reason}" if known else reason}


class LoadMonitor:
    """Observes the load of the host from the construction of the object to each call of `look`."""

    def __init__(self) -> None:
        self._counters = read_counters()
        self._times = _processor_seconds()

    def look(self) -> HostLoad:
        """Return the load since the construction of this object.

        If less than `_MIN_SECONDS` have passed since then, wait first.
        """
        time.sleep(max(0.0, self._counters.seconds + _MIN_SECONDS - time.perf_counter()))
        counters = read_counters()
        seen = contention_between(self._counters, counters)
        return HostLoad(
            cores=counters.cores,
            average=load_average(),
            foreign=seen.foreign_cpu_fraction,
            steal=seen.steal_fraction,
            processes=self._foreign_processes(counters.seconds - self._counters.seconds),
        )

    def _foreign_processes(self, seconds: float) -> tuple[ForeignProcess, ...]:
        """Return the foreign processes that took the most processor time, in descending order.

        Args:
            seconds: Seconds since the construction of this object.
        """
        measuring = _own_pids()
        found = []
        for process, (name, after) in _processor_seconds().items():
            # A process that started after construction has no earlier reading.
            _, before = self._times.get(process, (name, 0.0))
            cores = (after - before) / seconds
            if process.pid in measuring or cores <= _MIN_CORES:
                continue
            words: list[str] = []
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
            label = process_label(words) or name
            measures = _MEASUREMENT.search(label) is not None
            found.append(ForeignProcess(process.pid, label, cores, measures))
        found.sort(key=lambda process: process.cores, reverse=True)
        return tuple(found[:_MAX_LISTED])


def load_average() -> float | None:
    """Return the one-minute load average; None if the system does not report it."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def process_label(words: Sequence[str]) -> str:
    """Return the label of a process: its program, and the script or module of an interpreter.

    Other arguments are omitted, because they may be secret. For example, the label of
    `/usr/bin/python -m mlflow ui --password x` is `python -m mlflow`.

    Args:
        words: The words of the process's command line.
    """
    if not words:
        return ""
    program = re.split(r"[/\\]", words[0])[-1]
    if not _INTERPRETER.match(program):
        return program
    shown = [program]
    for word in words[1:]:
        if word == "-c":
            return f"{program} -c"  # the program text may contain secrets
        shown.append(word)
        if shown[-2] == "-m" or not word.startswith("-"):
            break
    return " ".join(shown)[:_MAX_LABEL]


def _own_pids() -> set[int]:
    """Return the ids of this process, of its ancestors (a shell, make), and of its descendants."""
    this = psutil.Process()
    children = this.children(recursive=True)
    # Omit the process with id 1, the ancestor of all processes.
    parents = [parent for parent in this.parents() if parent.pid > 1]
    return {this.pid, *(process.pid for process in (*children, *parents))}


def _processor_seconds() -> Mapping["psutil.Process", tuple[str, float]]:
    """Return the name and the processor time in seconds of every visible process, of all users."""
    found = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times:
            found[process] = (process.info["name"] or "?", times.user + times.system)
    return found
