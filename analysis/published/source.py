"""Measurements that others published, as runs beside one's own: read within bounds, logged once however often.

A reader (`archive` and others beside this) makes of a folder what was `Found` in it. All of it is checked before the
first run is logged. Whatever is in a file, reading gives a value or raises one of `DAMAGED`; one larger than `LARGEST`,
packed or unpacked, is refused, and sheets are read row by row, so that one far cell costs neither memory nor minutes.
"""

from __future__ import annotations

import csv
import hashlib
import json
import tempfile
import time
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from analysis.store.load import load
from analysis.store.write import Progress, log_run, open_experiment, writing
from paradnn.store.address import address_of
from paradnn.store.runs import SCHEMA_VERSION
from paradnn.workloads.channel import COLLECTIVES, bus_factor

#: What reading raises where a file is not what it claims to be; of damaged XML in a spreadsheet a SyntaxError.
DAMAGED = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, SyntaxError, TypeError),
    *(ValueError, csv.Error, zipfile.BadZipFile, zlib.error),
)
#: Bytes.
LARGEST = 32 * 2**20
_MOST_ROWS, _MOST_COLUMNS = 20_000, 200  # of a sheet
_DIGITS = 15  # a whole number with more is no count of anything: it is read as a float, which may be infinite
_LONGEST = 480  # characters of a name or a value that is logged
_SHARED = {"schema_version": SCHEMA_VERSION, "source": "published"}


def reason(error: BaseException) -> str:
    """What is wrong, on one line."""
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    words = " ".join(f"{'has no ' if isinstance(error, KeyError) else ''}{error}".split())
    return words[:200] or type(error).__name__


def read_text(path: Path) -> str:
    """The text of a file, without the mark that may stand at its beginning."""
    if (size := path.stat().st_size) > LARGEST:
        raise ValueError(f"has {size:,} bytes, more than {LARGEST:,}")
    return path.read_text(encoding="utf-8-sig")


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return json.loads(read_text(path), parse_int=lambda text: int(text) if len(text) <= _DIGITS else float(text))


def read_sheets(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Sheet -> its rows of values, None where a cell is blank."""
    from openpyxl import load_workbook
    from openpyxl.utils.exceptions import InvalidFileException

    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of extensions that are not read, such as colours
        with zipfile.ZipFile(file) as parts:
            if (size := sum(part.file_size for part in parts.infolist())) > LARGEST:
                raise ValueError(f"holds {size:,} bytes, more than {LARGEST:,}")
        try:
            book = load_workbook(file, data_only=True, read_only=True)
            return {sheet.title: list(_rows(sheet)) for sheet in book.worksheets}
        except InvalidFileException as error:
            raise ValueError(str(error)) from error


def _rows(sheet: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of a sheet, whatever it says of its own size."""
    sheet.reset_dimensions()
    for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
        if number > _MOST_ROWS or len(row) > _MOST_COLUMNS:
            raise ValueError(f"sheet {sheet.title!r} has a cell beyond row {_MOST_ROWS:,} or column {_MOST_COLUMNS}")
        yield row


@cache
def device_called(name: str) -> str:
    """A platform's name here, where files spell one in two ways, or say what is inside in place of what it is."""
    with Path(__file__).with_name("devices.csv").open(encoding="utf-8", newline="") as table:
        return {row["name"]: row["device"] for row in csv.DictReader(table)}.get(name, name)


def digest(*parts: str) -> str:
    """An identity of published things, the same on every machine."""
    return hashlib.sha256(json.dumps(["published", *parts]).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class PublishedRun:
    """One published measurement as a run holds it; `point_id` is the same for the same entry of the same file.

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
    """Runs that were published together: the name of their parent run, what it says of them, and when that was (Unix
    milliseconds): when each was measured is not known, and so they stand behind one's own runs."""

    name: str
    about: str
    published_ms: int
    runs: Sequence[PublishedRun]


@dataclass(frozen=True)
class Found:
    """What a folder holds, and a line for each entry that was left out, with the reason."""

    publications: Sequence[Publication]
    left_out: Sequence[str] = ()

    @property
    def runs(self) -> list[PublishedRun]:
        """Of all publications."""
        return [run for publication in self.publications for run in publication.runs]


def repeated(runs: Iterable[PublishedRun], *source: str) -> list[PublishedRun]:
    """What a file lists twice was measured twice: the second is a replicate, with an identity of its own."""
    seen: Counter[str] = Counter()
    found = []
    for run in runs:
        known = digest(*source, *(f"{key}={value}" for key, value in sorted(run.params.items())))
        number = {"replicate": str(seen[known])}
        seen[known] += 1
        params, tags = {**run.params, **number}, {**run.tags, **number}
        found.append(replace(run, point_id=digest(known, number["replicate"]), params=params, tags=tags))
    return found


def transfer(
    transport: str, pattern: str, size: int, processes: int, hosts: int, precision: str, seconds: float
) -> tuple[str, dict[str, str], dict[str, float]]:
    """A time of a message or a collective of `size` bytes between `processes`, which are on so many `hosts`, with name,
    params and metrics of one's own runs of `model=channel` (docs/communication.md). One's own runs have no
    `model.hosts`: all their processes are of one."""
    fixed = {"model.name": "channel", "batch_size": "1", "mode": "inference", "platform.name": "gpu"}
    ends = {"transport": transport, "pattern": pattern, "bytes": size, "processes": processes, "hosts": hosts}
    params = {**fixed, **{f"model.{name}": str(value) for name, value in ends.items()}, "precision": precision}
    metrics = {"step_time_ms": 1e3 * seconds, "transfer_us": 1e6 * seconds, "messages_per_second": 1 / seconds}
    metrics["sent_bytes_per_second"] = rate = size / seconds
    if pattern in COLLECTIVES:
        metrics["bus_bytes_per_second"] = rate * bus_factor(pattern, processes)
    on = f" on {hosts} hosts" if hosts > 1 else ""
    return f"{transport} {pattern} x{processes}{on} {size} B", params, metrics


def log_found(
    found: Found, tracking_uri: str | None = None, experiment: str = "paradnn", progress: Progress = None
) -> tuple[int, int]:
    """Log the runs that the store does not hold yet; how many these were, and how many were there already. Safe to
    repeat after an interruption. `progress` is called with the number of runs logged and to log. Raises StoreError."""
    client, experiment_id = open_experiment(tracking_uri, experiment)
    uri = address_of(tracking_uri).uri
    stored = load(uri, experiments=experiment, tags={"source": "published"})
    present = set(stored["point_id"]) if "point_id" in stored else set()
    total, logged = sum(run.point_id not in present for run in found.runs), 0
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


def _log(client: Any, experiment_id: str, run: PublishedRun, parent: str, published_ms: int) -> None:
    now = int(time.time() * 1000)
    tags = {**_SHARED, "kind": "point", "point_id": run.point_id, "mlflow.parentRunId": parent}
    ending = {"outcome": run.outcome} | ({"reason": _storable(run.reason)} if run.reason else {})
    with tempfile.TemporaryDirectory() as folder:
        for name, (columns, rows) in run.tables.items():  # as mlflow.log_table lays them out
            (Path(folder) / name).write_text(json.dumps({"columns": [*columns], "data": rows}), encoding="utf-8")
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
