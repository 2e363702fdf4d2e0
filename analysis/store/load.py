"""Load runs from an MLflow tracking store as a frame, and read the files of runs.

    from analysis.store.load import load
    frame = load(family="fc", platform="cpu", outcome="ok")

All analyses read stores through this module. `paradnn.store` reads either the tables of a database
or MLflow's search; both give the same frame.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from paradnn.store.reader import ReadMethod, open_reader, read_columns
from paradnn.store.runs import OUTCOME_TAGS, SCHEMA_VERSION, Query, Values

Choice = str | Sequence[str] | None
Stores = str | Sequence[str] | None
Time = str | datetime | pd.Timestamp | None

#: Params and tags that are always read, since `build_frame` and the schema check need them.
_REQUIRED_COLUMNS = (
    "model.name",
    "device",
    *OUTCOME_TAGS,
    "kind",
    "schema_version",
    "protocol_id",
    "mlflow.parentRunId",
)
#: Numeric columns of a table of operations: number of executions, seconds in the profile without
#: nested operations, share of the profiled time, FLOPs, bytes moved, both rates while the operation
#: runs, and FLOPs per byte.
OPERATION_NUMBERS = (
    "count",
    "self_seconds",
    "share",
    "flops",
    "bytes",
    "flops_per_second",
    "bytes_per_second",
    "arithmetic_intensity",
)
#: Columns that every table of operations must have. Older tables lack counts and seconds.
_REQUIRED_OPERATION_COLUMNS = ("type", *OPERATION_NUMBERS[2:])
#: Number of files that are fetched at the same time.
_FETCH_THREADS = 8
_MAX_DAMAGE_LENGTH = 200


def load(  # noqa: PLR0913 - one keyword per filter
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
    reader: ReadMethod = "auto",
) -> pd.DataFrame:
    """Load runs as a frame.

    A filter takes one value or several values; None for no restriction. A run must match one of the
    values of every filter.

    Args:
        tracking_uri: Address of the MLflow store, or several addresses; None for the default store.
        experiments: Names of experiments; None for MLFLOW_EXPERIMENT_NAME, else "paradnn".
        family: Model families, such as "fc".
        platform: Names of platforms, such as "gpu".
        outcome: Outcomes, such as "ok" or "oom_device".
        since: Earliest start time, inclusive. A time without a zone is UTC.
        until: Latest start time, exclusive.
        tags: One value or several values of each tag, by name of the tag.
        kind: Kinds of runs, such as "point" for measurements; None for all.
        protocol: Timing protocol: its name, or the beginning of its hash; None for all.
        unfinished: Whether to include runs without an outcome.
        columns: Params, metrics and tags to read; None for all.
        reader: How to read the store: its tables ("sql"), MLflow's search ("api"), or the first of
            them that the store supports ("auto").

    Returns:
        A row per run, sorted by start time; `analysis.store.frame.build_frame` describes the
        columns. If there are several stores, the column `store` holds the store of each run.

    Raises:
        StoreError: If the store or an experiment does not exist.
        SchemaError: If a run has a schema version that this analysis does not read.
    """
    query = Query(
        experiments=_as_tuple(experiments or default_experiment()),
        params=_filters({"model.name": family, "platform.name": platform}),
        tags=_filters({**(tags or {}), "kind": kind, "outcome": outcome}),
        since_ms=_milliseconds("since", since),
        until_ms=_milliseconds("until", until),
        unfinished=unfinished,
        columns=_query_columns(columns),
    )
    stores = _unique_stores(tracking_uri)
    parts = []
    for uri in stores:
        address = address_of(uri)
        records, known = read_columns(address, query, reader)
        for name in query.experiments:
            if name not in known:
                location = "the store" if len(stores) == 1 else address.public
                raise StoreError(
                    f"experiment={name}: no such experiment in {location}; "
                    f"it has {', '.join(known) or 'none'}"
                )
        if len(stores) > 1:
            records.tags["store"] = Texts.of([_store_label(uri)] * len(records.runs))
        parts.append(records)
    records = parts[0] if len(parts) == 1 else Records.joined(parts)
    _check_schema(records)
    frame = build_frame(records)
    if protocol is None:
        return frame
    return _filter_protocol(frame, protocol)


def _filters(choices: Mapping[str, Choice]) -> dict[str, tuple[str, ...]]:
    return {key: _as_tuple(value) for key, value in choices.items() if value}


def _query_columns(columns: Collection[str] | None) -> dict[Values, Collection[str]]:
    if columns is None:
        return {}
    return {kind: {*columns, *_REQUIRED_COLUMNS} for kind in get_args(Values)}


def _unique_stores(tracking_uri: Stores) -> list[str | None]:
    """Return the distinct store addresses in order; [None] for the default store."""
    if isinstance(tracking_uri, str):
        return [tracking_uri]
    stores: list[str | None] = list(dict.fromkeys(tracking_uri or ()))
    return stores or [None]


def _store_label(uri: str | None) -> str:
    """Return the name of a store in the column `store`: its URI without credentials.

    Args:
        uri: URI of the store; None for the default store.
    """
    return without_secrets(uri or address_of(uri).uri)


def _filter_protocol(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the runs of a timing protocol.

    Args:
        frame: One row per run.
        name: Name of the protocol, or the beginning of its hash.

    Raises:
        ConfigError: If no run has this protocol.
    """
    if frame.empty or "protocol" not in frame:
        return frame.iloc[:0]
    matches = frame["protocol"].eq(name) | frame["protocol_id"].str.startswith(name)
    if not matches.any():
        counts = frame["protocol"].value_counts()
        known = ", ".join(f"{other} ({count})" for other, count in counts.items())
        hint = did_you_mean(name, [str(other) for other in counts.index])
        raise ConfigError(
            "--protocol", name, "no run has this protocol", f"{hint}these runs have {known}"
        )
    return frame[matches.fillna(False).astype(bool)].reset_index(drop=True)


def _as_tuple(value: Choice) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(value or ())


def _milliseconds(name: str, value: Time) -> int | None:
    """Return a time in Unix milliseconds; a time without a zone is UTC.

    Args:
        name: Name of the argument with the time, for the error message.
        value: The time; None is returned unchanged.

    Raises:
        ConfigError: If the value is not a time.
    """
    if value is None:
        return None
    stamp = pd.to_datetime(value, utc=True, errors="coerce")
    if pd.isna(stamp):
        raise ConfigError(
            name,
            value,
            "is not a time",
            "for example, write 2026-01-31 or 2026-01-31T12:00:00+01:00",
        )
    return int(stamp.timestamp() * 1000)


def _check_schema(records: Records) -> None:
    """Require that the runs of ParaDnn have the schema version that this analysis reads.

    Runs of ParaDnn have the tag `kind`.

    Raises:
        SchemaError: If a run has a different version.
    """
    nothing = Texts.missing(len(records.runs))
    versions = records.tags.get("schema_version", nothing)
    kinds = records.tags.get("kind", nothing)
    foreign = np.flatnonzero((kinds.codes >= 0) & ~versions.equals(SCHEMA_VERSION))
    if not len(foreign):
        return
    first = foreign[0]
    version = list(versions)[first] or "(none)"
    raise SchemaError(
        f"schema_version={version} in run {records.runs[first].run_id}, "
        f"but this analysis reads schema_version={SCHEMA_VERSION}: "
        "choose other runs, or use the release that wrote this run"
    )


def load_table(run_id: str, name: str, tracking_uri: Stores = None) -> pd.DataFrame:
    """Load a table among the artifacts of a run, such as operations.json.

    Args:
        run_id: Id of the run.
        name: File name of the table.
        tracking_uri: Address of the store, or several addresses; None for the default store.

    Raises:
        StoreError: If the run has no such table.
        DataError: If the table is damaged.
    """
    problem = StoreError(f"no run {run_id}")
    for uri in _unique_stores(tracking_uri):
        try:
            for content in _run_artifacts(run_id, name, uri):
                return _parse_table(content, name, run_id)
        except StoreError as error:
            problem = error
    raise StoreError(
        f"run {run_id} has no table {name}: measure it again with measure.profile=true ({problem})"
    )


def _run_artifacts(run_id: str, name: str, uri: str | None) -> Iterator[bytes]:
    """Yield the content of an artifact of a run, once for each run of the store with this id.

    Args:
        run_id: Id of the run.
        name: File name of the artifact.
        uri: Address of the store; None for the default store.
    """
    store = open_reader(address_of(uri))
    no_columns: dict[Values, Collection[str]] = dict.fromkeys(get_args(Values), ())
    query = Query(tuple(store.experiments()), run_id=run_id, unfinished=True, columns=no_columns)
    for row in store.read(query):
        content = _read_artifact(row.run.artifact_uri or "", run_id, name, uri)
        if content:
            yield content


def load_tables(frame: pd.DataFrame, name: str, tracking_uri: Stores = None) -> pd.DataFrame:
    """Load a table among the artifacts of many runs.

    Args:
        frame: One row per run, as `load` returns them.
        name: File name of the table, such as "operation_types.json".
        tracking_uri: Address of the store, or several addresses; None for the default store.

    Returns:
        The concatenated tables, with `run_id` as the first column. Runs without such a table are
        skipped.

    Raises:
        DataError: If a table is damaged.
    """
    tables = []
    for run_id, content in load_files(frame, name, tracking_uri).items():
        table = _parse_table(content, name, run_id)
        table.insert(0, "run_id", run_id)
        tables.append(table)
    if tables:
        return pd.concat(tables, ignore_index=True)
    return pd.DataFrame({"run_id": pd.Series(dtype="str")})


def load_files(frame: pd.DataFrame, name: str, tracking_uri: Stores = None) -> dict[str, bytes]:
    """Load an artifact of many runs, several at a time.

    Args:
        frame: One row per run, as `load` returns them.
        name: File name of the artifact.
        tracking_uri: Address of the store, or several addresses; None for the default store.

    Returns:
        The contents by run id. Runs without the artifact are skipped. A warning reports runs whose
        files are outside of the store, which are not read.

    Raises:
        StoreError: If the files are on a tracking server, and its address is not given.
    """
    rows = _artifact_rows(frame, tracking_uri)
    for artifact_uri, _, store in rows:
        if artifact_uri.startswith("mlflow-artifacts:") and not address_of(store).is_server:
            raise StoreError(
                f"{name}: these files are on a tracking server; "
                "give the address of the server instead of that of the database"
            )
    problems: list[StoreError] = []

    def fetch(row: tuple[str, str, str | None]) -> tuple[str, bytes | None]:
        artifact_uri, run_id, store = row
        try:
            # Raises for a folder outside of the store.
            artifact_folder(artifact_uri, run_id, [address_of(store)])
        except StoreError as error:
            problems.append(error)
            return run_id, None
        try:
            return run_id, _read_artifact(artifact_uri, run_id, name, store)
        except StoreError:
            return run_id, None

    with ThreadPoolExecutor(_FETCH_THREADS) as pool:
        files = list(pool.map(fetch, rows))
    if problems:
        warnings.warn(
            f"files of {counted(len(problems), 'run')} are not read: {problems[0]}", stacklevel=2
        )
    return {run_id: content for run_id, content in files if content is not None}


def _artifact_rows(frame: pd.DataFrame, tracking_uri: Stores) -> list[tuple[str, str, str | None]]:
    """Return the address of the artifacts, the id and the store of each run.

    Args:
        frame: One row per run.
        tracking_uri: Address of the store, or several addresses; None for the default store.
    """
    stores = _unique_stores(tracking_uri)
    run_stores: list[str | None]
    if len(stores) == 1:
        run_stores = stores * len(frame)
    elif "store" not in frame:
        run_stores = [None] * len(frame)
    else:
        by_label = {_store_label(uri): uri for uri in stores}
        run_stores = [by_label.get(str(label), label) for label in frame["store"]]
    return [
        (str(artifact_uri or ""), str(run_id), store)
        for artifact_uri, run_id, store in zip(
            frame["artifact_uri"], frame["run_id"], run_stores, strict=True
        )
    ]


def _read_artifact(
    artifact_uri: str, run_id: str, name: str, uri: str | None, *, is_packed: bool = False
) -> bytes | None:
    """Read a file among the artifacts of a run.

    Args:
        artifact_uri: Address of the run's artifacts.
        run_id: Id of the run.
        name: Path of the file below that address.
        uri: Address of the store; None for the default store.
        is_packed: Whether a server may store the file in an archive with other files. Tables are
            never stored that way.

    Returns:
        The content; None if there is no such file.

    Raises:
        StoreError: If the file cannot be fetched.
    """
    if artifact_uri.startswith(f"{BUNDLE}:"):
        return read_bundled(artifact_uri, name)
    folder = artifact_folder(artifact_uri, run_id, [address_of(uri)])
    if folder is not None:
        if not is_inside(folder, name):
            return None
        path = folder / name
        return path.read_bytes() if path.is_file() else None
    if address_of(uri).is_parquet:
        raise StoreError(
            f"{name} of run {run_id} is only in the store from which the run was exported; "
            "give the address of that store"
        )
    return _download_artifact(run_id, name, address_of(uri).uri, is_packed=is_packed)


def _download_artifact(run_id: str, name: str, server: str, *, is_packed: bool) -> bytes | None:
    from mlflow.artifacts import download_artifacts, list_artifacts

    with store_errors(f"{name} of run {run_id}"):
        use_pack = False
        if is_packed:
            files = [file.path for file in list_artifacts(run_id=run_id, tracking_uri=server)]
            use_pack = PACKED in files and name not in files
        path = download_artifacts(
            run_id=run_id, artifact_path=PACKED if use_pack else name, tracking_uri=server
        )
    content = Path(path).read_bytes()
    if use_pack:
        return unpack(content).get(name)
    return content


def _parse_table(content: bytes, name: str, run_id: str) -> pd.DataFrame:
    """Parse a table in the layout of mlflow.log_table: {"columns": [...], "data": [[...]]}.

    Args:
        content: The file.
        name: File name of the table, for the error message.
        run_id: Id of the run, for the error message.

    Raises:
        DataError: If the file is not such a table.
    """
    try:
        value = read_json(content.decode())
        return pd.DataFrame(value["data"], columns=value["columns"])
    except (ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:_MAX_DAMAGE_LENGTH]
        raise DataError(
            f"{name} of run {run_id} is damaged ({reason}); choose other runs"
        ) from error


def read_operations(run_id: str, tracking_uri: Stores = None) -> pd.DataFrame:
    """Read the profiled operations of a run.

    Args:
        run_id: Id of the run.
        tracking_uri: Address of the store, or several addresses; None for the default store.

    Returns:
        A row per operation. If the run recorded only types of operation, a row per type, without
        the column `operation`.

    Raises:
        StoreError: If the run was not profiled.
        DataError: If the table lacks columns.
    """
    try:
        name = "operations.json"
        table = load_table(run_id, name, tracking_uri)
    except StoreError:
        name = "operation_types.json"
        table = load_table(run_id, name, tracking_uri)
    missing = [column for column in _REQUIRED_OPERATION_COLUMNS if column not in table]
    if missing:
        raise DataError(
            f"{name} of run {run_id} is not an operation table: it lacks {', '.join(missing)}; "
            "measure the run again with measure.profile=true"
        )
    return table


def load_types(frame: pd.DataFrame, tracking_uri: Stores = None) -> pd.DataFrame:
    """Load the types of operation of profiled runs, from their tables operation_types.json.

    Runs without any metric `op_share.<type>` were not profiled and are skipped, since looking for
    the files of a hundred thousand runs takes minutes.

    Args:
        frame: One row per run, as `load` returns them.
        tracking_uri: Address of the store, or several addresses; None for the default store.

    Returns:
        A row per run and type, with the columns run_id, type and OPERATION_NUMBERS (float64, NaN if
        not recorded).

    Raises:
        DataError: If a table is damaged.
    """
    is_profiled = frame.filter(regex=r"^op_share\.").notna().any(axis=1)
    tables = load_tables(frame[is_profiled], "operation_types.json", tracking_uri)
    tables = tables.reindex(columns=["run_id", "type", *OPERATION_NUMBERS])
    numbers = {
        name: pd.to_numeric(tables[name], errors="coerce").astype("float64")
        for name in OPERATION_NUMBERS
    }
    return tables.assign(type=tables["type"].astype("str"), **numbers)


def read_environment(run: Mapping[Any, Any], store: str | None) -> Mapping[str, Any]:
    """Read the environment that a run recorded: its hardware and the versions of its software.

    Args:
        run: A row of the frame that `load` returns.
        store: Address of the run's store; None for the default store.

    Returns:
        The environment, as in environment.json; empty if it is absent or unreadable.
    """
    if not run["artifact_uri"]:
        return {}
    try:
        content = _read_artifact(
            str(run["artifact_uri"]),
            str(run["run_id"]),
            "environment.json",
            store,
            is_packed=True,
        )
        environment = read_json(content or b"{}")
    except (OSError, ValueError, StoreError):
        return {}
    if isinstance(environment, dict):
        return environment
    return {}
