"""Examples of the page about MLflow, which must find the runs that the page promises."""

import re
from typing import Any
from unittest import mock

import pytest

from tests.conftest import ROOT, Store, environment

PAGE = ROOT / "docs" / "how-to" / "browse-results.md"
#: Name, tags, batch size and throughput of each planted run.
RUNS = (
    ("slow", {"outcome": "ok", "steady": "true", "team": "vision"}, "64", 10.0),
    ("fast", {"outcome": "ok", "steady": "true"}, "512", 5000.0),
    ("fastest", {"outcome": "ok", "steady": "true"}, "64", 9000.0),
    ("unsteady", {"outcome": "ok", "steady": "false"}, "64", 8000.0),
    ("large", {"outcome": "oom_device", "team": "vision"}, "512", None),
)


@pytest.fixture
def planted(store: Store) -> Store:
    """Record the runs of two sweeps; the first two belong to the earlier one."""
    from mlflow import MlflowClient

    client = MlflowClient(store.uri)
    experiment = client.create_experiment("paradnn")
    for start, sweep in enumerate(("earlier", "later"), start=1):
        tags = {"kind": "sweep", "sweep_id": sweep, "mlflow.runName": sweep}
        client.create_run(experiment, start_time=start, tags=tags)
    for number, (name, tags, batch, rate) in enumerate(RUNS):
        sweep = "earlier" if number < 2 else "later"
        own = {"kind": "point", "sweep_id": sweep, "mlflow.runName": name, "host": "n1", **tags}
        run_id = client.create_run(experiment, tags=own).info.run_id
        client.log_param(run_id, "model.name", "fc")
        client.log_param(run_id, "batch_size", batch)
        if rate is not None:
            client.log_metric(run_id, "examples_per_second", rate)
    return store


def test_the_examples_in_python_find_runs(planted: Store) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    names: dict[str, Any] = {}

    with mock.patch.dict("os.environ", environment(planted), clear=True):
        exec(program, names)

    runs_by_name = {
        name: list(frame["tags.mlflow.runName"])
        for name, frame in names.items()
        if hasattr(frame, "columns")
    }
    assert runs_by_name.pop("fast") == ["fastest", "fast"]
    assert {name: sorted(runs) for name, runs in runs_by_name.items()} == {
        "runs": ["large"],
        "vision": ["large", "slow"],
        "large": ["fast", "large"],
        "sweeps": ["earlier", "later"],
        "points": ["fastest", "large", "unsteady"],
    }


def test_the_filters_for_the_search_box_find_runs(planted: Store) -> None:
    from mlflow import MlflowClient

    rows = re.findall(r"^\| [^|]+\? \| `+ ?(.*?) ?`+ \|$", PAGE.read_text(), flags=re.M)
    filters = [row.replace("SWEEP_ID", "earlier").replace("HOST", "n1") for row in rows]
    client = MlflowClient(planted.uri)

    results = [
        sorted(run.data.tags["mlflow.runName"] for run in client.search_runs(["1"], text))
        for text in filters
    ]

    assert results == [
        ["large"],
        ["fast", "fastest"],
        ["large", "slow"],
        ["fast", "large"],
        ["fast", "slow"],
    ]
