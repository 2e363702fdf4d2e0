"""Opening an experiment to write into: for imported measurements and for results that are put back."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from paradnn.errors import StoreError
from paradnn.store.address import address_of, without_secrets
from paradnn.store.client import open_experiment as open_for_writing
from paradnn.store.errors import store_errors
from paradnn.store.views import view_tags

__all__ = ["open_experiment", "writing"]


def open_experiment(uri: str | None, name: str) -> tuple[Any, str]:
    """An MlflowClient and the id of the experiment, both made where they are not there yet; StoreError otherwise."""
    address = address_of(uri)
    if not address.is_sql and not address.is_server:
        problem = "a bundle is only read" if address.is_bundle else "no tracking store"
        raise StoreError(
            f"cannot write to {address.public}: {problem}; give sqlite:///path/of/mlflow.db or an http address"
        )
    with writing(address.uri):
        if address.folder is not None:
            address.folder.mkdir(parents=True, exist_ok=True)
        return open_for_writing(address, name, view_tags())


def writing(uri: str) -> AbstractContextManager[None]:
    """What goes wrong inside becomes a StoreError of one line."""
    return store_errors(f"cannot write to {without_secrets(uri)}")
