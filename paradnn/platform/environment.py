"""What a point was measured on: hardware, software, state of the host. An allow-list, never the
whole environment.

`environment_id` is the hash of what two runs must share to be pooled: processor, cores, memory,
accelerators and the versions of the software under test. Host name, load, governor and kernel are
recorded beside it.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

with contextlib.suppress(
    ModuleNotFoundError
):  # where an engine alone measures (`paradnn.session.run_elsewhere`)
    import psutil

from paradnn.config.identity import digest
from paradnn.config.paths import CHECKOUT
from paradnn.config.point import Point
from paradnn.core import versions as worker_versions
from paradnn.core.control_groups import memory_headroom_bytes
from paradnn.core.errors import ConfigError, ParadnnError, WorkerError
from paradnn.core.layers import Costs
from paradnn.core.schema import memory_bytes
from paradnn.core.versions import FRAMEWORKS, versions
from paradnn.platform.commits import commit_of
from paradnn.platform.findings import Finding, gpu_findings, host_findings, nvidia_smi, read_text

#: What the processor can do that changes how fast a step is.
_ISA = {
    *(
        "avx",
        "avx2",
        "avx512f",
        "avx512_bf16",
        "avx512_fp16",
        "avx512_vnni",
        "amx_bf16",
        "amx_tile",
        "fma",
    ),
    *("asimd", "sve", "bf16"),
}

_SAFE_SHARE = 0.9  # of the free memory, which a point may take


@dataclass(frozen=True)
class Environment:
    """Facts of one host and one software stack; `device` is what a person calls the platform.

    `packages` is all that a made stack has installed, name==version; it is kept in a file of its
    own. `findings` are those of `python -m paradnn.check`: settings change from day to day, so they
    are no part of the id.
    """

    device: str
    hardware: Mapping[str, Any]
    software: Mapping[str, str]
    host: Mapping[str, Any]
    packages: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def environment_id(self) -> str:
        """Hash of hardware and software."""
        return digest({"hardware": self.hardware, "software": self.software})

    def as_dict(self) -> dict[str, Any]:
        """All of it, for the run's artifact."""
        found = {"environment_id": self.environment_id, **asdict(self)}
        del found["packages"]
        return found


def describe_environment(
    platform_name: str, software: Mapping[str, str], packages: tuple[str, ...] = ()
) -> Environment:
    """The environment of this host with the given software versions, as seen from one kind of
    platform.
    """
    hardware: dict[str, Any] = dict(_processor())
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
    found = (*_host_findings(), *(gpu_findings() if platform_name == "gpu" else ()))
    return Environment(device, hardware, dict(software), _host(), packages, found)


_host_findings = functools.cache(host_findings)


def missing_device(platform_name: str) -> str | None:
    """Why there can be no such device here, in a few words; None where there is one, or may be one."""
    if sys.platform != "linux" or platform_name == "cpu":
        return None
    if platform_name == "gpu":
        # Boards of other makers, and of NVIDIA where its program is not installed, show as device
        # files.
        there = bool(_nvidia()) or any(
            Path(f"/dev/{name}").exists() for name in ("nvidiactl", "kfd", "dxg")
        )
    else:
        # TensorFlow and JAX set TPU_ML_PLATFORM in every process that imports them, with a TPU or
        # without.
        there = any(
            name.startswith("TPU_") and not name.startswith("TPU_ML_PLATFORM")
            for name in os.environ
        )
        there = there or any(Path("/dev").glob("accel*")) or Path("/dev/vfio").exists()
    if there:
        return None
    return f"this machine has no {platform_name.upper()}"


def available_memory() -> int:
    """Return the bytes that can be taken without swapping, within limits of control groups."""
    available = int(psutil.virtual_memory().available)
    headroom = memory_headroom_bytes()
    if headroom is None:
        return available
    return min(available, headroom)


def memory_limit(point: Point) -> int:
    """Bytes of host memory that `point` may take now: what it asks for, else a safe share of what
    is free.
    """
    given = memory_bytes(point.measure.memory_limit, "measure.memory_limit")
    if given is not None:
        return given
    return int(_SAFE_SHARE * available_memory())


def exceeds_memory(point: Point, costs: Costs, limit: int | None) -> str | None:
    """Why a point is out of memory by arithmetic alone; None where it is to be tried."""
    bound = costs.memory_lower_bound_bytes / point.hosts
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
    """Versions that the interpreter `python` has installed, read without importing the framework.

    Raises ConfigError when the framework is not there, WorkerError when the interpreter does not
    run.
    """
    if python == sys.executable:
        return _require(versions(framework), framework, python)
    # As text: on the interpreter's path, the folder of this package would show it this
    # environment's distributions.
    code = f"{inspect.getsource(worker_versions)}\nimport json\nprint(json.dumps(versions({framework!r})))"
    try:
        for _ in range(3):
            done = subprocess.run(
                [python, "-c", code], capture_output=True, text=True, timeout=120, check=False
            )
            if done.returncode >= 0:  # else it was killed, which says nothing of it
                break
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        remedy = "give the path of a Python interpreter"
        raise ConfigError("software.python", python, f"does not run ({error})", remedy) from None
    try:
        return _require(json.loads(done.stdout.splitlines()[-1]), framework, python)
    except (ValueError, IndexError):
        said = [
            *done.stdout.splitlines(),
            *done.stderr.splitlines(),
            f"it ended with {done.returncode}",
        ]
        last = said[-2:][0][:200]
        raise WorkerError(f"software.python={python}: cannot describe itself: {last}") from None


def _require(found: Mapping[str, str], framework: str, python: str) -> Mapping[str, str]:
    entry = FRAMEWORKS[framework]
    for package, extra in ((entry.package, entry.extra), ("keras", "")):
        if not any(name.startswith(package) for name in found):
            # What this project's own interpreter lacks is one of its extras.
            if python == sys.executable and extra:
                wanted = f"'paradnn[{extra}]'"
            else:
                wanted = package
            remedy = f"run {python} -m pip install {wanted}, or set software.python"
            raise ConfigError(
                "framework.name", framework, f"{package} is not installed in {python}", remedy
            )
    return found


@functools.cache
def _processor() -> Mapping[str, Any]:
    # Size of each level that the first core sees, as Linux has it.
    caches = {}
    kinds = {"Data": "d", "Instruction": "i"}
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (read_text(entry / part) for part in ("level", "type", "size"))
        caches[f"L{level}{kinds.get(kind, '')}"] = size
    return {
        "processor": _cpuinfo("model name", "Hardware", "Model")
        or platform.processor()
        or platform.machine(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "physical_cores": psutil.cpu_count(logical=False) if sys.modules.get("psutil") else None,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "caches": caches,
        "isa": sorted(_ISA & {*_cpuinfo("flags", "Features").split()}),
    }


def _cpuinfo(*heads: str) -> str:
    """What the first row says that begins with one of these; empty where there is none."""
    rows = read_text(Path("/proc/cpuinfo")).splitlines()
    return next((row.partition(":")[2].strip() for row in rows if row.startswith(heads)), "")


@functools.cache
def _nvidia() -> tuple[Mapping[str, str], ...]:
    """Name, memory and driver of each NVIDIA device; none where `nvidia-smi` is not there."""
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
    """Commit of this checkout, with a mark where files are changed; an installed package is in no
    checkout.
    """
    with contextlib.suppress(OSError, ParadnnError):
        if CHECKOUT is not None:
            return commit_of(folder=CHECKOUT)
    return "unknown"
