"""How busy this host is with something else, and who makes it so: what happened between two looks.

What a point does itself, its worker and this process, is not foreign; nor is anything that this
process started.
"""

import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

with contextlib.suppress(ModuleNotFoundError):  # as in `paradnn.platform.environment`
    import psutil

from paradnn.core.words import counted
from paradnn.worker.meters import between, read_counters

#: A host is busy where others take so many cores, or the hypervisor such a share of their time.
BUSY_CORES = 0.3
BUSY_STEAL = 0.05
#: A machine is slow as a whole where a reference kernel runs at less than this share of its best
#: there.
SLOW = 0.75
#: A shorter look says nothing: the kernel counts in hundredths of a second.
_SHORTEST = 0.2
#: A process that takes less is not named.
_NAMED = 0.05
_LONGEST = 60  # characters of a name


@dataclass(frozen=True)
class ForeignProcess:
    """A foreign process: who, and how many cores it takes; `measures` where it is of this suite,
    measuring.
    """

    pid: int
    name: str
    cores: float
    measures: bool = False


@dataclass(frozen=True)
class HostLoad:
    """What others took of the `cores` that may be used, as shares of their capacity; None where
    that is unknown.
    """

    cores: int
    average: float | None
    foreign: float | None
    steal: float | None
    takers: tuple[ForeignProcess, ...]

    @property
    def busy(self) -> bool:
        """Whether points measured now would be contended."""
        return (self.foreign or 0.0) * self.cores > BUSY_CORES or self.stolen

    @property
    def stolen(self) -> bool:
        """Whether the hypervisor takes too much."""
        return (self.steal or 0.0) > BUSY_STEAL

    def __str__(self) -> str:
        """What a person should know, as the rest of a sentence: load 3.2 on 2 cores, others take
        1.4 of them.
        """
        if self.average is not None:
            parts = [f"load {self.average:.1f} on {counted(self.cores, 'core')}"]
        else:
            parts = []
        if self.foreign is not None and self.foreign * self.cores > BUSY_CORES:
            who = ", ".join(
                f"{taker.name} ({taker.pid}) {taker.cores:.1f}" for taker in self.takers[:2]
            )
            parts.append(
                f"others take {self.foreign * self.cores:.1f} of them{f' ({who})' if who else ''}"
            )
        if self.stolen:
            parts.append(f"the hypervisor takes {self.steal:.0%} (steal)")
        return ", ".join(parts)


def slow_tags(speeds: Mapping[str, float], tags: Mapping[str, str]) -> dict[str, str]:
    """What says that the machine as a whole is slow, beside what `tags` say of others, given how
    fast each reference kernel ran as a share of its best there; none where it is not. A lower clock
    and the neighbours of a virtual machine show in no counter.
    """
    name, speed = min(speeds.items(), key=lambda entry: entry[1], default=("", 1.0))
    reasons = [tags.get("contended_reason"), f"the machine ran at {speed:.0%} of its best ({name})"]
    if speed < SLOW:
        return {"contended": "true", "contended_reason": "; ".join(filter(None, reasons))}
    return {}


class LoadMonitor:
    """Looks when it is made, and again when it is asked."""

    def __init__(self) -> None:
        self._counters = read_counters()
        self._times = _processor_seconds()

    def look(self) -> HostLoad:
        """The load since this was made; waits where that was only just now."""
        time.sleep(max(0.0, self._counters.seconds + _SHORTEST - time.perf_counter()))
        counters = read_counters()
        times = _processor_seconds()
        seconds = counters.seconds - self._counters.seconds
        seen = between(self._counters, counters)
        # This process, those that it is a part of (a shell, make), and all that it started.
        this = psutil.Process()
        own = {this.pid, *(child.pid for child in this.children(recursive=True))}
        own |= {parent.pid for parent in this.parents() if parent.pid > 1}
        takers = []
        for process, (name, after) in times.items():
            # One that began meanwhile is counted from nothing.
            cores = (after - self._times.get(process, (name, 0.0))[1]) / seconds
            if process.pid not in own and cores > _NAMED:
                words: list[str] = []
                with contextlib.suppress(psutil.Error):
                    words = process.cmdline()
                called = described(words) or name
                measures = (
                    re.search(r"\bparadnn( |[./](train|compare|worker|ceilings)\b|$)", called)
                    is not None
                )
                takers.append(ForeignProcess(process.pid, called, cores, measures))
        takers.sort(key=lambda taker: -taker.cores)
        load = load_average(), seen.foreign_cpu_fraction, seen.steal_fraction
        return HostLoad(counters.cores, *load, tuple(takers[:5]))


def load_average() -> float | None:
    """The one-minute load average; None where the system has none."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def described(words: Sequence[str]) -> str:
    """What a person would know a process by, of an interpreter what it runs: `python -m mlflow ui`."""
    program = re.split(r"[/\\]", words[0])[-1] if words else ""
    if not re.match(r"(python|pypy|node|ruby|perl|java|bash|sh)[\d.]*$", program):
        return program
    shown = [program]
    for word in words[1:]:
        if word == "-c":
            return f"{program} -c"  # the program itself may hold anything
        shown.append(word)
        if shown[-2] == "-m" or not word.startswith("-"):
            break
    return " ".join(shown)[:_LONGEST]


def _processor_seconds() -> Mapping["psutil.Process", tuple[str, float]]:
    """Name and processor time of every process that is seen, those of other users too."""
    found = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times:
            found[process] = (process.info["name"] or "?", times.user + times.system)
    return found
