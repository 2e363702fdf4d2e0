"""Environment of a driver in a scheduler's job: job tags, shared sweep, and start-up time.

Drivers share one sweep, with one parent run, if environment variables identify the sweep:

- PARADNN_SWEEP: id of the sweep, equal for all its drivers.
- PARADNN_DRIVER: number of the driver. It must be the same after a restart. Default: the index of
  the task in an indexed job of Kubernetes or an array job of Slurm.
- PARADNN_START: internal; a launcher's information about the start of the driver (`DriverStart`).
"""

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from paradnn.core.channel import read_message
from paradnn.core.errors import ConfigError

SWEEP_VARIABLE = "PARADNN_SWEEP"
DRIVER_VARIABLE = "PARADNN_DRIVER"
START_VARIABLE = "PARADNN_START"
#: Environment variables that contain the number of a task in its job, in order of precedence.
_NUMBER_VARIABLES = (
    DRIVER_VARIABLE,
    "JOB_COMPLETION_INDEX",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_PROCID",
)
#: Environment variables that select the accelerators of a process, in order of precedence.
_DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")

#: Whether `start_seconds` has been called for a session of this process.
_has_begun_session = False
#: Index of the start time (in clock ticks) among the fields of /proc/self/stat after the command.
_START_FIELD = 19


@dataclass(frozen=True)
class DriverStart:
    """A launcher's information about the start of a driver, the process that runs measurements.

    Times are Unix seconds.

    Attributes:
        launched: Time at which the launching process submitted the job.
        started: Start of the job as reported by the scheduler, or else by the job's first process.
        called: Time at which the process of the job called the task that starts the driver.
        pids: Ids of processes on this host. If one of them ends, the driver ends, too.
        job_id: Id of the job if the environment does not contain the id; may be empty.
        launcher: Name of the launcher, such as "joblib".
    """

    launched: float
    started: float
    called: float
    pids: list[int]
    job_id: str = ""
    launcher: str = ""

    @property
    def text(self) -> str:
        """This object as text, the value of the environment variable PARADNN_START."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class SharedSweep:
    """The sweep that this driver measures together with other drivers.

    Attributes:
        sweep_id: Id of the sweep.
        driver: Number of this driver, from 0.
        is_launched: Whether a launcher started this driver.
    """

    sweep_id: str
    driver: int
    is_launched: bool


def shared_sweep() -> SharedSweep | None:
    """Return the sweep that this driver shares with others, from environment variables.

    Returns:
        The sweep; None if PARADNN_SWEEP is not set.

    Raises:
        ConfigError: If a variable is invalid, or the number of the driver is missing.
    """
    sweep_id = os.environ.get(SWEEP_VARIABLE)
    if sweep_id is None:
        return None
    if not re.fullmatch(r"[\w.-]{1,100}", sweep_id):
        remedy = "use at most 100 letters, digits, and . _ or -"
        raise ConfigError(SWEEP_VARIABLE, sweep_id, "is not a valid id of a sweep", remedy)
    name = next((name for name in _NUMBER_VARIABLES if name in os.environ), None)
    if name is None:
        reason = "is set, but the number of the driver is unknown"
        remedy = f"set {DRIVER_VARIABLE} to a different number for each driver"
        raise ConfigError(SWEEP_VARIABLE, sweep_id, reason, remedy)
    number = os.environ[name]
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        remedy = "set it to 0 for the first driver, 1 for the second, and so on"
        raise ConfigError(name, number, "is not a driver number", remedy)
    return SharedSweep(sweep_id, int(number), driver_start() is not None)


def driver_start() -> DriverStart | None:
    """Return the launcher's information about the start of this driver.

    Returns:
        The information; None if no launcher started this driver.
    """
    with contextlib.suppress(ValueError):
        content = json.loads(os.environ.get(START_VARIABLE, "null"))
        if content is not None:
            return read_message(DriverStart, content, START_VARIABLE)
    return None


def job_tags() -> dict[str, str]:
    """Return the tags `job_id` and `node` of the scheduler's job; empty outside of a job.

    `job_id` is omitted if it is unknown.
    """
    environ = os.environ
    if "SLURM_JOB_ID" in environ:
        if "SLURM_ARRAY_JOB_ID" in environ:
            task = environ.get("SLURM_ARRAY_TASK_ID", "0")
            job_id = f"{environ['SLURM_ARRAY_JOB_ID']}_{task}"
        else:
            job_id = environ["SLURM_JOB_ID"]
        return {"job_id": job_id, "node": environ.get("SLURMD_NODENAME", "unknown")}
    start = driver_start()
    job_id = environ.get("PARADNN_JOB_ID", "")
    if not job_id and start:
        job_id = start.job_id
    if start is None and not job_id:
        return {}
    tags = {"node": environ.get("PARADNN_NODE") or socket.gethostname()}
    if job_id:
        tags["job_id"] = job_id
    return tags


def visible_cores() -> str:
    """Return the processor cores that this process may use, as text such as "0-3,8"."""
    try:
        cores = sorted(os.sched_getaffinity(0))
    except AttributeError:  # the system has no affinity
        cores = list(range(os.cpu_count() or 1))
    ranges: list[list[int]] = []
    for core in cores:
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in ranges)


def visible_devices() -> str:
    """Return the accelerators that the environment assigns to this process, such as "0,1".

    The result is empty if no variable assigns accelerators.
    """
    return next((os.environ[name] for name in _DEVICE_VARIABLES if os.environ.get(name)), "")


def process_start() -> float:
    """Return the Unix time in seconds at which this process began.

    On Linux, the result is more precise than that of psutil, which rounds the boot time to seconds.
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start_since_boot = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - start_since_boot
        return time.time() - age
    except (OSError, AttributeError):
        return psutil.Process().create_time()


def start_seconds() -> Mapping[str, float]:
    """Return how long this driver took to start, in parts, as metrics in seconds.

    `task_start_seconds` is the time since this process began. A launched driver also has
    `queue_seconds`, from the launch to the start of its job, and `launcher_seconds`, from the start
    of the job to the start of this process. The result is empty from the second call on, because
    the start of a process counts only for its first session.
    """
    global _has_begun_session
    if _has_begun_session:
        return {}
    _has_begun_session = True
    begin = process_start()
    metrics = {"task_start_seconds": max(0.0, time.time() - begin)}
    start = driver_start()
    if start is not None:
        metrics["queue_seconds"] = max(0.0, start.started - start.launched)
        metrics["launcher_seconds"] = max(0.0, begin - start.started)
    return metrics
