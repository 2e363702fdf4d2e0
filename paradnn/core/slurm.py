"""Memory and processors that Slurm has allocated to the current job on this node.

Clusters that do not constrain jobs by control groups end a job that exceeds its memory, and let it
run on the processors of other jobs. There the variables of the job are the only source.
https://slurm.schedmd.com/sbatch.html lists them.
"""

import os
import re
from collections.abc import Mapping

#: Slurm counts memory in units of 2**20 bytes.
_UNIT = 2**20


def allocated_memory_bytes(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the memory of the job on this node; None outside of a job or without a limit.

    Args:
        environ: Environment variables.
    """
    if not _is_on_node_of_job(environ):
        return None
    per_node = _count(environ, "SLURM_MEM_PER_NODE")
    if per_node is not None:
        # Zero requests the whole memory of the node.
        return _UNIT * per_node or None
    for each, number in (
        (_count(environ, "SLURM_MEM_PER_CPU"), _count(environ, "SLURM_CPUS_ON_NODE")),
        (_count(environ, "SLURM_MEM_PER_GPU"), _count(environ, "SLURM_GPUS_ON_NODE")),
    ):
        if each and number:
            return _UNIT * each * number
    return None


def allocated_cores(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the logical processors that this process may use; None outside of a job.

    These are the processors of the job or step on this node. A task of a step shares them with the
    other tasks of the step. A batch script is no task of a step, so it has all of them.

    SLURM_JOB_CPUS_PER_NODE is never smaller than SLURM_CPUS_ON_NODE, which Slurm always sets.

    Args:
        environ: Environment variables.
    """
    if not _is_on_node_of_job(environ):
        return None
    on_node = _count(environ, "SLURM_CPUS_ON_NODE")
    per_task = _count(environ, "SLURM_CPUS_PER_TASK")
    if on_node and per_task and _count(environ, "SLURM_STEP_ID") is not None:
        return min(on_node, per_task)
    return on_node


def _is_on_node_of_job(environ: Mapping[str, str]) -> bool:
    # A shell of salloc has the variables of the job, but may run on the login node.
    return "SLURM_JOB_ID" in environ and "SLURMD_NODENAME" in environ


def _count(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None
