"""Log published measurements as runs. Repeating an import logs no run twice.

If its license allows, a source comes with the package as a Parquet file in `data`. The script
`python -m benchmarks.published` makes this file from the published files. The reader `dawnbench`
reads the user's clone of a repository instead. Readers raise one of `DAMAGED` for a file with
unexpected content, and reject files larger than `MAX_FILE_BYTES`.
"""

import csv
import hashlib
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from analysis.store.load import load
from analysis.store.write import Progress, log_run, open_experiment, writing
from paradnn.store.address import address_of
from paradnn.store.runs import SCHEMA_VERSION

#: Exceptions that a reader may raise if the content of a file is not as expected.
DAMAGED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    csv.Error,
)
MAX_FILE_BYTES = 32 * 2**20
DATA = Path(__file__).with_name("data")
#: Columns of a shipped file that state the publication of a run.
PUBLICATION_COLUMNS = ["title", "about", "published_ms"]
#: Columns of a shipped file that hold JSON.
JSON_COLUMNS = ("params", "tags", "metrics", "tables")

#: Largest number of characters of a logged name or value.
_MAX_TEXT_LENGTH = 480
_MAX_REASON_LENGTH = 200
_COMMON_TAGS = {"schema_version": SCHEMA_VERSION, "source": "published"}


def describe_error(error: BaseException) -> str:
    """Return a one-line description of the exception that reading a file raised.

    The description is shortened to `_MAX_REASON_LENGTH` characters. It is the name of the exception
    class if the exception has no message.

    Args:
        error: The exception.
    """
    text = " ".join(str(error).split())
    if isinstance(error, KeyError):
        text = f"has no {text}"
    return text[:_MAX_REASON_LENGTH] or type(error).__name__


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, without a byte order mark.

    Raises:
        ValueError: If the file is larger than `MAX_FILE_BYTES`, or is not UTF-8.
    """
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ValueError(f"has {size:,} bytes, more than {MAX_FILE_BYTES:,}")
    return path.read_text(encoding="utf-8-sig")


def digest(*parts: str) -> str:
    """Return an id for a published measurement: 16 hexadecimal digits, the same on every machine.

    Args:
        *parts: Texts that together identify the measurement.
    """
    return hashlib.sha256(json.dumps(["published", *parts]).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class PublishedRun:
    """One published measurement, with the values that are logged as a run.

    Attributes:
        point_id: Id of the measurement from `digest`, which is the same in every import.
        name: Name of the run.
        params: Params of the run.
        tags: Tags of the run.
        metrics: Metrics of the run.
        outcome: Outcome of the run, such as "ok".
        reason: Reason of an outcome other than "ok"; empty for "ok".
        tables: File name of each table -> its columns and rows.
    """

    point_id: str
    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    metrics: dict[str, float]
    outcome: str = "ok"
    reason: str = ""
    tables: dict[str, tuple[Sequence[str], list[list[Any]]]] = field(default_factory=dict)


class Publication(NamedTuple):
    """Measurements that were published together and share a parent run.

    Attributes:
        name: Name of the parent run.
        about: Description of the parent run.
        published_ms: Time of publication in Unix milliseconds. It replaces the times of the
            measurements, which are unknown.
        runs: The measurements, each logged as a child of the parent run.
    """

    name: str
    about: str
    published_ms: int
    runs: Sequence[PublishedRun]


@dataclass(frozen=True)
class ImportedFolder:
    """The contents of a folder of published measurements.

    Attributes:
        publications: The publications in the folder.
        skipped_entries: A line for each skipped entry, with the reason.
    """

    publications: Sequence[Publication]
    skipped_entries: Sequence[str] = ()

    @property
    def runs(self) -> list[PublishedRun]:
        """The runs of all publications."""
        return [run for publication in self.publications for run in publication.runs]


def load_shipped(name: str) -> ImportedFolder:
    """Load the published measurements of a source that comes with the package.

    Args:
        name: Name of the source, as in `PublishedSource.name`.
    """
    table = pq.read_table(DATA / f"{name}.parquet").to_pandas()
    publications = []
    for (title, about, published_ms), rows in table.groupby(PUBLICATION_COLUMNS, sort=False):
        runs = [
            PublishedRun(**_decode_row(row))
            for row in rows.drop(columns=PUBLICATION_COLUMNS).to_dict("records")
        ]
        publications.append(Publication(title, about, int(published_ms), runs))
    return ImportedFolder(publications)


def _decode_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    decoded = dict(row)
    for column in JSON_COLUMNS:
        decoded[column] = json.loads(decoded[column])
    return decoded


def log_published(
    folder: ImportedFolder,
    tracking_uri: str | None = None,
    experiment: str = "paradnn",
    progress: Progress = None,
) -> tuple[int, int]:
    """Log the published measurements that an MLflow store does not have yet.

    The call may be repeated after an interruption.

    Args:
        folder: The published measurements.
        tracking_uri: Address of the store; None for the default one.
        experiment: Experiment that receives the runs.
        progress: Called after each run with the number of logged runs and the number of all runs to
            log; None for no progress report.

    Returns:
        The number of runs that were logged, and the number that the store already had.

    Raises:
        StoreError: If the store cannot be read or written.
    """
    client, experiment_id = open_experiment(tracking_uri, experiment)
    uri = address_of(tracking_uri).uri
    stored = load(uri, experiments=experiment, tags={"source": "published"})
    present = set(stored["point_id"]) if "point_id" in stored else set()
    total = sum(run.point_id not in present for run in folder.runs)
    logged = 0
    with writing(uri):
        for publication in folder.publications:
            parent = _find_or_make_parent(client, experiment_id, publication)
            for run in publication.runs:
                if run.point_id in present:
                    continue
                _log_published_run(client, experiment_id, run, parent, publication.published_ms)
                logged += 1
                if progress is not None:
                    progress(logged, total)
    return logged, len(folder.runs) - logged


def _find_or_make_parent(client: Any, experiment_id: str, publication: Publication) -> str:
    """Return the id of the parent run of a publication; the first import creates the run.

    Args:
        client: An MlflowClient.
        experiment_id: Id of the experiment.
        publication: The publication.
    """
    name = publication.name.replace("'", "''")
    query = f"tags.kind = 'import' and attributes.run_name = '{name}'"
    for parent in client.search_runs([experiment_id], query, max_results=1):
        return str(parent.info.run_id)
    tags = {**_COMMON_TAGS, "kind": "import", "mlflow.note.content": publication.about}
    start = publication.published_ms
    return log_run(client, experiment_id, publication.name, tags, span=(start, start))


def _log_published_run(
    client: Any, experiment_id: str, run: PublishedRun, parent: str, published_ms: int
) -> None:
    now_ms = int(time.time() * 1000)
    tags = {
        **_COMMON_TAGS,
        "kind": "point",
        "point_id": run.point_id,
        "mlflow.parentRunId": parent,
        **{key: _storable_text(value) for key, value in run.tags.items()},
    }
    final_tags = {"outcome": run.outcome}
    if run.reason:
        final_tags["reason"] = _storable_text(run.reason)
    with tempfile.TemporaryDirectory() as folder:
        for name, (columns, rows) in run.tables.items():
            # The layout of mlflow.log_table.
            content = json.dumps({"columns": [*columns], "data": rows})
            (Path(folder) / name).write_text(content, encoding="utf-8")
        log_run(
            client,
            experiment_id,
            _storable_text(run.name),
            tags,
            span=(published_ms, published_ms),
            params={key: _storable_text(value) for key, value in run.params.items()},
            metrics=[(key, value, now_ms, 0) for key, value in run.metrics.items()],
            last=final_tags,
            files=Path(folder) if run.tables else None,
            status="FINISHED" if run.outcome == "ok" else "FAILED",
        )


def _storable_text(text: str) -> str:
    """Return a text that every database accepts: shortened, without unpaired surrogates."""
    return text[:_MAX_TEXT_LENGTH].encode(errors="replace").decode()
