"""Training to a target accuracy from the command line: a real model on real digits, and its run."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paradnn.config.outcome import PointResult
from paradnn.config.point import Point
from paradnn.config.reading import read_point
from paradnn.core.messages import Answer
from paradnn.session.workers import Limits, ProcessMonitor, Worker
from paradnn.workloads.learn import LEARN as WORK
from paradnn.workloads.learn import Epoch, Learn
from tests.conftest import Store, run, succeeded
from tests.session.records import recorded
from tests.session.test_faults import driver

pytestmark = pytest.mark.framework

LEARN = ["paradnn.train", "task=learn", "model.nodes=64", "model.layers=1", "model.input_size=64"]
LEARN += ["model.output_size=10", "learn.target=0.9", "ceilings=false"]


def curve(store: Store, run_id: str, name: str) -> list[tuple[int, float]]:
    """Return the recorded series of a metric as pairs of epoch and value."""
    return store.query(
        "SELECT step, value FROM metrics WHERE run_uuid = ? AND key IN (?, ?) ORDER BY step",
        run_id,
        name,
        f"learning/{name}",
    )


def test_digits_are_learned_and_every_epoch_is_recorded_once(store: Store) -> None:
    completed = succeeded([*LEARN, "learn.epochs_after=2"], store)
    assert "learning     target reached in " in completed.stdout
    [point] = store.runs()
    metrics = store.values("latest_metrics", point["run_id"])
    reached = int(metrics["epochs_to_target"])
    accuracy = curve(store, point["run_id"], "heldout_accuracy")
    # Each epoch is recorded once, whether it was reported during the run or at its end.
    assert [step for step, _ in accuracy] == list(range(1, reached + 3))
    assert [value >= 0.9 for _, value in accuracy[:reached]] == [False] * (reached - 1) + [True]
    assert metrics["steps_to_target"] == reached * (1438 // 64)
    seconds = curve(store, point["run_id"], "learning_seconds")
    assert metrics["seconds_to_target"] == pytest.approx(seconds[reached - 1][1])
    assert metrics["best_accuracy"] == max(value for _, value in accuracy)
    repeated = run([*LEARN, "learn.epochs_after=2"], store)
    assert "Already in the store" in repeated.stdout


def test_examples_from_a_file_are_a_dataset_in_mlflow(store: Store, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    path = tmp_path / "own.npz"
    random = np.random.default_rng(0)
    np.savez(
        path,
        x_train=random.integers(0, 256, (20, 8, 8), dtype="uint8"),
        y_train=np.arange(20) % 2,
        x_test=random.integers(0, 256, (5, 8, 8), dtype="uint8"),
        y_test=np.arange(5) % 2,
    )
    command = [*LEARN, "model.output_size=2", "batch_size=4", "data=npz", f"data.path={path}"]

    succeeded([*command, "learn.target=0.01", "learn.epochs=1"], store)

    [point] = store.runs()
    [logged] = MlflowClient(store.uri).get_run(point["run_id"]).inputs.dataset_inputs
    assert (logged.dataset.name, logged.dataset.digest) == ("npz", point["data_digest"])
    assert json.loads(logged.dataset.source) == {"uri": str(path)}
    assert [(tag.key, tag.value) for tag in logged.tags] == [("mlflow.data.context", "training")]


def test_a_training_starts_from_saved_weights(store: Store, tmp_path: Path) -> None:
    sevens = tmp_path / "sevens.npz"
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, (20, 8, 8), dtype="uint8")
    np.savez(sevens, x_train=pictures, y_train=np.arange(20) % 7, x_test=pictures, y_test=[0] * 20)
    other_head = ["model.output_size=7", "data=npz", f"data.path={sevens}", "batch_size=4"]

    succeeded([*LEARN, f"learn.save={tmp_path / 'weights'}"], store)
    [first] = store.runs()
    [weights] = (tmp_path / "weights").iterdir()
    repeated = [*LEARN, f"learn.start={weights}", "learn.epochs=1", "seed=1"]
    same_digits = run(repeated, store)
    run([*LEARN, *other_head, f"learn.start={weights}", "learn.epochs=1"], store)

    assert first["saved_weights"] == str(weights)
    assert "target reached in at most" in same_digits.stdout, "in the first epoch"
    starts = [tags["start_weights"] for tags in store.runs() if "start_weights" in tags]
    # Hidden layer and output each have a kernel and a bias; the output sizes differ.
    assert sorted(starts) == [
        f"2 of 4 variables from {weights}",
        f"4 of 4 variables from {weights}",
    ]


@pytest.fixture
def short_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time limit expire at the first check after a second epoch.

    The effect does not depend on the limit or on the speed of the machine. Epochs from a checkpoint
    of an earlier process do not count.
    """
    enforce = Worker._enforce
    begun = dict[int, float]()

    def enforce_early(worker: Worker, monitor: ProcessMonitor, limits: Limits, sent: float) -> None:
        first_check = begun.setdefault(id(monitor), time.time())
        epochs = [epoch for epoch in monitor.news if isinstance(epoch, Epoch)]
        if sum(epoch.ended > first_check for epoch in epochs) > 1:
            sent -= limits.timeout
        enforce(worker, monitor, limits, sent)

    monkeypatch.setattr(Worker, "_enforce", enforce_early)


@pytest.mark.usefixtures("short_of_time")
def test_a_training_that_timed_out_resumes_under_a_longer_limit(
    store: Store, tmp_path: Path
) -> None:
    keys = [*LEARN, "learn.target=1", "learn.epochs=1000000", f"tracking.folder={tmp_path}"]
    completed = run([*keys, "measure.timeout=100"], store)
    assert (
        "timeout (took longer than 100 s, in phase learn: raise measure.timeout)"
        in completed.stdout
    )
    [point] = store.runs()
    assert (point["outcome"], point["status"]) == ("timeout", "FAILED")
    accuracy = curve(store, point["run_id"], "heldout_accuracy")
    assert len(accuracy) == store.values("latest_metrics", point["run_id"])["epochs"] >= 1
    run([*keys, "measure.timeout=101"], store)
    [later] = [entry for entry in store.runs() if entry["run_id"] != point["run_id"]]
    resumed_after = int(later["resumed_after_epoch"])
    assert (
        curve(store, later["run_id"], "heldout_accuracy")[:resumed_after]
        == accuracy[:resumed_after]
    )
    assert resumed_after >= 1


def test_missing_files_make_the_point_unavailable(store: Store, tmp_path: Path) -> None:
    completed = run(
        [*LEARN, "data=cifar10", "model.input_size=3072", f"data.path={tmp_path}"], store
    )
    assert completed.returncode == 1
    assert "unavailable (" in completed.stdout
    assert "data_batch_1.bin: cannot be read" in completed.stdout


def test_a_training_whose_driver_was_killed_resumes_to_the_same_curve(
    store: Store, tmp_path: Path
) -> None:
    keys = [
        *LEARN,
        "learn.target=1",
        "learn.epochs=12",
        "learn.schedule=cosine",
        "learn.warmup_epochs=1",
    ]
    run([*keys, "tracking.experiment=whole"], store)
    [uninterrupted] = store.runs()
    keys.append(f"tracking.folder={tmp_path}")
    with driver(store, *keys[1:], until="third_epoch") as process:
        assert process.wait(200) == -signal.SIGKILL
    [killed] = [entry for entry in store.runs() if "outcome" not in entry]
    completed = run(keys, store)
    assert "timeout (learn.target=1 was not reached: the best accuracy is 0." in completed.stdout
    [point] = [entry for entry in store.runs() if "outcome" in entry and entry != uninterrupted]
    resumed_after = int(point["resumed_after_epoch"])
    assert resumed_after >= 1, "the first epoch is always kept"
    for name in ("heldout_accuracy", "heldout_loss", "train_loss"):
        assert curve(store, point["run_id"], name) == curve(store, uninterrupted["run_id"], name)
    seconds = [curve(store, entry["run_id"], "learning_seconds") for entry in (killed, point)]
    # The killed driver may not have recorded all epochs of the checkpoint.
    recorded_epochs = min(resumed_after, len(seconds[0]))
    assert seconds[0][:recorded_epochs] == seconds[1][:recorded_epochs]
    assert seconds[0][:recorded_epochs] != []
    assert len(seconds[1]) == 12
    assert not [*tmp_path.glob("training-*")], "a finished training leaves no checkpoint"


def test_trainings_succeed_with_every_schedule_and_low_precision(store: Store) -> None:
    grids = "{learn.schedule: linear, precision: bfloat16}, {learn.schedule: cosine, precision: float16}"
    sweep = [
        "-m",
        f"sweep.grids=[{grids}]",
        *LEARN[1:],
        "learn.warmup_epochs=2",
        "learn.epochs=40",
        "batch_size=128",
    ]
    completed = run([LEARN[0], *sweep, "optimizer=adam", "optimizer.learning_rate=0.01"], store)
    assert [point["outcome"] for point in store.runs()] == ["ok"] * 2, completed.stdout
    assert not [
        point for point in store.runs() if "steps compiled" in point.get("steady_reason", "")
    ]


ACCURACIES = (0.5, 0.9, 0.97, 0.96, 0.98)


def learning_point(**learn: Any) -> Point:
    model = {"name": "fc", "layers": 2, "nodes": 32, "input_size": 64, "output_size": 10}
    config = {"model": model, "batch_size": 64, "task": "learn", "data": {"name": "digits"}}
    return read_point({**config, "learn": {"target": 0.97, **learn}})


def epochs(joules: float | None = None) -> list[Epoch]:
    """Return five epochs of 22 steps, each with 2 s of training and 0.5 s of evaluation.

    Args:
        joules: Energy of each epoch; None without a counter.
    """
    return [
        Epoch(number, 22, 1000.0 + 2.5 * number, 2.0, 0.5, 0.2, 0.3, accuracy, joules)
        for number, accuracy in enumerate(ACCURACIES, 1)
    ]


def test_metrics_use_the_first_epoch_at_the_target_and_include_later_epochs() -> None:
    result = PointResult(
        "timeout", "too long", Answer("timeout", "too long", {}), news=epochs(joules=3.0)
    )
    record = recorded(learning_point(), result)
    expected = {
        "seconds_to_target": 6.0,
        "epochs_to_target": 3,
        "steps_to_target": 66,
        "examples_to_target": 66 * 64,
        "energy_to_target_joules": 9.0,
        "best_accuracy": 0.98,
        "epochs": 5,
        "epochs_below_target": 1,
        "evaluation_seconds": 2.5,
    }
    assert {name: record.metrics[name] for name in expected} == pytest.approx(expected)
    assert "; ".join(WORK.describe(record.metrics, {}).clauses) == (
        "target reached in 6.000 s, 3 epochs, 66 steps; "
        "best accuracy 0.9800 in 5 epochs, 1 of them below the target after it was reached"
    )


def test_a_target_reached_in_the_first_epoch_is_an_upper_bound_of_the_time() -> None:
    answer = Answer("timeout", "too long", {})
    result = PointResult("timeout", "too long", answer, news=epochs())

    record = recorded(learning_point(target=0.5), result)
    clauses = WORK.describe(record.metrics, {}).clauses

    assert record.metrics["epochs_to_target"] == 1
    assert clauses[0] == "target reached in at most 2.000 s, within the first epoch of 22 steps"


def test_a_training_is_finished_if_no_epoch_is_missing() -> None:
    def ended(outcome: str, settings: Learn, count: int) -> bool:
        return settings.is_finished(PointResult(outcome, None, news=epochs()[:count]))

    assert not ended("crash", Learn(epochs=100), 2)
    assert not ended("unavailable", Learn(epochs=100), 0)
    assert not ended("timeout", Learn(epochs_after=3), 5), "one epoch after the target is missing"
    assert ended("timeout", Learn(epochs=2), 2), "the target was not reached"
    assert ended("crash", Learn(epochs_after=2), 5)
    assert ended("nan", Learn(), 2)


TRAINED_MODEL = '''
import keras
import numpy as np
from sklearn.datasets import load_digits


def digits(takes: int = 64, classes: int = 10):
    """A straight line through the digits by least squares: no epochs, the same each time."""
    bunch = load_digits()
    chosen = [place for place in range(len(bunch.target)) if place % 5 != 4]
    images, wanted = bunch.images[chosen].reshape(-1, 64), np.eye(10)[bunch.target[chosen]]
    images = (images - images.mean()) / images.std()
    model = keras.Sequential([keras.Input((takes,)), keras.layers.Dense(classes, use_bias=False)])
    if (takes, classes) == (64, 10):
        model.set_weights([np.linalg.lstsq(images, wanted, rcond=None)[0].astype("float32")])
    return model
'''
JUDGE_OPTIONS = [
    "measure=quick",
    "measure.min_seconds=0.02",
    "measure.warmup_seconds=0.1",
    "ceilings=false",
    "batch_size=50",
]


def test_a_trained_model_is_timed_and_its_accuracy_measured(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "trained.py"
    file.write_text(TRAINED_MODEL)
    command = [
        "paradnn.train",
        "task=judge",
        "model=own",
        f"model.build={file}:digits",
        *JUDGE_OPTIONS,
    ]
    completed = run(command, store)
    assert "of the held-out examples" in completed.stdout
    [tags] = store.runs()
    metrics: Any = store.values("latest_metrics", tags["run_id"])
    assert 0.85 < metrics["judged_accuracy"] < 0.97  # far above chance with 359 examples
    assert metrics["judged_accuracy"] + metrics["judged_error"] == pytest.approx(1)
    assert metrics["step_time_ms"] > 0
    for key, reason in (
        ("takes=65", "no examples that fit the model's input of shape (65,)"),
        ("classes=9", "has 10 classes"),
    ):
        completed = run([*command, f"model.{key}"], store)
        assert reason in completed.stdout
