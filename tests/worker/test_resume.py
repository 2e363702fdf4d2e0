"""A training that is killed goes on where its checkpoint is, to the curve that it would have had; as many frameworks as
are installed."""

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paradnn.config.outcome import PointResult
from paradnn.session.workers import Limits, WorkerKey, WorkerPool
from paradnn.workloads.learn import Epoch
from paradnn.workloads.learn.sets import Digits, set_file
from tests.conftest import processes_of_points
from tests.worker.families import POINT

pytestmark = pytest.mark.framework

FRAMEWORKS = [name for name in ("tensorflow", "jax", "torch") if importlib.util.find_spec(name)]


@pytest.fixture(scope="module")
def digits() -> str:
    return str(set_file(Digits()))


def trained(
    pool: WorkerPool,
    framework: str,
    digits: str,
    checkpoint: Path | None = None,
    news: Callable[[Any], None] = lambda _: None,
    **changes: Any,
) -> PointResult:
    learn = {"metric": "accuracy", "target": 0.8, "epochs": 12, "epochs_after": 4, "evaluate_inside": False}
    point = POINT | {
        "task": "learn",
        "model": {"name": "fc", "layers": 1, "nodes": 16, "input_size": 64, "output_size": 10},
        "learn": {**learn, "schedule": "cosine", "warmup_epochs": 1},
        "learning_set": digits,
        "checkpoint": str(checkpoint) if checkpoint else None,
        "batch_size": 128,
        "optimizer": {"name": "adam", "learning_rate": 0.01, "decay": 0.999, "momentum": 0.9, "epsilon": 1e-8},
        "measure": {"timeout": 200, "profile": False, "keep_trace": False},
        **changes,
    }
    return pool.measure(WorkerKey(sys.executable, framework, None, "cpu", ()), point, Limits(200, None), news)


def kill_at(number: int) -> Callable[[Any], None]:
    """kill -9 for the process that trains, once so many epochs have ended."""

    def news(event: Any) -> None:
        if isinstance(event, Epoch) and event.number == number:
            for pid in processes_of_points():
                os.kill(pid, signal.SIGKILL)

    return news


def curve(result: PointResult) -> list[tuple[float, ...]]:
    assert result.answer
    assert result.news
    return [(epoch.number, epoch.accuracy, epoch.heldout_loss, epoch.train_loss) for epoch in result.news]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_killed_training_goes_on_to_the_same_curve(
    pool: WorkerPool, framework: str, digits: str, tmp_path: Path
) -> None:
    whole = trained(pool, framework, digits)
    assert whole.outcome == "ok", whole.reason
    path = tmp_path / "training.npz"
    killed = trained(pool, framework, digits, path, kill_at(3))
    while killed.outcome == "ok":  # it was over before it was killed
        path.unlink()
        killed = trained(pool, framework, digits, path, kill_at(3))
    assert killed.outcome == "crash"
    assert path.is_file()
    done = trained(pool, framework, digits, path)
    assert done.outcome == "ok", done.reason
    assert curve(done) == curve(whole)
    [resumed] = [epoch for epoch in done.news if epoch.resumed]
    assert resumed.number > 1, "the first epoch is always kept"
    earlier = {epoch.number: epoch.train_seconds for epoch in killed.news}
    kept = done.news[: resumed.number - 1]
    assert [epoch.train_seconds for epoch in kept] == [earlier[epoch.number] for epoch in kept]
    assert done.answer.measurement.timing.steady


@pytest.mark.parametrize(
    ("schedule", "precision"), [("constant", "float32"), ("linear", "bfloat16"), ("cosine", "float16")]
)
def test_schedules_and_precisions_learn(pool: WorkerPool, digits: str, schedule: str, precision: str) -> None:
    learn = {"metric": "accuracy", "target": 0.8, "epochs": 12, "epochs_after": 0, "evaluate_inside": False}
    learn |= {"schedule": schedule, "warmup_epochs": 2}
    done = trained(pool, FRAMEWORKS[0], digits, learn=learn, precision=precision)
    assert done.outcome == "ok", done.reason
    assert "steps compiled" not in done.answer.measurement.timing.steady_reason
