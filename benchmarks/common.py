"""Helpers of the benchmarks that run commands on a separate store and read its runs with SQL."""

import csv
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a command that records only into `folder`."""
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "HYDRA_"))
    }
    return environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}


def paradnn(command: str, arguments: Sequence[str], folder: Path) -> str:
    """Run `python -m paradnn.COMMAND` on `folder`; return its output, or exit if it fails."""
    words = [sys.executable, "-m", f"paradnn.{command}", *arguments]
    done = subprocess.run(
        words, cwd=ROOT, env=environment(folder), text=True, capture_output=True, check=False
    )
    if done.returncode:
        sys.exit(f"paradnn.{command} failed: {done.stderr}")
    return done.stdout


def train(arguments: Sequence[str], folder: Path) -> None:
    """Measure a point or a sweep, recorded into `folder`."""
    paradnn("train", arguments, folder)


def runs(folder: Path) -> list[dict[str, str | float]]:
    """Return metrics, params and tags of every point, in the order of measurement."""
    found: dict[str, dict[str, str | float]] = {}
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        for run_id, start in database.execute(
            "SELECT run_uuid, start_time FROM runs ORDER BY start_time"
        ):
            found[run_id] = {"run_id": run_id, "start_time": start}
        for table in ("tags", "params", "latest_metrics"):
            for run_id, key, value in database.execute(f"SELECT run_uuid, key, value FROM {table}"):
                found[run_id][key] = value
    return [run for run in found.values() if run.get("kind") == "point"]


class Planted(NamedTuple):
    """Finished run without a measurement; `start` and `end` in Unix ms (None: a second later)."""

    run_id: str
    start: int
    params: Mapping[str, object]
    tags: Mapping[str, object]
    metrics: Mapping[str, float]
    end: int | None = None


def fill(path: Path, planted: Iterable[Planted]) -> None:
    """Insert runs into the experiment "paradnn" of a SQLite database that MLflow made, with plain
    SQL.
    """
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("PRAGMA synchronous=OFF")
        chosen = "SELECT experiment_id FROM experiments WHERE name = 'paradnn'"
        if not store.execute(chosen).fetchone():
            columns = "(experiment_id, name, artifact_location, lifecycle_stage)"
            store.execute(
                f"INSERT INTO experiments {columns} VALUES (7, 'paradnn', '/nowhere', 'active')"
            )
        (experiment,) = store.execute(chosen).fetchone()
        columns = (
            "(run_uuid, name, start_time, end_time, status, lifecycle_stage, artifact_uri, "
            "experiment_id)"
        )
        for run in planted:
            held = (
                run.run_id,
                run.run_id,
                run.start,
                run.start + 1000 if run.end is None else run.end,
                "FINISHED",
                "active",
                "",
                experiment,
            )
            store.execute(f"INSERT INTO runs {columns} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", held)
            for table, entries in (("params", run.params), ("tags", run.tags)):
                texts = [(run.run_id, key, str(value)) for key, value in entries.items()]
                store.executemany(
                    f"INSERT INTO {table} (run_uuid, key, value) VALUES (?, ?, ?)", texts
                )
            store.executemany(
                "INSERT INTO latest_metrics (run_uuid, key, value, timestamp, step, is_nan) VALUES "
                "(?, ?, ?, ?, 0, 0)",
                [(run.run_id, key, float(value), run.start) for key, value in run.metrics.items()],
            )


def artifact(folder: Path, run: Mapping[str, object], name: str) -> Path:
    """Return the path of an artifact of a run recorded into `folder`."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        ((uri,),) = database.execute(
            "SELECT artifact_uri FROM runs WHERE run_uuid = ?", (run["run_id"],)
        )
    return Path(str(uri).removeprefix("file://")) / name


def save(name: str, rows: Sequence[Mapping[str, object]], folder: Path = RESULTS) -> None:
    """Write the rows as <name>.csv in `folder`."""
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.csv").open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
