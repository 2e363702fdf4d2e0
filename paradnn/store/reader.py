"""Open a store for reading: SQL tables directly, tracking servers through MLflow's search.

Resume, claims, planning and analysis all read through this module. It imports MLflow or SQLAlchemy
only when a store is opened.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Protocol

from paradnn.core.errors import StoreError
from paradnn.core.metric import bare_name
from paradnn.store.address import StoreAddress, migration_remedy
from paradnn.store.client import client_of, store_errors
from paradnn.store.runs import Query, Row, Run, number

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from paradnn.store.columns import Records


#: How to read a store. "sql" reads the tables. "api" uses MLflow's search, which takes milliseconds
#: per run. "auto" reads the tables if possible.
ReadMethod = Literal["auto", "sql", "api"]


class Reader(Protocol):
    """Interface for reading the runs of a store.

    Methods raise StoreError if the store does not answer.
    """

    def experiments(self) -> list[str]:
        """Return the names of the store's experiments that are not deleted."""

    def read(self, query: Query) -> list[Row]:
        """Return the runs that satisfy a query, with the params, tags and metrics it requests.

        An unknown experiment has no runs.

        Args:
            query: Conditions on the runs, and the values to read.
        """


def open_reader(
    address: StoreAddress,
    method: ReadMethod = "auto",
    *,
    client: MlflowClient | None = None,
    pooled: bool = False,
) -> Reader:
    """Open a reader of an existing store.

    Args:
        address: Address of the store: an SQL database, an MLflow server, a .zip of results, or a
            Parquet store.
        method: How to read a database or a server. "sql" reads the tables, "api" uses MLflow's
            search, and "auto" reads the tables if possible. Other stores ignore it.
        client: An open MLflow client of the store; None opens one if it is needed.
        pooled: Whether to keep connections to a database open, for many small reads.

    Raises:
        NoStoreError: If no store exists at the address.
        StoreError: If the store cannot be read.
    """
    if address.is_bundle:
        from paradnn.store.bundle import BundleReader

        return BundleReader(address)
    if address.is_parquet:
        from paradnn.store.parquet import ParquetReader

        return ParquetReader(address)
    if not address.is_sql and not address.is_server:
        remedy = migration_remedy(address) or (
            "give the path of an mlflow.db, of a Parquet store or of a .zip of results, the "
            "address of a database such as sqlite:///path/of/mlflow.db, or the http address of an "
            "mlflow server"
        )
        raise StoreError(f"no tracking store at {address.public}: {remedy}")
    if method == "sql" and not address.is_sql:
        raise StoreError(f"reader=sql: {address.public} has no tables to read; use reader=api")
    if address.is_sql:
        from paradnn.store.sql import SqlReader

        sql_reader = SqlReader(address, pooled=pooled)
        if method != "api" and not sql_reader.unexpected:
            return sql_reader
        if method != "api":
            warnings.warn(
                f"reading through MLflow's search, which is slow: {sql_reader.unexpected}",
                stacklevel=3,
            )
    return SearchReader(address, client)


def read_columns(
    address: StoreAddress, query: Query, method: ReadMethod = "auto"
) -> tuple[Records, list[str]]:
    """Read the runs of a query as columns.

    Args:
        address: Address of the store.
        query: The runs to read.
        method: How to read a database or a server, as in `open_reader`.

    Returns:
        A pair: the runs as columns, and the names of the store's experiments.

    Raises:
        NoStoreError: If no store exists at the address.
        StoreError: If the store cannot be read.
    """
    from paradnn.store.columns import Records

    reader = open_reader(address, method)
    read: Callable[[Query], Records] = getattr(
        reader, "columns", lambda wanted: Records.of(reader.read(wanted))
    )
    return read(query), reader.experiments()


_PAGE = 1_000  # runs per request; a server may allow up to 50,000


class SearchReader:
    """Reads runs with MLflow's search (`Reader`).

    Args:
        address: Address of the store.
        client: An open MLflow client of the store; None opens one at the first read.
    """

    def __init__(self, address: StoreAddress, client: MlflowClient | None = None) -> None:
        self._address = address
        self._open_client = client
        self._ids: dict[str, str] = {}  # experiment name -> id, if found

    def experiments(self) -> list[str]:
        """Return the names of the store's experiments that are not deleted."""
        with store_errors(f"cannot read {self._address.public}"):
            return sorted(experiment.name for experiment in _pages(self._client.search_experiments))

    def read(self, query: Query) -> list[Row]:
        """Return the runs that satisfy a query, with the params, tags and metrics it requests.

        The server applies the filters that MLflow's grammar can express. This class applies the
        others.
        """
        with store_errors(f"cannot read {self._address.public}"):
            return list(islice(self._search(query), query.newest))

    @cached_property
    def _client(self) -> MlflowClient:
        return self._open_client or client_of(self._address)

    def _search(self, query: Query) -> Iterator[Row]:
        """Yield each run that satisfies a query once.

        A run is converted to a `Row` of plain values, because MLflow's objects for 100,000 runs
        would fill the memory.

        MLflow returns pages of runs that begin at an offset. Runs that are created during the
        search may therefore shift later pages, so that a page repeats runs of the previous page.
        Repeated run ids are skipped. If the order is "oldest first", new runs are appended after
        all existing runs and shift no page.

        Args:
            query: The experiments, the filters, and the number of newest runs. If `query.newest` is
                None, all runs are yielded, oldest first; otherwise the newest runs come first.
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
                    bare_name(key): number(value)
                    for key, value in data.metrics.items()
                    if value == value
                }
                yield query.narrowed(Row(run, data.params, data.tags, numbers))

    def _id_of(self, name: str) -> str:
        """Return the id of an experiment; empty if it is absent or deleted."""
        if name not in self._ids:
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None or experiment.lifecycle_stage != "active":
                return ""
            self._ids[name] = str(experiment.experiment_id)
        return self._ids[name]


def _pages(search: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(*arguments, max_results=_PAGE, page_token=token, **options)
        yield from page
        token = page.token
        if not token:
            return


def _filter(query: Query) -> str:
    """Return the conditions of a query that MLflow's filter grammar can express, as a filter.

    These are equality with one value, and bounds of the start time.
    """
    parts = [
        f"{kind}.`{key}` = '{next(iter(allowed))}'"
        for kind, filters in (("params", query.params), ("tags", query.tags))
        for key, allowed in filters.items()
        if len(allowed) == 1 and not set("'\"`\\") & set(key + next(iter(allowed)))
    ]
    attributes = {
        "run_id =": query.run_id and f"'{query.run_id}'",
        "status =": query.status and f"'{query.status}'",
        "start_time >=": query.since_ms,
        "start_time <": query.until_ms,
    }
    parts += [
        f"attributes.{comparison} {value}"
        for comparison, value in attributes.items()
        if value is not None
    ]
    # Other kinds of runs have other outcome tags, and the grammar has no "or".
    if query.needs_outcome and query.tags.get("kind") == ("point",):
        parts.append("tags.outcome LIKE '%'")
    return " and ".join(parts)
