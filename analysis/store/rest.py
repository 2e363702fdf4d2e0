"""Runs through MLflow's own search: for tracking servers, and wherever the tables are not as known.

Importing MLflow takes seconds, so it happens inside the functions.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

from analysis.store.frame import Records, Run
from analysis.store.query import Query
from paradnn.errors import StoreError
from paradnn.store.address import without_secrets

__all__ = ["known_experiments", "read"]

_PAGE = 2_000  # runs asked for at once; a server may allow up to 50,000


def read(uri: str, query: Query) -> Records:
    """The runs of a query. The server filters what its grammar can say, the rest is filtered here."""
    from mlflow.exceptions import MlflowException

    try:
        found = list(_search(uri, query))
    except MlflowException as error:
        raise StoreError(f"cannot read {without_secrets(uri)}: {_line(error)}") from error
    records = Records(run for run, *_ in found)
    for run, params, tags, metrics in found:
        records.add_text(((run.run_id, key, value) for key, value in params.items()), records.params)
        records.add_text(((run.run_id, key, value) for key, value in tags.items()), records.tags)
        records.add_metrics((run.run_id, key, value, math.isnan(value)) for key, value in metrics.items())
    return records


def known_experiments(uri: str) -> list[str]:
    """The names of the store's experiments that are not deleted."""
    from mlflow.exceptions import MlflowException

    try:
        return sorted(experiment.name for experiment in _pages(_client(uri).search_experiments))
    except MlflowException as error:
        raise StoreError(f"cannot read {without_secrets(uri)}: {_line(error)}") from error


def _search(uri: str, query: Query) -> Iterator[tuple[Run, dict[str, str], dict[str, str], dict[str, float]]]:
    """Each run once, with its params, tags and metrics, but not MLflow's objects, of which 100,000 fill the memory.

    Pages are counted by offset, so runs that arrive meanwhile may shift them: oldest first keeps newcomers at the
    end, and an id seen before is passed over.
    """
    client = _client(uri)
    names = {}
    for name in query.experiments:
        experiment = client.get_experiment_by_name(name)
        if experiment is not None and experiment.lifecycle_stage == "active":
            names[experiment.experiment_id] = name
    seen: set[str] = set()
    order = ["attributes.start_time ASC", "attributes.run_id ASC"]
    for found in _pages(client.search_runs, list(names), _filter(query), order_by=order) if names else ():
        info, data = found.info, found.data
        if info.run_id not in seen and query.accepts(data.params, data.tags, info.start_time):
            seen.add(info.run_id)
            yield (
                Run(
                    info.run_id,
                    info.run_name,
                    names[info.experiment_id],
                    info.status,
                    info.start_time,
                    info.end_time or None,
                    info.artifact_uri,
                ),
                _wanted(data.params, query),
                _wanted(data.tags, query),
                _wanted(data.metrics, query),
            )


def _wanted(values: dict[str, Any], query: Query) -> dict[str, Any]:
    return {sys.intern(key): value for key, value in values.items() if query.wants(key)}


def _pages(search: Any, *given: Any, **options: Any) -> Iterator[Any]:
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
        f"{kind}.`{key}` = '{allowed[0]}'"
        for kind, filters in (("params", query.params), ("tags", query.tags))
        for key, allowed in filters.items()
        if len(allowed) == 1 and not set("'\"`\\") & set(key + allowed[0])
    ]
    if query.since_ms is not None:
        parts.append(f"attributes.start_time >= {query.since_ms}")
    if query.until_ms is not None:
        parts.append(f"attributes.start_time < {query.until_ms}")
    if not query.unfinished and "outcome" not in query.tags:
        parts.append("tags.outcome LIKE '%'")
    return " and ".join(parts)


def _client(uri: str) -> Any:
    # By default a request to a server that is gone is repeated for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    from mlflow import MlflowClient

    logging.getLogger("alembic").setLevel(logging.ERROR)
    return MlflowClient(uri)


def _line(error: Exception) -> str:
    return without_secrets(" ".join(str(error).split()))[:300]
