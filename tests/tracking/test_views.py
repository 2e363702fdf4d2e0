"""The views of the MLflow UI, asked of MLflow itself: its search takes their filters and orders."""

import json

import pytest

from paradnn import ui
from paradnn.config.point import Tracking
from paradnn.core.errors import StoreError
from paradnn.store.address import address_of
from paradnn.store.mlflow_store import VIEWS, MlflowStore, view_tags
from tests.conftest import Store


@pytest.fixture
def recorded(store: Store) -> Store:
    """A store with an experiment as the driver makes it."""
    MlflowStore(Tracking(uri=store.uri))
    return store


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
def test_filters_and_orders_are_those_of_mlflow(recorded: Store) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(recorded.uri)
    experiment = client.get_experiment_by_name("paradnn")
    for key in VIEWS:
        state = json.loads(experiment.tags[f"mlflow.sharedViewState.{key}"])
        order = f"{state['orderByKey']} {'ASC' if state['orderByAsc'] else 'DESC'}"
        assert client.search_runs([experiment.experiment_id], state["searchFilter"], order_by=[order]) == []
        assert set(state["columnOrder"]) == set(state["columnWidths"]) > set(state["selectedColumns"])


def test_an_experiment_of_an_earlier_version_gets_its_views(recorded: Store) -> None:
    recorded.change("DELETE FROM experiment_tags WHERE key LIKE 'mlflow.sharedViewState.%'")
    assert ui.prepare_views(address_of(recorded.uri), "paradnn") == "1"
    rows = dict(recorded.query("SELECT key, value FROM experiment_tags WHERE key LIKE 'mlflow.shared%'"))
    assert rows == dict(view_tags())


def test_an_experiment_that_is_not_there_is_told(store: Store) -> None:
    with pytest.raises(StoreError, match="has no experiment other"):
        ui.prepare_views(address_of(store.uri), "other")
