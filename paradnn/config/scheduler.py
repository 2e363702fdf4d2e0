"""Where a driver runs: node and job as Slurm says it in the environment, and how long the process
took to begin.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

#: Whether this process has begun a session before.
_served = False


def job_tags() -> dict[str, str]:
    """`node` and `job_id` as Slurm names them; empty outside of it."""
    slurm = os.environ
    if "SLURM_JOB_ID" not in slurm:
        return {}
    array = f"{slurm.get('SLURM_ARRAY_JOB_ID')}_{slurm.get('SLURM_ARRAY_TASK_ID', '0')}"
    if "SLURM_ARRAY_JOB_ID" in slurm:
        job = array
    else:
        job = slurm["SLURM_JOB_ID"]
    return {"job_id": job, "node": slurm.get("SLURMD_NODENAME", "unknown")}


def process_start() -> float:
    """When this process began, in Unix seconds: finer than psutil, which takes the host's start in
    whole seconds.
    """
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - age
    except (OSError, AttributeError):
        return psutil.Process().create_time()


def start_seconds() -> Mapping[str, float]:
    """Seconds from the start of this process until now, as a metric; of a later session of it there
    are none.
    """
    global _served
    served = _served
    _served = True
    if served:
        return {}
    return {"task_start_seconds": max(0.0, time.time() - process_start())}
