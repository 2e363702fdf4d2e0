"""Memory and cores of a Slurm job, from the variables that Slurm sets on the nodes of the job."""

import pytest

from paradnn.core.slurm import allocated_cores, allocated_memory_bytes

MIB = 2**20
JOB = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node1", "SLURM_CPUS_ON_NODE": "6"}


@pytest.mark.parametrize(
    ("environ", "memory", "cores"),
    [
        pytest.param(JOB | {"SLURM_MEM_PER_NODE": "4096"}, 4096 * MIB, 6, id="memory per node"),
        pytest.param(
            JOB | {"SLURM_MEM_PER_CPU": "512", "SLURM_CPUS_PER_TASK": "2"},
            6 * 512 * MIB,
            6,
            id="memory per CPU, batch script that starts three tasks",
        ),
        pytest.param(
            JOB
            | {"SLURM_STEP_ID": "0", "SLURM_CPUS_PER_TASK": "2", "SLURM_MEM_PER_CPU": "512"}
            | {"SLURM_JOB_CPUS_PER_NODE": "12(x2),6"},
            6 * 512 * MIB,
            2,
            id="one of three tasks of a step",
        ),
        pytest.param(
            JOB | {"SLURM_STEP_ID": "0", "SLURM_CPUS_PER_TASK": "8"},
            None,
            6,
            id="step with fewer cores than a task requests",
        ),
        pytest.param(
            JOB | {"SLURM_MEM_PER_GPU": "2048", "SLURM_GPUS_ON_NODE": "2"},
            4096 * MIB,
            6,
            id="memory per GPU",
        ),
        pytest.param(JOB | {"SLURM_MEM_PER_NODE": "0"}, None, 6, id="all memory of the node"),
        pytest.param(JOB | {"SLURM_MEM_PER_NODE": "4G"}, None, 6, id="not a number"),
        pytest.param(
            {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "6", "SLURM_MEM_PER_NODE": "9"},
            None,
            None,
            id="salloc on the login node",
        ),
        pytest.param({"SLURM_MEM_PER_NODE": "9"}, None, None, id="no job"),
    ],
)
def test_memory_and_cores_of_a_job_follow_from_its_variables(
    environ: dict[str, str], memory: int | None, cores: int | None
) -> None:
    assert allocated_memory_bytes(environ) == memory
    assert allocated_cores(environ) == cores
