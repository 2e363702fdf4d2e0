"""Training to an accuracy as a user does it: a real model, real digits, the run and the curve that come of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Store, run

pytestmark = pytest.mark.framework

LEARN = ["paradnn.train", "task=learn", "model.nodes=64", "model.layers=1", "model.input_size=64"]
LEARN += ["model.output_size=10", "learn.target=0.9", "ceilings=false"]


def curve(store: Store, run_id: str, name: str) -> list[tuple[int, float]]:
    return store.query("SELECT step, value FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step", run_id, name)


def test_digits_are_learnt_and_every_epoch_is_a_step_of_its_metric(store: Store) -> None:
    done = run([*LEARN, "learn.epochs_after=2"], store)
    assert done.returncode == 0, done.stderr
    assert "learning     target reached in " in done.stdout
    [point] = store.runs()
    metrics = store.values("latest_metrics", point["run_id"])
    reached = int(metrics["epochs_to_target"])
    accuracy = curve(store, point["run_id"], "heldout_accuracy")
    # Told while it ran or when it was recorded, an epoch stands there once.
    assert [step for step, _ in accuracy] == list(range(1, reached + 3))
    assert [value >= 0.9 for _, value in accuracy[:reached]] == [False] * (reached - 1) + [True]
    assert metrics["steps_to_target"] == reached * (1438 // 64)
    seconds = curve(store, point["run_id"], "learning_seconds")
    assert metrics["seconds_to_target"] == pytest.approx(seconds[reached - 1][1])
    assert metrics["best_accuracy"] == max(value for _, value in accuracy)
    again = run([*LEARN, "learn.epochs_after=2"], store)
    assert "Already in the store" in again.stdout


def test_a_time_limit_keeps_the_curve(store: Store) -> None:
    done = run([*LEARN, "learn.target=1", "learn.epochs=1000000", "measure.timeout=12"], store)
    assert "timeout (over 12 s, in phase learn)" in done.stdout
    [point] = store.runs()
    assert (point["outcome"], point["status"]) == ("timeout", "FAILED")
    accuracy = curve(store, point["run_id"], "heldout_accuracy")
    assert len(accuracy) == store.values("latest_metrics", point["run_id"])["epochs"] >= 1


def test_files_that_are_not_there_or_damaged_are_told(store: Store, tmp_path: Path) -> None:
    mnist = [*LEARN, "data=mnist", "model.input_size=784"]
    assert "data.path=null: data=mnist is read from files" in run(mnist, store).stderr
    done = run([*mnist, f"data.path={tmp_path}"], store)
    assert "unavailable (data.path=" in done.stdout
    assert "has no train-images-idx3-ubyte" in done.stdout
    alone = run(["paradnn.train", "learn.target=0.9"])
    assert "learn.target=0.9: is a key of task=learn; add task=learn" in alone.stderr
