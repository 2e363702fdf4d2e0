"""Training over several processes of this machine, compared with one device.

All measurements make the same number of steps. A block of several processes begins with an untimed
step, so a measurement of several processes needs fewer blocks.
"""

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from paradnn.config.outcome import PointResult
from paradnn.core.messages import Answer
from paradnn.session.workers import Limits, WorkerKey, WorkerPool
from paradnn.workloads.step import ProcessTimes, process_metrics
from tests.conftest import processes_of_points
from tests.processes import wait_for
from tests.worker.families import POINT, RMSPROP
from tests.worker.test_devices import LOSS_TOLERANCE

#: Number of blocks of a single process by framework. Two calibration blocks precede the measured
#: ones. A block of two processes has two steps, so two processes need one block for the same number
#: of steps. A single PyTorch process makes one more step to count its products.
SINGLE_BLOCKS = {"tensorflow": 4, "jax": 4, "torch": 3}
#: Settings of two devices in two processes.
PAIRS = [
    pytest.param("tensorflow", {"hosts": 2}, id="tensorflow"),
    pytest.param("jax", {"hosts": 2}, id="jax"),
    pytest.param("torch", {"hosts": 2}, id="torch"),
    pytest.param("torch", {"devices": 2}, id="torch on one host"),
]


def point(
    framework: str, *, hosts: int = 1, devices: int = 1, blocks: int, **changes: Any
) -> dict[str, Any]:
    protocol = {"min_blocks": blocks, "max_seconds": 100.0, "timeout": 200.0}
    return {
        **POINT,
        "framework": {"name": framework},
        "hosts": hosts,
        "devices": devices,
        "optimizer": RMSPROP,
        "measure": POINT["measure"] | protocol,
        **changes,
    }


def measure(
    pool: WorkerPool, request: dict[str, Any], report: Callable[[Any], None] = lambda _: None
) -> PointResult:
    key = WorkerKey(sys.executable, request["framework"]["name"], None, "cpu", ())
    return pool.measure(key, request, Limits(200, None), report)


def losses(answer: Answer | None) -> tuple[float, float]:
    """Return the losses of the first and of the last step."""
    assert answer is not None
    assert answer.measurement is not None
    return answer.measurement.first_loss, answer.measurement.timing.final_loss


@pytest.mark.parametrize(("framework", "pair"), PAIRS)
def test_two_processes_have_the_same_losses_as_one_device(
    framework: str, pair: dict[str, int], pool: WorkerPool
) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    mode = "eager" if framework == "torch" else "graph"
    single = measure(pool, point(framework, blocks=SINGLE_BLOCKS[framework], compile=mode))
    assert single.outcome == "ok", single.reason

    double = measure(pool, point(framework, **pair, blocks=1, compile=mode))

    assert double.outcome == "ok", double.reason
    assert losses(double.answer) == pytest.approx(losses(single.answer), rel=LOSS_TOLERANCE)
    assert losses(double.answer)[1] < losses(double.answer)[0]
    times = double.answer.work
    assert isinstance(times, ProcessTimes)
    assert times.count == len(times.alone) == 2
    # Both processes hold the framework.
    assert double.answer.peak_memory_bytes > 1.5 * single.answer.peak_memory_bytes
    assert wait_for(lambda: not processes_of_points())


def test_a_killed_process_ends_the_point(pool: WorkerPool) -> None:
    """Kill the second process during the measured blocks."""
    request = point("tensorflow", hosts=2, blocks=1)
    request["measure"] |= {"min_seconds": 1000.0, "max_seconds": 1000.0}

    def kill_second_process(phase: Any) -> None:
        if phase == "measure":
            points = processes_of_points()
            [second] = [pid for pid, parent in points.items() if parent in points]
            os.kill(second, signal.SIGKILL)

    result = measure(pool, request, kill_second_process)

    assert result.outcome == "crash"
    assert "process of the point exited" in result.reason
    assert wait_for(lambda: not processes_of_points())


CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param(
            {"platform": {"name": "cpu", "threads": CORES, "index": 0}},
            f"hosts=2 on this machine, devices=1 with platform.threads={CORES} needs {2 * CORES} "
            f"cores in total, but this process may use only {CORES}: "
            "lower or omit platform.threads",
            id="too few cores",
        ),
        pytest.param(
            {"compile": "xla"},
            "TensorFlow has no compile=xla over several hosts: set compile=graph or framework=jax",
            id="xla",
        ),
    ],
)
def test_unsupported_work_on_several_hosts_is_unavailable(
    changes: dict[str, Any], reason: str, pool: WorkerPool
) -> None:
    result = measure(pool, point("tensorflow", hosts=2, blocks=1, **changes))

    assert result.outcome == "unavailable"
    assert result.reason == reason


def test_communication_is_the_step_time_minus_the_time_alone(pool: WorkerPool) -> None:
    """Plant steps of 10 ms, and of 6 ms in the slower process without communication."""
    answer = measure(pool, point("tensorflow", blocks=1)).answer
    timing = answer.measurement.timing
    planted = type(timing)(
        steps_per_block=2,
        calibration=[],
        warmup=[],
        blocks=[0.020, 0.020, 0.020],
        steady=True,
        steady_reason="",
        final_loss=1.0,
    )
    measurement = type(answer.measurement)(**{**vars(answer.measurement), "timing": planted})
    answer = Answer("ok", None, {}, measurement=measurement, work=ProcessTimes(2, [0.004, 0.006]))

    metrics = process_metrics([answer])

    # 50 x 64 + 64, 64 x 64 + 64 and 64 x 10 + 10 parameters of four bytes.
    assert metrics["gradient_bytes"] == 4 * (3264 + 4160 + 650)
    assert metrics["alone_step_time_ms"] == pytest.approx(6.0)
    assert metrics["fastest_alone_step_time_ms"] == pytest.approx(4.0)
    assert metrics["communication_ms"] == pytest.approx(4.0)
    assert metrics["communication_share"] == pytest.approx(0.4)
    assert process_metrics([Answer("ok", None, {}, measurement=measurement)]) == {}
