"""Where a task runs: node, job and scheduler, and how long it waited until it could begin.

Read from what the scheduler says in the environment of its jobs; outside of one there is nothing to tell.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from paradnn.sweep.tasks import Launched, SweepInfo

#: Whether this process has begun a session before.
_served = False


def job_tags() -> dict[str, str]:
    """`node` and `job_id` as the scheduler names them; empty outside of Slurm and Ray."""
    slurm = os.environ
    if "SLURM_JOB_ID" in slurm:
        array = f"{slurm.get('SLURM_ARRAY_JOB_ID')}_{slurm.get('SLURM_ARRAY_TASK_ID', '0')}"
        job = array if "SLURM_ARRAY_JOB_ID" in slurm else slurm["SLURM_JOB_ID"]
        return {"job_id": job, "node": slurm.get("SLURMD_NODENAME", "unknown"), "restarts": str(restarts())}
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        context = ray.get_runtime_context()
        return {"job_id": str(context.get_job_id()), "node": str(context.get_node_id())}
    return {}


def restarts() -> int:
    """How often Slurm has put this job back into the queue."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def task_name(sweep: SweepInfo | None) -> str | None:
    """The name of a launched task, the same in each of its attempts."""
    return f"{sweep.sweep_id}/{sweep.launched.task}" if sweep and sweep.launched else None


def task_tags(sweep: SweepInfo | None) -> dict[str, str]:
    """What the runs of this process say of where they were measured."""
    tags = job_tags() | ({"sweep_id": sweep.sweep_id} if sweep else {})
    if sweep is None or sweep.launched is None:
        return tags
    tags |= {"launcher": sweep.launched.launcher, "task": str(sweep.launched.task)}
    if sweep.launched.processes > 1:
        tags["neighbours"] = f"{sweep.launched.processes} processes of one host measured at the same time"
    return tags


def process_start() -> float:
    """When this process began, in Unix seconds: finer than psutil, which takes the host's start in whole seconds."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - age
    except (OSError, AttributeError):
        return psutil.Process().create_time()


def waiting_times(launched: Launched | None, now: float | None = None) -> Mapping[str, float]:
    """Seconds between submission and the start of the task's process, and from there until now.

    The submitting host's clock is compared with this one's. Of a task that was put back into the queue it is not
    known when, so nothing is said; of a process that served other tasks before, the start is now. Without a launcher
    nothing was submitted, and of a later session of one process there is no start.
    """
    global _served
    served, _served = _served, True
    if restarts():
        return {}
    now = time.time() if now is None else now
    born = process_start()
    if launched is None:
        return {} if served else {"task_start_seconds": max(0.0, now - born)}
    begun = born if born >= launched.submitted else now
    return {"queue_seconds": max(0.0, begun - launched.submitted), "task_start_seconds": max(0.0, now - begun)}
