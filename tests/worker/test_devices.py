"""Memory of TensorFlow's points and its limit, and several devices against one."""

import os
import sys
from typing import Any

import pytest

from paradnn.config.outcome import PointResult
from paradnn.families import model_of
from paradnn.session.workers import Limits, WorkerKey, WorkerPool
from tests.worker import families
from tests.worker.families import BATCH, MODELS, POINT, RMSPROP
from tests.worker.memory_checks import LARGE, TINY, Sized, check_memory

#: Of a loss after three updates, as a share of it: sums over shards are rounded in another order.
LOSS_TOLERANCE = 1e-5
CORES = len(os.sched_getaffinity(0))


def measure(pool: WorkerPool, **changes: Any) -> PointResult:
    """Four steps: one compiles, two calibrate, one is measured."""
    protocol = {"min_blocks": 1, "max_seconds": 1.0, "timeout": 200.0} | changes.pop("measure", {})
    return families.measure(pool, {"devices": 2, "optimizer": RMSPROP, "measure": protocol} | changes)


def test_devices_train_as_one_does(pool: WorkerPool) -> None:
    alone, result = measure(pool, devices=1), measure(pool, measure={"profile": True})
    assert result.outcome == "ok", result.reason
    spread, single = result.answer.measurement, alone.answer.measurement
    assert spread.first_loss == pytest.approx(single.first_loss, rel=LOSS_TOLERANCE)
    assert spread.timing.final_loss == pytest.approx(single.timing.final_loss, rel=LOSS_TOLERANCE)
    assert spread.parameters == single.parameters
    profile = result.answer.profile
    rows = profile.operation_types.rows()
    assert sum(row["share"] for row in rows) == pytest.approx(1.0, abs=1e-6)
    collective = [row for row in rows if row["category"] == "communication"]
    assert collective
    assert sum(row["share"] for row in collective) > 0
    costs = model_of(MODELS["fc"]).costs(batch_size=BATCH, precision="float32", mode="train", optimizer="rmsprop")
    assert profile.product_flops == pytest.approx(costs.flops_per_step, rel=0.01)


def test_what_devices_cannot_is_unavailable(pool: WorkerPool) -> None:
    assert "set compile=graph or framework=jax" in (measure(pool, compile="xla").reason or "")
    result = measure(pool, batch_size=2 * CORES, devices=2, platform={"name": "cpu", "threads": CORES, "index": 0})
    assert result.outcome == "unavailable"
    assert result.reason == (
        f"devices=2 with platform.threads={CORES} each need {2 * CORES} cores, this process may use {CORES}"
    )
    result = measure(pool, platform={"name": "gpu", "threads": None, "index": 0})
    assert result.outcome == "unavailable"
    assert "sees 0 GPU device(s), not 2 from number 0 on" in (result.reason or "")


COMPILED = pytest.param("xla", LARGE, marks=pytest.mark.long)


#: A plain process imports the framework once more: in the graph the small point, which holds little else, and
#: compiled the large one, which holds the compiler and what it made.
@pytest.mark.parametrize(("compile_mode", "beside"), [("graph", TINY), COMPILED])
def test_a_point_takes_what_a_plain_process_takes(pool: WorkerPool, compile_mode: str, beside: Sized) -> None:
    check_memory(pool, "tensorflow", compile_mode, [beside])


def test_the_limit_counts_the_framework_as_a_plain_process_holds_it(pool: WorkerPool) -> None:
    key = WorkerKey(sys.executable, "tensorflow", None, "cpu", ())
    protocol = POINT["measure"] | {"min_seconds": 30.0, "max_seconds": 30.0}
    point = POINT | {"model": TINY[0], "batch_size": TINY[1]}
    answer = pool.measure(key, point, Limits(200, None), lambda phase: None).answer
    limit = int(0.9 * answer.peak_memory_bytes)
    result = pool.measure(key, point | {"measure": protocol}, Limits(200, limit), lambda phase: None)
    assert result.outcome == "oom_host", result.reason
