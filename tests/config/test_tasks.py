"""Real sweeps and points as a user runs them, and their records in the store.

Most tests share one sweep.
"""

import json
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from paradnn.config import tasks
from paradnn.platform.load import ForeignProcess, HostLoad, LoadMonitor
from paradnn.store.metrics import METRICS, metric
from tests.conftest import SHORT, TINY, Store, process, run, succeeded

PAPER = ("fc", "residual", "bottleneck", "rnn", "lstm", "gru")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Store:
    """Return the store of a sweep over the six families of the paper in small sizes."""
    store = Store(tmp_path_factory.mktemp("swept"))
    (store.folder / "mlflow.db").write_bytes(empty_database.read_bytes())
    grids = (
        "sweep.grids=[{model: fc, model.nodes: 8, precision: 'float32,bfloat16'},"
        "{model: 'residual,bottleneck', model.blocks: 1, model.filters: 2, model.image_size: 8},"
        "{model: 'rnn,lstm,gru', model.embedding_size: 4, model.sequence_length: 3},"
        "{model: gru, model.embedding_size: 4, model.sequence_length: 3, compile: xla}]"
    )
    axes = [grids, "batch_size=4", "sweep.name=families"]
    done = succeeded(["paradnn.train", "-m", *axes, *SHORT], store)
    assert "8 points" in done.stdout
    assert "8 ok" in done.stdout
    return store


def test_every_family_is_measured(swept: Store) -> None:
    points = swept.runs()

    assert {swept.values("params", point["run_id"])["model.name"] for point in points} == set(PAPER)
    assert {point["status"] for point in points} == {"FINISHED"}
    assert {point["outcome"] for point in points} == {"ok"}
    assert len({point["mlflow.runName"] for point in points}) == 8


def test_all_points_have_one_parent_run(swept: Store) -> None:
    [parent] = swept.runs("sweep")

    assert parent["status"] == "FINISHED"
    assert {point["mlflow.parentRunId"] for point in swept.runs()} == {parent["run_id"]}
    assert "families, 8 points" in parent["mlflow.runName"]
    assert "8 ok" in parent["mlflow.note.content"]


def test_ceilings_are_measured_only_on_request(swept: Store) -> None:
    assert swept.runs("ceilings") == []


def test_recorded_metrics_are_registered(swept: Store) -> None:
    for point in swept.runs():
        for name in swept.values("latest_metrics", point["run_id"]):
            metric(name)


def test_times_and_rates_follow_from_the_recorded_blocks(swept: Store) -> None:
    for point in swept.runs():
        metrics = swept.values("latest_metrics", point["run_id"])
        blocks = json.loads((swept.files(point["run_id"]) / "blocks.json").read_text())
        (process,) = blocks["processes"]
        times = sorted(seconds / process["steps_per_block"] for seconds in process["blocks"])
        middle = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2

        assert metrics["step_time_ms"] == pytest.approx(middle * 1e3)
        assert metrics["examples_per_second"] == pytest.approx(4 / middle)
        # A few nearly equal blocks have no interval.
        middle_ms = metrics["step_time_ms"]
        assert (
            metrics.get("step_time_low_ms", middle_ms)
            <= middle_ms
            <= metrics.get("step_time_high_ms", middle_ms)
        )
        assert len(process["blocks"]) == metrics["blocks"] >= 6
        assert metrics["processes"] == 1
        assert metrics["flops_per_second"] == pytest.approx(metrics["flops_per_step"] / middle)


def test_points_pass_their_checks(swept: Store) -> None:
    assert {point["checks"] for point in swept.runs()} == {"passed"}


def test_phases_take_time_and_add_up_to_the_overhead(swept: Store) -> None:
    names = ("schedule", "start", "build", "compile", "warmup", "measure", "record")
    for point in swept.runs():
        metrics = swept.values("latest_metrics", point["run_id"])

        assert all(metrics[f"phase_{name}_seconds"] > 0 for name in names)
        overhead = sum(metrics[f"phase_{name}_seconds"] for name in ("schedule", "start", "record"))
        assert metrics["overhead_seconds"] == pytest.approx(overhead)


def test_only_allowed_fields_of_the_environment_are_recorded(swept: Store) -> None:
    point = swept.runs()[0]
    environment = json.loads((swept.files(point["run_id"]) / "environment.json").read_text())

    assert environment["software"]["tensorflow"] == point["version.tensorflow"]
    assert environment["hardware"]["cores"] >= 1
    assert environment["environment_id"] == point["environment_id"]
    assert {"governor", "kernel", "git_commit"} <= set(environment["host"])
    assert "PATH" not in json.dumps(environment)


def test_a_repeated_command_measures_nothing(swept: Store) -> None:
    before = len(swept.runs())
    axes = [
        "model=lstm,gru",
        "model.embedding_size=4",
        "model.sequence_length=3",
        "batch_size=4",
        *SHORT,
    ]
    done = succeeded(["paradnn.train", "-m", *axes], swept)

    assert "2 skipped, the store holds their outcome already (2 ok)" in done.stdout
    assert len(swept.runs()) == before

    single = process(["paradnn.train", "model=lstm", *axes[1:]], swept, PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in single.stderr.splitlines()}

    assert "sqlalchemy" in imported, "the command must read the database"
    assert not {"mlflow", "pandas", "keras"} & imported, (
        "the command must avoid imports that take seconds"
    )
    assert single.stdout.startswith("lstm "), "the run must be shown by its name"
    assert "Already in the store, not measured again; resume=false re-measures it." in single.stdout
    assert len(swept.runs()) == before
    assert len(swept.runs("sweep")) == 1


@pytest.mark.parametrize(
    ("typed", "program", "command"),
    [
        pytest.param(
            "python -m paradnn.train -m a=1,2",
            "/checkout/paradnn/train.py",
            "python -m paradnn.train -m a=1,2",
            id="module",
        ),
        pytest.param(
            "python /bin/paradnn train -m a=[1]",
            "/bin/paradnn",
            "paradnn train -m 'a=[1]'",
            id="installed program",
        ),
    ],
)
def test_the_command_is_recorded_as_typed(
    typed: str, program: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", typed.split())
    monkeypatch.setattr(sys, "argv", [program])

    assert tasks._command_line() == command


@pytest.mark.framework
def test_a_single_point_prints_its_result(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning that the machine is busy is printed once before the result."""
    busy = HostLoad(2, 3.2, 0.7, 0.0, (ForeignProcess(17, "spin", 1.4),))
    monkeypatch.setattr(LoadMonitor, "look", lambda _: busy)
    command = ["paradnn.train", "mode=inference", "compile=xla", *TINY]
    done = succeeded(command, store)

    assert done.stdout.startswith("fc 1x8 b4 float32 cpu xla inference: ok")

    for word in (
        "throughput",
        "a single process",
        "FLOP/s",
        "latency",
        "memory",
        store.folder.name,
    ):
        assert word in done.stdout
    line = "this machine is busy: load 3.2 on 2 cores, other processes take 1.4 of them (spin (17) 1.4): intervals will be wide"
    assert done.stderr.count(line) == 1
    [point] = store.runs()
    metrics = store.values("latest_metrics", point["run_id"])

    assert "mlflow.parentRunId" not in point
    assert "final_loss" not in metrics
    # A busy machine may leave too few blocks for an interval.
    assert ("95% CI" in done.stdout) == ("examples_per_second_low" in metrics)
    assert point["contended"] in ("true", "false")
    assert 0 <= metrics["own_cpu_fraction"] <= 1.5
    assert "this machine is busy" not in run(command, store).stderr


@pytest.mark.framework
def test_compile_modes_precisions_and_optimizers_all_train(store: Store) -> None:
    """Half of all combinations contain every pair of a mode, a precision and an optimizer."""
    modes = ("graph,eager", "xla")
    optimizers = ("rmsprop,momentum", "sgd,adam")
    halves = [(modes[0], optimizers[0], "float32"), (modes[1], optimizers[1], "float32")]
    halves += [(modes[0], optimizers[1], "float16"), (modes[1], optimizers[0], "float16")]
    grids = ", ".join(
        f"{{compile: '{mode}', optimizer: '{optimizer}', precision: {precision}}}"
        for mode, optimizer, precision in halves
    )
    succeeded(["paradnn.train", "-m", f"sweep.grids=[{grids}]", *TINY], store)
    points = store.runs()

    assert [point["outcome"] for point in points] == ["ok"] * 12

    params = [store.values("params", point["run_id"]) for point in points]
    columns = list(
        zip(
            *((entry["compile"], entry["precision"], entry["optimizer.name"]) for entry in params),
            strict=True,
        )
    )

    assert [len(set(column)) for column in columns] == [3, 2, 4]

    for first, second in combinations(columns, 2):
        assert len(set(zip(first, second, strict=True))) == len(set(first)) * len(set(second))


ADAPTIVE = [
    *(
        entry
        for entry in TINY
        if not entry.startswith(("model.nodes", "model.layers", "batch_size"))
    ),
    "model.nodes=8,16,32",
    "model.layers=1,2",
    "batch_size=4,8",
    "sweep.design=adaptive",
]


@pytest.mark.framework
def test_an_adaptive_sweep_stops_at_its_limit_and_continues_with_a_higher_one(store: Store) -> None:
    done = succeeded(["paradnn.train", "-m", *ADAPTIVE, "sweep.points=6"], store)
    points = store.runs()
    [parent] = store.runs("sweep")

    assert len(points) == 6
    assert {
        (point["outcome"], point["design"], point["mlflow.parentRunId"]) for point in points
    } == {("ok", "adaptive", parent["run_id"])}
    assert (parent["status"], parent["design"], parent["design_end"]) == (
        "FINISHED",
        "adaptive",
        "sweep.points=6",
    )
    assert "Adaptive: 6 of 12 points measured (50.0%)." in parent["mlflow.note.content"]
    assert "Adaptive: 6 of 12 points measured (50.0%)." in done.stdout

    metrics = store.values("latest_metrics", parent["run_id"])
    declared = {name for name in METRICS if name.startswith("design_")}

    assert {name for name in metrics if not name.startswith("points")} == declared
    assert (metrics["design_measured"], metrics["design_candidates"]) == (6, 12)

    progress = json.loads((store.files(parent["run_id"]) / "design.json").read_text())
    assert [progress["data"][0][0], progress["data"][-1][0]] == [0, 6]

    repeated = succeeded(["paradnn.train", "-m", *ADAPTIVE, "sweep.points=6"], store)
    assert "0 points in" in repeated.stdout

    extended = succeeded(["paradnn.train", "-m", *ADAPTIVE, "sweep.points=8"], store)
    assert "2 points in" in extended.stdout
    assert "Adaptive: 8 of 12 points measured" in extended.stdout
    assert set(Counter(point["point_id"] for point in store.runs()).values()) == {1}
