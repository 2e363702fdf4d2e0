"""The only way from a tracking store to a frame, and to what its runs keep as files.

    from analysis.store.load import load
    frame = load(family="fc", platform="cpu", outcome="ok")

Stores are read by `paradnn.store`, table by table or through MLflow's search; both give the same
frame.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from analysis.store.frame import build_frame
from paradnn.config.paths import default_experiment
from paradnn.core.errors import ConfigError, DataError, SchemaError, StoreError
from paradnn.core.words import counted, did_you_mean, without_secrets
from paradnn.store.address import BUNDLE, address_of, artifact_folder
from paradnn.store.bundle import read_artifact as read_bundled
from paradnn.store.client import store_errors
from paradnn.store.columns import Records, Texts
from paradnn.store.files import PACKED, is_inside, read_json, unpack
from paradnn.store.reader import Way, open_reader, read_columns
from paradnn.store.runs import OUTCOME_TAGS, SCHEMA_VERSION, Query, Values

Choice = str | Sequence[str] | None
Stores = str | Sequence[str] | None
Time = str | datetime | pd.Timestamp | None

#: What the frame's own columns and the schema check are made from, whatever columns are asked for.
_ALWAYS = (
    "model.name",
    "device",
    *OUTCOME_TAGS,
    "kind",
    "schema_version",
    "protocol_id",
    "mlflow.parentRunId",
)
_RATES = ("flops_per_second", "bytes_per_second", "arithmetic_intensity")
#: What a table of operations holds of each type: how often it ran and its own seconds in the
#: profile, its share of the profiled time, FLOPs and bytes moved, both rates while it runs, FLOPs /
#: bytes.
NUMBERS = ("count", "self_seconds", "share", "flops", "bytes", *_RATES)


def load(
    tracking_uri: Stores = None,
    *,
    experiments: str | Sequence[str] | None = None,
    family: Choice = None,
    platform: Choice = None,
    outcome: Choice = None,
    since: Time = None,
    until: Time = None,
    tags: Mapping[str, Choice] | None = None,
    kind: Choice = "point",
    protocol: str | None = None,
    unfinished: bool = False,
    columns: Collection[str] | None = None,
    reader: Way = "auto",
) -> pd.DataFrame:
    """One row a run, sorted by start time; see `analysis.store.frame.build` for the columns.

    `experiments` None reads MLFLOW_EXPERIMENT_NAME, else "paradnn".

    A filter takes one value or several, of which any will do. `since` counts, `until` does not; a
    time without zone is UTC. Runs that never got an outcome are left out unless `unfinished`.
    `kind` None reads runs of every kind. `protocol` is a name, or the beginning of a hash. Of
    several stores the column `store` says which a run is from. `columns` limits the params, metrics
    and tags that are read.

    Raises StoreError when the store or an experiment is not there, SchemaError for runs of another
    schema.
    """
    chosen = {**(tags or {}), "kind": kind, "outcome": outcome}
    query = Query(
        experiments=_choice(experiments or default_experiment()),
        params={
            key: _choice(value)
            for key, value in (("model.name", family), ("platform.name", platform))
            if value
        },
        tags={key: _choice(value) for key, value in chosen.items() if value},
        since_ms=_milliseconds("since", since),
        until_ms=_milliseconds("until", until),
        unfinished=unfinished,
        columns={}
        if columns is None
        else {kind: {*columns, *_ALWAYS} for kind in get_args(Values)},
    )
    stores = _stores(tracking_uri)
    parts = []
    for uri in stores:
        address = address_of(uri)
        records, known = read_columns(address, query, reader)
        for name in query.experiments:
            if name not in known:
                where = "the store" if len(stores) == 1 else address.public
                held = ", ".join(known) or "none"
                raise StoreError(f"experiment={name}: no such experiment in {where}; it has {held}")
        if len(stores) > 1:
            records.tags["store"] = Texts.of([_name(uri)] * len(records.runs))
        parts.append(records)
    records = parts[0] if len(parts) == 1 else Records.joined(parts)
    _check_schema(records)
    frame = build_frame(records)
    return frame if protocol is None else _of_protocol(frame, protocol)


def _stores(tracking_uri: Stores) -> list[str | None]:
    """The stores that are meant, each once; None is the default one."""
    given: list[str | None] = (
        [tracking_uri] if isinstance(tracking_uri, str) else list(tracking_uri or ())
    )
    return list(dict.fromkeys(given)) or [None]


def _name(uri: str | None) -> str:
    """A store as frames name it, which may be shown."""
    return without_secrets(uri or address_of(uri).uri)


def _of_protocol(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """The runs of one timing protocol, by its name or the beginning of its hash; ConfigError where
    none has it.
    """
    if frame.empty or "protocol" not in frame:
        return frame.iloc[:0]
    found = frame["protocol"].eq(name) | frame["protocol_id"].str.startswith(name)
    if not found.any():
        counts = frame["protocol"].value_counts()
        held = ", ".join(f"{other} ({count})" for other, count in counts.items())
        hint = did_you_mean(name, [str(other) for other in counts.index])
        raise ConfigError("--protocol", name, "no run has it", f"{hint}these runs have {held}")
    return frame[found.fillna(False).astype(bool)].reset_index(drop=True)


def _choice(value: Choice) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _milliseconds(name: str, value: Time) -> int | None:
    """Unix milliseconds of a time; one without a zone is taken as UTC."""
    if value is None:
        return None
    stamp = pd.to_datetime(value, utc=True, errors="coerce")
    if pd.isna(stamp):
        raise ConfigError(
            name,
            value,
            "is not a time",
            "write for example 2026-01-31 or 2026-01-31T12:00:00+01:00",
        )
    return int(stamp.timestamp() * 1000)


def _check_schema(records: Records) -> None:
    """Every run that says what kind it is must be of this schema."""
    nothing = Texts.missing(len(records.runs))
    versions = records.tags.get("schema_version", nothing)
    kinds = records.tags.get("kind", nothing)
    for place in np.flatnonzero((kinds.codes >= 0) & ~versions.are(SCHEMA_VERSION))[:1]:
        version = list(versions)[place] or "(none)"
        raise SchemaError(
            f"schema_version={version} in run {records.runs[place].run_id}, but this analysis "
            f"reads schema_version={SCHEMA_VERSION}: choose other runs, or use the release that wrote these"
        )


def load_table(run_id: str, name: str, tracking_uri: Stores = None) -> pd.DataFrame:
    """A run's artifact table, such as operations.json. StoreError when there is none, DataError
    when it is damaged.
    """
    missing = StoreError(f"no run {run_id}")
    nothing: dict[Values, Collection[str]] = dict.fromkeys(get_args(Values), ())
    for uri in _stores(tracking_uri):
        store = open_reader(address_of(uri))
        try:
            query = Query(
                tuple(store.experiments()), run_id=run_id, unfinished=True, columns=nothing
            )
            found = (
                _artifact(row.run.artifact_uri or "", run_id, name, uri)
                for row in store.read(query)
            )
            content = next(filter(None, found), None)
            if content:
                return _parse(content, name, run_id)
        except StoreError as error:
            missing = error
    raise StoreError(
        f"run {run_id} has no table {name}: profile it when it is measured ({missing})"
    )


def load_tables(frame: pd.DataFrame, name: str, tracking_uri: Stores = None) -> pd.DataFrame:
    """The artifact tables of many runs below each other, with their `run_id` as first column.

    Runs without such a table are passed over. Raises DataError for a damaged table.
    """
    tables = {
        run_id: _parse(content, name, run_id)
        for run_id, content in load_files(frame, name, tracking_uri).items()
    }
    for run_id, table in tables.items():
        table.insert(0, "run_id", run_id)
    nothing = pd.DataFrame({"run_id": pd.Series(dtype="str")})
    if tables:
        return pd.concat(tables.values(), ignore_index=True)
    return nothing


def load_files(frame: pd.DataFrame, name: str, tracking_uri: Stores = None) -> dict[str, bytes]:
    """Run id -> the content of an artifact, eight fetched at a time; runs without it are passed
    over.
    """
    stores = frame["store"] if "store" in frame else [None] * len(frame)
    given = _stores(tracking_uri)
    named = {_name(uri): uri for uri in given}
    rows = [
        (str(uri or ""), str(run_id), named.get(str(store), store) if len(given) > 1 else given[0])
        for run_id, uri, store in zip(frame["run_id"], frame["artifact_uri"], stores, strict=True)
    ]
    if any(
        uri.startswith("mlflow-artifacts:") and not address_of(store).is_server
        for uri, _, store in rows
    ):
        raise StoreError(
            f"{name}: a tracking server keeps these files; give its address instead of the database's"
        )
    problems: list[StoreError] = []

    def fetch(row: tuple[str, str, str | None]) -> tuple[str, bytes | None]:
        try:
            artifact_folder(row[0], row[1], [address_of(row[2])])
        except StoreError as error:  # files that are none of the store's own
            problems.append(error)
            return row[1], None
        try:
            return row[1], _artifact(row[0], row[1], name, row[2])
        except StoreError:
            return row[1], None

    with ThreadPoolExecutor(8) as pool:
        files = [*pool.map(fetch, rows)]
    if problems:
        warnings.warn(
            f"files of {counted(len(problems), 'run')} are not read: {problems[0]}", stacklevel=2
        )
    return {run_id: content for run_id, content in files if content is not None}


def _artifact(
    artifact_uri: str, run_id: str, name: str, uri: str | None, alone: bool = True
) -> bytes | None:
    """A file among the artifacts at an address; None where there is none, StoreError where it
    cannot be fetched.

    `alone`: a server keeps it by itself, as tables and what no program reads; other files may be
    packed there.
    """
    if artifact_uri.startswith(f"{BUNDLE}:"):
        return read_bundled(artifact_uri, name)
    folder = artifact_folder(artifact_uri, run_id, [address_of(uri)])
    if folder is not None:
        path = folder / name if is_inside(folder, name) else None
        return path.read_bytes() if path and path.is_file() else None
    from mlflow.artifacts import download_artifacts, list_artifacts

    server = address_of(uri).uri
    with store_errors(f"{name} of run {run_id}"):
        if alone:
            held = []
        else:
            held = [file.path for file in list_artifacts(run_id=run_id, tracking_uri=server)]
        packed = PACKED in held and name not in held
        fetched = download_artifacts(
            run_id=run_id, artifact_path=PACKED if packed else name, tracking_uri=server
        )
    content = Path(fetched).read_bytes()
    return unpack(content).get(name) if packed else content


def _parse(content: bytes, name: str, run_id: str) -> pd.DataFrame:
    """A table in the layout of mlflow.log_table: {"columns": [...], "data": [[...]]}."""
    try:
        value = read_json(content.decode())
        return pd.DataFrame(value["data"], columns=value["columns"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{name} of run {run_id} is damaged: {' '.join(str(error).split())[:200]}"
        ) from error


def read_operations(run_id: str, tracking_uri: Stores = None) -> pd.DataFrame:
    """One row an operation, or an operation type where the run holds types alone (no column
    `operation` then).

    StoreError for a run that was not profiled, DataError for a table that lacks columns.
    """
    try:
        name = "operations.json"
        table = load_table(run_id, "operations.json", tracking_uri)
    except StoreError:
        name = "operation_types.json"
        table = load_table(run_id, "operation_types.json", tracking_uri)
    lacking = [column for column in ("type", *NUMBERS[2:]) if column not in table]
    if lacking:
        raise DataError(
            f"{name} of run {run_id} is no operation table: it lacks {', '.join(lacking)}"
        )
    return table


def load_types(frame: pd.DataFrame, tracking_uri: Stores = None) -> pd.DataFrame:
    """The tables operation_types.json of a frame's runs: run_id, type and NUMBERS (float64, NaN
    where not recorded).

    Runs that were not profiled, which have no metric `op_share.<type>`, are passed over: to look
    for the files of a hundred thousand takes minutes. Raises DataError for a damaged table.
    """
    profiled = frame[frame.filter(regex=r"^op_share\.").notna().any(axis=1)]
    tables = load_tables(profiled, "operation_types.json", tracking_uri).reindex(
        columns=["run_id", "type", *NUMBERS]
    )
    numbers = {
        name: pd.to_numeric(tables[name], errors="coerce").astype("float64") for name in NUMBERS
    }
    return tables.assign(type=tables["type"].astype("str"), **numbers)


def read_environment(run: Mapping[Any, Any], store: str | None) -> Mapping[str, Any]:
    """The environment that a run (a row of the frame) of a store recorded; empty where it has none
    that can be read.
    """
    if not run["artifact_uri"]:
        return {}
    try:
        content = _artifact(
            str(run["artifact_uri"]), str(run["run_id"]), "environment.json", store, alone=False
        )
        found = read_json(content or b"{}")
    except (OSError, ValueError, StoreError):
        return {}
    return found if isinstance(found, dict) else {}
