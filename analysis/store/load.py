"""The only reader of the tracking store: any query gives one tidy frame.

    from analysis.store.load import load
    frame = load(family="fc", platform="cpu", outcome="ok")

SQL stores are read table by table (`analysis.store.sql`), tracking servers through MLflow's search
(`analysis.store.rest`); both give the same frame (`analysis.store.frame`).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import pandas as pd

from analysis.store import sql as read_sql
from analysis.store.frame import Records, build
from analysis.store.query import Choice, Query, make_query
from paradnn.errors import DataError, SchemaError, StoreError
from paradnn.store.address import address_of, without_secrets

__all__ = ["SCHEMA_VERSION", "default_uri", "load", "load_table", "load_tables"]

#: The version of what a run holds that this reader understands.
#:   1  the first.
SCHEMA_VERSION = "1"

Reader = Literal["auto", "sql", "api"]
Time = str | datetime | pd.Timestamp | None


def default_uri() -> str:
    """Where runs are looked for: MLFLOW_TRACKING_URI, else the store embedded in this checkout."""
    return address_of().uri


def load(
    tracking_uri: str | None = None,
    *,
    experiments: str | Sequence[str] = ("paradnn",),
    family: Choice = None,
    platform: Choice = None,
    outcome: Choice = None,
    since: Time = None,
    until: Time = None,
    tags: Mapping[str, Choice] | None = None,
    kind: Choice = "point",
    unfinished: bool = False,
    columns: Collection[str] | None = None,
    reader: Reader = "auto",
) -> pd.DataFrame:
    """One row a run, sorted by start time; see `analysis.store.frame.build` for the columns.

    A filter takes one value or several, of which any will do. `since` counts, `until` does not; a time without zone
    is UTC. Every outcome is kept, out of memory included, unless `outcome` chooses; runs that never got one, because
    they are not finished or were killed, are left out unless `unfinished`. `kind` None reads runs of every kind.
    `columns` limits the params, metrics and tags that are read; runs are found by all of theirs.

    Raises StoreError when the store or an experiment is not there, SchemaError for runs of another schema.
    """
    uri = address_of(tracking_uri).uri
    query = make_query(experiments, family, platform, outcome, since, until, tags or {}, kind, unfinished, columns)
    records = _read(uri, query, reader)
    _check_schema(records)
    return build(records)


def _read(uri: str, query: Query, reader: Reader) -> Records:
    tables = uri.partition(":")[0].partition("+")[0] in read_sql.SCHEMES
    if reader == "sql" and not tables:
        raise StoreError(f"reader=sql: {without_secrets(uri)} has no tables to read; use reader=api")
    if tables:
        engine = read_sql.engine_of(uri)
        surprise = read_sql.unexpected(engine)
        if reader != "api" and surprise is None:
            return _found(read_sql.read(engine, query), query, read_sql.known_experiments(engine))
        if reader != "api":
            warnings.warn(f"reading through MLflow's search, which is slow: {surprise}", stacklevel=3)
    from analysis.store import rest  # imports MLflow, which takes seconds

    return _found(rest.read(uri, query), query, rest.known_experiments(uri))


def _found(records: Records, query: Query, known: list[str]) -> Records:
    """The records; StoreError when an experiment asked for does not exist."""
    for name in query.experiments:
        if name not in known:
            raise StoreError(f"experiment={name}: no such experiment in the store; it has {', '.join(known) or 'none'}")
    return records


def _check_schema(records: Records) -> None:
    """Every run that says what kind it is must be of this schema."""
    nothing: list[str | None] = [None] * len(records.runs)
    versions, kinds = records.tags.get("schema_version", nothing), records.tags.get("kind", nothing)
    for run, version, kind in zip(records.runs, versions, kinds, strict=True):
        if kind is not None and version != SCHEMA_VERSION:
            raise SchemaError(
                f"schema_version={version or '(none)'} in run {run.run_id}, but this analysis reads "
                f"schema_version={SCHEMA_VERSION}: choose other runs, or use the release that wrote these"
            )


def load_table(run_id: str, name: str, tracking_uri: str | None = None) -> pd.DataFrame:
    """A run's artifact table, such as operations.json. StoreError when there is none, DataError when it is damaged."""
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    uri = address_of(tracking_uri).uri
    if uri.partition(":")[0] in read_sql.SCHEMES:
        read_sql.engine_of(uri)  # a missing file would otherwise be created
    try:
        path = download_artifacts(run_id=run_id, artifact_path=name, tracking_uri=uri)
    except (MlflowException, OSError) as error:
        problem = without_secrets(" ".join(str(error).split()))[:200]
        raise StoreError(f"run {run_id} has no table {name}: profile it when it is measured ({problem})") from error
    return _parse(Path(path).read_text(encoding="utf-8"), f"{name} of run {run_id}")


def load_tables(frame: pd.DataFrame, name: str, tracking_uri: str | None = None) -> pd.DataFrame:
    """The artifact tables of many runs below each other, with their `run_id` as first column.

    Runs without such a table are passed over. Tables in local folders are read directly; others are fetched eight
    at a time.
    """
    rows = list(zip(frame["run_id"], frame["artifact_uri"], strict=True))
    local = {run_id: _folder(uri) for run_id, uri in rows}
    served = any(str(uri).startswith("mlflow-artifacts:") for _, uri in rows)
    if served and not address_of(tracking_uri).uri.startswith("http"):
        raise StoreError(f"{name}: a tracking server keeps these files; give its address instead of the database's")
    tables = []
    for run_id, folder in local.items():
        if folder is not None and (folder / name).is_file():
            table = _parse((folder / name).read_text(encoding="utf-8"), f"{name} of run {run_id}")
            tables.append(_labelled(table, run_id))
    remote = [run_id for run_id, folder in local.items() if folder is None]
    with ThreadPoolExecutor(8) as pool:
        tables += [
            table for table in pool.map(lambda run_id: _fetch(run_id, name, tracking_uri), remote) if table is not None
        ]
    if not tables:
        return pd.DataFrame({"run_id": pd.Series(dtype="str")})
    return pd.concat(tables, ignore_index=True)


def _fetch(run_id: str, name: str, tracking_uri: str | None) -> pd.DataFrame | None:
    try:
        return _labelled(load_table(run_id, name, tracking_uri), run_id)
    except StoreError:
        return None


def _labelled(table: pd.DataFrame, run_id: str) -> pd.DataFrame:
    table.insert(0, "run_id", run_id)
    return table


def _folder(artifact_uri: object) -> Path | None:
    """The local folder of an artifact address; None where it is elsewhere."""
    if not isinstance(artifact_uri, str) or not artifact_uri:
        return None
    parts = urlsplit(artifact_uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(artifact_uri) if not parts.scheme else None


def _parse(text: str, what: str) -> pd.DataFrame:
    """A table in the layout of mlflow.log_table: {"columns": [...], "data": [[...]]}."""
    try:
        value = json.loads(text)
        return pd.DataFrame(value["data"], columns=value["columns"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{what} is damaged: {' '.join(str(error).split())[:200]}") from error
