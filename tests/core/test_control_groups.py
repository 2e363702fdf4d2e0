"""Limits of control groups, on planted hosts of several schedulers and in real groups."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from paradnn.core.control_groups import (
    cpu_quota_cores,
    memory_headroom_bytes,
    memory_limit_bytes,
    oom_kill_count,
    throttled_seconds,
)

MIB = 2**20
GIB = 2**30
#: The value for "no limit" in version 1, with pages of 4 KiB and of 64 KiB.
UNLIMITED = str(2**63 - 4096)
UNLIMITED_LARGE_PAGES = str(2**63 - 65536)
#: Lines of /proc/self/mountinfo; `root` is the mounted group.
V2_MOUNT = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def plant(root: Path, files: dict[str, str]) -> Path:
    """Write the files of a planted host below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2_group(
    path: str, *, limit: str = "max", high: str = "max", current: int = 0, inactive_file: int = 0
) -> dict[str, str]:
    """Return the memory files of a group in version 2."""
    folder = f"sys/fs/cgroup/{path}"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.high": f"{high}\n",
        f"{folder}/memory.current": f"{current}\n",
        f"{folder}/memory.stat": f"anon 5\nfile 7\ninactive_file {inactive_file}\n",
    }


def v1_group(
    path: str,
    *,
    limit: str = UNLIMITED,
    usage: int = 0,
    swap_limit: str = UNLIMITED,
    swap_usage: int = 0,
    inactive_file: int = 0,
    use_hierarchy: str = "1",
    hierarchical_limit: str = UNLIMITED,
) -> dict[str, str]:
    """Return the memory files of a group in version 1."""
    folder = f"sys/fs/cgroup/memory/{path}"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{usage}\n",
        f"{folder}/memory.memsw.limit_in_bytes": f"{swap_limit}\n",
        f"{folder}/memory.memsw.usage_in_bytes": f"{swap_usage}\n",
        f"{folder}/memory.stat": (
            f"inactive_file 1\nhierarchical_memory_limit {hierarchical_limit}\n"
            f"total_inactive_file {inactive_file}\n"
        ),
        f"{folder}/memory.use_hierarchy": f"{use_hierarchy}\n",
    }


#: Files of planted hosts, the limit and the headroom in bytes.
HOSTS = {
    "systemd, limit on an outer slice": (
        {
            "proc/self/cgroup": "0::/user.slice/user-0.slice/session-1.scope\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            **v2_group("user.slice", limit=str(4 * GIB), current=GIB),
            **v2_group("user.slice/user-0.slice"),
            **v2_group("user.slice/user-0.slice/session-1.scope", limit=str(8 * GIB)),
        },
        4 * GIB,
        3 * GIB,
    ),
    "the fullest group, not the smallest limit, has the least headroom": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            **v2_group("a", limit=str(8 * GIB), current=7 * GIB),
            **v2_group("a/b", limit=str(4 * GIB), current=GIB),
        },
        4 * GIB,
        GIB,
    ),
    "inactive file pages are free": (
        {
            "proc/self/cgroup": "0::/job\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            **v2_group("job", limit=str(4 * GIB), current=3 * GIB, inactive_file=2 * GIB),
        },
        4 * GIB,
        3 * GIB,
    ),
    "memory.high slows a group down before memory.max": (
        {
            "proc/self/cgroup": "0::/job\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            **v2_group("job", limit=str(4 * GIB), high=str(3 * GIB), current=GIB),
        },
        3 * GIB,
        2 * GIB,
    ),
    "Slurm, version 2, limit of the job and of the step": (
        {
            "proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            **v2_group("system.slice/slurmstepd.scope/job_7", limit=str(2 * GIB), current=MIB),
            **v2_group("system.slice/slurmstepd.scope/job_7/step_0", limit=str(16 * GIB)),
            **v2_group("system.slice/slurmstepd.scope/job_7/step_0/user/task_0"),
        },
        2 * GIB,
        2 * GIB - MIB,
    ),
    "Slurm, version 1, limit of the job": (
        {
            "proc/self/cgroup": "9:memory:/slurm/uid_1000/job_7/step_0\n5:cpu,cpuacct:/\n0::/\n",
            "proc/self/mountinfo": V1_MOUNT.format(root="/"),
            **v1_group(""),
            **v1_group("slurm"),
            **v1_group("slurm/uid_1000"),
            **v1_group("slurm/uid_1000/job_7", limit=str(2 * GIB), usage=GIB, inactive_file=MIB),
            **v1_group("slurm/uid_1000/job_7/step_0", limit=UNLIMITED_LARGE_PAGES),
        },
        2 * GIB,
        GIB + MIB,
    ),
    "version 1, swap has used up the limit of memory and swap": (
        {
            "proc/self/cgroup": "9:memory:/job\n",
            "proc/self/mountinfo": V1_MOUNT.format(root="/"),
            **v1_group(
                "job",
                limit=str(4 * GIB),
                usage=2 * GIB,
                swap_limit=str(4 * GIB),
                swap_usage=4 * GIB - MIB,
            ),
        },
        4 * GIB,
        MIB,
    ),
    "version 1, outer limits do not apply without hierarchy": (
        {
            "proc/self/cgroup": "9:memory:/a/b\n",
            "proc/self/mountinfo": V1_MOUNT.format(root="/"),
            **v1_group("a", limit=str(GIB), use_hierarchy="0"),
            **v1_group("a/b", limit=str(2 * GIB)),
        },
        2 * GIB,
        2 * GIB,
    ),
    "Kubernetes, version 2, own namespace": (
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            **v2_group("", limit=str(GIB), current=GIB // 2),
        },
        GIB,
        GIB // 2,
    ),
    "Kubernetes, version 1, path of the host": (
        {
            "proc/self/cgroup": "9:memory:/kubepods/burstable/pod1/abc\n",
            "proc/self/mountinfo": V1_MOUNT.format(root="/kubepods/burstable/pod1/abc"),
            **v1_group("", limit=str(GIB), usage=MIB),
        },
        GIB,
        GIB - MIB,
    ),
    "Kubernetes, version 1, the mount hides the group with the limit": (
        {
            "proc/self/cgroup": "9:memory:/kubepods/burstable/pod1/abc\n",
            "proc/self/mountinfo": V1_MOUNT.format(root="/kubepods/burstable/pod1/abc"),
            **v1_group("", usage=MIB, hierarchical_limit=str(GIB)),
        },
        GIB,
        GIB - MIB,
    ),
    "Docker, process outside of the namespace's root": (
        {
            "proc/self/cgroup": "0::/../../init.scope\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            **v2_group("", limit=str(GIB)),
        },
        GIB,
        GIB,
    ),
    "hybrid, memory managed by version 1": (
        {
            "proc/self/cgroup": "4:memory:/job\n1:name=systemd:/x\n0::/x\n",
            "proc/self/mountinfo": "1 1 0:9 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            + V1_MOUNT.format(root="/"),
            **v1_group("job", limit=str(GIB)),
            **v2_group("x", limit=str(MIB)),
        },
        GIB,
        GIB,
    ),
    "hybrid, memory managed by version 2": (
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/y\n0::/x\n",
            "proc/self/mountinfo": "1 1 0:9 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            **v2_group("unified/x", limit=str(GIB)),
        },
        GIB,
        GIB,
    ),
    "no mountinfo": (
        {"proc/self/cgroup": "0::/a\n", **v2_group("a", limit=str(GIB))},
        GIB,
        GIB,
    ),
    "mount point with a space": (
        {
            "proc/self/cgroup": "0::/a\n",
            "proc/self/mountinfo": "1 1 0:9 / /sys/fs/cgroup/my\\040groups rw - cgroup2 c rw\n",
            **v2_group("my groups/a", limit=str(GIB)),
        },
        GIB,
        GIB,
    ),
    "usage beyond the limit": (
        {
            "proc/self/cgroup": "0::/a\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            **v2_group("a", limit=str(GIB), current=2 * GIB),
        },
        GIB,
        0,
    ),
    "no limit": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            **v2_group("a"),
            **v2_group("a/b"),
        },
        None,
        None,
    ),
    "group was deleted": (
        {
            "proc/self/cgroup": "0::/a/b (deleted)\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/"),
            **v2_group("a", limit=str(GIB)),
        },
        GIB,
        GIB,
    ),
    "no control groups": ({}, None, None),
}


@pytest.mark.parametrize(("files", "limit", "headroom"), HOSTS.values(), ids=HOSTS.keys())
def test_memory_limit_and_headroom_of_planted_hosts_are_found(
    files: dict[str, str], limit: int | None, headroom: int | None, tmp_path: Path
) -> None:
    plant(tmp_path, files)

    assert memory_limit_bytes(tmp_path) == limit
    assert memory_headroom_bytes(tmp_path) == headroom


@pytest.mark.parametrize(
    ("files", "count"),
    [
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.events": "low 0\noom 4\noom_kill 3\n",
                "sys/fs/cgroup/a/b/memory.events": "low 0\noom 4\noom_kill 2\n",
            },
            2,
            id="version 2, own group",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.events": "oom 4\noom_kill 3\n",
            },
            3,
            id="version 2, the inner group has no memory controller",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "9:memory:/a\n",
                "sys/fs/cgroup/memory/a/memory.oom_control": "under_oom 0\noom_kill 1\n",
            },
            1,
            id="version 1",
        ),
        pytest.param({}, None, id="no control groups"),
    ],
)
def test_processes_killed_for_lack_of_memory_are_counted(
    files: dict[str, str], count: int | None, tmp_path: Path
) -> None:
    plant(tmp_path, files)

    assert oom_kill_count(tmp_path) == count


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            },
            1.5,
            id="version 2, quota of the outer group",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "2:cpu,cpuacct:/a\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            0.5,
            id="version 1",
        ),
        pytest.param({"proc/self/cgroup": "0::/\n"}, None, id="no quota"),
        pytest.param(
            {
                "proc/self/cgroup": "garbage\n\n0::/a\n",
                "sys/fs/cgroup/a/cpu.max": "150000 0\n",
                "sys/fs/cgroup/cpu.max": "200000 100000\n",
            },
            2.0,
            id="invalid lines and periods",
        ),
    ],
)
def test_the_cpu_quota_is_read_in_cores(
    files: dict[str, str], cores: float | None, tmp_path: Path
) -> None:
    plant(tmp_path, files)

    assert cpu_quota_cores(tmp_path) == cores


def test_throttled_time_includes_that_of_outer_groups(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/cpu.stat": "usage_usec 9\nthrottled_usec 1500000\n",
            "sys/fs/cgroup/a/b/cpu.stat": "usage_usec 9\nthrottled_usec 500000\n",
            "sys/fs/cgroup/cpu.stat": "usage_usec 9\n",
        },
    )

    assert throttled_seconds(tmp_path) == 2.0


#: Program that enters a group and prints its memory limit and the headroom. It prints the headroom
#: again after writing a file of 40 MiB, and after allocating 30 MiB.
MEMORY_PROGRAM = """
import json, os, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from paradnn.core.control_groups import memory_headroom_bytes, memory_limit_bytes
from paradnn.platform.environment import available_memory
seen = [memory_limit_bytes(), memory_headroom_bytes()]
with open(sys.argv[2], "wb") as file:
    for _ in range(40):
        file.write(os.urandom(2**20))
    file.flush()
    os.fsync(file.fileno())
seen.append(memory_headroom_bytes())
memory = bytearray(30 * 2**20)
memory[::4096] = b"x" * len(memory[::4096])
seen += [memory_headroom_bytes(), available_memory()]
print(json.dumps(seen))
"""


@contextmanager
def real_group(limit: int) -> Iterator[Path]:
    """Create a group with a memory limit and a group without a limit inside; yield the inner one.

    Skip the test if this user cannot create the groups.
    """
    v1 = Path("/sys/fs/cgroup/memory")
    base = v1 if (v1 / "memory.limit_in_bytes").exists() else Path("/sys/fs/cgroup")
    outer = base / f"paradnn-test-{os.getpid()}"
    inner = outer / "inner"
    try:
        outer.mkdir()
        if base != v1:
            (outer / "cgroup.subtree_control").write_text("+memory")
        inner.mkdir()
        name = "memory.limit_in_bytes" if base == v1 else "memory.max"
        (outer / name).write_text(str(limit))
        # With swap, the kernel would swap instead of killing processes.
        for swap, value in (("memory.memsw.limit_in_bytes", str(limit)), ("memory.swap.max", "0")):
            if (outer / swap).exists():
                (outer / swap).write_text(value)
    except OSError as error:
        for folder in (inner, outer):
            with suppress(OSError):
                folder.rmdir()
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    try:
        yield inner
    finally:
        for folder in (inner, outer):
            folder.rmdir()


@pytest.mark.skipif(sys.platform != "linux", reason="control groups exist only on Linux")
def test_in_a_real_group_page_cache_does_not_reduce_the_headroom(tmp_path: Path) -> None:
    with real_group(limit=256 * MIB) as group:
        command = [sys.executable, "-c", MEMORY_PROGRAM, str(group), str(tmp_path / "file")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr

    limit, before, with_page_cache, with_memory, available = map(int, done.stdout[1:-2].split(","))
    assert limit == 256 * MIB
    assert 0 < before <= limit
    assert with_page_cache > before - 20 * MIB, "40 MiB of page cache must not reduce the headroom"
    assert with_memory <= with_page_cache - 20 * MIB, "30 MiB of memory must reduce the headroom"
    assert 0 < available <= with_memory + 8 * MIB


#: Program that enters a group and starts a process that exceeds its memory. It prints the exit code
#: of the process and the increase of the count of killed processes.
KILLED_PROGRAM = """
import json, os, subprocess, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from paradnn.core.control_groups import oom_kill_count
before = oom_kill_count()
done = subprocess.run([sys.executable, "-c", "bytearray(b'x') * 2**28"], check=False)
print(json.dumps([done.returncode, oom_kill_count() - before]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="control groups exist only on Linux")
def test_a_process_that_exceeds_the_memory_of_a_real_group_is_counted() -> None:
    with real_group(limit=64 * MIB) as group:
        command = [sys.executable, "-c", KILLED_PROGRAM, str(group)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.stdout == "[-9, 1]\n", done.stderr
