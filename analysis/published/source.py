"""Log published measurements as runs, each once however often the command runs.

Sources whose license allows it come with the package: one Parquet file per source in `data`, which
`python -m benchmarks.published` makes from the published files. A reader (`dawnbench`) makes an
`ImportedFolder` from a user's clone. Whatever a file contains, reading it gives a value or raises
one of `DAMAGED`, and a file larger than `MAX_FILE_BYTES` is rejected.
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

#: Exceptions that reading raises if a file has another format than its name implies.
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

#: Most characters of a name or value that is logged.
_MAX_TEXT_LENGTH = 480
_MAX_REASON_LENGTH = 200
_COMMON_TAGS = {"schema_version": SCHEMA_VERSION, "source": "published"}


def describe_error(error: BaseException) -> str:
    """Describe the defect of a file in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, KeyError):
        text = f"has no {text}"
    return text[:_MAX_REASON_LENGTH] or type(error).__name__


def read_text(path: Path) -> str:
    """Read a text file, without a byte order mark.

    Raises:
        ValueError: If the file is too large.
    """
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ValueError(f"has {size:,} bytes, more than {MAX_FILE_BYTES:,}")
    return path.read_text(encoding="utf-8-sig")


def digest(*parts: str) -> str:
    """An identity of something published, the same on every machine."""
    return hashlib.sha256(json.dumps(["published", *parts]).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class PublishedRun:
    """One published measurement, as a run holds it.

    Attributes:
        point_id: Identity of the run, the same for the same entry of the same file.
        name: Name of the run.
        params: Params of the run.
        tags: Tags of the run.
        metrics: Metrics of the run.
        outcome: Outcome of the run.
        reason: Reason of an outcome other than "ok".
        tables: File name -> columns and rows of a table.
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
    """Runs that were published together.

    Attributes:
        name: Name of their parent run.
        about: Description of the parent run.
        published_ms: Time of publication in Unix milliseconds. The time of each measurement is not
            known, so published runs precede the user's own.
        runs: The runs.
    """

    name: str
    about: str
    published_ms: int
    runs: Sequence[PublishedRun]


@dataclass(frozen=True)
class ImportedFolder:
    """The contents of a folder of published measurements.

    Attributes:
        publications: Its publications.
        skipped_entries: A line per entry that was skipped, with the reason.
    """

    publications: Sequence[Publication]
    skipped_entries: Sequence[str] = ()

    @property
    def runs(self) -> list[PublishedRun]:
        """The runs of all publications."""
        return [run for publication in self.publications for run in publication.runs]


def load_shipped(name: str) -> ImportedFolder:
    """Load the published measurements of a source that comes with the package."""
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
    """Log the runs that the store does not hold yet.

    It is safe to repeat after an interruption.

    Args:
        folder: The published measurements.
        tracking_uri: Address of the store; None for the default one.
        experiment: Experiment that receives the runs.
        progress: Called after each run with the number of logged runs and of runs to log.

    Returns:
        The number of runs that were logged, and of those that were there already.

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
    """The id of the parent run of a publication, which its first import makes."""
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
    """Text that every database accepts: of limited length, without lone surrogates."""
    return text[:_MAX_TEXT_LENGTH].encode(errors="replace").decode()
