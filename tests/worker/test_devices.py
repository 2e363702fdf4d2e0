"""Several devices, for real: TensorFlow's logical devices and two processes over gRPC against one device."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from paradnn.config.outcome import PointResult
from paradnn.execution.workers import Limits, WorkerKey, WorkerPool
from paradnn.families import model_of
from tests.conftest import processes_of_points
from tests.processes import wait_for
from tests.worker.families import BATCH, MODELS

#: Of a loss after three updates, as a share of it: sums over shards are rounded in another order.
LOSS_TOLERANCE = 1e-5
CORES = len(os.sched_getaffinity(0))


def measure(pool: WorkerPool, family: str = "fc", on_phase: Any = lambda phase: None, **changes: Any) -> PointResult:
    """Four steps: one compiles, two calibrate, one is measured."""
    memory = changes.pop("memory", None)
    protocol = {
        "min_seconds": 0.0,
        "min_blocks": 1,
        "max_seconds": 1.0,
        "block_seconds": 0.0,
        "warmup_seconds": 0.0,
        "profile": False,
        "keep_trace": False,
        "timeout": 200.0,
    } | changes.pop("measure", {})
    point = {
        "model": MODELS[family],
        "batch_size": BATCH,
        "precision": "float32",
        "compile": "graph",
        "mode": "train",
        "seed": 0,
        "data": {"name": "synthetic"},
        "devices": 2,
        "transport": "local",
        "measure": protocol,
        "platform": {"name": "cpu", "threads": None, "index": 0},
        "optimizer": {"name": "rmsprop", "learning_rate": 0.01, "decay": 0.9, "momentum": 0.9, "epsilon": 1.0},
    } | changes
    key = WorkerKey(sys.executable, "tensorflow", None, "cpu", ())
    return pool.measure(key, point, Limits(200, memory), on_phase)


@pytest.fixture(scope="module")
def alone(pool: WorkerPool) -> PointResult:
    return measure(pool, devices=1)


def no_process_is_left() -> bool:
    """The kernel ends what a killed process started a moment after it."""
    return wait_for(lambda: not processes_of_points())


@pytest.mark.parametrize(("transport", "compile_mode"), [("local", "graph"), ("local", "xla"), ("grpc", "graph")])
def test_devices_train_as_one_does(pool: WorkerPool, alone: PointResult, transport: str, compile_mode: str) -> None:
    result = measure(pool, transport=transport, compile=compile_mode, measure={"profile": compile_mode == "graph"})
    assert result.outcome == "ok", result.reason
    spread, single = result.answer.measurement, alone.answer.measurement
    assert spread.first_loss == pytest.approx(single.first_loss, rel=LOSS_TOLERANCE)
    assert spread.timing.final_loss == pytest.approx(single.timing.final_loss, rel=LOSS_TOLERANCE)
    assert spread.parameters == single.parameters
    assert no_process_is_left()
    if compile_mode == "xla":
        return
    profile = result.answer.profile
    rows = profile.operation_types.rows()
    assert sum(row["share"] for row in rows) == pytest.approx(1.0, abs=1e-6)
    collective = [row for row in rows if row["category"] == "communication"]
    assert collective
    assert sum(row["share"] for row in collective) > 0
    # Of two processes the profile sees one.
    costs = model_of(MODELS["fc"]).costs(batch_size=BATCH, precision="float32", mode="train", optimizer="rmsprop")
    assert profile.devices == (1 if transport == "grpc" else 2)
    assert profile.product_flops == pytest.approx(costs.flops_per_step * profile.devices / 2, rel=0.01)


def test_memory_of_all_replicas_is_within_its_bound(pool: WorkerPool) -> None:
    model = MODELS["fc"] | {"nodes": 2000, "layers": 2}
    bound = model_of(model).costs(batch_size=BATCH, precision="float32", mode="train", optimizer="rmsprop", devices=2)
    result = measure(pool, model=model, transport="grpc")
    assert result.answer.step_memory_bytes >= bound.memory_lower_bound_bytes


def end_the_peer(at: str) -> Callable[[str], None]:
    """A phase callback that kills the second process of a point once phase `at` has begun."""

    def kill() -> None:
        found: dict[int, int] = {}
        while not (peers := [pid for pid, parent in found.items() if parent in found]):
            time.sleep(0.01)
            found = processes_of_points()
        os.kill(peers[0], signal.SIGKILL)

    def on_phase(phase: str) -> None:
        if phase == at:
            threading.Thread(target=kill, daemon=True).start()

    return on_phase


@pytest.mark.parametrize("phases", [("build", "compile", "warmup"), ("measure",)])
def test_a_process_that_dies_ends_the_point(pool: WorkerPool, phases: tuple[str, ...]) -> None:
    """From the first of `phases` on; a slow machine has got further by then, and then warms up for long."""
    long = {"min_seconds": 100.0, "max_seconds": 100.0, "warmup_seconds": 100.0, "min_blocks": 10**6}
    result = measure(pool, "fc", end_the_peer(phases[0]), transport="grpc", measure=long)
    assert result.outcome == "crash"
    assert (result.reason or "").startswith(
        tuple(f"another process of the point exited in phase {phase}: " for phase in phases)
    )
    assert no_process_is_left()


def test_memory_of_every_process_counts_against_the_limit(pool: WorkerPool) -> None:
    """What each has of its own: the framework's code counts once."""
    long = {"min_seconds": 100.0, "max_seconds": 100.0, "warmup_seconds": 100.0, "min_blocks": 10**6}
    model = MODELS["fc"] | {"nodes": 5000, "layers": 2}
    alone = measure(pool, devices=1, model=model).peak_memory_bytes
    assert alone
    result = measure(pool, transport="grpc", model=model, measure=long, memory=int(1.2 * alone))
    assert result.outcome == "oom_host"
    assert no_process_is_left()


def test_more_devices_than_there_are_is_unavailable(pool: WorkerPool) -> None:
    result = measure(pool, batch_size=2 * CORES, devices=2, platform={"name": "cpu", "threads": CORES, "index": 0})
    assert result.outcome == "unavailable"
    assert result.reason == (
        f"devices=2 with platform.threads={CORES} each need {2 * CORES} cores, this process may use {CORES}"
    )
    result = measure(pool, platform={"name": "gpu", "threads": None, "index": 0})
    assert result.outcome == "unavailable"
    assert "sees 0 GPU device(s), not 2 from number 0 on" in (result.reason or "")
