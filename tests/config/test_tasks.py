"""A real sweep as a user runs it, and what the store holds afterwards. One sweep serves most tests."""

import json
import sys
from itertools import combinations
from pathlib import Path

import pytest

from paradnn.config import tasks
from paradnn.store.metrics import metric
from tests.conftest import TINY, Store, process, run

PAPER = ("fc", "residual", "bottleneck", "rnn", "lstm", "gru")
FAST = [entry for entry in TINY if entry.startswith(("measure", "ceilings"))]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Store:
    """All six families of the paper once, small, on the command line."""
    store = Store(tmp_path_factory.mktemp("swept"))
    (store.folder / "mlflow.db").write_bytes(empty_database.read_bytes())
    grids = (
        "sweep.grids=[{model: fc, model.nodes: 8, precision: 'float32,bfloat16'},"
        "{model: 'residual,bottleneck', model.blocks: 1, model.filters: 2, model.image_size: 8},"
        "{model: 'rnn,lstm,gru', model.embedding_size: 4, model.sequence_length: 3},"
        "{model: gru, model.embedding_size: 4, model.sequence_length: 3, compile: xla}]"
    )
    axes = [grids, "batch_size=4", "sweep.name=families"]
    done = run(["paradnn.train", "-m", *axes, *FAST], store)
    assert done.returncode == 0, done.stderr
    assert "8 points" in done.stdout
    assert "8 ok" in done.stdout
    return store


def test_every_family_is_measured_and_nested_under_one_parent(swept: Store) -> None:
    [parent] = swept.runs("sweep")
    points = swept.runs()
    assert parent["status"] == "FINISHED"
    assert {point["mlflow.parentRunId"] for point in points} == {parent["run_id"]}
    assert {swept.values("params", point["run_id"])["model.name"] for point in points} == set(PAPER)
    assert {point["status"] for point in points} == {"FINISHED"}
    assert {point["outcome"] for point in points} == {"ok"}
    assert len({point["mlflow.runName"] for point in points}) == 8
    assert swept.runs("ceilings") == []
    assert "families, 8 points" in parent["mlflow.runName"]
    assert "8 ok" in parent["mlflow.note.content"]


def test_metrics_are_registered_and_agree_with_the_raw_blocks(swept: Store) -> None:
    for point in swept.runs():
        metrics = swept.values("latest_metrics", point["run_id"])
        for name in metrics:
            metric(name)
        blocks = json.loads(artifact(swept, point["run_id"], "blocks.json"))
        (process,) = blocks["processes"]
        times = sorted(seconds / process["steps_per_block"] for seconds in process["blocks"])
        middle = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2
        assert metrics["step_time_ms"] == pytest.approx(middle * 1e3)
        assert metrics["examples_per_second"] == pytest.approx(4 / middle)
        middle_ms = metrics["step_time_ms"]  # few blocks that resemble each other have no interval
        assert metrics.get("step_time_low_ms", middle_ms) <= middle_ms <= metrics.get("step_time_high_ms", middle_ms)
        assert len(process["blocks"]) == metrics["blocks"] >= 6
        assert metrics["processes"] == 1
        assert metrics["flops_per_second"] == pytest.approx(metrics["flops_per_step"] / middle)
        assert point["checks"] == "passed"
        names = ("schedule", "start", "build", "compile", "warmup", "measure", "record")
        assert all(metrics[f"phase_{name}_seconds"] > 0 for name in names)
        overhead = sum(metrics[f"phase_{name}_seconds"] for name in ("schedule", "start", "record"))
        assert metrics["overhead_seconds"] == pytest.approx(overhead)


def test_the_environment_is_recorded_by_an_allow_list(swept: Store) -> None:
    point = swept.runs()[0]
    environment = json.loads(artifact(swept, point["run_id"], "environment.json"))
    assert environment["software"]["tensorflow"] == point["version.tensorflow"]
    assert environment["hardware"]["cores"] >= 1
    assert environment["environment_id"] == point["environment_id"]
    assert {"governor", "kernel", "git_commit"} <= set(environment["host"])
    assert "PATH" not in json.dumps(environment)


def test_the_same_command_measures_nothing_again(swept: Store) -> None:
    before = len(swept.runs())
    axes = ["model=lstm,gru", "model.embedding_size=4", "model.sequence_length=3", "batch_size=4", *FAST]
    done = run(["paradnn.train", "-m", *axes], swept)
    assert done.returncode == 0
    assert "2 skipped, the store holds their outcome already (2 ok)" in done.stdout
    assert len(swept.runs()) == before
    single = process(["paradnn.train", "model=lstm", *axes[1:]], swept, PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in single.stderr.splitlines()}
    assert "sqlalchemy" in imported, "the database is read"
    assert not {"mlflow", "pandas", "keras"} & imported, "whose import takes seconds"
    assert single.stdout.startswith("lstm "), "by its name, not its id"
    assert "Already in the store, not measured again; resume=false re-measures it." in single.stdout
    assert len(swept.runs()) == before
    assert len(swept.runs("sweep")) == 1


@pytest.mark.parametrize(
    ("typed", "program", "command"),
    [
        ("python -m paradnn.train -m a=1,2", "/checkout/paradnn/train.py", "python -m paradnn.train -m a=1,2"),
        ("python /bin/paradnn train -m a=[1]", "/bin/paradnn", "paradnn train -m 'a=[1]'"),
    ],
)
def test_the_command_is_kept_as_it_was_typed(
    typed: str, program: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", typed.split())
    monkeypatch.setattr(sys, "argv", [program])
    assert tasks._command() == command


@pytest.mark.framework
def test_a_single_point_says_what_it_found(store: Store) -> None:
    done = run(["paradnn.train", "mode=inference", "compile=xla", *TINY], store)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fc 1x8 b4 float32 cpu xla inference: ok")
    for word in ("throughput", "95% CI", "a single process", "FLOP/s", "latency", "memory", store.folder.name):
        assert word in done.stdout
    [point] = store.runs()
    assert "mlflow.parentRunId" not in point
    assert "final_loss" not in store.values("latest_metrics", point["run_id"])


@pytest.mark.framework
def test_compile_modes_precisions_and_optimizers_all_train(store: Store) -> None:
    """Every pair of them: half of the combinations, in which each precision meets all modes and all optimizers."""
    modes, rules = ("graph,eager", "xla"), ("rmsprop,momentum", "sgd,adam")
    halves = [(modes[0], rules[0], "float32"), (modes[1], rules[1], "float32")]
    halves += [(modes[0], rules[1], "float16"), (modes[1], rules[0], "float16")]
    grids = ", ".join(f"{{compile: '{c}', optimizer: '{o}', precision: {p}}}" for c, o, p in halves)
    done = run(["paradnn.train", "-m", f"sweep.grids=[{grids}]", *TINY], store)
    assert done.returncode == 0, done.stderr
    points = store.runs()
    assert [point["outcome"] for point in points] == ["ok"] * 12
    params = [store.values("params", point["run_id"]) for point in points]
    columns = list(zip(*((p["compile"], p["precision"], p["optimizer.name"]) for p in params), strict=True))
    assert [len(set(column)) for column in columns] == [3, 2, 4]
    for one, other in combinations(columns, 2):
        assert len(set(zip(one, other, strict=True))) == len(set(one)) * len(set(other))


def artifact(store: Store, run_id: str, name: str) -> str:
    [[uri]] = store.query("SELECT artifact_uri FROM runs WHERE run_uuid = ?", run_id)
    return (Path(uri.removeprefix("file://")) / name).read_text()
