"""What of a host hurts measurements, looked up without changing anything: `python -m paradnn.check` shows it.

What a host does not say is left out. Files stand below a root, so that tests plant a host of their own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paradnn.platform.load import BUSY_CORES, Load
from paradnn.worker.affinity import core_list, core_text

ROOT = Path("/")
_CPUS = "sys/devices/system/cpu"


@dataclass(frozen=True)
class Finding:
    """What was found: `name` for programs, `what` for people. harms: whether it widens intervals or shifts results and
    can be mended. remedy: a command or an advice. permitted: whether this user may follow it; None where that is not a
    matter of permission."""

    name: str
    what: str
    value: str
    harms: bool
    why: str
    remedy: str = ""
    permitted: bool | None = None


@dataclass(frozen=True)
class Setting:
    """A setting of the kernel that can be changed while it runs: `name` as --tune takes it, the files that hold it, and
    the value that a measurement wants.

    harms: whether another value widens intervals; else it only changes results. usual: set by --tune that names
    nothing. words: stand for the wanted number, and for any other.
    """

    name: str
    title: str
    glob: str
    wanted: str
    why: str
    harms: bool = False
    usual: bool = True
    words: tuple[str, str] | None = None

    def values(self, root: Path) -> dict[Path, str]:
        """What each of the files says; none where this host has no such setting, or it does not matter."""
        if self.name == "swappiness" and len(_lines(root / "proc/swaps")) < 2:
            return {}
        return {path: chosen(text) for path in sorted(root.glob(self.glob)) if (text := read_text(path))}

    def right(self, value: str) -> bool:
        """Whether a value is as a measurement wants it."""
        return value == self.wanted or (self.name == "swappiness" and value.isdigit() and int(value) <= 10)

    def finding(self, root: Path) -> Finding | None:
        """What the host says of it."""
        values = self.values(root)
        wrong = [value for value in values.values() if not self.right(value)]
        shown = [self.words[not self.right(value)] if self.words else value for value in sorted({*values.values()})]
        if not values:
            return None
        if not wrong:
            return Finding(self.name, self.title, ", ".join(shown), False, self.why)
        allowed = all(os.access(path, os.W_OK) for path in values)  # root too is refused in many containers
        remedy = set_command(self.wanted, [*values])
        return Finding(self.name, self.title, ", ".join(shown), self.harms, self.why, remedy, allowed)


def set_command(value: str, files: Sequence[Path]) -> str:
    """The shell's command that writes `value` into files."""
    return f"echo {value} | sudo tee {' '.join(map(str, files))} > /dev/null"


_TURBO = "the clock above its base depends on temperature and on how many cores are busy"
#: Turbo is there twice: Intel's driver says no_turbo, the others boost.
SETTINGS: tuple[Setting, ...] = (
    Setting("governor", "clock governor", f"{_CPUS}/cpu*/cpufreq/scaling_governor", "performance",
            "others lower the clock when a core idles and raise it late: short steps are timed at a changing clock",
            harms=True),
    Setting("turbo", "turbo boost", f"{_CPUS}/intel_pstate/no_turbo", "1", _TURBO, harms=True, words=("off", "on")),
    Setting("turbo", "turbo boost", f"{_CPUS}/cpufreq/boost", "0", _TURBO, harms=True, words=("off", "on")),
    Setting("thp", "transparent huge pages", "sys/kernel/mm/transparent_hugepage/enabled", "madvise",
            "with always the kernel merges pages while a point runs, with never large arrays miss in the TLB"),
    Setting("swappiness", "swappiness", "proc/sys/vm/swappiness", "10",
            "above 10 the kernel swaps a process out for the sake of its file cache"),
    Setting("aslr", "address space randomisation", "proc/sys/kernel/randomize_va_space", "0",
            "each worker has another memory layout: part of the spread between sessions, not within one; "
            "it is a defence", usual=False, words=("off", "on")),
)  # fmt: skip


def host_findings(root: Path = ROOT) -> list[Finding]:
    """Settings and facts of the host; what is true now and likely to stay so. Takes some milliseconds."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    found = [setting.finding(root) for setting in SETTINGS]
    for name, (what, why, look) in _FACTS.items():
        value, harms, remedy = look(root, cores) or ("", False, "")
        found.append(Finding(name, what, value, harms, why, remedy) if value else None)
    return [finding for finding in found if finding]


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
        own, others = ([str(one.pid) for one in load.takers if one.measures == own] for own in (True, False))
        ways = [f"end them or wait: ps {' '.join(others)}"] if others else []
        # A measurement is not one to end.
        if own:
            ways.append(f"ParaDnn measures here ({', '.join(own)}): wait for its end, python -m paradnn.watch shows it")
        found.append(Finding("foreign_cpu", "other processes take", value, harms, why, "; ".join(ways) * harms))
    if load.steal is not None:
        why = "the hypervisor runs other machines on these cores; nothing in this one can prevent it"
        remedy = "measure at another time, or on a machine with cores of its own" if load.stolen else ""
        found.append(Finding("steal", "steal", f"{load.steal:.1%}", load.stolen, why, remedy))
    return found


#: A value, whether it harms, what to do; None where the host does not say.
_Fact = tuple[str, bool, str] | None


def _clock_range(root: Path, cores: Sequence[int]) -> _Fact:
    """How far the clock may move: the size of what governor and turbo do."""
    folder = root / _CPUS / "cpu0/cpufreq"
    low, high = (read_text(folder / name) for name in ("cpuinfo_min_freq", "cpuinfo_max_freq"))
    if not (low.isdigit() and high.isdigit() and int(low)):
        return None
    base = read_text(folder / "base_frequency")
    limits = f"{int(low) / 1e6:.2f} to {int(high) / 1e6:.2f} GHz"
    return limits + (f", base {int(base) / 1e6:.2f}" if base else ""), False, ""


def _siblings(root: Path, cores: Sequence[int]) -> _Fact:
    groups = {read_text(root / _CPUS / f"cpu{core}/topology/thread_siblings_list") for core in cores} - {""}
    threads = sum(len(core_list(group)) for group in groups)
    if threads > len(groups):
        return f"{threads} threads on {len(groups)} cores", False, f"platform.threads={len(groups)}"
    return ("off", False, "") if groups else None


def _mask(root: Path, cores: Sequence[int]) -> _Fact:
    online = core_list(read_text(root / _CPUS / "online"))
    return (f"{len(cores)} of {len(online)} cores may be used", False, "") if online and cores else None


def _nodes(root: Path, cores: Sequence[int]) -> _Fact:
    files = sorted((root / "sys/devices/system/node").glob("node[0-9]*/cpulist"))
    nodes = [core_list(read_text(path)) for path in files]
    used = [held for held in nodes if set(held) & set(cores)]
    one = core_text([core for core in used[0] if core in cores]) if len(used) > 1 else ""
    remedy = f"platform.cores={one}" if one else ""
    return (f"{len(used)} of {len(nodes)} in use", len(used) > 1, remedy) if len(nodes) > 1 else None


def _quota(root: Path, cores: Sequence[int]) -> _Fact:
    allowed = []
    for folder in _groups(root, "cpu"):
        quota, _, period = read_text(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            allowed.append(int(quota) / int(period))
    least = min(allowed, default=float(len(cores)))
    tight = least < len(cores)
    remedy = f"platform.threads={max(1, int(least))}, or a container without a quota" if tight else ""
    return f"{min(least, len(cores)):g} of {len(cores)} cores" if allowed else "none", tight, remedy


def _memory_limit(root: Path, cores: Sequence[int]) -> _Fact:
    names = ("memory.max", "memory.limit_in_bytes")
    texts = [read_text(folder / name) for folder in _groups(root, "memory") for name in names]
    # The older kind of control group writes a huge number for none.
    limits = [int(text) for text in texts if text.isdigit() and int(text) < 2**60]
    return f"{min(limits) / 2**30:.1f} GiB" if limits else "none", False, ""


def _swap(root: Path, cores: Sequence[int]) -> _Fact:
    rows = _lines(root / "proc/swaps")[1:]
    used = sum(int(row.split()[3]) for row in rows if len(row.split()) > 3) / 2**10
    return f"{used:.0f} MiB in use" if rows else "none", used > 100, "sudo swapoff -a" if used > 100 else ""


def _clock_source(root: Path, cores: Sequence[int]) -> _Fact:
    source = read_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    slow = source in ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
    return source, slow, "boot with tsc=reliable" if slow else ""


def _virtual(root: Path, cores: Sequence[int]) -> _Fact:
    flags = next((row for row in _lines(root / "proc/cpuinfo") if row.startswith("flags")), "")
    if "hypervisor" in flags.split():
        return "virtual machine", False, "compare points of one sweep only"
    return ("bare metal", False, "") if flags else None


def _battery(root: Path, cores: Sequence[int]) -> _Fact:
    states = [read_text(path) for path in sorted((root / "sys/class/power_supply").glob("*/status"))]
    empty = "Discharging" in states
    return ", ".join(states), empty, "plug it in" if empty else ""


def _throttling(root: Path, cores: Sequence[int]) -> _Fact:
    counts = [read_text(path) for path in (root / _CPUS).glob("cpu[0-9]*/thermal_throttle/core_throttle_count")]
    total = sum(int(count) for count in counts if count.isdigit())
    return (f"{total} times since it was started", False, "") if counts else None


#: Name -> what it is, why it matters, and how it is looked up.
_FACTS: dict[str, tuple[str, str, Callable[[Path, Sequence[int]], _Fact]]] = {
    "clock_range": ("clock of a core", "by so much the governor and turbo move step times", _clock_range),
    "smt": ("simultaneous multithreading",
            "two threads of a core share its arithmetic units: a product runs no faster on both, and less evenly",
            _siblings),
    "affinity": ("affinity mask",
                 "a run on fewer cores is another measurement; the environment's id holds how many may be used", _mask),
    "numa": ("memory nodes",
             "memory of another node is slower to reach, and which arrays lie there is another matter in each process",
             _nodes),
    "cpu_quota": ("CPU quota",
                  "the kernel stops all threads for the rest of a period (100 ms) when the quota is used up", _quota),
    "memory_limit": ("memory limit", "a point over it is killed: outcome oom_host", _memory_limit),
    "swap": ("swap", "a page that is fetched from a disk takes 10,000 times as long as one in memory", _swap),
    "clock_source": ("clock source", "reading hpet or acpi_pm takes a microsecond and more, and a system call",
                     _clock_source),
    "virtual": ("machine",
                "neighbours share caches, memory and cores unseen; steal counts the cores alone, and some hosts hide "
                "it", _virtual),
    "battery": ("battery", "most machines lower their clock on a battery", _battery),
    "throttling": ("thermal throttling", "a core that is too hot lowers its clock", _throttling),
}  # fmt: skip


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control groups that may limit `controller`, the innermost first."""
    base = root / "sys/fs/cgroup"
    for row in _lines(root / "proc/self/cgroup"):
        _, controllers, path = row.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = base / controllers if controllers and (base / controllers).is_dir() else base / controller
        top = top if controllers else base
        inner = top / path.strip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(top))


def read_text(path: Path) -> str:
    """A small file without the space around its text; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _lines(path: Path) -> list[str]:
    return read_text(path).splitlines()


def chosen(text: str) -> str:
    """The value that a file holds: of several that it offers, the one in brackets."""
    return text.partition("[")[2].partition("]")[0] if "[" in text else text


#: What is asked of each NVIDIA board, in this order.
_QUERY = ("index", "persistence_mode", "clocks.sm", "clocks.max.sm", "clocks_throttle_reasons.active",
          "utilization.gpu")  # fmt: skip
#: Bits of the reasons for which a board runs below its clock (NVML, nvmlClocksThrottleReasons).
#: Idle (1), the clocks that were asked for (2) and the display's (0x100) are no harm.
_REASONS = {
    0x4: "power limit",
    0x8: "hardware slow-down",
    0x10: "synchronised boost",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}


def gpu_findings(ask: Callable[[Sequence[str]], str] | None = None) -> list[Finding]:
    """Findings of every NVIDIA board; none where there is no nvidia-smi. `ask` returns what it prints, given its
    options."""
    ask = ask or _nvidia_smi
    rows = _rows(ask([f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]))
    found = [finding for row in rows if len(row) == len(_QUERY) for finding in _board(*row)]
    if found:
        users = _rows(ask(["--query-compute-apps=pid,name,used_memory", "--format=csv,noheader"]))
        value = "; ".join(f"{row[1]} ({row[0]})" for row in users if len(row) > 1) or "none"
        why = "a board that two processes share gives each turns: kernels of one wait for those of the other"
        remedy = f"end them: {' '.join(row[0] for row in users)}" if users else ""
        found.append(Finding("gpu_processes", "processes on the GPUs", value, bool(users), why, remedy))
    return found


def _board(number: str, persistence: str, now: str, most: str, throttled: str, busy: str) -> Iterator[Finding]:
    name = f"GPU {number}"
    why = "without it the driver unloads between processes: opening the device takes a second and more"
    remedy = f"sudo nvidia-smi -i {number} -pm 1" if persistence == "Disabled" else ""
    yield Finding("gpu_persistence", f"{name} persistence", persistence, False, why, remedy)
    why = "an idle board clocks down; unless its clocks are locked they follow temperature and power"
    remedy = f"sudo nvidia-smi -i {number} -lgc MHZ,MHZ, with one that it holds under load" if most.isdigit() else ""
    yield Finding("gpu_clock", f"{name} clock", f"{now} of at most {most} MHz", False, why, remedy)
    try:
        bits = int(throttled, 16)
    except ValueError:
        return
    reasons = ", ".join(text for bit, text in _REASONS.items() if bits & bit)
    why = "the board runs below the clock that it was asked for"
    remedy = "let it cool, or see nvidia-smi -q -d PERFORMANCE,POWER" if reasons else ""
    yield Finding("gpu_throttling", f"{name} slow-downs", reasons or "none", bool(reasons), why, remedy)
    harms = busy.isdigit() and int(busy) > 5
    yield Finding("gpu_load", f"{name} load", f"{busy}%", harms, "work of others on the board now")


def _rows(text: str) -> list[list[str]]:
    return [[part.strip() for part in line.split(",")] for line in text.strip().splitlines() if line.strip()]


def _nvidia_smi(options: Sequence[str]) -> str:
    """What nvidia-smi prints; nothing where it is not there or does not answer."""
    try:
        done = subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
