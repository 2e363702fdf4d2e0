"""Measurements that others published, as runs beside one's own, logged once however often.

Those whose licence allows it come with the package, a Parquet file for each source in `data`, which
`python -m benchmarks.published` makes of the published files. A reader (`dawnbench`) makes of a
user's clone what was `Found` in it: whatever is in a file, reading gives a value or raises one of
`DAMAGED`, and one larger than `LARGEST` is refused.
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

#: What reading raises where a file is not what it claims to be.
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
#: Bytes of a file at most.
LARGEST = 32 * 2**20
_LONGEST = 480  # characters of a name or a value that is logged
DATA = Path(__file__).with_name("data")
#: Columns of such a file that say which publication a run is of; those that hold JSON.
HEAD = ["title", "about", "published_ms"]
NESTED = ("params", "tags", "metrics", "tables")
_SHARED = {"schema_version": SCHEMA_VERSION, "source": "published"}


def reason(error: BaseException) -> str:
    """What is wrong, on one line."""
    words = " ".join(f"{'has no ' if isinstance(error, KeyError) else ''}{error}".split())
    return words[:200] or type(error).__name__


def read_text(path: Path) -> str:
    """The text of a file, without the mark that may stand at its beginning."""
    size = path.stat().st_size
    if size > LARGEST:
        raise ValueError(f"has {size:,} bytes, more than {LARGEST:,}")
    return path.read_text(encoding="utf-8-sig")


def digest(*parts: str) -> str:
    """An identity of published things, the same on every machine."""
    return hashlib.sha256(json.dumps(["published", *parts]).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class PublishedRun:
    """One published measurement as a run holds it; `point_id` is the same for the same entry of the
    same file.

    `tables` are columns and rows by file name.
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
    """Runs that were published together: the name of their parent run, what it says of them, and
    when that was (Unix milliseconds): when each was measured is not known, and so they stand behind
    one's own runs.
    """

    name: str
    about: str
    published_ms: int
    runs: Sequence[PublishedRun]


@dataclass(frozen=True)
class ImportedFolder:
    """What a folder holds, and a line for each entry that was left out, with the reason."""

    publications: Sequence[Publication]
    left_out: Sequence[str] = ()

    @property
    def runs(self) -> list[PublishedRun]:
        """Of all publications."""
        return [run for publication in self.publications for run in publication.runs]


def shipped(name: str) -> ImportedFolder:
    """The published measurements of a source that come with the package."""
    table = pq.read_table(DATA / f"{name}.parquet").to_pandas()
    publications = []
    for (title, about, published_ms), rows in table.groupby(HEAD, sort=False):
        runs = [
            PublishedRun(
                **{key: json.loads(text) if key in NESTED else text for key, text in row.items()}
            )
            for row in rows.drop(columns=HEAD).to_dict("records")
        ]
        publications.append(Publication(title, about, int(published_ms), runs))
    return ImportedFolder(publications)


def log_found(
    found: ImportedFolder,
    tracking_uri: str | None = None,
    experiment: str = "paradnn",
    progress: Progress = None,
) -> tuple[int, int]:
    """Log the runs that the store does not hold yet; how many these were, and how many were there
    already. Safe to repeat after an interruption. `progress` is called with the number of runs
    logged and to log. Raises StoreError.
    """
    client, experiment_id = open_experiment(tracking_uri, experiment)
    uri = address_of(tracking_uri).uri
    stored = load(uri, experiments=experiment, tags={"source": "published"})
    present = set(stored["point_id"]) if "point_id" in stored else set()
    total = sum(run.point_id not in present for run in found.runs)
    logged = 0
    with writing(uri):
        for publication in found.publications:
            parent = _parent(client, experiment_id, publication)
            for run in publication.runs:
                if run.point_id not in present:
                    _log(client, experiment_id, run, parent, publication.published_ms)
                    logged += 1
                    if progress is not None:
                        progress(logged, total)
    return logged, len(found.runs) - logged


def _parent(client: Any, experiment_id: str, publication: Publication) -> str:
    """The run that imported ones are children of, made by the first import; its id."""
    name = publication.name.replace("'", "''")
    query = f"tags.kind = 'import' and attributes.run_name = '{name}'"
    for known in client.search_runs([experiment_id], query, max_results=1):
        return str(known.info.run_id)
    tags = {**_SHARED, "kind": "import", "mlflow.note.content": publication.about}
    start = publication.published_ms
    return log_run(client, experiment_id, publication.name, tags, span=(start, start))


def _log(
    client: Any, experiment_id: str, run: PublishedRun, parent: str, published_ms: int
) -> None:
    now = int(time.time() * 1000)
    tags = {**_SHARED, "kind": "point", "point_id": run.point_id, "mlflow.parentRunId": parent}
    ending = {"outcome": run.outcome} | ({"reason": _storable(run.reason)} if run.reason else {})
    with tempfile.TemporaryDirectory() as folder:
        for name, (columns, rows) in run.tables.items():  # as mlflow.log_table lays them out
            (Path(folder) / name).write_text(
                json.dumps({"columns": [*columns], "data": rows}), encoding="utf-8"
            )
        log_run(
            client,
            experiment_id,
            _storable(run.name),
            tags | {key: _storable(text) for key, text in run.tags.items()},
            span=(published_ms, published_ms),
            params={key: _storable(value) for key, value in run.params.items()},
            metrics=[(key, value, now, 0) for key, value in run.metrics.items()],
            last=ending,
            files=Path(folder) if run.tables else None,
            status="FINISHED" if run.outcome == "ok" else "FAILED",
        )


def _storable(text: str) -> str:
    """What every database takes: not too long, and no half of a character."""
    return text[:_LONGEST].encode(errors="replace").decode()
