"""Opening a store for reading alone: SQL tables directly, tracking servers through MLflow's search.

Resume, claims, planning and analysis all read here. Nothing heavy is imported before a store is opened.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal, Protocol

from paradnn.errors import StoreError
from paradnn.store.address import StoreAddress
from paradnn.store.query import Query
from paradnn.store.records import Records

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["Reader", "Way", "open_reader"]

#: "sql" reads tables, "api" asks MLflow's search, which takes milliseconds a run; "auto" reads tables where it can.
Way = Literal["auto", "sql", "api"]


class Reader(Protocol):
    """Reads runs. Methods raise StoreError when the store does not answer."""

    def experiments(self) -> list[str]:
        """The names of the store's experiments that are not deleted."""

    def read(self, query: Query) -> Records:
        """The runs of a query; an experiment that is not there has none."""


def open_reader(
    address: StoreAddress, way: Way = "auto", *, client: MlflowClient | None = None, pooled: bool = False
) -> Reader:
    """A reader of the store at `address`, which is never created by being looked at.

    `client` is MLflow's, where one is open already; `pooled` keeps connections for many small reads. Raises
    NoStoreError where there is no store, StoreError where it cannot be read.
    """
    if address.is_bundle:
        from paradnn.store.bundle import BundleReader

        return BundleReader(address)
    if not address.is_sql and not address.is_server:
        raise StoreError(
            f"no tracking store at {address.public}: give the path of an mlflow.db or of a .zip of results, the "
            "address of a database such as sqlite:///path/of/mlflow.db, or the http address of an mlflow server"
        )
    if way == "sql" and not address.is_sql:
        raise StoreError(f"reader=sql: {address.public} has no tables to read; use reader=api")
    if address.is_sql:
        from paradnn.store.sql import SqlReader

        tables = SqlReader(address, pooled=pooled)
        if way != "api" and not tables.unexpected:
            return tables
        if way != "api":
            problem = f"reading through MLflow's search, which is slow: {tables.unexpected}"
            warnings.warn(problem, stacklevel=3)
    from paradnn.store.search import SearchReader

    return SearchReader(address, client)
