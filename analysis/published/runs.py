"""Logging published measurements as runs, beside one's own: each once, however often they are imported.

A `Publication` is read from files elsewhere (`archive`, `deepbench`, `dawnbench` and others beside this) and checked
before the first run is logged. Its runs are children of one run of its name.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from analysis.store.load import load
from analysis.store.writer import held, open_experiment, writing
from paradnn.store.address import address_of
from paradnn.store.runs import SCHEMA_VERSION
from paradnn.workloads.channel import COLLECTIVES, bus_factor

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Imported", "Moment", "Publication", "PublishedRun", "Table", "Transfer", "digest", "log_publications"]


#: What one's own runs say of a message that is one buffer, sent as it is.
_PLAIN = {"model.payload": "equal", "model.buffers": "1", "model.serialized": "false"}
_ALIKE = {"model.name": "channel", "batch_size": "1", "mode": "inference", "platform.name": "gpu"}


@dataclass(frozen=True)
class Table:
    """A table that is kept with a run, as a JSON file."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Moment:
    """What was measured so many seconds after the start of a run, at a step of its metrics."""

    step: int
    seconds: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class PublishedRun:
    """One published measurement as a run holds it; `point_id` is the same for the same entry of the same file.

    `tables` by file name; `curve` is what was measured on the way; `start_ms` where it is known when the run began, in
    Unix milliseconds. A run that lacks one of `metrics`, of an earlier import, gains it, and the tables with it.
    """

    point_id: str
    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    outcome: str = "ok"
    reason: str = ""
    tables: Mapping[str, Table] = field(default_factory=dict)
    curve: Sequence[Moment] = ()
    start_ms: int | None = None


@dataclass(frozen=True)
class Publication:
    """Runs that were published together: the name of their parent run, and what it says of them.

    `published_ms` is when, in Unix milliseconds. When each was measured is not known; by this date they stand behind
    one's own runs wherever runs are listed by time.
    """

    name: str
    about: str
    published_ms: int
    runs: Sequence[PublishedRun]


@dataclass(frozen=True)
class Imported:
    """Runs logged now, runs that were there already, how many of these gained metrics, and what was left out."""

    logged: int
    present: int
    completed: int
    left_out: Sequence[str]


@dataclass(frozen=True)
class Transfer:
    """A published time, with the params and metrics of one's own runs of `model=channel`.

    `seconds` of a message or a collective of `size` bytes between `processes`, which are on so many `hosts`."""

    transport: str
    pattern: str
    size: int
    processes: int
    hosts: int
    precision: str
    seconds: float

    @property
    def params(self) -> dict[str, str]:
        """As a run holds them. One's own runs have no `model.hosts`: all their processes are of one."""
        own = {
            "model.transport": self.transport,
            "model.pattern": self.pattern,
            "model.bytes": str(self.size),
            "model.processes": str(self.processes),
            "model.hosts": str(self.hosts),
            "precision": self.precision,
        }
        return {**_ALIKE, **_PLAIN, **own}

    @property
    def metrics(self) -> dict[str, float]:
        """Time and rates, as docs/communication.md defines them."""
        rate = self.size / self.seconds
        found = {
            "step_time_ms": 1e3 * self.seconds,
            "transfer_us": 1e6 * self.seconds,
            "messages_per_second": 1 / self.seconds,
            "sent_bytes_per_second": rate,
        }
        if self.pattern in COLLECTIVES:
            found["bus_bytes_per_second"] = rate * bus_factor(self.pattern, self.processes)
        return found

    @property
    def name(self) -> str:
        """Short description of what is sent."""
        hosts = f" on {self.hosts} hosts" if self.hosts > 1 else ""
        return f"{self.transport} {self.pattern} x{self.processes}{hosts} {self.size} B"


def log_publications(
    publications: Sequence[Publication],
    tracking_uri: str | None,
    experiment: str,
    left_out: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Log the runs that the store does not hold yet, and complete those that lack metrics.

    `progress` is called with the number of runs logged and to log. Safe to repeat after an interruption: what has an
    outcome is there, the rest is logged.
    """
    client, experiment_id = open_experiment(tracking_uri, experiment)
    uri = address_of(tracking_uri).uri
    stored = load(uri, experiments=experiment, tags={"source": "published"})
    held = stored.drop_duplicates("point_id").set_index("point_id") if "point_id" in stored else stored
    present = set(held.index) if held.index.name else set()
    total = sum(run.point_id not in present for publication in publications for run in publication.runs)
    logged = known = completed = 0
    with writing(uri):
        for publication in publications:
            parent = _parent(client, experiment_id, publication)
            for run in publication.runs:
                if run.point_id in present:
                    known += 1
                    completed += _complete(client, run, parent, held.loc[[run.point_id]].iloc[0])
                    continue
                start = publication.published_ms if run.start_ms is None else run.start_ms
                _log(client, experiment_id, run, parent, start)
                logged += 1
                if progress is not None:
                    progress(logged, total)
    return Imported(logged, known, completed, left_out)


def digest(*parts: str) -> str:
    """An identity of published things, the same on every machine."""
    return hashlib.sha256(json.dumps(["published", *parts]).encode()).hexdigest()[:16]


def _parent(client: Any, experiment_id: str, publication: Publication) -> str:
    """The run that imported ones are children of, made by the first import; its id."""
    name = publication.name.replace("'", "''")
    query = f"tags.kind = 'import' and attributes.run_name = '{name}'"
    known = client.search_runs([experiment_id], query, max_results=1)
    if known:
        return str(known[0].info.run_id)
    tags = {**_SHARED, "kind": "import", "mlflow.note.content": publication.about, **held()}
    start = publication.published_ms
    run_id = client.create_run(experiment_id, start_time=start, tags=tags, run_name=publication.name).info.run_id
    client.set_terminated(run_id, "FINISHED", start)
    return str(run_id)


_SHARED = {"schema_version": SCHEMA_VERSION, "source": "published"}
_LONGEST = 480  # characters
#: As many as MLflow takes at once.
_MOST_METRICS = 1000


def _complete(client: Any, run: PublishedRun, parent: str, found: pd.Series) -> bool:
    """Log the metrics and tables that a run of an earlier import lacks; whether it lacked any."""
    from mlflow.entities import Metric

    if found["parent_run_id"] != found["parent_run_id"]:
        # Runs of an early import stand among one's own, unless they have a parent.
        client.set_tag(found["run_id"], "mlflow.parentRunId", parent)
    lacking = {name: value for name, value in run.metrics.items() if name not in found or found[name] != found[name]}
    if not lacking:
        return False
    _log_tables(client, found["run_id"], run)
    now = int(time.time() * 1000)
    client.log_batch(found["run_id"], metrics=[Metric(key, value, now, 0) for key, value in lacking.items()])
    return True


def _storable(text: str) -> str:
    """What every database takes: not too long, and no half of a character."""
    return text[:_LONGEST].encode(errors="replace").decode()


def _log_tables(client: Any, run_id: str, run: PublishedRun) -> None:
    for name, table in run.tables.items():
        client.log_text(run_id, json.dumps({"columns": list(table.columns), "data": table.rows}), name)


def _log(client: Any, experiment_id: str, run: PublishedRun, parent: str, start: int) -> None:
    """One run; its outcome is written last, with its numbers."""
    from mlflow.entities import Metric, Param, RunTag

    now = int(time.time() * 1000)
    own = {key: _storable(text) for key, text in run.tags.items()}
    tags = {**_SHARED, "kind": "point", "point_id": run.point_id, "mlflow.parentRunId": parent, **own, **held()}
    run_id = client.create_run(experiment_id, start_time=start, tags=tags, run_name=_storable(run.name)).info.run_id
    _log_tables(client, run_id, run)
    curve = [
        Metric(key, value, start + round(1e3 * moment.seconds), moment.step)
        for moment in run.curve
        for key, value in moment.metrics.items()
    ]
    for begin in range(0, len(curve), _MOST_METRICS):
        client.log_batch(run_id, metrics=curve[begin : begin + _MOST_METRICS])
    client.log_batch(
        run_id,
        metrics=[Metric(key, value, now, 0) for key, value in run.metrics.items()],
        params=[Param(key, _storable(value)) for key, value in run.params.items()],
        tags=[RunTag(key, _storable(text)) for key, text in (("reason", run.reason), ("outcome", run.outcome)) if text],
    )
    end = start + round(1e3 * run.curve[-1].seconds) if run.curve else start
    client.set_terminated(run_id, "FINISHED" if run.outcome == "ok" else "FAILED", end)
