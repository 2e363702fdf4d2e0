"""MLflow's environment variables and custom tags, and their effects on the store."""

import re
from pathlib import Path

import pytest

from paradnn.config.tags import RESERVED
from tests.conftest import TINY, Store, run, succeeded

TAGGED = ["tracking.tags.team=vision", "tracking.tags.build=7"]


def experiments(store: Store) -> dict[str, int]:
    """Return the number of runs of each experiment."""
    return dict(
        store.query(
            "SELECT e.name, COUNT(*) FROM runs r JOIN experiments e USING (experiment_id) GROUP BY 1"
        )
    )


@pytest.mark.framework
def test_custom_tags_are_on_every_run_and_select_runs(store: Store) -> None:
    succeeded(["paradnn.train", "-m", *TINY, "batch_size=2,4", *TAGGED], store)
    succeeded(["paradnn.train", *TINY, "batch_size=8", "tracking.tags={team: speech}"], store)

    runs = [*store.runs("point"), *store.runs("sweep")]
    assert sorted(entry["team"] for entry in runs) == ["speech", "vision", "vision", "vision"]
    assert [entry.get("build") for entry in store.runs("sweep")] == ["7"]
    selected = succeeded(["analysis.__main__", "runs", "--tag", "team=vision"], store)
    assert re.match("2 runs of fc on .*, all measured", selected.stdout)


@pytest.mark.framework
def test_the_names_of_all_tags_of_runs_are_reserved(store: Store) -> None:
    succeeded(["paradnn.train", "-m", *TINY, "batch_size=2,4", "measure.profile=true"], store)

    names = {name for (name,) in store.query("SELECT DISTINCT key FROM tags")}
    own_names = {name for name in names if not name.startswith(("mlflow.", "version."))}
    assert own_names <= RESERVED


def test_custom_tags_are_uploaded_from_files(store: Store, tmp_path: Path) -> None:
    files = ["tracking=offline", f"tracking.folder={tmp_path / 'files'}"]
    succeeded(["paradnn.train", *TINY, *files, *TAGGED], store)
    succeeded(["paradnn.sync", str(tmp_path / "files"), "--uri", store.uri], store)

    [point] = store.runs()
    assert (point["team"], point["build"]) == ("vision", "7")


def test_a_custom_tag_cannot_be_an_axis(store: Store) -> None:
    completed = run(["paradnn.train", "-m", *TINY, "tracking.tags.team=a,b"], store)
    assert completed.returncode == 2
    assert completed.stderr.startswith(
        "error: tracking.tags.team=a,b: cannot be an axis of a sweep"
    )


@pytest.mark.framework
def test_the_experiment_variable_selects_where_runs_are_written_and_read(store: Store) -> None:
    variable = {"MLFLOW_EXPERIMENT_NAME": "mine"}
    succeeded(["paradnn.train", *TINY], store, **variable)
    succeeded(["paradnn.train", *TINY, "tracking.experiment=other"], store, **variable)

    assert experiments(store) == {"mine": 1, "other": 1}
    listed = run(["analysis.__main__", "runs"], store, **variable).stdout
    assert re.match("1 run of fc on .*, all measured", listed)
    assert (
        "experiment=paradnn: no such experiment" in run(["analysis.__main__", "runs"], store).stderr
    )


@pytest.mark.framework
def test_unused_variables_are_reported(store: Store) -> None:
    completed = succeeded(["paradnn.train", *TINY], store, MLFLOW_EXPERIMENT_ID="5")
    assert "MLFLOW_EXPERIMENT_ID=5 is not used: " in completed.stderr
    assert experiments(store) == {"paradnn": 1}
    assert store.query("SELECT key FROM metrics WHERE key LIKE 'system/%'") == []


@pytest.mark.framework
def test_system_metrics_are_sampled_on_request(store: Store) -> None:
    succeeded(["paradnn.train", *TINY], store, MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING="true")
    [point] = store.runs()
    query = "SELECT run_uuid, value FROM metrics WHERE key = 'system/cpu_utilization_percentage'"
    shares = store.query(query)
    assert shares
    for run_id, value in shares:
        assert run_id == point["run_id"]
        assert 0 <= value <= 100
