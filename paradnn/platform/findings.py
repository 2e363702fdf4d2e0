"""What of a host hurts measurements, looked up without changing anything: `python -m paradnn.check` shows it.

A finding is data, recorded with every run beside what identifies the host. `harms` is for what widens intervals or
shifts results from one minute to the next and can be mended; the rest is worth knowing. What a host does not tell is
left out. Files stand below a root, so that tests plant a host of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paradnn.platform.load import BUSY_CORES, Load, Taker
from paradnn.platform.settings import ROOT, SETTINGS, Setting, read_text
from paradnn.worker.affinity import core_list, core_text

__all__ = ["Finding", "host_findings", "load_findings"]

_CPUS = "sys/devices/system/cpu"


@dataclass(frozen=True)
class Finding:
    """What was found: `name` for programs, `what` for people, its value; whether it harms, why it matters.

    `remedy` is a command or an advice, empty where nothing is to be done; `permitted` says whether this user may follow
    it, None where that is not a matter of permission.
    """

    name: str
    what: str
    value: str
    harms: bool
    why: str
    remedy: str = ""
    permitted: bool | None = None


def host_findings(root: Path = ROOT) -> list[Finding]:
    """Settings and facts of the host; what is true now and likely to stay so. Takes some milliseconds."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    parts = (
        (found for setting in SETTINGS for found in _setting(setting, root)),
        _clock_range(root),
        _siblings(root, cores),
        _mask(root, cores),
        _nodes(root, cores),
        _quota(root, len(cores)),
        _memory_limit(root),
        _swap(root),
        _clock_source(root),
        _virtual(root),
        _battery(root),
        _throttling(root),
    )
    return [finding for part in parts for finding in part]


def load_findings(load: Load) -> list[Finding]:
    """What others take now."""
    found = []
    if load.average is not None:
        found.append(
            Finding("load_average", "load average", f"{load.average:.2f}", False, "processes that want a core")
        )
    if load.foreign is not None:
        harms = load.foreign * load.cores > BUSY_CORES
        takers = "; ".join(f"{taker.name} ({taker.pid}) {taker.cores:.1f}" for taker in load.takers)
        value = f"{load.foreign * load.cores:.2f} of {load.cores} cores" + (f": {takers}" if takers else "")
        why = "a step waits for its slowest thread: one that shares its core takes up to twice as long"
        remedy = "; ".join(_ways_out(load.takers)) if harms else ""
        found.append(Finding("foreign_cpu", "other processes take", value, harms, why, remedy))
    if load.steal is not None:
        why = "the hypervisor runs other machines on these cores; nothing in this one can prevent it"
        remedy = "measure at another time, or on a machine with cores of its own" if load.stolen else ""
        found.append(Finding("steal", "steal", f"{load.steal:.1%}", load.stolen, why, remedy))
    return found


def _ways_out(takers: Sequence[Taker]) -> Iterator[str]:
    """What to do about those who take the cores; a measurement is not one to end."""
    foreign, own = ([str(taker.pid) for taker in takers if taker.measures is measures] for measures in (False, True))
    if foreign:
        yield f"end them or wait: ps {' '.join(foreign)}"
    if own:
        yield f"ParaDnn measures here ({', '.join(own)}): wait for its end, python -m paradnn.watch shows it"


def _setting(setting: Setting, root: Path) -> Iterator[Finding]:
    values = sorted(set(setting.values(root).values()))
    if not values:
        return
    wrong = [value for value in values if not setting.right(value)]
    remedy = setting.command(root) if wrong else ""
    harms = bool(wrong) and setting.harms
    allowed = setting.may_set(root) if wrong else None
    value = ", ".join(map(setting.shown, values))
    yield Finding(setting.name, setting.title, value, harms, setting.why, remedy, allowed)


def _clock_range(root: Path) -> Iterator[Finding]:
    """How far the clock may move: the size of what governor and turbo do."""
    folder = root / _CPUS / "cpu0/cpufreq"
    low, high = (read_text(folder / name) for name in ("cpuinfo_min_freq", "cpuinfo_max_freq"))
    if not (low.isdigit() and high.isdigit() and int(low)):
        return
    base = read_text(folder / "base_frequency")
    value = f"{int(low) / 1e6:.2f} to {int(high) / 1e6:.2f} GHz" + (f", base {int(base) / 1e6:.2f}" if base else "")
    yield Finding("clock_range", "clock of a core", value, False, "by so much the governor and turbo move step times")


def _siblings(root: Path, cores: Sequence[int]) -> Iterator[Finding]:
    """Two threads of one core share its units."""
    groups = {read_text(root / _CPUS / f"cpu{core}/topology/thread_siblings_list") for core in cores} - {""}
    if not groups:
        return
    threads = sum(len(core_list(group)) for group in groups)
    value = f"{threads} threads on {len(groups)} cores" if threads > len(groups) else "off"
    why = "two threads of a core share its arithmetic units: a product runs no faster on both, and less evenly"
    remedy = f"platform.threads={len(groups)}" if threads > len(groups) else ""
    yield Finding("smt", "simultaneous multithreading", value, False, why, remedy)


def _mask(root: Path, cores: Sequence[int]) -> Iterator[Finding]:
    online = core_list(read_text(root / _CPUS / "online"))
    if not online or not cores:
        return
    value = f"{len(cores)} of {len(online)} cores may be used"
    why = "a run on fewer cores is another measurement; the environment's id holds how many may be used"
    yield Finding("affinity", "affinity mask", value, False, why)


def _nodes(root: Path, cores: Sequence[int]) -> Iterator[Finding]:
    lists = [
        core_list(read_text(path)) for path in sorted((root / "sys/devices/system/node").glob("node[0-9]*/cpulist"))
    ]
    used = [held for held in lists if set(held) & set(cores)]
    if len(lists) < 2:
        return
    why = "memory of another node is slower to reach, and which arrays lie there is another matter in each process"
    one = [core for core in used[0] if core in cores] if used else []
    remedy = f"platform.cores={core_text(one)}" if len(used) > 1 else ""
    yield Finding("numa", "memory nodes", f"{len(used)} of {len(lists)} in use", len(used) > 1, why, remedy)


def _quota(root: Path, cores: int) -> Iterator[Finding]:
    """CPU quota of the control group, in cores."""
    allowed = None
    for folder in _groups(root, "cpu"):
        quota, _, period = read_text(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            allowed = min(allowed or cores, int(quota) / int(period))
    tight = allowed is not None and allowed < cores
    why = "the kernel stops all threads for the rest of a period (100 ms) when the quota is used up"
    remedy = f"platform.threads={max(1, int(allowed))}, or a container without a quota" if tight and allowed else ""
    value = "none" if allowed is None else f"{allowed:g} of {cores} cores"
    yield Finding("cpu_quota", "CPU quota", value, tight, why, remedy)


def _memory_limit(root: Path) -> Iterator[Finding]:
    limits = []
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = read_text(folder / name)
            if text.isdigit() and int(text) < 2**60:  # the older kind writes a huge number for none
                limits.append(int(text))
    value = f"{min(limits) / 2**30:.1f} GiB" if limits else "none"
    yield Finding("memory_limit", "memory limit", value, False, "a point over it is killed: outcome oom_host")


def _swap(root: Path) -> Iterator[Finding]:
    rows = read_text(root / "proc/swaps").splitlines()[1:]
    used = sum(int(row.split()[3]) for row in rows if len(row.split()) > 3) / 2**10
    value = f"{used:.0f} MiB in use" if rows else "none"
    why = "a page that is fetched from a disk takes 10,000 times as long as one in memory"
    yield Finding("swap", "swap", value, used > 100, why, "sudo swapoff -a" if used > 100 else "", None)


def _clock_source(root: Path) -> Iterator[Finding]:
    source = read_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    if not source:
        return
    slow = source in ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
    why = "reading hpet or acpi_pm takes a microsecond and more, and a system call"
    yield Finding("clock_source", "clock source", source, slow, why, "boot with tsc=reliable" if slow else "")


def _virtual(root: Path) -> Iterator[Finding]:
    flags = next((row for row in read_text(root / "proc/cpuinfo").splitlines() if row.startswith("flags")), "")
    if not flags:
        return
    virtual = "hypervisor" in flags.split()
    why = "neighbours share caches, memory and cores unseen; steal counts the cores alone, and some hosts hide it"
    value = "virtual machine" if virtual else "bare metal"
    yield Finding("virtual", "machine", value, False, why, "compare points of one sweep only" if virtual else "")


def _battery(root: Path) -> Iterator[Finding]:
    states = [read_text(path) for path in sorted((root / "sys/class/power_supply").glob("*/status"))]
    if not states:
        return
    empty = "Discharging" in states
    why = "most machines lower their clock on a battery"
    yield Finding("battery", "battery", ", ".join(states), empty, why, "plug it in" if empty else "")


def _throttling(root: Path) -> Iterator[Finding]:
    """How often a core was slowed down because it was hot, since the host was started."""
    counts = [read_text(path) for path in (root / _CPUS).glob("cpu[0-9]*/thermal_throttle/core_throttle_count")]
    total = sum(int(count) for count in counts if count.isdigit())
    if counts:
        why = "a core that is too hot lowers its clock"
        yield Finding("throttling", "thermal throttling", f"{total} times since it was started", False, why)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control groups that may limit `controller`, the innermost first."""
    base = root / "sys/fs/cgroup"
    for row in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = row.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = base / controllers if controllers and (base / controllers).is_dir() else base / controller
        top = top if controllers else base
        inner = top / path.strip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(top))
