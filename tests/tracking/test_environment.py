"""MLflow's environment variables and custom tags, as a user sees them in the store."""

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
def test_own_tags_are_on_every_run_and_select_them(store: Store) -> None:
    succeeded(["paradnn.train", "-m", *TINY, "batch_size=2,4", *TAGGED], store)
    succeeded(["paradnn.train", *TINY, "batch_size=8", "tracking.tags={team: speech}"], store)

    runs = [*store.runs("point"), *store.runs("sweep")]
    assert sorted(entry["team"] for entry in runs) == ["speech", "vision", "vision", "vision"]
    assert [entry.get("build") for entry in store.runs("sweep")] == ["7"]
    selected = succeeded(["analysis.__main__", "runs", "--tag", "team=vision"], store)
    assert re.match("2 runs of fc on .*, all measured", selected.stdout)


@pytest.mark.framework
def test_names_of_all_tags_that_runs_have_are_reserved(store: Store) -> None:
    succeeded(["paradnn.train", "-m", *TINY, "batch_size=2,4", "measure.profile=true"], store)

    names = {name for (name,) in store.query("SELECT DISTINCT key FROM tags")}
    own = {name for name in names if not name.startswith(("mlflow.", "version."))}
    assert own <= RESERVED


def test_own_tags_are_kept_in_files(store: Store, tmp_path: Path) -> None:
    files = ["tracking=offline", f"tracking.folder={tmp_path / 'files'}"]
    succeeded(["paradnn.train", *TINY, *files, *TAGGED], store)
    succeeded(["paradnn.sync", str(tmp_path / "files"), "--uri", store.uri], store)

    [point] = store.runs()
    assert (point["team"], point["build"]) == ("vision", "7")


def test_an_own_tag_is_no_axis(store: Store) -> None:
    done = run(["paradnn.train", "-m", *TINY, "tracking.tags.team=a,b"], store)
    assert done.returncode == 2
    assert done.stderr.startswith("error: tracking.tags.team=a,b: cannot be an axis of a sweep")


@pytest.mark.framework
def test_the_experiment_of_the_environment_is_written_and_read(store: Store) -> None:
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
def test_variables_that_are_not_used_are_named(store: Store) -> None:
    done = succeeded(["paradnn.train", *TINY], store, MLFLOW_EXPERIMENT_ID="5")
    assert "MLFLOW_EXPERIMENT_ID=5 is not used: " in done.stderr
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
