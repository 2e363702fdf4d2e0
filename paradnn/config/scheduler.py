"""Where a driver runs, as Slurm describes it in the environment, and how long its start took."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

#: Whether this process has begun a session before.
_has_begun_session = False
#: The field of /proc/self/stat, after the name of the command, that holds the start in clock ticks.
_START_FIELD = 19


def job_tags() -> dict[str, str]:
    """Return the tags `node` and `job_id` of a Slurm job; empty outside of Slurm."""
    environ = os.environ
    if "SLURM_JOB_ID" not in environ:
        return {}
    if "SLURM_ARRAY_JOB_ID" in environ:
        job_id = f"{environ['SLURM_ARRAY_JOB_ID']}_{environ.get('SLURM_ARRAY_TASK_ID', '0')}"
    else:
        job_id = environ["SLURM_JOB_ID"]
    return {"job_id": job_id, "node": environ.get("SLURMD_NODENAME", "unknown")}


def process_start() -> float:
    """Return the Unix time in seconds at which this process began.

    It is finer than psutil's, which knows the start of the host in whole seconds.
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start_since_boot = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - start_since_boot
        return time.time() - age
    except (OSError, AttributeError):
        return psutil.Process().create_time()


def start_seconds() -> Mapping[str, float]:
    """Return the seconds from the start of this process until now as a metric.

    Empty for every further session of the process, since its start belongs to the first.
    """
    global _has_begun_session
    if _has_begun_session:
        return {}
    _has_begun_session = True
    return {"task_start_seconds": max(0.0, time.time() - process_start())}
