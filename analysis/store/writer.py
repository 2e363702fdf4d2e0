"""Opening an experiment to write into: for imported measurements and for results that are put back."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from paradnn.errors import StoreError
from paradnn.store.address import address_of, without_secrets
from paradnn.store.claims import RunIndex, close_abandoned, owner_tag
from paradnn.store.client import open_experiment as open_for_writing
from paradnn.store.errors import store_errors
from paradnn.store.mlflow_store import view_tags
from paradnn.store.reader import open_reader
from paradnn.store.runs import OWNER

__all__ = ["held", "open_experiment", "writing"]


def open_experiment(uri: str | None, name: str) -> tuple[Any, str]:
    """An MlflowClient and the id of the experiment, both made where they are not there yet; StoreError otherwise.

    Runs of writers that were killed are ended.
    """
    address = address_of(uri)
    if not address.is_sql and not address.is_server:
        problem = "a bundle is only read" if address.is_bundle else "no tracking store"
        raise StoreError(
            f"cannot write to {address.public}: {problem}; give sqlite:///path/of/mlflow.db or an http address"
        )
    with writing(address.uri):
        if address.folder is not None:
            address.folder.mkdir(parents=True, exist_ok=True)
        client, experiment_id = open_for_writing(address, name, view_tags())
        close_abandoned(RunIndex(open_reader(address, client=client), name), lambda: client)
        return client, experiment_id


def held() -> dict[str, str]:
    """The tag of a run that this process writes: should it be killed, whoever writes next ends the run."""
    return {OWNER: owner_tag()}


def writing(uri: str) -> AbstractContextManager[None]:
    """What goes wrong inside becomes a StoreError of one line."""
    return store_errors(f"cannot write to {without_secrets(uri)}")
