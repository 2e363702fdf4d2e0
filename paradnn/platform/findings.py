"""What of a host hurts measurements, looked up without changing anything: `python -m paradnn.check`
shows it.

What a host does not say is left out. Files stand below a root, so that tests plant a host of their
own.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paradnn.core.control_groups import cpu_quota_cores, memory_limit_bytes
from paradnn.core.tables import rows
from paradnn.core.words import core_list, core_text
from paradnn.platform.load import BUSY_CORES, HostLoad

_CPUS = "sys/devices/system/cpu"
_TUNE = "sudo python -m pyperf system tune, or: echo {} | sudo tee {} > /dev/null"
#: Name, files, the value that a measurement wants, whether another harms. Turbo is there twice:
#: Intel's driver says no_turbo, the others boost.
_SETTINGS = (
    ("governor", f"{_CPUS}/cpu*/cpufreq/scaling_governor", "performance", True),
    ("turbo", f"{_CPUS}/intel_pstate/no_turbo", "1", True),
    ("turbo", f"{_CPUS}/cpufreq/boost", "0", True),
    ("thp", "sys/kernel/mm/transparent_hugepage/enabled", "madvise", False),
)
_NVIDIA_QUERY = (
    "index",
    "persistence_mode",
    "clocks.sm",
    "clocks.max.sm",
    "clocks_throttle_reasons.active",
)
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
#: What each finding is called, and why it matters.
_TEXTS = {row["name"]: (row["what"], row["why"]) for row in rows(__file__)}


@dataclass(frozen=True)
class Finding:
    """What was found: `name` for programs, `what` for people. harms: whether it widens intervals or
    shifts results and can be mended. remedy: a command or an advice.
    """

    name: str
    what: str
    value: str
    harms: bool
    why: str
    remedy: str = ""


def _found(
    name: str, value: str, remedy: str = "", *, harms: bool | None = None, of: str = ""
) -> Finding:
    """A finding of the table, `of` a board; unless it says otherwise it harms where there is
    something to do.
    """
    what, why = _TEXTS[name]
    return Finding(
        name, what.format(of), value, bool(remedy) if harms is None else harms, why, remedy
    )


def host_findings(root: Path = Path("/")) -> list[Finding]:
    """Settings and facts of the host; what is true now and likely to stay so. Takes some
    milliseconds.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = []
    found = []
    for name, glob, wanted, harms in _SETTINGS:
        texts = {path: read_text(path) for path in sorted(root.glob(glob))}
        # Of several values that a file offers, the one in brackets.
        files = {
            path: re.sub(r".*\[(.*?)\].*", r"\1", text) for path, text in texts.items() if text
        }
        wrong = [path for path, value in files.items() if value != wanted]
        value = ", ".join(sorted({*files.values()}))
        if files:
            if name == "turbo":
                value = "on" if wrong else "off"
            else:
                value = value
            if wrong:
                remedy = _TUNE.format(wanted, " ".join(map(str, wrong)))
            else:
                remedy = ""
            found.append(_found(name, value, remedy, harms=harms and bool(wrong)))
    facts = (*_facts_of_cores(root, cores), *_facts_of_machine(root))
    return found + [_found(name, value, to_do) for name, value, to_do in facts if value]


def load_findings(load: HostLoad) -> list[Finding]:
    """What others take now."""
    found = []
    if load.average is not None:
        found.append(_found("load_average", f"{load.average:.2f}"))
    if load.foreign is not None:
        harms = load.foreign * load.cores > BUSY_CORES
        takers = "; ".join(f"{taker.name} ({taker.pid}) {taker.cores:.1f}" for taker in load.takers)
        value = f"{load.foreign * load.cores:.2f} of {load.cores} cores" + (
            f": {takers}" if takers else ""
        )
        own, others = (
            [str(one.pid) for one in load.takers if one.measures == own] for own in (True, False)
        )
        ways = [f"end them or wait: ps {' '.join(others)}"] if others else []
        # A measurement is not one to end.
        if own:
            ways.append(
                f"ParaDnn measures here ({', '.join(own)}): wait for its end, python -m paradnn.watch shows it"
            )
        found.append(_found("foreign_cpu", value, "; ".join(ways) * harms, harms=harms))
    if load.steal is not None:
        if load.stolen:
            remedy = "measure at another time, or on a machine with cores of its own"
        else:
            remedy = ""
        found.append(_found("steal", f"{load.steal:.1%}", remedy))
    return found


#: Name, its value, empty where the host does not say it, and what to do, empty where it is no harm.
_Fact = tuple[str, str, str]


def _facts_of_cores(root: Path, cores: Sequence[int]) -> Iterator[_Fact]:
    siblings = {
        read_text(root / _CPUS / f"cpu{core}/topology/thread_siblings_list") for core in cores
    } - {""}
    threads = sum(len(core_list(group)) for group in siblings)
    if threads > len(siblings):
        shared = f"{threads} threads on {len(siblings)} cores"
    elif siblings:
        shared = "off"
    else:
        shared = ""
    yield "smt", shared, ""

    files = sorted((root / "sys/devices/system/node").glob("node[0-9]*/cpulist"))
    nodes = [core_list(read_text(path)) for path in files]
    used = [held for held in nodes if set(held) & set(cores)]
    if len(used) > 1:
        one = core_text([core for core in used[0] if core in cores])
    else:
        one = ""
    if len(nodes) > 1:
        value = f"{len(used)} of {len(nodes)} in use"
    else:
        value = ""
    yield "numa", value, f"platform.cores={one}" if one else ""

    quota = cpu_quota_cores(root)
    if quota is None:
        yield "cpu_quota", "none", ""
    elif quota < len(cores):
        remedy = f"platform.threads={max(1, int(quota))}, or a container without a quota"
        yield "cpu_quota", f"{quota:g} of {len(cores)} cores", remedy
    else:
        yield "cpu_quota", f"{len(cores)} of {len(cores)} cores", ""


def _facts_of_machine(root: Path) -> Iterator[_Fact]:
    limit = memory_limit_bytes(root)
    yield "memory_limit", "none" if limit is None else f"{limit / 2**30:.1f} GiB", ""

    swaps = [row.split() for row in read_text(root / "proc/swaps").splitlines()[1:]]
    used = sum(int(row[3]) for row in swaps if len(row) > 3) / 2**10
    yield (
        "swap",
        f"{used:.0f} MiB in use" if swaps else "none",
        "sudo swapoff -a" if used > 100 else "",
    )

    source = read_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    slow = source in ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
    yield "clock_source", source, "boot with tsc=reliable" if slow else ""

    flags = [
        row.split()
        for row in read_text(root / "proc/cpuinfo").splitlines()
        if row.startswith("flags")
    ]
    yield (
        "virtual",
        "".join("virtual machine" if "hypervisor" in row else "bare metal" for row in flags[:1]),
        "",
    )

    states = [
        read_text(path) for path in sorted((root / "sys/class/power_supply").glob("*/status"))
    ]
    yield "battery", ", ".join(states), "plug it in" if "Discharging" in states else ""


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
        found.append(
            _found(
                "gpu_processes",
                value,
                f"end them: {' '.join(pid for pid, _ in users)}" if users else "",
            )
        )
    return found


def _board(number: str, persistence: str, now: str, most: str, throttled: str) -> Iterator[Finding]:
    if persistence == "Disabled":
        remedy = f"sudo nvidia-smi -i {number} -pm 1"
    else:
        remedy = ""
    yield _found("gpu_persistence", persistence, remedy, harms=False, of=number)
    if most.isdigit():
        remedy = f"sudo nvidia-smi -i {number} -lgc MHZ,MHZ, with one that it holds under load"
    else:
        remedy = ""
    yield _found("gpu_clock", f"{now} of at most {most} MHz", remedy, harms=False, of=number)
    if throttled.startswith("0x"):
        reasons = ", ".join(text for bit, text in _REASONS.items() if bit & int(throttled, 16))
        if reasons:
            remedy = "let it cool, or see nvidia-smi -q -d PERFORMANCE,POWER"
        else:
            remedy = ""
        yield _found("gpu_throttling", reasons or "none", remedy, of=number)


def nvidia_smi(kind: str, *fields: str) -> list[list[str]]:
    """What nvidia-smi says of each of a kind ("gpu", "compute-apps"): its fields; nothing where it
    does not answer.
    """
    query = ["nvidia-smi", f"--query-{kind}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == len(fields)]
