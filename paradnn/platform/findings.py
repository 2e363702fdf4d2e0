"""Findings: settings and facts of a host that may disturb measurements (`python -m paradnn.check`).

This module changes no settings. A fact that the host does not report is omitted. Files are read
below a given root, so that tests can imitate a host.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from paradnn.core.control_groups import cpu_quota_cores, memory_limit_bytes
from paradnn.core.slurm import allocated_cores, allocated_memory_bytes
from paradnn.core.words import core_list, core_text, counted
from paradnn.platform.load import BUSY_CORES, ForeignProcess, HostLoad, format_processes

_CPUS = "sys/devices/system/cpu"
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
#: If more swap than this is in use, pages of a point may be on disk.
_MAX_SWAP_MIB = 100
#: The fields of nvidia-smi from which `_board` derives its findings.
_NVIDIA_QUERY = (
    "index",
    "persistence_mode",
    "clocks.sm",
    "clocks.max.sm",
    "clocks_throttle_reasons.active",
)
#: Reasons why a board runs below its clock, by bit (NVML, nvmlClocksThrottleReasons). The omitted
#: bits are harmless: idle (1), clocks that an application requested (2), clock of the display
#: (0x100).
_THROTTLE_REASONS = {
    0x4: "power limit",
    0x8: "hardware slow-down",
    0x10: "synchronized boost",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}


class _Setting(NamedTuple):
    """A setting of the Linux kernel that may disturb measurements.

    Attributes:
        name: The name of the finding.
        files: A glob pattern of the files that contain the setting.
        recommended: The recommended value for measurements.
        harms: Whether other values disturb measurements.
    """

    name: str
    files: str
    recommended: str
    harms: bool = True


#: Turbo boost has two entries: Intel's driver has a file no_turbo, other drivers a file boost.
_SETTINGS = (
    _Setting("governor", f"{_CPUS}/cpu*/cpufreq/scaling_governor", "performance"),
    _Setting("turbo", f"{_CPUS}/intel_pstate/no_turbo", "1"),
    _Setting("turbo", f"{_CPUS}/cpufreq/boost", "0"),
    _Setting("thp", "sys/kernel/mm/transparent_hugepage/enabled", "madvise", harms=False),
)


class _Description(NamedTuple):
    """Description of a finding.

    Attributes:
        what: The name to display; `{}` is replaced by the number of a GPU.
        why: Why the finding matters.
    """

    what: str
    why: str


_DESCRIPTIONS = {
    "governor": _Description(
        "clock governor",
        "other governors lower the clock of an idle core and raise it late, so the clock changes "
        "during short steps",
    ),
    "turbo": _Description(
        "turbo boost",
        "a clock above the base clock depends on the temperature and on the number of busy cores",
    ),
    "thp": _Description(
        "transparent huge pages",
        "with always, the kernel merges pages while a point runs; with never, large arrays miss in "
        "the TLB",
    ),
    "load_average": _Description(
        "load average", "the number of processes that run or wait for a core"
    ),
    "foreign_cpu": _Description(
        "cores used by other processes",
        "a step waits for its slowest thread, and a thread that shares its core with another "
        "process takes up to twice as long",
    ),
    "steal": _Description(
        "steal",
        "the hypervisor runs other machines on these cores; nothing in this machine can prevent it",
    ),
    "smt": _Description(
        "simultaneous multithreading",
        "the two threads of a core share its arithmetic units: using both makes a product no "
        "faster, but its times less regular; platform.threads sets the number of threads",
    ),
    "numa": _Description(
        "memory nodes",
        "memory of another node is slower, and each process places its arrays differently",
    ),
    "cpu_quota": _Description(
        "CPU quota",
        "once the quota is used up, the kernel stops all threads for the rest of a period (100 ms)",
    ),
    "allocated_cores": _Description(
        "cores of the job",
        "Slurm does not pin this job, so further threads would use the cores of other jobs",
    ),
    "memory_limit": _Description(
        "memory limit", "a point that exceeds it is killed: outcome oom_host"
    ),
    "swap": _Description(
        "swap", "reading a page from a disk takes 10,000 times as long as reading it from memory"
    ),
    "clock_source": _Description(
        "clock source",
        "reading hpet or acpi_pm takes a system call and at least a microsecond",
    ),
    "virtual": _Description(
        "machine",
        "other virtual machines on the same host share caches, memory bandwidth and cores, and no "
        "counter shows their load: compare only points of one sweep",
    ),
    "battery": _Description("battery", "most machines lower their clock on battery power"),
    "gpu_persistence": _Description(
        "GPU {} persistence",
        "without it the driver unloads between processes, and opening the device takes at least a "
        "second",
    ),
    "gpu_clock": _Description(
        "GPU {} clock",
        "an idle board lowers its clock; unlocked clocks depend on temperature and power",
    ),
    "gpu_throttling": _Description("GPU {} slow-downs", "the board runs below the requested clock"),
    "gpu_processes": _Description(
        "processes on the GPUs",
        "a board alternates between the kernels of different processes, so the kernels of a point "
        "wait for those of other processes",
    ),
}


@dataclass(frozen=True)
class Finding:
    """One setting or fact of a host that may disturb measurements.

    Attributes:
        name: The name in stored runs, such as "gpu_clock".
        what: The name to display.
        value: The current value, as text.
        harms: Whether the value widens confidence intervals or shifts results, and can be changed.
        why: Why the finding matters.
        remedy: A command or advice; may be empty.
    """

    name: str
    what: str
    value: str
    harms: bool
    why: str
    remedy: str = ""


def _finding(
    name: str, value: str, remedy: str = "", *, harms: bool | None = None, board: str = ""
) -> Finding:
    """Return a finding with its description from `_DESCRIPTIONS`.

    Args:
        name: A key of `_DESCRIPTIONS`.
        value: The current value, as text.
        remedy: A command or advice; may be empty.
        harms: Whether the finding harms measurements; None to assume so if `remedy` is not empty.
        board: The number of the GPU; empty for a finding about the host.
    """
    description = _DESCRIPTIONS[name]
    if harms is None:
        harms = bool(remedy)
    what = description.what.format(board)
    return Finding(name, what, value, harms, description.why, remedy)


def host_findings(root: Path = Path("/")) -> list[Finding]:
    """Return findings about settings and hardware of the host, which rarely change.

    The call takes some milliseconds.

    Args:
        root: The folder that contains `proc` and `sys`; another folder than / only in tests.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = []
    found = [finding for setting in _SETTINGS for finding in _setting(root, setting)]
    return [*found, *_core_facts(root, cores), *_machine_facts(root)]


def _setting(root: Path, setting: _Setting) -> Iterator[Finding]:
    """Yield the finding of a setting; nothing if the host does not have the setting."""
    values = {}
    for path in sorted(root.glob(setting.files)):
        text = read_text(path)
        if text:
            # If the file lists several values, the current one is in brackets.
            values[path] = re.sub(r".*\[(.*?)\].*", r"\1", text)
    if not values:
        return
    wrong = [path for path, value in values.items() if value != setting.recommended]
    if setting.name == "turbo":
        value = "on" if wrong else "off"
    else:
        value = ", ".join(sorted(set(values.values())))
    remedy = ""
    if wrong:
        files = " ".join(map(str, wrong))
        remedy = (
            "sudo python -m pyperf system tune, or: "
            f"echo {setting.recommended} | sudo tee {files} > /dev/null"
        )
    yield _finding(setting.name, value, remedy, harms=setting.harms and bool(wrong))


def load_findings(load: HostLoad) -> list[Finding]:
    """Return findings about the load of other processes and of the hypervisor.

    Args:
        load: The observed load of the host.
    """
    found = []
    if load.average is not None:
        found.append(_finding("load_average", f"{load.average:.2f}"))
    if load.foreign is not None:
        found.append(_foreign_cpu(load))
    if load.steal is not None:
        remedy = ""
        if load.has_steal:
            remedy = "measure at another time, or on a machine with dedicated cores"
        found.append(_finding("steal", f"{load.steal:.1%}", remedy))
    return found


def _foreign_cpu(load: HostLoad) -> Finding:
    """Return the finding about the cores that other processes use.

    The remedy does not propose to end measurements of ParaDnn.
    """
    value = f"{load.foreign_cores:.2f} of {counted(load.cores, 'core')}"
    if load.processes:
        value += f": {'; '.join(format_processes(load.processes))}"
    harms = load.foreign_cores > BUSY_CORES
    remedies = []
    others = _pids(process for process in load.processes if not process.measures)
    measurements = _pids(process for process in load.processes if process.measures)
    if others:
        remedies.append(f"end these processes, or wait until they end: ps {' '.join(others)}")
    if measurements:
        remedies.append(
            f"wait until ParaDnn's own measurement ends (process {', '.join(measurements)}): "
            "python -m paradnn.watch shows its progress"
        )
    remedy = "; ".join(remedies) if harms else ""
    return _finding("foreign_cpu", value, remedy, harms=harms)


def _pids(processes: Iterator[ForeignProcess]) -> list[str]:
    return [str(process.pid) for process in processes]


def _core_facts(root: Path, cores: Sequence[int]) -> Iterator[Finding]:
    """Yield findings about multithreading, memory nodes, CPU quota and allocated cores.

    Args:
        root: The folder that contains `proc` and `sys`.
        cores: Numbers of the cores that this process may use.
    """
    siblings = {
        read_text(root / _CPUS / f"cpu{core}/topology/thread_siblings_list") for core in cores
    }
    siblings.discard("")
    threads = sum(len(core_list(group)) for group in siblings)
    if threads > len(siblings):
        yield _finding("smt", f"{threads} threads on {counted(len(siblings), 'core')}")
    elif siblings:
        yield _finding("smt", "off")

    files = sorted((root / "sys/devices/system/node").glob("node[0-9]*/cpulist"))
    nodes = [core_list(read_text(path)) for path in files]
    used_nodes = [node for node in nodes if set(node) & set(cores)]
    if len(nodes) > 1:
        remedy = ""
        if len(used_nodes) > 1:
            first_node_cores = core_text([core for core in used_nodes[0] if core in cores])
            remedy = f"platform.cores={first_node_cores}"
        yield _finding("numa", f"{len(used_nodes)} of {len(nodes)} in use", remedy)

    quota = cpu_quota_cores(root)
    if quota is None:
        yield _finding("cpu_quota", "none")
    elif quota < len(cores):
        remedy = f"platform.threads={max(1, int(quota))}, or a container without a quota"
        yield _finding("cpu_quota", f"{quota:g} of {counted(len(cores), 'core')}", remedy)
    else:
        yield _finding("cpu_quota", f"{len(cores)} of {counted(len(cores), 'core')}")

    allocated = allocated_cores()
    if allocated is not None:
        remedy = f"platform.threads={allocated}" if allocated < len(cores) else ""
        yield _finding("allocated_cores", f"{allocated} of {counted(len(cores), 'core')}", remedy)


def _machine_facts(root: Path) -> Iterator[Finding]:
    """Yield findings about memory limit, swap, clock source, virtualization and battery."""
    limits = [memory_limit_bytes(root), allocated_memory_bytes()]
    limit = min((limit for limit in limits if limit is not None), default=None)
    if limit is None:
        yield _finding("memory_limit", "none")
    else:
        yield _finding("memory_limit", f"{limit / 2**30:.1f} GiB")

    swaps = [line.split() for line in read_text(root / "proc/swaps").splitlines()[1:]]
    used_mib = sum(int(swap[3]) for swap in swaps if len(swap) > 3) / 2**10  # the file has KiB
    if not swaps:
        yield _finding("swap", "none")
    elif used_mib > _MAX_SWAP_MIB:
        yield _finding("swap", f"{used_mib:.0f} MiB in use", "sudo swapoff -a")
    else:
        yield _finding("swap", f"{used_mib:.0f} MiB in use")

    source = read_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source:
        remedy = "boot with tsc=reliable" if source in _SLOW_CLOCKS else ""
        yield _finding("clock_source", source, remedy)

    lines = read_text(root / "proc/cpuinfo").splitlines()
    flags = [line.split() for line in lines if line.startswith("flags")]
    if flags:
        if "hypervisor" in flags[0]:
            yield _finding("virtual", "virtual machine")
        else:
            yield _finding("virtual", "bare metal")

    supplies = sorted((root / "sys/class/power_supply").glob("*/status"))
    states = [read_text(path) for path in supplies]
    if any(states):
        remedy = "connect the machine to a power supply" if "Discharging" in states else ""
        yield _finding("battery", ", ".join(states), remedy)


def read_text(path: Path) -> str:
    """Return the stripped text of a small file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def gpu_findings(query: Callable[..., list[list[str]]] | None = None) -> list[Finding]:
    """Return findings about all NVIDIA GPUs; an empty list if nvidia-smi is not installed.

    Args:
        query: Replaces the function `nvidia_smi` in tests; None to call nvidia-smi.
    """
    query = query or nvidia_smi
    found = [finding for row in query("gpu", *_NVIDIA_QUERY) for finding in _board(*row)]
    if found:
        users = query("compute-apps", "pid", "name")
        value = "; ".join(f"{name} ({pid})" for pid, name in users) or "none"
        remedy = ""
        if users:
            remedy = f"end these processes: {' '.join(pid for pid, _ in users)}"
        found.append(_finding("gpu_processes", value, remedy))
    return found


def _board(
    number: str, persistence: str, clock: str, max_clock: str, throttled: str
) -> Iterator[Finding]:
    """Yield the findings about one GPU.

    Args:
        number: Number of the GPU.
        persistence: Whether persistence mode is enabled, such as "Disabled".
        clock: Current clock in MHz.
        max_clock: Highest clock in MHz.
        throttled: Hexadecimal mask of the reasons why the clock is reduced.
    """
    remedy = ""
    if persistence == "Disabled":
        remedy = f"sudo nvidia-smi -i {number} -pm 1"
    yield _finding("gpu_persistence", persistence, remedy, harms=False, board=number)

    remedy = ""
    if max_clock.isdigit():
        remedy = (
            f"sudo nvidia-smi -i {number} -lgc MHZ,MHZ, with a clock that the board sustains under "
            "load"
        )
    value = f"{clock} of at most {max_clock} MHz"
    yield _finding("gpu_clock", value, remedy, harms=False, board=number)

    if throttled.startswith("0x"):
        bits = int(throttled, 16)
        reasons = ", ".join(text for bit, text in _THROTTLE_REASONS.items() if bit & bits)
        remedy = ""
        if reasons:
            remedy = "let the board cool, or find the cause: nvidia-smi -q -d PERFORMANCE,POWER"
        yield _finding("gpu_throttling", reasons or "none", remedy, board=number)


def nvidia_smi(kind: str, *fields: str) -> list[list[str]]:
    """Query nvidia-smi for fields of all boards or of all processes on them.

    Args:
        kind: `gpu` or `compute-apps`.
        *fields: Names of the fields.

    Returns:
        The values of the fields for each board or process; empty if nvidia-smi is not installed or
        fails.
    """
    command = ["nvidia-smi", f"--query-{kind}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == len(fields)]
