"""Opening a store for reading alone: SQL tables directly, tracking servers through MLflow's search.
Resume, claims, planning and analysis all read here. Nothing heavy is imported before a store is
opened.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Protocol

from paradnn.core.errors import StoreError
from paradnn.store.address import StoreAddress
from paradnn.store.client import client_of, store_errors
from paradnn.store.runs import Query, Row, Run, number

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from paradnn.store.columns import Records


#: "sql" reads tables, "api" asks MLflow's search, which takes milliseconds a run; "auto" reads
#: tables where it can.
Way = Literal["auto", "sql", "api"]


class Reader(Protocol):
    """Reads runs. Methods raise StoreError when the store does not answer."""

    def experiments(self) -> list[str]:
        """The names of the store's experiments that are not deleted."""

    def read(self, query: Query) -> list[Row]:
        """The runs of a query; an experiment that is not there has none."""


def open_reader(
    address: StoreAddress,
    way: Way = "auto",
    *,
    client: MlflowClient | None = None,
    pooled: bool = False,
) -> Reader:
    """A reader of the store at `address`, which looking never makes. `client`: MLflow's, where one
    is open; `pooled` keeps connections for many small reads. NoStoreError where there is none,
    StoreError where it cannot be read.
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
            warnings.warn(
                f"reading through MLflow's search, which is slow: {tables.unexpected}", stacklevel=3
            )
    return SearchReader(address, client)


def read_columns(
    address: StoreAddress, query: Query, way: Way = "auto"
) -> tuple[Records, list[str]]:
    """The runs of a query column by column, and the names of the store's experiments, read as
    `open_reader` does.
    """
    from paradnn.store.columns import Records

    store = open_reader(address, way, pooled=True)
    read: Callable[[Query], Records] = getattr(
        store, "columns", lambda wanted: Records.of(store.read(wanted))
    )
    return read(query), store.experiments()


_PAGE = 1_000  # runs asked for at once; a server may allow up to 50,000


class SearchReader:
    """Reads through an MLflow client; see `paradnn.store.reader.Reader`."""

    def __init__(self, address: StoreAddress, client: MlflowClient | None = None) -> None:
        self._address = address
        self._given = client
        self._ids: dict[str, str] = {}  # of experiments that were found

    def experiments(self) -> list[str]:
        """The names of the store's experiments that are not deleted."""
        with store_errors(f"cannot read {self._address.public}"):
            return sorted(experiment.name for experiment in _pages(self._client.search_experiments))

    def read(self, query: Query) -> list[Row]:
        """The runs of a query. The server filters what its grammar can say, the rest is filtered
        here.
        """
        with store_errors(f"cannot read {self._address.public}"):
            return list(islice(self._search(query), query.newest))

    @cached_property
    def _client(self) -> MlflowClient:
        return self._given or client_of(self._address)

    def _search(self, query: Query) -> Iterator[Row]:
        """Each run once, as plain values: of MLflow's own objects, 100,000 fill the memory. Pages
        are counted by offset, so runs that arrive meanwhile may shift them: oldest first keeps
        newcomers last; ids seen are passed.
        """
        names = {self._id_of(name): name for name in query.experiments}
        names.pop("", None)
        if not names:
            return
        seen: set[str] = set()
        order = [
            "attributes.start_time DESC" if query.newest else "attributes.start_time ASC",
            "attributes.run_id ASC",
        ]
        for answer in _pages(self._client.search_runs, list(names), _filter(query), order_by=order):
            info = answer.info
            data = answer.data
            name = names[info.experiment_id]
            end = info.end_time or None
            run = Run(
                info.run_id,
                info.run_name,
                name,
                info.status,
                info.start_time,
                end,
                info.artifact_uri,
            )
            if run.run_id not in seen and query.accepts(run, data.params, data.tags):
                seen.add(run.run_id)
                numbers = {
                    key: number(value) for key, value in data.metrics.items() if value == value
                }
                yield query.narrowed(Row(run, data.params, data.tags, numbers))

    def _id_of(self, name: str) -> str:
        """The id of an experiment; empty where there is none, or a deleted one."""
        if name not in self._ids:
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None or experiment.lifecycle_stage != "active":
                return ""
            self._ids[name] = str(experiment.experiment_id)
        return self._ids[name]


def _pages(search: Callable[..., Any], *given: Any, **options: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(*given, max_results=_PAGE, page_token=token, **options)
        yield from page
        token = page.token
        if not token:
            return


def _filter(query: Query) -> str:
    """The part of a query that MLflow's grammar can say: equality with one value, and times."""
    parts = [
        f"{kind}.`{key}` = '{next(iter(allowed))}'"
        for kind, filters in (("params", query.params), ("tags", query.tags))
        for key, allowed in filters.items()
        if len(allowed) == 1 and not set("'\"`\\") & set(key + next(iter(allowed)))
    ]
    given = {
        "run_id =": query.run_id and f"'{query.run_id}'",
        "status =": query.status and f"'{query.status}'",
        "start_time >=": query.since_ms,
        "start_time <": query.until_ms,
    }
    parts += [f"attributes.{what} {value}" for what, value in given.items() if value is not None]
    # Of other kinds a run may say its end otherwise, and the grammar has no "or".
    if query.needs_outcome and query.tags.get("kind") == ("point",):
        parts.append("tags.outcome LIKE '%'")
    return " and ".join(parts)
