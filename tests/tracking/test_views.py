"""Views of an experiment in MLflow's format, and updates of outdated and of changed views."""

import json

import pytest

from paradnn import ui
from paradnn.config.settings import Tracking
from paradnn.store.address import address_of
from paradnn.store.mlflow_store import MlflowStore
from paradnn.store.views import VIEWS, is_outdated, run_link, view_link, view_tags
from tests.conftest import Store, run

PREFIX = "mlflow.sharedViewState."
#: Fields that the front end of MLflow 3.17 reads, by type of chart.
CHART_KEYS = {
    "SCATTER": {"xaxis", "yaxis"},
    "PARALLEL": {"selectedParams", "selectedMetrics", "showAllRuns"},
    "BAR": {"metricKey"},
}


def view_states(store: Store) -> dict[str, dict]:
    """Return the state of every view in the store by key, decoded in the same way as by MLflow."""
    rows = store.query("SELECT key, value FROM experiment_tags WHERE key LIKE 'mlflow.shared%'")
    return {key.removeprefix(PREFIX): json.loads(json.loads(value)["state"]) for key, value in rows}


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
def test_mlflow_accepts_the_filter_and_the_order_of_every_view(store: Store) -> None:
    from mlflow import MlflowClient

    MlflowStore(Tracking(uri=store.uri))
    client = MlflowClient(store.uri)
    for state in view_states(store).values():
        order = f"{state['orderByKey']} {'ASC' if state['orderByAsc'] else 'DESC'}"
        assert client.search_runs(["1"], state["searchFilter"], order_by=[order]) == []
        columns = set(state["columnOrder"])
        assert columns == set(state["columnWidths"])
        assert columns > set(state["selectedColumns"])


def test_a_workspace_is_rejected_for_a_database(store: Store) -> None:
    completed = run(["paradnn.train", "model=fc"], store, MLFLOW_WORKSPACE="team")

    assert completed.returncode == 2
    assert "MLFLOW_WORKSPACE=team selects a workspace" in completed.stderr
    assert store.query("SELECT * FROM runs") == []


def test_missing_and_outdated_views_of_an_experiment_are_added(store: Store) -> None:
    MlflowStore(Tracking(uri=store.uri))
    store.change(f"UPDATE experiment_tags SET value = '{{}}' WHERE key = '{PREFIX}points'")
    store.change(f"DELETE FROM experiment_tags WHERE key = '{PREFIX}sweeps'")

    assert ui.prepare_views(address_of(store.uri), "paradnn") == "1"

    rows = store.query("SELECT key, value FROM experiment_tags WHERE key LIKE 'mlflow.shared%'")
    assert dict(rows) == dict(view_tags())


def test_a_view_that_a_user_changed_is_kept(store: Store) -> None:
    MlflowStore(Tracking(uri=store.uri))
    changed = json.dumps({"name": "Mine", "createdAt": 1, "updatedAt": 4e12, "state": "{}"})
    store.change(f"UPDATE experiment_tags SET value = '{changed}' WHERE key = '{PREFIX}points'")

    ui.prepare_views(address_of(store.uri), "paradnn")

    rows = dict(store.query("SELECT key, value FROM experiment_tags"))
    assert rows[f"{PREFIX}points"] == changed


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        pytest.param(None, True, id="absent"),
        pytest.param('{"searchFilter": ""}', True, id="without a name"),
        pytest.param("deflate;abc", True, id="compressed by MLflow"),
        pytest.param("[]", True, id="not an object"),
        pytest.param('{"updatedAt": 5}', False, id="equal"),
        pytest.param('{"updatedAt": 4}', True, id="older"),
        pytest.param('{"updatedAt": 6}', False, id="newer"),
    ],
)
def test_a_view_is_outdated_if_it_is_absent_or_older(stored: str | None, expected: bool) -> None:
    assert is_outdated(stored, '{"updatedAt": 5}') is expected


def test_the_menu_of_mlflow_lists_the_views_in_their_order() -> None:
    envelopes = [json.loads(value) for value in view_tags().values()]

    newest_first = sorted(envelopes, key=lambda envelope: -envelope["createdAt"])

    assert [envelope["name"] for envelope in newest_first] == [view.name for view in VIEWS.values()]
    assert all(set(one) == {"name", "createdAt", "updatedAt", "state"} for one in envelopes)


def test_charts_have_the_fields_that_mlflow_reads_and_an_open_section(store: Store) -> None:
    MlflowStore(Tracking(uri=store.uri))
    for state in view_states(store).values():
        sections = {one["uuid"] for one in state.get("compareRunSections", ()) if one["display"]}
        for chart in state.get("compareRunCharts", ()):
            assert CHART_KEYS[chart["type"]] < set(chart)
            assert chart["metricSectionId"] in sections
    assert {chart["type"] for chart in view_states(store)["points"]["compareRunCharts"]} == {
        *CHART_KEYS
    }


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        pytest.param(
            view_link("http://host:5000", "7", "points"),
            "http://host:5000/#/experiments/7/runs?workflowType=machine_learning"
            "&viewStateShareKey=points",
            id="table",
        ),
        pytest.param(
            view_link("http://host:5000", "7", "points", charts=True),
            "http://host:5000/#/experiments/7/runs?workflowType=machine_learning"
            "&viewStateShareKey=points&compareRunsMode=CHART",
            id="charts",
        ),
        pytest.param(
            run_link("http://host", "7", "ab"),
            "http://host/#/experiments/7/runs/ab?workflowType=machine_learning",
            id="run",
        ),
        pytest.param(
            run_link("http://host", "7", "ab", "sweep.html"),
            "http://host/#/experiments/7/runs/ab/artifacts/sweep.html"
            "?workflowType=machine_learning",
            id="artifact",
        ),
    ],
)
def test_links_open_the_pages_for_model_training(address: str, expected: str) -> None:
    assert address == expected
