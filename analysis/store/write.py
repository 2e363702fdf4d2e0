"""What is written into a store: runs of elsewhere, and bundles of runs that are taken elsewhere.

What a bundle is says `paradnn.store.bundle`.
"""

from __future__ import annotations

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
from paradnn.store.claims import RunIndex, close_abandoned, owner_tag
from paradnn.store.client import open_experiment as open_for_writing
from paradnn.store.client import store_errors
from paradnn.store.files import PACKED, unpack
from paradnn.store.mlflow_store import view_tags
from paradnn.store.reader import open_reader
from paradnn.store.runs import EXPIRES, OUTCOME_TAGS, OWNER, Query, Row, Run, Values

Progress = Callable[[int, int], None] | None

#: Of the driver that measured a run, and of no use elsewhere.
_OWN_TAGS = {"owner", "claim_expires", OWNER, EXPIRES}
_ENDED = ("FINISHED", "FAILED", "KILLED")
_ORIGIN = "origin"  # the run's id where it was measured
_PARENT = "mlflow.parentRunId"
_NOTE = "mlflow.note.content"
# params or tags, and metrics, that are logged at once: MLflow takes 1,000 of all
_BATCH = 100
_METRICS = 800


def open_experiment(uri: str | None, name: str) -> tuple[Any, str]:
    """An MlflowClient and the id of the experiment, both made where they are not there yet;
    StoreError otherwise.

    Runs of writers that were killed are ended.
    """
    address = address_of(uri)
    if not address.is_sql and not address.is_server:
        if address.is_bundle:
            problem = "a bundle is only read"
        else:
            problem = "no tracking store"
        raise StoreError(
            f"cannot write to {address.public}: {problem}; give sqlite:///path/of/mlflow.db or an http address"
        )
    with writing(address.uri):
        if address.folder is not None:
            address.folder.mkdir(parents=True, exist_ok=True)
        client, experiment_id = open_for_writing(address, name, view_tags())
        close_abandoned(RunIndex(open_reader(address, client=client), name), lambda: client)
        return client, experiment_id


def writing(uri: str) -> AbstractContextManager[None]:
    """What goes wrong inside becomes a StoreError of one line."""
    return store_errors(f"cannot write to {without_secrets(uri)}")


def log_run(
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
    """One run with the files of a folder; its id. `span` are its first and last Unix millisecond,
    `metrics` are key, value, millisecond and step, and the tags `last` are written last, how it
    ended at the very end: should this process be killed, the next writer ends the run.
    """
    from mlflow.entities import Metric, Param, RunTag

    made = client.create_run(
        experiment_id, start_time=span[0], tags={**tags, OWNER: owner_tag()}, run_name=name
    )
    run_id = str(made.info.run_id)
    if files is not None:
        client.log_artifacts(run_id, str(files))
    numbers = [Metric(*metric) for metric in metrics]
    settings = [Param(key, value) for key, value in (params or {}).items()]
    ending = sorted((last or {}).items(), key=lambda tag: tag[0] not in OUTCOME_TAGS)
    words = [RunTag(key, value) for key, value in ending]
    batches = max(
        -(-len(numbers) // _METRICS), -(-len(settings) // _BATCH), -(-len(words) // _BATCH)
    )
    for place in reversed(range(batches)):
        own, many = (slice(size * place, size * (place + 1)) for size in (_BATCH, _METRICS))
        client.log_batch(run_id, metrics=numbers[many], params=settings[own], tags=words[own])
    client.set_terminated(run_id, status, span[1])
    return run_id


def export_bundle(
    frame: pd.DataFrame, path: Path, stores: Sequence[str], experiments: Sequence[str]
) -> int:
    """Write the runs of a frame, their sweeps and the ceilings they name, with all their files; how
    many runs.

    `stores` and `experiments` are where the frame is from.
    """
    wanted = set(frame["run_id"])
    for column in ("parent_run_id", "ceilings_run"):
        wanted |= set(frame[column].dropna()) if column in frame else set()
    return write_bundle(path, _rows(wanted, stores, experiments), lambda run: _files(run, stores))


def _rows(wanted: set[str], stores: Sequence[str], experiments: Sequence[str]) -> Iterator[Row]:
    found: set[str] = set()
    for uri in stores or (None,):
        reader = open_reader(address_of(uri))
        nothing_but_notes: dict[Values, tuple[str, ...]] = {
            "params": (),
            "metrics": (),
            "tags": (_NOTE,),
        }
        noted = reader.read(Query(tuple(experiments), unfinished=True, columns=nothing_but_notes))
        notes = {row.run.run_id: row.tags.get(_NOTE) for row in noted}
        for row in reader.read(Query(tuple(experiments), unfinished=True)):
            run_id = row.run.run_id
            if run_id in wanted and run_id not in found:
                found.add(run_id)
                tags = {key: value for key, value in row.tags.items() if key not in _OWN_TAGS}
                yield row._replace(
                    tags=tags | ({_NOTE: note} if (note := notes.get(run_id)) else {})
                )


def _files(run: Run, stores: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The files of a run, wherever they are."""
    address = run.artifact_uri or ""
    if address.startswith(f"{BUNDLE}:"):
        yield from artifacts_of(address)
        return
    folder = artifact_folder(address, run.run_id, map(address_of, stores or (None,)))
    if folder is not None:
        yield from _below(folder)
        return
    from mlflow.artifacts import download_artifacts

    uri = address_of(next((uri for uri in stores if address_of(uri).is_server), None)).uri
    with tempfile.TemporaryDirectory() as target, store_errors(f"the files of run {run.run_id}"):
        for name, content in _below(
            Path(download_artifacts(run_id=run.run_id, dst_path=target, tracking_uri=uri))
        ):
            yield from unpack(content).items() if name == PACKED else [(name, content)]


def _below(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def import_bundle(
    path: Path, tracking_uri: str | None, experiment: str, progress: Progress = None
) -> tuple[int, int]:
    """Log the runs of a bundle that the store does not hold yet; how many were logged, and how many
    it held.

    A run's id of before stands in its tag `origin`. Every file is checked before the first run is
    logged.
    """
    reader = open_reader(address_of(str(path)))
    if not address_of(str(path)).is_bundle:
        raise StoreError(f"{path}: is no bundle of results; name a .zip")
    rows = reader.read(Query(tuple(reader.experiments()), unfinished=True))
    for row in rows:
        extract(row.run.artifact_uri or "", None)
    client, experiment_id = open_experiment(tracking_uri, experiment)
    known = _known(tracking_uri, experiment)
    todo = [row for row in rows if row.run.run_id not in known]
    todo.sort(key=lambda row: _PARENT in row.tags)  # parents first: their runs name them
    with writing(address_of(tracking_uri).uri):
        for number, row in enumerate(todo, 1):
            known[row.run.run_id] = _log(client, experiment_id, row, known)
            if progress is not None:
                progress(number, len(todo))
    return len(todo), len(rows) - len(todo)


def _known(tracking_uri: str | None, experiment: str) -> dict[str, str]:
    """Runs that the store holds, by the id that they had where they were measured."""
    query = Query(
        (experiment,), unfinished=True, columns={"params": (), "metrics": (), "tags": (_ORIGIN,)}
    )
    rows = open_reader(address_of(tracking_uri)).read(query)
    held = {row.run.run_id: row.run.run_id for row in rows}
    return held | {row.tags[_ORIGIN]: row.run.run_id for row in rows if row.tags.get(_ORIGIN)}


def _log(client: Any, experiment_id: str, row: Row, known: Mapping[str, str]) -> str:
    """One run of a bundle with its files."""
    run = row.run
    tags = {key: value for key, value in row.tags.items() if key not in _OWN_TAGS} | {
        _ORIGIN: run.run_id
    }
    first = {
        key: tags.pop(key) for key in (_PARENT, _NOTE, "kind", "schema_version") if key in tags
    }
    if _PARENT in first:
        first[_PARENT] = known.get(first[_PARENT], first[_PARENT])
    start = run.start_ms or 0
    end = run.end_ms or start
    metrics = [(key, value, end, 0) for key, value in row.metrics.items()]
    status = run.status if run.status in _ENDED else "KILLED"
    with tempfile.TemporaryDirectory() as folder:
        extract(run.artifact_uri or "", Path(folder))
        return log_run(
            client,
            experiment_id,
            run.run_name,
            first,
            span=(start, end),
            params=row.params,
            metrics=metrics,
            last=tags,
            files=Path(folder),
            status=status,
        )
