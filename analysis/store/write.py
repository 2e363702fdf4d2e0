"""Write runs into an MLflow store, and export and import runs as bundles or Parquet stores.

A bundle is a .zip file of runs (`paradnn.store.bundle`). A Parquet store is a folder of partitioned
files.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from analysis.lazy import pd
from paradnn.core.errors import StoreError
from paradnn.core.words import without_secrets
from paradnn.store.address import BUNDLE, address_of, artifact_folder
from paradnn.store.bundle import artifacts_of, extract, write_bundle
from paradnn.store.claims import RunIndex, close_abandoned
from paradnn.store.client import open_experiment as open_for_writing
from paradnn.store.client import store_errors
from paradnn.store.files import PACKED, unpack
from paradnn.store.leases import owner_tag
from paradnn.store.metrics import stored_name
from paradnn.store.reader import open_reader, read_columns
from paradnn.store.runs import EXPIRES, OUTCOME_TAGS, OWNER, Query, Row, Run, Values
from paradnn.store.views import view_tags

Progress = Callable[[int, int], None] | None

#: Tags of the driver that measured a run. They have no meaning in another store.
_DRIVER_TAGS = {"owner", "claim_expires", OWNER, EXPIRES}
_FINAL_STATUSES = ("FINISHED", "FAILED", "KILLED")
#: Tag with the id of a run in the store where it was measured.
_ORIGIN = "origin"
_PARENT = "mlflow.parentRunId"
_NOTE = "mlflow.note.content"
#: Tags with which a run is created, before its files are written.
_FIRST_TAGS = (_PARENT, _NOTE, "kind", "schema_version")
#: Largest number of params, or of tags, and of metrics per request. MLflow accepts 1,000 in total.
_BATCH_SIZE = 100
_METRIC_BATCH_SIZE = 800


def open_experiment(uri: str | None, name: str) -> tuple[Any, str]:
    """Open an experiment for writing, after ending the runs of writers that were killed.

    Args:
        uri: Address of the MLflow store; None for the default one. The store is created if it is
            absent.
        name: Name of the experiment, which is created if it is absent.

    Returns:
        An MlflowClient and the id of the experiment.

    Raises:
        StoreError: If the store cannot be written.
    """
    address = address_of(uri)
    if not address.is_sql and not address.is_server:
        problem = "it is not a tracking store"
        if address.is_bundle:
            problem = "a bundle is read-only"
        elif address.is_parquet:
            problem = "only python -m analysis export --parquet DIR writes to a Parquet store"
        raise StoreError(
            f"cannot write to {address.public}: {problem}; "
            "give sqlite:///path/of/mlflow.db or an http address"
        )
    with writing(address.uri):
        if address.folder is not None:
            address.folder.mkdir(parents=True, exist_ok=True)
        client, experiment_id = open_for_writing(address, name, view_tags())
        index = RunIndex(open_reader(address, client=client), name)
        close_abandoned(index, lambda: client)
        return client, experiment_id


def writing(uri: str) -> AbstractContextManager[None]:
    """Return a context that converts errors of the store into a one-line StoreError.

    Args:
        uri: Address of the store, for the message. Credentials are removed.
    """
    return store_errors(f"cannot write to {without_secrets(uri)}")


def log_run(  # noqa: PLR0913 - one keyword per part of a run
    client: Any,
    experiment_id: str,
    name: str | None,
    tags: Mapping[str, str],
    *,
    span: tuple[int | None, int],
    params: Mapping[str, str] | None = None,
    metrics: Sequence[tuple[str, float, int, int]] = (),
    last: Mapping[str, str] | None = None,
    files: Path | None = None,
    status: str = "FINISHED",
) -> str:
    """Log one run with the files of a folder.

    The outcome is written last. If this process is killed before, the next writer marks the run as
    ended (`open_experiment`).

    Args:
        client: An MlflowClient.
        experiment_id: Id of the experiment.
        name: Name of the run; None for a name that MLflow generates.
        tags: Tags with which the run is created.
        span: Start and end of the run in Unix milliseconds.
        params: Params of the run; None for none.
        metrics: Name (before `stored_name`), value, time in Unix milliseconds, and step of each
            metric.
        last: Tags that are written last, such as the outcome; None for none.
        files: Folder with the files of the run; None for no files.
        status: Status of the run.

    Returns:
        The id of the run.
    """
    from mlflow.entities import Metric, Param, RunTag

    start, end = span
    run = client.create_run(
        experiment_id, start_time=start, tags={**tags, OWNER: owner_tag()}, run_name=name
    )
    run_id = str(run.info.run_id)
    if files is not None:
        client.log_artifacts(run_id, str(files))
    entities = [Metric(stored_name(key), *rest) for key, *rest in metrics]
    metric_batches = _batches(entities, _METRIC_BATCH_SIZE)
    param_batches = _batches(
        [Param(key, value) for key, value in (params or {}).items()], _BATCH_SIZE
    )
    # Outcomes are in the first batch of tags, which is logged last.
    ordered = sorted((last or {}).items(), key=lambda tag: tag[0] not in OUTCOME_TAGS)
    tag_batches = _batches([RunTag(key, value) for key, value in ordered], _BATCH_SIZE)
    batches = list(itertools.zip_longest(metric_batches, param_batches, tag_batches, fillvalue=()))
    for metric_batch, param_batch, tag_batch in reversed(batches):
        client.log_batch(
            run_id, metrics=list(metric_batch), params=list(param_batch), tags=list(tag_batch)
        )
    client.set_terminated(run_id, status, end)
    return run_id


def _batches(entries: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [entries[start : start + size] for start in range(0, len(entries), size)]


def export_bundle(
    frame: pd.DataFrame, path: Path, stores: Sequence[str], experiments: Sequence[str]
) -> int:
    """Write the runs of a frame with all their files to a .zip file (bundle).

    The bundle also contains the sweeps of these runs, and the measurements of the device's peak
    rates (ceilings) that they used.

    Args:
        frame: One row per run.
        path: The file to write.
        stores: Addresses of the stores that the frame is from; empty for the default store.
        experiments: Experiments that the frame is from.

    Returns:
        The number of runs in the bundle.
    """
    rows = _read_rows(_with_related_runs(frame), stores, experiments)
    return write_bundle(path, rows, lambda run: _read_files(run, stores))


def export_parquet(
    frame: pd.DataFrame, folder: Path, stores: Sequence[str], experiments: Sequence[str]
) -> tuple[int, int]:
    """Append the runs of a frame to a folder of Parquet files.

    The sweeps of these runs, and the measurements of the device's peak rates that they used, are
    appended as well.

    Args:
        frame: One row per run.
        folder: The folder, which is created if it is absent.
        stores: Addresses of the stores that the frame is from; empty for the default store.
        experiments: Experiments that the frame is from.

    Returns:
        The number of runs that were appended, and the number that the folder already had.

    Raises:
        ConfigError: If the folder holds other files, or cannot be written.
    """
    from paradnn.store.parquet import append_runs

    wanted = _with_related_runs(frame)
    appended = 0
    total = 0
    for uri in stores or (None,):
        query = Query(tuple(experiments), unfinished=True)
        records, _ = read_columns(address_of(uri), query)
        runs = records.selected([run.run_id in wanted for run in records.runs])
        appended += append_runs(folder, runs)
        total += len(runs.runs)
    return appended, total - appended


def _with_related_runs(frame: pd.DataFrame) -> set[str]:
    """Return the ids of runs, of their sweeps, and of the measurements of their peak rates.

    Args:
        frame: One row per run.
    """
    wanted = set(frame["run_id"])
    for column in ("parent_run_id", "ceilings_run"):
        if column in frame:
            wanted |= set(frame[column].dropna())
    return wanted


def _read_rows(
    wanted: set[str], stores: Sequence[str], experiments: Sequence[str]
) -> Iterator[Row]:
    """Yield runs of some stores, without the tags that only matter to their drivers.

    A driver is the process that plans and records a sweep.

    Args:
        wanted: Ids of the runs.
        stores: Addresses of the stores; empty for the default store.
        experiments: Names of the experiments to search.
    """
    exported: set[str] = set()
    for uri in stores or (None,):
        reader = open_reader(address_of(uri))
        notes = _read_notes(reader, experiments)
        for row in reader.read(Query(tuple(experiments), unfinished=True)):
            run_id = row.run.run_id
            if run_id not in wanted or run_id in exported:
                continue
            exported.add(run_id)
            tags = {key: value for key, value in row.tags.items() if key not in _DRIVER_TAGS}
            note = notes.get(run_id)
            if note:
                tags[_NOTE] = note
            yield row._replace(tags=tags)


def _read_notes(reader: Any, experiments: Sequence[str]) -> dict[str, str | None]:
    """Return the notes (descriptions) of runs by run id.

    A separate query is needed, since a query returns notes only if it names their tag.

    Args:
        reader: Reader of the store.
        experiments: Names of the experiments.
    """
    only_notes: dict[Values, tuple[str, ...]] = {"params": (), "metrics": (), "tags": (_NOTE,)}
    query = Query(tuple(experiments), unfinished=True, columns=only_notes)
    return {row.run.run_id: row.tags.get(_NOTE) for row in reader.read(query)}


def _read_files(run: Run, stores: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files of a run.

    The files are in a bundle (.zip file of runs), in a folder or on a server.

    Args:
        run: The run.
        stores: Addresses of the stores that may have the files; empty for the default store.

    Raises:
        StoreError: If the files are only in a different store.
    """
    artifact_uri = run.artifact_uri or ""
    if artifact_uri.startswith(f"{BUNDLE}:"):
        yield from artifacts_of(artifact_uri)
        return
    folder = artifact_folder(artifact_uri, run.run_id, map(address_of, stores or (None,)))
    if folder is not None:
        yield from _files_below(folder)
        return
    if any(address_of(uri).is_parquet for uri in stores):
        raise StoreError(
            f"the files of run {run.run_id} are only in the store from which the run was exported; "
            "export the bundle from that store"
        )
    from mlflow.artifacts import download_artifacts

    server = next((uri for uri in stores if address_of(uri).is_server), None)
    tracking_uri = address_of(server).uri
    with tempfile.TemporaryDirectory() as target, store_errors(f"the files of run {run.run_id}"):
        downloaded = download_artifacts(
            run_id=run.run_id, dst_path=target, tracking_uri=tracking_uri
        )
        for name, content in _files_below(Path(downloaded)):
            if name == PACKED:
                yield from unpack(content).items()
            else:
                yield name, content


def _files_below(folder: Path) -> Iterator[tuple[str, bytes]]:
    if not folder.is_dir():
        return
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def import_bundle(
    path: Path, tracking_uri: str | None, experiment: str, progress: Progress = None
) -> tuple[int, int]:
    """Log the runs of a bundle (.zip file) that the store does not have yet.

    The tag `origin` records a run's id in the bundle. All files are checked before the first run is
    logged.

    Args:
        path: The bundle.
        tracking_uri: Address of the MLflow store; None for the default one.
        experiment: Experiment that receives the runs.
        progress: Called after each run with the number of logged runs and the number of all runs to
            log; None for no progress report.

    Returns:
        The number of runs that were logged, and the number that the store already had.

    Raises:
        StoreError: If the file is not a bundle, or the store cannot be written.
    """
    address = address_of(str(path))
    reader = open_reader(address)
    if not address.is_bundle:
        raise StoreError(
            f"{path}: is not a bundle of results; give a .zip of python -m analysis export"
        )
    rows = reader.read(Query(tuple(reader.experiments()), unfinished=True))
    for row in rows:
        extract(row.run.artifact_uri or "", None)
    client, experiment_id = open_experiment(tracking_uri, experiment)
    known_ids = _known_ids(tracking_uri, experiment)
    missing = [row for row in rows if row.run.run_id not in known_ids]
    # Parents come first, since other runs refer to the new ids of their parents.
    missing.sort(key=lambda row: _PARENT in row.tags)
    with writing(address_of(tracking_uri).uri):
        for number, row in enumerate(missing, 1):
            known_ids[row.run.run_id] = _log_row(client, experiment_id, row, known_ids)
            if progress is not None:
                progress(number, len(missing))
    return len(missing), len(rows) - len(missing)


def _known_ids(tracking_uri: str | None, experiment: str) -> dict[str, str]:
    """Return the ids of the runs in a store, by each id under which a run is known.

    A run is known by its id, and by the id in the tag `origin` if it was imported.

    Args:
        tracking_uri: Address of the store; None for the default one.
        experiment: Name of the experiment.
    """
    only_origins: dict[Values, tuple[str, ...]] = {
        "params": (),
        "metrics": (),
        "tags": (_ORIGIN,),
    }
    query = Query((experiment,), unfinished=True, columns=only_origins)
    ids = {}
    for row in open_reader(address_of(tracking_uri)).read(query):
        run_id = row.run.run_id
        ids[run_id] = run_id
        origin = row.tags.get(_ORIGIN)
        if origin:
            ids[origin] = run_id
    return ids


def _log_row(client: Any, experiment_id: str, row: Row, known_ids: Mapping[str, str]) -> str:
    """Log one run of a bundle (.zip file of runs) with its files, and return its new id.

    Args:
        client: An MlflowClient.
        experiment_id: Id of the experiment.
        row: The run with its params, metrics and tags.
        known_ids: Id of a run, such as that in the bundle -> its id in the store.
    """
    run = row.run
    tags = {key: value for key, value in row.tags.items() if key not in _DRIVER_TAGS}
    tags[_ORIGIN] = run.run_id
    first_tags = {key: tags.pop(key) for key in _FIRST_TAGS if key in tags}
    if _PARENT in first_tags:
        parent = first_tags[_PARENT]
        first_tags[_PARENT] = known_ids.get(parent, parent)
    start = run.start_ms or 0
    end = run.end_ms or start
    with tempfile.TemporaryDirectory() as folder:
        extract(run.artifact_uri or "", Path(folder))
        return log_run(
            client,
            experiment_id,
            run.run_name,
            first_tags,
            span=(start, end),
            params=row.params,
            metrics=[(key, value, end, 0) for key, value in row.metrics.items()],
            last=tags,
            files=Path(folder),
            status=run.status if run.status in _FINAL_STATUSES else "KILLED",
        )
