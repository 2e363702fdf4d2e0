"""Pages of sweeps, which a driver stores with the run of the sweep at its end.

All points exceed the memory limit, so that no framework starts.
"""

import json
from pathlib import Path

import pytest

from paradnn.config.settings import Tracking
from paradnn.store.mlflow_store import MlflowStore
from tests.conftest import TINY, Store, run, succeeded

SWEEP = [
    "paradnn.train",
    "-m",
    *(option for option in TINY if not option.startswith("batch_size")),
    "measure.memory_limit=1GiB",
]


def newest_sweep(store: Store) -> dict[str, str]:
    """Return the run of the newest sweep."""
    return store.runs("sweep")[-1]


def page_table(store: Store, run_id: str) -> list[dict[str, object]]:
    content = json.loads((store.files(run_id) / "points.json").read_text())
    return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


def test_pages_of_a_sweep_and_of_its_extension_contain_all_points(store: Store) -> None:
    succeeded([*SWEEP, "batch_size=100000000,200000000"], store, PARADNN_PAGE="true")
    first = newest_sweep(store)
    extended = succeeded(
        [*SWEEP, "batch_size=100000000,200000000,400000000"], store, PARADNN_PAGE="true"
    )
    second = newest_sweep(store)

    assert "not drawn" not in extended.stdout + extended.stderr
    assert [len(page_table(store, sweep["run_id"])) for sweep in (first, second)] == [2, 3]
    assert {row["run_id"] for row in page_table(store, second["run_id"])} == {
        point["run_id"] for point in store.runs()
    }
    assert json.loads(second["mlflow.loggedArtifacts"]) == [
        {"path": "points.json", "type": "table"}
    ]
    page = (store.files(second["run_id"]) / "sweep.html").read_text()
    assert "3 points: 3 oom_predicted." in page
    assert "`sweep.html`" in second["mlflow.note.content"]
    assert (first["status"], second["status"]) == ("FINISHED", "FINISHED")


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        pytest.param("raise RuntimeError('planted failure')", "planted failure", id="fails"),
        pytest.param("import os; os.kill(os.getpid(), 9)", "exit code -9", id="is killed"),
    ],
)
def test_a_failing_page_does_not_fail_the_sweep(
    module: str, expected: str, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "plotly.py").write_text(module)

    completed = succeeded(
        [*SWEEP, "batch_size=100000000,200000000"],
        store,
        PARADNN_PAGE="true",
        PYTHONPATH=str(tmp_path),
    )

    assert "the page of this sweep was not drawn" in completed.stdout + completed.stderr
    assert expected in completed.stdout + completed.stderr
    sweep = newest_sweep(store)
    assert sweep["status"] == "FINISHED"
    assert "mlflow.loggedArtifacts" not in sweep
    assert "sweep.html" not in sweep["mlflow.note.content"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["batch_size=100000000"], id="one point"),
        pytest.param(["batch_size=100000000,200000000", "tracking.page=false"], id="switched off"),
    ],
)
def test_small_sweeps_and_sweeps_without_pages_store_no_page(
    options: list[str], store: Store
) -> None:
    succeeded([*SWEEP, *options], store, PARADNN_PAGE="true")

    assert not (store.files(newest_sweep(store)["run_id"]) / "sweep.html").exists()


def test_a_missing_sweep_is_reported(store: Store, tmp_path: Path) -> None:
    MlflowStore(Tracking(uri=store.uri))

    completed = run(
        ["analysis.__main__", "sweep-page", "20260101-1", "--out", str(tmp_path / "page")], store
    )

    assert completed.returncode == 2
    assert completed.stderr.startswith(
        "error: experiment=paradnn: no sweep 20260101-1 in this experiment"
    )
    assert not (tmp_path / "page").exists()
