"""The only way from a tracking store to a frame: any query gives one tidy frame.

    from analysis.store.load import load
    frame = load(family="fc", platform="cpu", outcome="ok")

Stores are read by `paradnn.store`, table by table or through MLflow's search; both give the same frame
(`analysis.store.frame`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import get_args
from urllib.parse import unquote, urlsplit

import pandas as pd

from analysis.store.frame import build
from paradnn.errors import ConfigError, DataError, SchemaError, StoreError
from paradnn.store.address import address_of
from paradnn.store.errors import store_errors
from paradnn.store.query import Query, Values
from paradnn.store.reader import Way, open_reader
from paradnn.store.records import Records
from paradnn.store.schema import OUTCOME_TAGS, SCHEMA_VERSION

__all__ = ["default_uri", "load", "load_table", "load_tables", "local_folder"]

Choice = str | Sequence[str] | None
Time = str | datetime | pd.Timestamp | None

#: What the frame's own columns and the schema check are made from, whatever columns are asked for.
_ALWAYS = ("model.name", "device", *OUTCOME_TAGS, "kind", "schema_version", "mlflow.parentRunId")


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
    reader: Way = "auto",
) -> pd.DataFrame:
    """One row a run, sorted by start time; see `analysis.store.frame.build` for the columns.

    A filter takes one value or several, of which any will do. `since` counts, `until` does not; a time without zone
    is UTC. Every outcome is kept, out of memory included, unless `outcome` chooses; runs that never got one, because
    they are not finished or were killed, are left out unless `unfinished`. `kind` None reads runs of every kind.
    `columns` limits the params, metrics and tags that are read; runs are found by all of theirs.

    Raises StoreError when the store or an experiment is not there, SchemaError for runs of another schema.
    """
    chosen = {**(tags or {}), "kind": kind, "outcome": outcome}
    query = Query(
        experiments=_choice(experiments),
        params={key: _choice(value) for key, value in (("model.name", family), ("platform.name", platform)) if value},
        tags={key: _choice(value) for key, value in chosen.items() if value},
        since_ms=_milliseconds("since", since),
        until_ms=_milliseconds("until", until),
        unfinished=unfinished,
        columns={} if columns is None else {kind: {*columns, *_ALWAYS} for kind in get_args(Values)},
    )
    store = open_reader(address_of(tracking_uri), reader)
    records = store.read(query)
    known = store.experiments()
    for name in query.experiments:
        if name not in known:
            raise StoreError(f"experiment={name}: no such experiment in the store; it has {', '.join(known) or 'none'}")
    _check_schema(records)
    return build(records)


def _choice(value: Choice) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _milliseconds(name: str, value: Time) -> int | None:
    """Unix milliseconds of a time; one without a zone is taken as UTC."""
    if value is None:
        return None
    try:
        stamp = pd.to_datetime(value, utc=True)
    except (ValueError, TypeError):
        stamp = None
    if stamp is None or pd.isna(stamp):
        raise ConfigError(name, value, "is not a time", "write for example 2026-01-31 or 2026-01-31T12:00:00+01:00")
    return int(stamp.timestamp() * 1000)


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

    address = address_of(tracking_uri)
    if address.is_sql:
        open_reader(address)  # a missing file would otherwise be created
    with store_errors(f"run {run_id} has no table {name}: profile it when it is measured"):
        path = download_artifacts(run_id=run_id, artifact_path=name, tracking_uri=address.uri)
    return _parse(Path(path).read_text(encoding="utf-8"), f"{name} of run {run_id}")


def load_tables(frame: pd.DataFrame, name: str, tracking_uri: str | None = None) -> pd.DataFrame:
    """The artifact tables of many runs below each other, with their `run_id` as first column.

    Runs without such a table are passed over. Tables in local folders are read directly; others are fetched eight
    at a time.
    """
    rows = list(zip(frame["run_id"], frame["artifact_uri"], strict=True))
    local = {run_id: local_folder(uri) for run_id, uri in rows}
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


def local_folder(artifact_uri: object) -> Path | None:
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
