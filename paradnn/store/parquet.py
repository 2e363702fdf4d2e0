"""A Parquet store: runs exported from tracking stores into partitioned files, read like a store.

    _paradnn.json                                                 format and schema version
    experiment=NAME/month=2026-11/device=NAME/runs-HASH.parquet   one row per run

A row has the fields of the run, and one column per param, tag and metric: `params.KEY` and
`tags.KEY` are text, `metrics.KEY` are numbers. `python -m analysis export --parquet DIR` appends
files and never changes one. A file gets its name when it is complete, and every reader ignores
names that begin with a dot.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from paradnn.core.errors import ConfigError, DataError, NoStoreError, SchemaError
from paradnn.store.address import MARKER, PARQUET, StoreAddress
from paradnn.store.columns import Records, RunFields, Texts
from paradnn.store.files import new_file, read_json, whole_file
from paradnn.store.runs import OUTCOME_TAGS, SCHEMA_VERSION, Query, Row, Values

#: Format tag; the number is the version of the layout.
#:   1  first version.
FORMAT = "paradnn-parquet-1"

_TEXT = pa.dictionary(pa.int32(), pa.string())
_TIME = pa.timestamp("ms", tz="UTC")
#: Field of a run -> its column and type. The experiment is a partition.
_FIELDS = {
    "run_id": ("run_id", pa.string()),
    "run_name": ("run_name", _TEXT),
    "status": ("status", _TEXT),
    "start_ms": ("start_time", _TIME),
    "end_ms": ("end_time", _TIME),
    "artifact_uri": ("artifact_uri", pa.string()),
}
_ROW_TYPES = dict(_FIELDS.values())
_PARTITIONS = ("experiment", "month", "device")
_PARTITION_SCHEMA = pa.schema([(name, pa.string()) for name in _PARTITIONS])
#: Name of the partition of runs without a value, as Hive, Spark and Arrow write it.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
#: Bytes of a value in the name of a folder; most file systems allow 255.
_MAX_VALUE_BYTES = 180
_ROWS_PER_GROUP = 1 << 16
_LOCK = ".lock"
_UNFINISHED = ".runs-"
#: Tags that are never exported: the leases and claims of drivers.
_DRIVER_TAGS = "mlflow.paradnn."


def append_runs(folder: Path, records: Records) -> int:
    """Append runs to a Parquet store, except those that it already holds.

    Only one export at a time writes. If it is killed, its complete files remain, and the next
    export adds the missing runs.

    Args:
        folder: Folder of the store, which is created if it is absent.
        records: The runs with their params, tags and metrics.

    Returns:
        The number of runs that were appended.

    Raises:
        ConfigError: If the folder holds other files, or cannot be written.
        SchemaError: If the store has another schema version.
    """
    return append_table(folder, to_table(records))


def append_table(folder: Path, table: pa.Table) -> int:
    """Append the rows of a table to a Parquet store, except runs that it already holds.

    Args:
        folder: Folder of the store, which is created if it is absent.
        table: One row per run, with the columns that `to_table` describes.

    Returns:
        The number of runs that were appended.

    Raises:
        ConfigError: If the folder holds other files, or cannot be written.
        SchemaError: If the store has another schema version.
    """
    try:
        with _locked(folder):
            for path in folder.glob(f"*/*/*/{_UNFINISHED}*"):
                path.unlink()  # an export was killed
            count = 0
            for part, positions in _partitions(table):
                target = folder.joinpath(*part)
                rows = table.take(positions).drop_columns("experiment")
                missing = rows.filter(pc.invert(_are_stored(target, rows["run_id"])))
                if len(missing):
                    _write(target, missing)
                    count += len(missing)
            return count
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        problem = f"cannot be written ({reason})"
        raise ConfigError("--parquet", str(folder), problem, "give a writable folder") from error


def to_table(records: Records) -> pa.Table:
    """Convert runs to an Arrow table with one row per run.

    The columns are `experiment`, `run_id`, `run_name`, `status`, `start_time`, `end_time`,
    `artifact_uri`, and one column per param, tag and metric. The latter are named `params.KEY`,
    `tags.KEY` and `metrics.KEY`. Tags of drivers' claims and leases are omitted.
    """
    columns: dict[str, Any] = {"experiment": pa.array(records.texts("experiment"))}
    for name, (column, kind) in _FIELDS.items():
        if kind == _TIME:
            times = records.times(name)
            columns[column] = pa.array(times, mask=times < 0).cast(kind)
        else:
            texts = records.texts(name)
            plain = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
            columns[column] = plain.cast(kind)
    for values in ("params", "tags"):
        for name, texts in sorted(getattr(records, values).items()):
            if not name.startswith(_DRIVER_TAGS):
                known = pa.array(texts.code_of, pa.string())
                indices = pa.array(texts.codes, mask=texts.codes < 0)
                columns[f"{values}.{name}"] = pa.DictionaryArray.from_arrays(indices, known)
    for name in sorted(records.metrics):
        columns[f"metrics.{name}"] = pa.array(records.numbers(name), from_pandas=True)
    return pa.table(columns)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Create the store if it is absent, and lock it against other exports in this context."""
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / MARKER
    other_files = [path.name for path in folder.iterdir() if path.name not in (MARKER, _LOCK)]
    if other_files and not marker.is_file():
        problem = f"contains other files, such as {min(other_files)}"
        raise ConfigError("--parquet", str(folder), problem, "give a new or an empty folder")
    with (folder / _LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not marker.is_file():
            content = {"format": FORMAT, "schema_version": SCHEMA_VERSION}
            with whole_file(marker, "--parquet") as temporary:
                temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
        _check_marker(folder)
        yield


def _check_marker(folder: Path) -> None:
    """Raise DataError or SchemaError if this version cannot read the store."""
    try:
        content = read_json((folder / MARKER).read_bytes())
        format_tag = content["format"]
        version = content["schema_version"]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{folder}: {MARKER} is damaged") from None
    if format_tag != FORMAT:
        problem = f"has the format {format_tag!r}, but this release reads {FORMAT!r}"
        raise DataError(f"{folder}: {problem}; use the release that wrote the store")
    if version != SCHEMA_VERSION:
        problem = f"has schema_version={version}, but this release reads {SCHEMA_VERSION}"
        raise SchemaError(f"{folder}: {problem}; use the release that wrote the store")


def _partitions(table: pa.Table) -> Iterator[tuple[tuple[str, ...], pa.Array]]:
    """Yield each partition as a pair: its folder names, and the positions of its runs in `table`.

    The folders are those of the experiment, the month and the device. The runs of a partition are
    sorted by model and start.
    """
    sorted_by = [
        (name, "ascending")
        for name in ("params.model.name", "start_time")
        if name in table.schema.names
    ]
    # Dictionaries cannot be sorted.
    keys = pa.table({name: _plain(table[name]) for name, _ in sorted_by})
    positions = pc.sort_indices(keys, sort_keys=sorted_by)
    values = {
        "experiment": _plain(table["experiment"]),
        "month": pc.strftime(table["start_time"], format="%Y-%m"),
        "device": pa.nulls(len(table), pa.string()),
    }
    if "tags.device" in table.schema.names:
        values["device"] = _plain(table["tags.device"])
    places = pa.table({**values, "position": np.arange(len(table))}).take(positions)
    parts = places.group_by(list(_PARTITIONS), use_threads=False).aggregate([("position", "list")])
    for part in parts.to_pylist():
        yield (
            tuple(f"{name}={_folder_value(part[name])}" for name in _PARTITIONS),
            pa.array(part["position_list"]),
        )


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        return column.cast(pa.string())
    return column


def _folder_value(value: str | None) -> str:
    text = quote(value or "", safe=" ")
    if 0 < len(text) <= _MAX_VALUE_BYTES:
        return text
    return _NO_VALUE


def _are_stored(target: Path, ids: pa.ChunkedArray) -> pa.Array:
    """Return a mask of shape (runs,) that is True for the runs that a partition already holds.

    Args:
        target: Folder of the partition.
        ids: Ids of the runs.
    """
    are_stored = np.zeros(len(ids), dtype=bool)
    for path in target.glob("*.parquet"):
        stored_ids = pq.read_table(path, columns=["run_id"], partitioning=None)["run_id"]
        are_stored |= pc.is_in(ids, value_set=stored_ids.combine_chunks()).to_numpy()
    return pa.array(are_stored)


def _write(target: Path, table: pa.Table) -> None:
    """Write the runs of a partition to a new file, atomically and synced to disk.

    The file is named by a hash of the run ids.

    Args:
        target: Folder of the partition.
        table: The runs.
    """
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count < len(column):
            # Encode again, so that the dictionary has no texts of other partitions.
            is_coded = pa.types.is_dictionary(column.type)
            columns[name] = _plain(column).dictionary_encode() if is_coded else column
    ids = "\n".join(sorted(table["run_id"].to_pylist()))
    digest = hashlib.sha256(ids.encode()).hexdigest()[:32]
    target.mkdir(parents=True, exist_ok=True)
    with new_file(target, _UNFINISHED.removeprefix(".")) as (path, file):
        pq.write_table(pa.table(columns), file, compression="zstd", row_group_size=_ROWS_PER_GROUP)
        file.flush()
        os.fsync(file.fileno())
        path.rename(target / f"runs-{digest}.parquet")
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ParquetReader:
    """Reads runs from a Parquet store (`paradnn.store.reader.Reader`).

    Only files of matching partitions are opened, only requested columns are read, and filters skip
    row groups by their statistics.

    Args:
        address: Address of the store.

    Raises:
        NoStoreError: If the folder is not a Parquet store.
        DataError: If the store is damaged.
        SchemaError: If the store has another schema version.
    """

    def __init__(self, address: StoreAddress) -> None:
        self._folder = Path(address.uri.removeprefix(f"{PARQUET}:"))
        if not (self._folder / MARKER).is_file():
            raise NoStoreError(
                f"no Parquet store at {self._folder}: "
                "python -m analysis export --parquet DIR writes one"
            )
        _check_marker(self._folder)

    def experiments(self) -> list[str]:
        """Return the names of the store's experiments."""
        return sorted(
            unquote(path.name.partition("=")[2])
            for path in self._folder.glob("experiment=*")
            if any(path.glob("*/*/*.parquet"))
        )

    def read(self, query: Query) -> list[Row]:
        """Return the runs that satisfy a query, with the params, tags and metrics it requests."""
        return self.columns(query).rows()

    def columns(self, query: Query) -> Records:
        """Return the runs that satisfy a query as columns. A run in two files appears once.

        Raises:
            DataError: If a file is damaged.
        """
        try:
            table = self._scan(query)
        except (pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())[:300]
            raise DataError(f"{self._folder}: a file of this store is damaged: {reason}") from error
        return _records(table, query.newest)

    def _scan(self, query: Query) -> pa.Table:
        dataset = ds.dataset(
            self._folder,
            format="parquet",
            partitioning=ds.partitioning(_PARTITION_SCHEMA, flavor="hive"),
            schema=_PARTITION_SCHEMA,  # otherwise Arrow opens the first file to read its schema
        )
        parts = reduce(and_, _partition_conditions(query))
        condition = reduce(and_, _row_conditions(query), parts)
        filtered = {f"params.{name}" for name in query.params}
        filtered |= {f"tags.{name}" for name in (*query.tags, *OUTCOME_TAGS)}

        def scan(part: ds.ParquetFileFragment) -> pa.Table:
            # A fragment keeps its metadata of half a megabyte; this copy is released after use.
            fragment = dataset.format.make_fragment(
                part.path, part.filesystem, part.partition_expression
            )
            present = fragment.physical_schema.names
            columns = [*_ROW_TYPES, *(name for name in present if _is_wanted(name, query))]
            types = {name: _column_type(name) for name in {*columns, *filtered}}
            return fragment.to_table(
                schema=pa.schema([*types.items(), *_PARTITION_SCHEMA]),
                columns=[*columns, "experiment"],
                filter=condition,
                use_threads=False,
            )

        empty = pa.schema([*_ROW_TYPES.items(), ("experiment", pa.string())]).empty_table()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            tables = pool.map(scan, dataset.get_fragments(filter=parts))
            found = [table for table in tables if len(table)]
        return pa.concat_tables([empty, *found], promote_options="default")


def _is_wanted(column: str, query: Query) -> bool:
    """Return whether a query requests a column of params, tags or metrics, such as "tags.kind"."""
    kind, _, name = column.partition(".")
    if kind not in get_args(Values):
        return False
    names = query.columns.get(kind)  # type: ignore[call-overload]
    return names is None or name in names


def _column_type(name: str) -> pa.DataType:
    if name in _ROW_TYPES:
        return _ROW_TYPES[name]
    return pa.float64() if name.startswith("metrics.") else _TEXT


def _partition_conditions(query: Query) -> Iterator[ds.Expression]:
    """Yield the conditions of a query that select files by their paths (partitions)."""
    yield ds.field("experiment").isin(list(query.experiments))
    for milliseconds, operator in ((query.since_ms, "__ge__"), (query.until_ms, "__le__")):
        if milliseconds is not None:
            month = pc.strftime(pa.scalar(milliseconds, pa.int64()).cast(_TIME), format="%Y-%m")
            yield getattr(ds.field("month"), operator)(month.as_py())
    if "device" in query.tags:
        # Runs whose device name is too long for a folder are in the partition without a value.
        device = ds.field("device")
        yield device.isin(list(query.tags["device"])) | device.is_null()


def _row_conditions(query: Query) -> Iterator[ds.Expression]:
    """Yield the conditions of a query that select rows within files."""
    for kind, filters in (("params", query.params), ("tags", query.tags)):
        for name, allowed in filters.items():
            yield ds.field(f"{kind}.{name}").isin(list(allowed))
    if query.needs_outcome:
        yield reduce(or_, (ds.field(f"tags.{name}").is_valid() for name in OUTCOME_TAGS))
    if query.run_id is not None:
        yield ds.field("run_id") == query.run_id
    if query.status is not None:
        yield ds.field("status") == query.status
    for milliseconds, operator in ((query.since_ms, "__ge__"), (query.until_ms, "__lt__")):
        if milliseconds is not None:
            time = pa.scalar(milliseconds, pa.int64()).cast(_TIME)
            yield getattr(ds.field("start_time"), operator)(time)


def _records(table: pa.Table, newest: int | None) -> Records:
    """Convert a table to `Records`. A run that is in two files appears once.

    Args:
        table: Rows of all read files.
        newest: Maximum number of runs. The runs that started last are selected and come first. If
            it is None, all runs are selected, and those that started first come first.
    """
    order = pc.sort_indices(
        table.select(["start_time", "run_id"]),
        sort_keys=[("start_time", "ascending"), ("run_id", "ascending")],
    ).to_numpy()
    order = order[_are_first(table["run_id"], order)]
    if newest is not None:
        order = order[::-1][:newest]
    fields: dict[str, Any] = {}
    for name, (column, kind) in {"experiment": ("experiment", pa.string()), **_FIELDS}.items():
        values = table[column].combine_chunks()
        plain = pa.int64() if kind == _TIME else pa.string()
        fields[name] = values.cast(plain).take(pa.array(order))
    records = Records(RunFields(fields))
    for name in table.column_names:
        kind, _, key = name.partition(".")
        if kind == "metrics":
            numbers = table[name].to_numpy()[order]
            if not np.isnan(numbers).all():
                records.metrics[key] = numbers
        elif key:
            texts = _texts(table[name], order)
            if np.any(texts.codes >= 0):
                getattr(records, kind)[key] = texts
        table = table.drop_columns([name])  # frees its memory before the next column is converted
    return records


def _are_first(ids: pa.ChunkedArray, order: Any) -> Any:
    """Return a mask of shape (rows,) that is True for the first row of each run.

    Args:
        ids: Run ids of the rows.
        order: Positions of the rows in the order to consider, of shape (rows,). The mask is in the
            same order.
    """
    codes = _codes(ids.dictionary_encode())[order]
    is_first = np.zeros(len(codes), dtype=bool)
    is_first[np.unique(codes, return_index=True)[1]] = True
    return is_first


def _texts(column: pa.ChunkedArray, order: Any) -> Texts:
    unified = column.unify_dictionaries()
    if not unified.num_chunks:
        return Texts.missing(0)
    known = unified.chunk(0).dictionary.to_pylist()
    return Texts(_codes(unified)[order], {text: code for code, text in enumerate(known)})


def _codes(column: pa.ChunkedArray) -> Any:
    """Return the dictionary indices of a column as an integer array; -1 means a missing value.

    The chunks of the column must share one dictionary.
    """
    parts = [chunk.indices.fill_null(-1).to_numpy() for chunk in column.chunks]
    return np.concatenate([np.empty(0, "int32"), *parts])
