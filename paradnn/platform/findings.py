"""What of a host hurts measurements, looked up without changing anything: `python -m paradnn.check` shows it.

What a host does not say is left out. Files stand below a root, so that tests plant a host of their own.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paradnn.core.words import core_list, core_text
from paradnn.platform.load import BUSY_CORES, HostLoad

_CPUS = "sys/devices/system/cpu"
_TUNE = "sudo python -m pyperf system tune, or: echo {} | sudo tee {} > /dev/null"
_TURBO = "the clock above its base depends on temperature and on how many cores are busy"
#: Name, title, files, the value that a measurement wants, whether another harms, why. Turbo is there twice: Intel's
#: driver says no_turbo, the others boost.
_SETTINGS = (
    ("governor", "clock governor", f"{_CPUS}/cpu*/cpufreq/scaling_governor", "performance", True,
     "others lower the clock when a core idles and raise it late: short steps are timed at a changing clock"),
    ("turbo", "turbo boost", f"{_CPUS}/intel_pstate/no_turbo", "1", True, _TURBO),
    ("turbo", "turbo boost", f"{_CPUS}/cpufreq/boost", "0", True, _TURBO),
    ("thp", "transparent huge pages", "sys/kernel/mm/transparent_hugepage/enabled", "madvise", False,
     "with always the kernel merges pages while a point runs, with never large arrays miss in the TLB"),
)  # fmt: skip
_NVIDIA_QUERY = ("index", "persistence_mode", "clocks.sm", "clocks.max.sm", "clocks_throttle_reasons.active")
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


@dataclass(frozen=True)
class Finding:
    """What was found: `name` for programs, `what` for people. harms: whether it widens intervals or shifts results and
    can be mended. remedy: a command or an advice."""

    name: str
    what: str
    value: str
    harms: bool
    why: str
    remedy: str = ""


def host_findings(root: Path = Path("/")) -> list[Finding]:
    """Settings and facts of the host; what is true now and likely to stay so. Takes some milliseconds."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    found = []
    for name, what, glob, wanted, harms, why in _SETTINGS:
        texts = {path: read_text(path) for path in sorted(root.glob(glob))}
        # Of several values that a file offers, the one in brackets.
        files = {path: re.sub(r".*\[(.*?)\].*", r"\1", text) for path, text in texts.items() if text}
        wrong = [path for path, value in files.items() if value != wanted]
        value = ", ".join(sorted({*files.values()}))
        if files:
            value = ("on" if wrong else "off") if name == "turbo" else value
            remedy = _TUNE.format(wanted, " ".join(map(str, wrong))) if wrong else ""
            found.append(Finding(name, what, value, harms and bool(wrong), why, remedy))
    facts = (*_facts_of_cores(root, cores), *_facts_of_machine(root))
    return found + [
        Finding(name, what, value, bool(to_do), why, to_do) for name, what, value, to_do, why in facts if value
    ]


def load_findings(load: HostLoad) -> list[Finding]:
    """What others take now."""
    found = []
    if load.average is not None:
        why = "processes that want a core"
        found.append(Finding("load_average", "load average", f"{load.average:.2f}", False, why))
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


#: Name, what it is, its value, empty where the host does not say it, what to do, empty where it is no harm, and why.
_Fact = tuple[str, str, str, str, str]


def _facts_of_cores(root: Path, cores: Sequence[int]) -> Iterator[_Fact]:
    siblings = {read_text(root / _CPUS / f"cpu{core}/topology/thread_siblings_list") for core in cores} - {""}
    threads = sum(len(core_list(group)) for group in siblings)
    shared = f"{threads} threads on {len(siblings)} cores" if threads > len(siblings) else "off" if siblings else ""
    why = "two threads of a core share its arithmetic units: a product runs no faster on both, and less evenly; "
    yield "smt", "simultaneous multithreading", shared, "", why + "platform.threads sets how many are used"

    files = sorted((root / "sys/devices/system/node").glob("node[0-9]*/cpulist"))
    nodes = [core_list(read_text(path)) for path in files]
    used = [held for held in nodes if set(held) & set(cores)]
    one = core_text([core for core in used[0] if core in cores]) if len(used) > 1 else ""
    why = "memory of another node is slower to reach, and which arrays lie there is another matter in each process"
    value, remedy = f"{len(used)} of {len(nodes)} in use" if len(nodes) > 1 else "", f"platform.cores={one}"
    yield "numa", "memory nodes", value, remedy if one else "", why

    texts = [read_text(folder / "cpu.max").split() for folder in _groups(root)]
    allowed = [int(text[0]) / int(text[1]) for text in texts if len(text) == 2 and text[0].isdigit()]
    least = min([*allowed, float(len(cores))])
    remedy = f"platform.threads={max(1, int(least))}, or a container without a quota" if least < len(cores) else ""
    why = "the kernel stops all threads for the rest of a period (100 ms) when the quota is used up"
    yield "cpu_quota", "CPU quota", f"{least:g} of {len(cores)} cores" if allowed else "none", remedy, why


def _facts_of_machine(root: Path) -> Iterator[_Fact]:
    limits = [int(text) for folder in _groups(root) if (text := read_text(folder / "memory.max")).isdigit()]
    limit = f"{min(limits) / 2**30:.1f} GiB" if limits else "none"
    yield "memory_limit", "memory limit", limit, "", "a point over it is killed: outcome oom_host"

    rows = [row.split() for row in read_text(root / "proc/swaps").splitlines()[1:]]
    used = sum(int(row[3]) for row in rows if len(row) > 3) / 2**10
    why = "a page that is fetched from a disk takes 10,000 times as long as one in memory"
    yield "swap", "swap", f"{used:.0f} MiB in use" if rows else "none", "sudo swapoff -a" if used > 100 else "", why

    source = read_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    slow = source in ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
    why = "reading hpet or acpi_pm takes a microsecond and more, and a system call"
    yield "clock_source", "clock source", source, "boot with tsc=reliable" if slow else "", why

    flags = [row.split() for row in read_text(root / "proc/cpuinfo").splitlines() if row.startswith("flags")]
    kind = "".join("virtual machine" if "hypervisor" in row else "bare metal" for row in flags[:1])
    why = "neighbours of a virtual machine share caches, memory and cores unseen: compare points of one sweep"
    yield "virtual", "machine", kind, "", why

    states = [read_text(path) for path in sorted((root / "sys/class/power_supply").glob("*/status"))]
    remedy = "plug it in" if "Discharging" in states else ""
    yield "battery", "battery", ", ".join(states), remedy, "most machines lower their clock on a battery"


def _groups(root: Path) -> Iterator[Path]:
    """Folders of the control groups (version 2) that hold this process, the innermost first."""
    base = root / "sys/fs/cgroup"
    for row in read_text(root / "proc/self/cgroup").splitlines():
        if row.startswith("0::"):
            inner = base / row[3:].strip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(base))


def read_text(path: Path) -> str:
    """A small file without the space around its text; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def gpu_findings(ask: Callable[..., list[list[str]]] | None = None) -> list[Finding]:
    """Findings of every NVIDIA board; none where there is no nvidia-smi. `ask` is `nvidia_smi`."""
    ask = ask or nvidia_smi
    found = [finding for row in ask("gpu", *_NVIDIA_QUERY) for finding in _board(*row)]
    if found:
        users = ask("compute-apps", "pid", "name")
        value = "; ".join(f"{name} ({pid})" for pid, name in users) or "none"
        why = "a board that two processes share gives each turns: kernels of one wait for those of the other"
        remedy = f"end them: {' '.join(pid for pid, _ in users)}" if users else ""
        found.append(Finding("gpu_processes", "processes on the GPUs", value, bool(users), why, remedy))
    return found


def _board(number: str, persistence: str, now: str, most: str, throttled: str) -> Iterator[Finding]:
    name = f"GPU {number}"
    why = "without it the driver unloads between processes: opening the device takes a second and more"
    remedy = f"sudo nvidia-smi -i {number} -pm 1" if persistence == "Disabled" else ""
    yield Finding("gpu_persistence", f"{name} persistence", persistence, False, why, remedy)
    why = "an idle board clocks down; unless its clocks are locked they follow temperature and power"
    remedy = f"sudo nvidia-smi -i {number} -lgc MHZ,MHZ, with one that it holds under load" if most.isdigit() else ""
    yield Finding("gpu_clock", f"{name} clock", f"{now} of at most {most} MHz", False, why, remedy)
    if throttled.startswith("0x"):
        reasons = ", ".join(text for bit, text in _REASONS.items() if bit & int(throttled, 16))
        why = "the board runs below the clock that it was asked for"
        remedy = "let it cool, or see nvidia-smi -q -d PERFORMANCE,POWER" if reasons else ""
        yield Finding("gpu_throttling", f"{name} slow-downs", reasons or "none", bool(reasons), why, remedy)


def nvidia_smi(kind: str, *fields: str) -> list[list[str]]:
    """What nvidia-smi says of each of a kind ("gpu", "compute-apps"): its fields; nothing where it does not answer."""
    query = ["nvidia-smi", f"--query-{kind}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == len(fields)]
