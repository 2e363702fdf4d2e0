"""A point on some cores: this process, and real points."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from paradnn.config.identity import point_id, request_of
from paradnn.config.point import Point, read_point
from paradnn.core.errors import ConfigError
from paradnn.core.words import core_list, core_text
from paradnn.session.workers import Limits, WorkerKey, WorkerPool
from tests.conftest import processes_of_points

TINY = {"name": "fc", "layers": 1, "nodes": 8, "input_size": 16, "output_size": 4}
SHORT = {"min_seconds": 0.02, "min_blocks": 6, "block_seconds": 0.002, "warmup_seconds": 0.2}
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")


def point(cores: object = None, measure: dict | None = None, **further: object) -> Point:
    platform = {"name": "cpu", "cores": cores}
    return read_point({"model": TINY, "batch_size": 4, "platform": platform, "measure": measure or SHORT, **further})


def test_cores_are_written_in_one_way() -> None:
    assert core_list("0-3,6\n") == [0, 1, 2, 3, 6]
    assert core_list("") == core_list("x-y") == core_list("3-1") == core_list("1,") == []
    assert core_text([6, 2, 0, 1]) == "0-2,6"
    assert point("6,0-1,2").platform.cores == "0-2,6"
    assert point_id(point(0)) == point_id(point("0")) != point_id(point("0-1"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cores": "0-x"}, r"platform\.cores=0-x: is not understood; write numbers and ranges"),
        ({"cores": "3-1"}, r"platform\.cores=3-1: names no core; write the smaller number first"),
        ({"cores": -1}, r"platform\.cores=-1: must be at least 0"),
        ({"cores": "0-1", "devices": 2}, r"platform\.cores=0-1: is for one device, not for devices=2; leave one"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        point(**wrong)


@LINUX
@pytest.mark.framework
@pytest.mark.parametrize("framework", ["tensorflow", "jax", "torch"])
def test_every_thread_of_a_bound_point_is_on_its_cores(framework: str, pool: WorkerPool) -> None:
    pytest.importorskip(framework)
    core = max(os.sched_getaffinity(0))
    bound = point(core, framework={"name": framework})
    result = pool.measure(WorkerKey.of(bound), request_of(bound), Limits(200, None), lambda _: None)
    assert result.outcome == "ok", result.reason
    assert result.answer.measurement.contention.cores == 1
    masks: set[str] = set()

    def look_and_end(phase: str) -> None:
        if phase == "measure":
            for pid in processes_of_points():
                masks.update(_masks(pid))
                os.kill(pid, signal.SIGKILL)

    # Measured until it is killed: its threads are there to be looked at.
    long = point(core, {**SHORT, "min_seconds": 1000, "max_seconds": 1000}, framework={"name": framework})
    assert pool.measure(WorkerKey.of(long), request_of(long), Limits(200, None), look_and_end).outcome != "ok"
    assert masks == {str(core)}


def _masks(pid: int) -> list[str]:
    """The cores of every thread of a process."""
    found = []
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(OSError):  # a thread that has ended
            rows = dict(row.split(":", 1) for row in status.read_text().splitlines())
            found.append(rows["Cpus_allowed_list"].strip())
    return found
