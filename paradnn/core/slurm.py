"""Memory and processors that Slurm has allocated to the current job on this node.

On clusters without control groups, Slurm ends a job that exceeds its memory, but does not prevent
it from using the processors of other jobs. The allocation is then only known from environment
variables (https://slurm.schedmd.com/sbatch.html).
"""

import os
import re
from collections.abc import Mapping

#: Bytes of Slurm's unit of memory.
_UNIT_BYTES = 2**20


def allocated_memory_bytes(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the bytes of memory that Slurm has allocated to this job on this node.

    Args:
        environ: Environment variables, from which the allocation is read.

    Returns:
        Bytes; None outside of a job, or if the job has no memory limit.
    """
    if not _is_on_node_of_job(environ):
        return None
    per_node = _count(environ, "SLURM_MEM_PER_NODE")
    if per_node is not None:
        # Zero requests the whole memory of the node.
        return _UNIT_BYTES * per_node or None
    for unit_memory, unit_count in (
        (_count(environ, "SLURM_MEM_PER_CPU"), _count(environ, "SLURM_CPUS_ON_NODE")),
        (_count(environ, "SLURM_MEM_PER_GPU"), _count(environ, "SLURM_GPUS_ON_NODE")),
    ):
        if unit_memory and unit_count:
            return _UNIT_BYTES * unit_memory * unit_count
    return None


def allocated_cores(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of logical processors that this process may use; None without a job.

    A batch script may use all processors of the job on this node. A task that srun started may use
    only its share, because the other processors belong to other tasks of its job step.

    SLURM_JOB_CPUS_PER_NODE is not needed: it is never smaller than SLURM_CPUS_ON_NODE, which Slurm
    always sets.

    Args:
        environ: Environment variables, from which the allocation is read.
    """
    if not _is_on_node_of_job(environ):
        return None
    on_node = _count(environ, "SLURM_CPUS_ON_NODE")
    per_task = _count(environ, "SLURM_CPUS_PER_TASK")
    if on_node and per_task and _count(environ, "SLURM_STEP_ID") is not None:
        return min(on_node, per_task)
    return on_node


def _is_on_node_of_job(environ: Mapping[str, str]) -> bool:
    # A shell of salloc has SLURM_JOB_ID, but may run on the login node.
    return "SLURM_JOB_ID" in environ and "SLURMD_NODENAME" in environ


def _count(environ: Mapping[str, str], name: str) -> int | None:
    """Return an environment variable as an integer; None if it is not set or not a whole number."""
    text = environ.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None
