"""Fixtures of the analysis tests, which share one real MLflow store.

Creating an MLflow store runs database migrations, which take seconds.
"""

import json
import logging
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

START = 1_760_000_000_000  # 2025-10-09 08:53:20 UTC in ms; consecutive runs start one minute apart
MINUTE = 60_000


class Writer:
    """Logger of runs in the driver's format.

    Each run gets defaults for the tags that the schema requires.
    """

    def __init__(self, uri: str, experiment: str, artifacts: Path) -> None:
        from mlflow import MlflowClient

        self.uri = uri
        self.client = MlflowClient(uri)
        self.experiment_id = self.client.create_experiment(experiment, artifacts.as_uri())
        self.count = 0

    def run(
        self,
        params: dict[str, str],
        metrics: dict[str, float],
        table: list[list[Any]] | None = None,
        **tags: str,
    ) -> str:
        """Log one run and return its id.

        Args:
            params: Values of the run's parameters.
            metrics: Values of the run's metrics.
            table: Rows of (operation type, share of the time), logged as an artifact and as
                `op_share` metrics.
            **tags: Tags that override the defaults. A double underscore in a name becomes a dot.
                An empty value omits the tag; a run without an outcome is left unfinished.
        """
        from mlflow.entities import Metric, Param, RunTag

        start = START + self.count * MINUTE
        self.count += 1
        run_tags = {
            "kind": "point",
            "schema_version": "1",
            "outcome": "ok",
            "source": "measured",
            "replicate": "0",
        }
        run_tags |= {
            "device": "Test CPU, 2 cores",
            "environment_id": "env-a",
            "protocol_id": "proto-a",
            "host": "n1",
        }
        run_tags |= {
            "version.tensorflow": "2.21.0",
            "steady": "true",
            "point_id": "point-" + "-".join(params.values()),
        }
        run_tags |= {key.replace("__", "."): value for key, value in tags.items()}
        run_tags = {key: value for key, value in run_tags.items() if value}
        run = self.client.create_run(
            self.experiment_id, start_time=start, run_name=f"run {self.count}"
        )
        if table is not None:
            text = json.dumps({"columns": ["type", "share"], "data": table})
            self.client.log_text(run.info.run_id, text, "operation_types.json")
            metrics = {**metrics, **{f"op_share.{kind}": share for kind, share in table}}
        self.client.log_batch(
            run.info.run_id,
            [Metric(key, value, start, 0) for key, value in metrics.items()],
            [Param(key, value) for key, value in params.items()],
            [RunTag(key, value) for key, value in run_tags.items()],
        )
        if "outcome" in run_tags:
            status = "FINISHED" if run_tags["outcome"] == "ok" else "FAILED"
            self.client.set_terminated(run.info.run_id, status, start + 5_000)
        return run.info.run_id


def pytest_itemcollected(item: pytest.Item) -> None:
    """Allow MLflow's use of deprecated SQLAlchemy features; all other warnings are errors."""
    item.add_marker(pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"))


@pytest.fixture(scope="session")
def blank_store(empty_database: Path) -> Callable[[Path], str]:
    """Return a function that creates an empty store at a path and returns its URI.

    Each store is a copy of one that MLflow initialized.
    """
    for name in ("alembic", "mlflow"):
        logging.getLogger(name).setLevel(logging.ERROR)

    def make(path: Path) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(empty_database, path)
        return f"sqlite:///{path}"

    return make


@pytest.fixture
def blank(tmp_path: Path, blank_store: Callable[[Path], str]) -> str:
    """Return the URI of an empty store that belongs to one test."""
    return blank_store(tmp_path / "mlflow.db")


@pytest.fixture
def writer(blank: str, tmp_path: Path) -> Writer:
    """Return a writer for the blank store."""
    return Writer(blank, "paradnn", tmp_path / "artifacts")


def copy_of(store: str, folder: Path) -> str:
    """Copy a store's database and return the copy's URI; artifacts stay in place."""
    return f"sqlite:///{shutil.copy(store.removeprefix('sqlite:///'), folder / 'copy.db')}"


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, blank_store: Callable[[Path], str]) -> str:
    """Return the URI of a read-only store with every kind of run that a store can contain.

    It holds 30 fully connected points (layers 1..5, batch 16..96) and 4 lstm points. Five of the
    fully connected points ran out of memory and have no speed. It also holds one unfinished run,
    one deleted run, one run of kind sweep, and one run in the experiment "other".
    """
    folder = tmp_path_factory.mktemp("store")
    uri = blank_store(folder / "mlflow.db")
    writer = Writer(uri, "paradnn", folder / "artifacts")
    sweep = writer.run({}, {}, kind="sweep", outcome="", planned_points="30")
    for layers in range(1, 6):
        for batch in range(16, 97, 16):
            point = fc(layers, batch)
            if batch == 96:
                writer.run(
                    point,
                    {"parameters": 1e3 * layers},
                    outcome="oom_device",
                    reason='it\'s "full", 100%',
                )
                continue
            table = [["MatMul", 0.75], ["Add", 0.25]] if layers == 1 else None
            writer.run(
                point,
                {"examples_per_second": 10.0 * batch / layers, "parameters": 1e3 * layers},
                table,
                sweep_id="s1",
                **{"mlflow.parentRunId": sweep},
            )
    non_finite = {
        "examples_per_second": math.nan,
        "step_time_cv": math.inf,
        "final_loss": -math.inf,
    }
    for number, precision in enumerate(("float32", "bfloat16") * 2):
        limit, epsilon = ("auto", "1e-07") if number else ("8GiB", "1")
        params = {
            "model.name": "lstm",
            "batch_size": "16",
            "precision": precision,
            "platform.name": "gpu",
        }
        params |= {"measure.memory_limit": limit, "optimizer.epsilon": epsilon}
        writer.run(
            params,
            non_finite if number == 0 else {"examples_per_second": 5.0},
            device="Test GPU",
            environment_id="env-b",
            version__tensorflow="2.20.0",
            replicate=str(number // 2),
            point_id=f"point-lstm-{precision}",
        )
    writer.run(fc(9, 9), {}, outcome="")
    writer.client.delete_run(writer.run(fc(8, 8), {"examples_per_second": 1.0}))
    other = Writer(uri, "other", folder / "artifacts")
    other.run(fc(7, 7), {"examples_per_second": 2.0})
    return uri


def fc(layers: int, batch: int) -> dict[str, str]:
    """Return the params of a fully connected point on a CPU."""
    model = {
        "model.name": "fc",
        "model.layers": str(layers),
        "batch_size": str(batch),
        "precision": "float32",
    }
    platform = {"platform.name": "cpu", "platform.threads": "null", "replicate": "0"}
    predicted = {"measure.predict_oom": "true" if layers % 2 else "false"}
    return {**model, **platform, "optimizer.learning_rate": "0.1", **predicted}
