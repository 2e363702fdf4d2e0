"""Memory of points and its limit, and several TensorFlow devices compared with one.

The reference for memory is `wait4` of a plain process, which imports the framework and runs the
point.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from paradnn.config.identity import point_id, point_request
from paradnn.config.outcome import PointResult
from paradnn.config.point import Point
from paradnn.config.reading import read_point
from paradnn.core.words import core_list, core_text
from paradnn.families import make_model
from paradnn.session.workers import Limits, WorkerKey, WorkerPool
from tests.conftest import ROOT, processes_of_points
from tests.worker import families
from tests.worker.families import BATCH, MODELS, POINT, RMSPROP

#: Largest relative difference of a loss after three updates: shards change the order of sums, and
#: therefore the rounding.
LOSS_TOLERANCE = 1e-5
CORES = len(os.sched_getaffinity(0))


def measure(pool: WorkerPool, **changes: Any) -> PointResult:
    """Measure four steps: one compiles, two calibrate, one is timed."""
    protocol = {"min_blocks": 1, "max_seconds": 1.0, "timeout": 200.0} | changes.pop("measure", {})
    return families.measure(
        pool, {"devices": 2, "optimizer": RMSPROP, "measure": protocol} | changes
    )


def test_two_devices_have_the_same_losses_as_one(pool: WorkerPool) -> None:
    single = measure(pool, devices=1).answer.measurement
    result = measure(pool, measure={"profile": True})
    assert result.outcome == "ok", result.reason
    double = result.answer.measurement
    assert double.first_loss == pytest.approx(single.first_loss, rel=LOSS_TOLERANCE)
    assert double.timing.final_loss == pytest.approx(single.timing.final_loss, rel=LOSS_TOLERANCE)
    assert double.parameters == single.parameters
    profile = result.answer.profile
    rows = profile.operation_types.rows()
    assert sum(row["share"] for row in rows) == pytest.approx(1.0, abs=1e-6)
    collective = [row for row in rows if row["category"] == "communication"]
    assert collective
    assert sum(row["share"] for row in collective) > 0
    costs = make_model(MODELS["fc"]).costs(
        batch_size=BATCH, precision="float32", mode="train", optimizer="rmsprop"
    )
    assert profile.product_flops == pytest.approx(costs.flops_per_step, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"compile": "xla"}, "set compile=graph or framework=jax", id="xla"),
        pytest.param(
            {
                "batch_size": 2 * CORES,
                "devices": 2,
                "platform": {"name": "cpu", "threads": CORES, "index": 0},
            },
            f"devices=2 with platform.threads={CORES} needs {2 * CORES} cores in total, "
            f"but this process may use only {CORES}",
            id="too few cores",
        ),
        pytest.param(
            {"platform": {"name": "gpu", "threads": None, "index": 0}},
            "sees 0 GPU devices, too few for devices=2 with platform.index=0",
            id="too few GPUs",
        ),
    ],
)
def test_unsupported_work_on_several_devices_is_unavailable(
    changes: dict[str, Any], reason: str, pool: WorkerPool
) -> None:
    """The worker has no GPU."""
    result = measure(pool, **changes)

    assert result.outcome == "unavailable"
    assert reason in (result.reason or "")


def test_tensorflow_does_not_share_the_weights_among_devices(pool: WorkerPool) -> None:
    result = measure(pool, parallel="model")
    assert result.outcome == "unavailable"
    assert result.reason == (
        "framework=tensorflow has no parallel=model, because Keras divides weights among "
        "devices only with JAX: set framework=jax or parallel=data"
    )


TINY = (MODELS["fc"] | {"layers": 1, "nodes": 8, "input_size": 16, "output_size": 4}, 4)
LARGE = (MODELS["fc"] | {"layers": 3, "nodes": 2048, "input_size": 1000, "output_size": 1000}, 256)
#: Runs a point without the memory meter's action after compiling, which resets the kernel's peak
#: and frees heap.
PLAIN = """
import sys
from paradnn.worker import frameworks, memory
memory.MemoryMeter.begin_steps = lambda meter: None
framework = frameworks.load(sys.argv[1])
from paradnn.worker.request import answer_request
answer = answer_request(eval(sys.argv[2]), framework, lambda *_: None)
assert not {"IPython", "matplotlib", "pandas", "sklearn"} & set(sys.modules), "Keras imports unused packages"
sys.exit(answer.outcome != "ok")
"""
#: Starts the plain process from a small process. The peak of a child includes the memory of the
#: process that forked it.
SMALL = """
import os, sys
pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", *sys.argv[1:]])
_, status, usage = os.wait4(pid, 0)
assert status == 0
print(usage.ru_maxrss * 1024)
"""


def plain_peak(framework: str, point: dict[str, Any]) -> int:
    """Return the peak memory in bytes that the kernel reports for a plain process."""
    environ = WorkerKey(sys.executable, framework, None, "cpu", ()).environ() | {
        "PYTHONPATH": str(ROOT)
    }
    command = [sys.executable, "-c", SMALL, PLAIN, framework, repr(POINT | point)]
    with tempfile.TemporaryDirectory() as caches:
        completed = subprocess.run(
            command, cwd=caches, env=environ, stdout=subprocess.PIPE, text=True, check=True
        )
    return int(completed.stdout)


#: Largest relative difference in memory between two plain processes of the same point. JAX compiles
#: in parallel, so its heap varies.
TOLERANCE = {"tensorflow": 0.08, "torch": 0.08, "jax": 0.2}
#: Options of a model, and a batch size.
SizedModel = tuple[dict[str, Any], int]


def check_memory(
    pool: WorkerPool,
    framework: str,
    compile_mode: str,
    compared: Sequence[SizedModel] = (TINY, LARGE),
) -> None:
    """Check the step memory of the points TINY and LARGE.

    The peak of each point in `compared` must equal that of a plain process within `TOLERANCE`.
    """
    for model, batch in (TINY, LARGE):
        point = {"model": model, "batch_size": batch, "compile": compile_mode}
        answer = families.measure(pool, point, framework, 1000).answer
        if (model, batch) in compared:
            assert answer.peak_memory_bytes == pytest.approx(
                plain_peak(framework, point), rel=TOLERANCE[framework]
            )
        if model is TINY[0]:
            # Programs and the memory of the compiler belong to no step.
            assert answer.step_memory_bytes < 60e6
        else:
            weights = 1000 * 2048 + 2 * 2048**2 + 2048 * 1000
            assert answer.step_memory_bytes > 2 * 4 * weights


# A plain process imports the framework again, which takes long, so each compile mode compares only
# one point. In a graph it is the small point, which has little other memory. With XLA it is the
# large point, which has the compiler's memory.
@pytest.mark.parametrize(
    ("compile_mode", "compared"),
    [
        pytest.param("graph", TINY, id="small point in a graph"),
        pytest.param("xla", LARGE, id="large point with XLA", marks=pytest.mark.long),
    ],
)
def test_the_memory_of_a_point_equals_that_of_a_plain_process(
    pool: WorkerPool, compile_mode: str, compared: SizedModel
) -> None:
    check_memory(pool, "tensorflow", compile_mode, [compared])


def test_the_memory_limit_includes_the_framework(pool: WorkerPool) -> None:
    key = WorkerKey(sys.executable, "tensorflow", None, "cpu", ())
    protocol = POINT["measure"] | {"min_seconds": 30.0, "max_seconds": 30.0}
    point = POINT | {"model": TINY[0], "batch_size": TINY[1]}
    answer = pool.measure(key, point, Limits(200, None), lambda phase: None).answer
    limit = int(0.9 * answer.peak_memory_bytes)
    result = pool.measure(
        key, point | {"measure": protocol}, Limits(200, limit), lambda phase: None
    )
    assert result.outcome == "oom_host", result.reason


PROTOCOL = {"min_seconds": 0.02, "min_blocks": 6, "block_seconds": 0.002, "warmup_seconds": 0.2}
LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has the affinity calls of this test"
)


def point(cores: object = None, measure: dict | None = None, **further: object) -> Point:
    given = {"platform": {"name": "cpu", "cores": cores}, "measure": measure or PROTOCOL, **further}
    return read_point({"model": TINY[0], "batch_size": TINY[1], **given})


def test_lists_of_cores_have_a_canonical_form() -> None:
    assert core_list("0-3,6\n") == [0, 1, 2, 3, 6]
    for invalid_or_empty in ("", "x-y", "3-1", "1,"):
        assert core_list(invalid_or_empty) == []
    assert core_text([6, 2, 0, 1]) == "0-2,6"
    assert point("6,0-1,2").platform.cores == "0-2,6"
    assert point_id(point(0)) == point_id(point("0"))
    assert point_id(point("0")) != point_id(point("0-1"))


@LINUX
@pytest.mark.framework
@pytest.mark.parametrize("framework", ["tensorflow", "jax", "torch"])
def test_every_thread_of_a_bound_point_is_bound_to_its_cores(
    framework: str, pool: WorkerPool
) -> None:
    pytest.importorskip(framework)
    core = max(os.sched_getaffinity(0))
    bound = point(core, framework={"name": framework})
    result = pool.measure(
        WorkerKey.of(bound), point_request(bound), Limits(200, None), lambda _: None
    )
    assert result.outcome == "ok", result.reason
    assert result.answer.measurement.contention.cores == 1
    masks: set[str] = set()

    def inspect_and_kill(phase: str) -> None:
        if phase == "measure":
            for pid in processes_of_points():
                masks.update(_allowed_cores(pid))
                os.kill(pid, signal.SIGKILL)

    # A point that runs until it is killed, so that its threads can be inspected.
    long = point(
        core, {**PROTOCOL, "min_seconds": 1000, "max_seconds": 1000}, framework={"name": framework}
    )
    killed = pool.measure(
        WorkerKey.of(long), point_request(long), Limits(200, None), inspect_and_kill
    )
    assert killed.outcome != "ok"
    assert masks == {str(core)}


def _allowed_cores(pid: int) -> list[str]:
    """Return the allowed cores of every thread of a process."""
    masks = []
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(OSError):  # a thread that has ended
            rows = dict(row.split(":", 1) for row in status.read_text().splitlines())
            masks.append(rows["Cpus_allowed_list"].strip())
    return masks
