"""Environment of a measurement: hardware, software and state of the host.

Only the facts that this module names are recorded, never all environment variables.

`environment_id` is the hash of the facts that two runs must share to be pooled. These are
processor, cores, memory, accelerators and the versions of the software under test. Host name,
governor and kernel are recorded, but are not part of the hash.
"""

import contextlib
import functools
import inspect
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

# psutil may be absent on a machine that only runs converted models
# (`paradnn.session.run_elsewhere`).
with contextlib.suppress(ModuleNotFoundError):
    import psutil

from paradnn.config.identity import digest
from paradnn.config.paths import CHECKOUT
from paradnn.config.point import Point
from paradnn.config.rules import PointRules
from paradnn.core import versions as worker_versions
from paradnn.core.control_groups import memory_headroom_bytes
from paradnn.core.errors import ConfigError, ParadnnError, WorkerError
from paradnn.core.layers import Costs
from paradnn.core.schema import memory_bytes
from paradnn.core.slurm import allocated_memory_bytes
from paradnn.core.versions import FRAMEWORKS, versions
from paradnn.platform.commits import commit_of
from paradnn.platform.findings import Finding, gpu_findings, host_findings, nvidia_smi, read_text

#: Processor features that affect the speed of a step.
_ISA = {
    "avx",
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vnni",
    "amx_bf16",
    "amx_tile",
    "fma",
    "asimd",
    "sve",
    "bf16",
}

#: Environment variable with the addresses (host:port) of the servers on the other hosts, by host.
HOSTS = "PARADNN_HOSTS"

#: Key of the hardware fact that is present if processes of one host emulate the hosts of a point.
_EMULATION = "hosts"

#: Share of the available memory that a point may use by default.
_SAFE_SHARE = 0.9


@dataclass(frozen=True)
class Environment:
    """Hardware, software and state of the host on which a measurement runs.

    Attributes:
        device: Readable name of the device, such as the processor and its number of cores.
        hardware: Facts about processor, memory and accelerators.
        software: Versions by package.
        host: State of the host, which does not affect `environment_id`.
        packages: All packages of a software stack that ParaDnn installed, as name==version; stored
            in a separate file.
        findings: Findings of `python -m paradnn.check`. They do not affect `environment_id`,
            because settings change from day to day.
    """

    device: str
    hardware: Mapping[str, Any]
    software: Mapping[str, str]
    host: Mapping[str, Any]
    packages: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def environment_id(self) -> str:
        """Hash of `hardware` and `software`, which runs must share to be treated as one sample."""
        return digest({"hardware": self.hardware, "software": self.software})

    def as_one_host(self) -> "Environment":
        """Return the environment without emulated hosts, in which peak rates are measured."""
        hardware = {name: fact for name, fact in self.hardware.items() if name != _EMULATION}
        return replace(self, hardware=hardware)

    def as_dict(self) -> dict[str, Any]:
        """Return all facts except `packages`, to be stored as a file with the run."""
        facts = {"environment_id": self.environment_id, **asdict(self)}
        del facts["packages"]
        return facts


def separate_hosts(point: Point) -> int:
    """Return the number of physical hosts on which a configuration (point) is measured.

    For some kinds of work (workloads), processes of this host may emulate the hosts of a point. For
    such a kind of work, the number is 1 if the environment variable `PARADNN_HOSTS` is empty or not
    set. In all other cases, it is the number of hosts that the point requires.
    """
    if point.workload.role(PointRules).hosts_may_be_processes and not os.environ.get(HOSTS):
        return 1
    return point.hosts


def describe_environment(
    platform_name: str,
    software: Mapping[str, str],
    packages: tuple[str, ...] = (),
    *,
    emulates_hosts: bool = False,
) -> Environment:
    """Detect the hardware and the state of this host, and return its environment.

    Args:
        platform_name: Kind of platform: "cpu", "gpu" or "tpu".
        software: Versions of the software under test by package.
        packages: All packages of a software stack that ParaDnn installed, as name==version.
        emulates_hosts: Whether processes of this host emulate the hosts of a point.
    """
    hardware: dict[str, Any] = dict(_processor())
    if emulates_hosts:
        hardware[_EMULATION] = "processes of one host"
    device = (
        f"{hardware['processor']}, {hardware['cores']} core{'s' if hardware['cores'] != 1 else ''}"
    )
    if platform_name == "gpu":
        hardware["accelerators"] = list(_nvidia())
        device = ", ".join(sorted({entry["name"] for entry in _nvidia()})) or "no GPU"
    elif platform_name == "tpu":
        hardware["accelerators"] = []
        if "TPU_ACCELERATOR_TYPE" in os.environ:
            device = f"TPU {os.environ['TPU_ACCELERATOR_TYPE']}"
        else:
            device = "no TPU"
    findings = list(_host_findings())
    if platform_name == "gpu":
        findings += gpu_findings()
    return Environment(device, hardware, dict(software), _host(), packages, tuple(findings))


_host_findings = functools.cache(host_findings)


def missing_device(platform_name: str) -> str | None:
    """Return a message if this machine lacks a device; None if the device is or may be present.

    Args:
        platform_name: Kind of platform: "cpu", "gpu" or "tpu".
    """
    if sys.platform != "linux" or platform_name == "cpu":
        return None
    if platform_name == "gpu":
        # The device files cover other vendors, and also NVIDIA if `nvidia-smi` is not installed.
        is_present = bool(_nvidia()) or any(
            Path(f"/dev/{name}").exists() for name in ("nvidiactl", "kfd", "dxg")
        )
    else:
        # TensorFlow and JAX set TPU_ML_PLATFORM in every process that imports them, even without a
        # TPU.
        is_present = any(
            name.startswith("TPU_") and not name.startswith("TPU_ML_PLATFORM")
            for name in os.environ
        )
        is_present = is_present or any(Path("/dev").glob("accel*")) or Path("/dev/vfio").exists()
    if is_present:
        return None
    return f"this machine has no {platform_name.upper()}"


def available_memory() -> int:
    """Return the bytes of memory that can be allocated without swapping.

    The result respects limits of control groups and the memory that Slurm allocated to the job.
    """
    budgets = [int(psutil.virtual_memory().available)]
    headroom = memory_headroom_bytes()
    if headroom is not None:
        budgets.append(headroom)
    allocated = allocated_memory_bytes()
    if allocated is not None:
        budgets.append(max(0, allocated - _resident_bytes()))
    return min(budgets)


def _resident_bytes() -> int:
    """Return the resident memory of this process and of all processes that it started."""
    driver = psutil.Process()
    total = 0
    for process in (driver, *driver.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def memory_limit(point: Point) -> int:
    """Return the bytes of host memory that the measurement of a point may use now.

    This is `measure.memory_limit`, or by default a safe share of the available memory.
    """
    configured_limit = memory_bytes(point.measure.memory_limit, "measure.memory_limit")
    if configured_limit is not None:
        return configured_limit
    return int(_SAFE_SHARE * available_memory())


def exceeds_memory(point: Point, costs: Costs, limit: int | None) -> str | None:
    """Predict whether a point exceeds the memory limit, and return the reason as text.

    The result is None if the point may fit. The prediction uses the lower bound of the required
    memory. It is made only for points on a CPU with `measure.predict_oom`.

    Args:
        point: The point, that is, the configuration to measure.
        costs: Costs of a step, with the lower bound of the memory on all hosts together.
        limit: Memory limit per host in bytes; None if there is no limit.
    """
    bound = costs.memory_lower_bound_bytes / separate_hosts(point)
    if (
        point.platform.name != "cpu"
        or not point.measure.predict_oom
        or limit is None
        or bound <= limit
    ):
        return None
    return f"needs at least {bound / 2**30:,.2f} GiB, the limit is {limit / 2**30:.2f} GiB"


@functools.cache
def software_versions(python: str, framework: str) -> Mapping[str, str]:
    """Return the versions of the software under test in an interpreter.

    The packages are not imported.

    Args:
        python: Path of the interpreter.
        framework: Name of the framework.

    Raises:
        ConfigError: If the framework is not installed, or the interpreter cannot be started.
        WorkerError: If the interpreter cannot report its packages.
    """
    if python == sys.executable:
        return _require(versions(framework), framework, python)
    # Pass the source of the module. If the interpreter imported the module from this folder, it
    # would also find the distributions that are installed here.
    source = inspect.getsource(worker_versions)
    code = f"{source}\nimport json\nprint(json.dumps(versions({framework!r})))"
    try:
        for _ in range(3):
            done = subprocess.run(
                [python, "-c", code], capture_output=True, text=True, timeout=120, check=False
            )
            # If a signal ended the process, try again.
            if done.returncode >= 0:
                break
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        remedy = "give the path of a Python interpreter"
        raise ConfigError("software.python", python, f"does not run ({error})", remedy) from None
    try:
        return _require(json.loads(done.stdout.splitlines()[-1]), framework, python)
    except (ValueError, IndexError):
        output = [
            *done.stdout.splitlines(),
            *done.stderr.splitlines(),
            f"exit code {done.returncode}",
        ]
        last = output[-2:][0][:200]
        raise WorkerError(
            f"software.python={python}: cannot report its packages ({last}); check that it is a working Python interpreter"
        ) from None


def _require(found: Mapping[str, str], framework: str, python: str) -> Mapping[str, str]:
    """Check that an interpreter has the framework and Keras, and return `found` unchanged.

    Args:
        found: Versions in the interpreter by package.
        framework: Name of the framework.
        python: Path of the interpreter, for error messages.

    Raises:
        ConfigError: If a package is missing.
    """
    entry = FRAMEWORKS[framework]
    for package, extra in ((entry.package, entry.extra), ("keras", "")):
        if not any(name.startswith(package) for name in found):
            # In ParaDnn's own interpreter, propose the extra of ParaDnn that installs the package.
            if python == sys.executable and extra:
                requirement = f"'paradnn[{extra}]'"
            else:
                requirement = package
            remedy = f"run {python} -m pip install {requirement}, or set software.python"
            raise ConfigError(
                "framework.name", framework, f"{package} is not installed in {python}", remedy
            )
    return found


@functools.cache
def _processor() -> Mapping[str, Any]:
    # Sizes of the cache levels of the first core, as Linux reports them.
    caches = {}
    kinds = {"Data": "d", "Instruction": "i"}
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (read_text(entry / part) for part in ("level", "type", "size"))
        caches[f"L{level}{kinds.get(kind, '')}"] = size
    architecture = platform.machine()
    model = processor_name(read_text(Path("/proc/cpuinfo")))
    if hasattr(os, "sched_getaffinity"):
        cores: int | None = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count()
    physical_cores = None
    if sys.modules.get("psutil"):
        physical_cores = psutil.cpu_count(logical=False)
    return {
        "processor": model or platform.processor() or architecture,
        "architecture": architecture,
        "cores": cores,
        "physical_cores": physical_cores,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "caches": caches,
        "isa": sorted(_ISA & {*_cpuinfo("flags", "Features").split()}),
    }


#: Names of Arm cores by the codes of implementer and part (MIDR_EL1, Arm ARM D23), from the list in
#: util-linux. Linux reports only the codes.
_ARM_CORES = {
    ("0x41", "0xd08"): "Arm Cortex-A72",
    ("0x41", "0xd0c"): "Arm Neoverse-N1",
    ("0x41", "0xd40"): "Arm Neoverse-V1",
    ("0x41", "0xd49"): "Arm Neoverse-N2",
    ("0x41", "0xd4f"): "Arm Neoverse-V2",
    ("0x41", "0xd84"): "Arm Neoverse-V3",
    ("0x41", "0xd8e"): "Arm Neoverse-N3",
    ("0x43", "0x0af"): "Cavium ThunderX2",
    ("0x46", "0x001"): "Fujitsu A64FX",
    ("0x48", "0xd01"): "HiSilicon TaiShan-v110",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1a",
}


def processor_name(cpuinfo: str) -> str:
    """Return the name of the first processor in the text of /proc/cpuinfo; empty if it has none.

    The name is in the row "model name" on x86, "cpu" on POWER, and "uarch" on RISC-V. Arm servers
    report only codes of implementer and part, which `_ARM_CORES` translates into a name.
    """
    rows: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        head, _, value = line.partition(":")
        rows.setdefault(head.strip(), value.strip())
    for head in ("model name", "Hardware", "Model"):
        if rows.get(head):
            return rows[head]
    implementer = rows.get("CPU implementer")
    part = rows.get("CPU part")
    if implementer and part:
        fallback = f"Arm core, implementer {implementer}, part {part}"
        return _ARM_CORES.get((implementer, part), fallback)
    return rows.get("cpu") or rows.get("uarch", "")


def _cpuinfo(*heads: str) -> str:
    """Return the value of a row of /proc/cpuinfo.

    Args:
        *heads: Beginnings of names of rows. The first row with such a name is used.

    Returns:
        The value; "" if no row has such a name.
    """
    rows = read_text(Path("/proc/cpuinfo")).splitlines()
    return next((row.partition(":")[2].strip() for row in rows if row.startswith(heads)), "")


@functools.cache
def _nvidia() -> tuple[Mapping[str, str], ...]:
    """Return name, memory and driver of each NVIDIA device; empty without `nvidia-smi`."""
    rows = nvidia_smi("gpu", "name", "memory.total", "driver_version")
    return tuple(
        {"name": name, "memory": f"{memory} MiB", "driver": driver} for name, memory, driver in rows
    )


@functools.cache
def _host() -> Mapping[str, Any]:
    return {
        "host": platform.node(),
        "system": platform.system(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "governor": read_text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
        or "unknown",
        "virtualised": "hypervisor" in _cpuinfo("flags", "Features").split(),
        "driver_python": platform.python_version(),
        "git_commit": _git_commit(),
        "platform": sys.platform,
    }


def _git_commit() -> str:
    """Return the hash of ParaDnn's commit, with the suffix -dirty if files are modified.

    The result is "unknown" if ParaDnn is not run from a git checkout.
    """
    with contextlib.suppress(OSError, ParadnnError):
        if CHECKOUT is not None:
            return commit_of(folder=CHECKOUT)
    return "unknown"
