"""Time MLflow's pages on stores of many runs, side by side.

    python -m benchmarks.mlflow_pages BEFORE.db AFTER.db [--runs 10000] [--rounds 5]

Each argument is the SQLite database of a measured sweep. Its points are copied, with their params,
tags, metrics and histories, until the copy has the given number of points. One MLflow server per
store serves the copies. Chromium opens the table of runs, the charts and a run on each store, in
alternating order. The filters of docs/how-to/browse-results.md run through `mlflow.search_runs`,
also alternating. Prints the wall time until the content is visible, the processor time of the
server, and the ratios of the second store to the first. Needs Chromium; takes 15 minutes.
"""

import argparse
import itertools
import os
import random
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.common import ROOT, environment, save
from paradnn.store.views import run_link, view_link
from tests.cluster.postgres import free_port, is_well
from tests.processes import started, wait_for

_FILTERS = re.compile(r"^\| [^|]+\? \| `+ ?(.*?) ?`+ \|$", flags=re.MULTILINE)
_SEARCHED_RUNS = 100
_PATIENCE_MS = 300_000
_START_SECONDS = 900.0
_COPIES = {
    "params": "key, value",
    "tags": "key, value",
    "latest_metrics": "key, value, timestamp, step, is_nan",
    "metrics": "key, value, timestamp, step, is_nan",
}


class Served(NamedTuple):
    """Store of copied points, with the MLflow server that serves it."""

    server: str
    process: psutil.Process
    uri: str
    experiment_id: str
    run_id: str
    sweep_id: str
    host: str

    @property
    def processor_seconds(self) -> float:
        """Processor time of the server and its workers so far."""
        every = [self.process, *self.process.children(recursive=True)]
        return sum(sum(one.cpu_times()[:2]) for one in every)


def copy_points(source: Path, target: Path, runs: int) -> None:
    """Copy a store and its measured points, until the copy has the given number of points.

    Each copy scales all its metrics by a random factor, so that no two marks of a chart coincide.

    Args:
        source: Database of a measured sweep.
        target: Database to write.
        runs: Number of points of the copy.
    """
    draw = random.Random(0)
    with closing(sqlite3.connect(source)) as given, closing(sqlite3.connect(target)) as store:
        given.backup(store)
        store.execute("PRAGMA journal_mode=OFF")
        store.execute("PRAGMA synchronous=OFF")
        store.execute("PRAGMA cache_size=-1000000")
        points = [
            run_id
            for (run_id,) in store.execute(
                "SELECT run_uuid FROM tags WHERE key = 'kind' AND value = 'point' ORDER BY run_uuid"
            )
        ]
        copies = [
            (
                points[number % len(points)],
                f"{draw.getrandbits(128):032x}",
                draw.lognormvariate(0, 1),
            )
            for number in range(runs - len(points))
        ]
        store.execute("CREATE TEMP TABLE copies (old, new, factor)")
        store.executemany("INSERT INTO copies VALUES (?, ?, ?)", copies)
        columns = [row[1] for row in store.execute("PRAGMA table_info(runs)")]
        chosen = ", ".join("new" if name == "run_uuid" else f"runs.{name}" for name in columns)
        store.execute(
            f"INSERT INTO runs ({', '.join(columns)}) "
            f"SELECT {chosen} FROM copies JOIN runs ON runs.run_uuid = old"
        )
        for table, names in _COPIES.items():
            values = ", ".join(f"{table}.{name}" for name in names.split(", "))
            if "metrics" in table:
                values = values.replace(f"{table}.value", f"{table}.value * factor")
            store.execute(
                f"INSERT INTO {table} (run_uuid, {names}) "
                f"SELECT new, {values} FROM copies JOIN {table} ON {table}.run_uuid = old"
            )
        store.commit()
        store.execute("PRAGMA journal_mode=WAL")  # as a recorded store


@contextmanager
def served(database: Path) -> Iterator[Served]:
    """Serve a store with MLflow."""
    uri = f"sqlite:///{database}"
    port = free_port()
    server = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--workers", "1", "--port", str(port)]
    variables = {**environment(database.parent), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    silent = subprocess.DEVNULL
    with started(command, cwd=database.parent, env=variables, stdout=silent, stderr=silent) as one:
        if not wait_for(lambda: is_well(server), _START_SECONDS):
            sys.exit(f"MLflow's server of {database} does not start")
        with closing(sqlite3.connect(database)) as store:
            run_id, experiment_id = store.execute(
                "SELECT run_uuid, experiment_id FROM runs JOIN tags USING (run_uuid) "
                "WHERE key = 'outcome' AND value = 'ok' ORDER BY start_time DESC, run_uuid"
            ).fetchone()
            tags = dict(
                store.execute(
                    "SELECT key, value FROM tags WHERE run_uuid = ?", (run_id,)
                ).fetchall()
            )
        yield Served(
            server=server,
            process=psutil.Process(one.pid),
            uri=uri,
            experiment_id=str(experiment_id),
            run_id=run_id,
            sweep_id=tags["sweep_id"],
            host=tags["host"],
        )


def page_timers(browser: Browser, site: Served) -> dict[str, Callable[[], float]]:
    """Return functions that open a page and return the seconds until its content is visible.

    The pages of a store share a browser's cache.
    """
    context = browser.new_context(viewport={"width": 1600, "height": 1100})
    table = view_link(site.server, site.experiment_id, "points")
    charts = view_link(site.server, site.experiment_id, "points", charts=True)
    run = run_link(site.server, site.experiment_id, site.run_id)

    def seconds(address: str, selector: str) -> float:
        page: Page = context.new_page()
        begin = time.perf_counter()
        page.goto(address)
        page.locator(selector).first.wait_for(timeout=_PATIENCE_MS)
        spent = time.perf_counter() - begin
        page.close()
        return spent

    return {
        "table": lambda: seconds(table, "[role=row] a[href*='/runs/']"),
        "charts": lambda: seconds(charts, ".js-plotly-plot .main-svg"),
        "run": lambda: seconds(run, "text=examples_per_second"),
    }


def search_timers(site: Served) -> dict[str, Callable[[], float]]:
    """Return functions that search runs and return the seconds, by filter."""
    import mlflow

    text = (ROOT / "docs" / "how-to" / "browse-results.md").read_text()
    filters = [
        found.replace("SWEEP_ID", site.sweep_id).replace("HOST", site.host)
        for found in _FILTERS.findall(text)
    ]

    def seconds(condition: str) -> float:
        mlflow.set_tracking_uri(site.uri)
        begin = time.perf_counter()
        mlflow.search_runs([site.experiment_id], condition, max_results=_SEARCHED_RUNS)
        return time.perf_counter() - begin

    return {
        f"search {number}": lambda condition=condition: seconds(condition)
        for number, condition in enumerate(filters, 1)
    }


def measure(sites: Sequence[Served], rounds: int) -> Iterator[dict[str, Any]]:
    """Time every page and filter on both stores alternately, after one unreported round."""
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        timers = [page_timers(browser, site) | search_timers(site) for site in sites]
        for number, name in itertools.product(range(rounds + 1), timers[0]):
            order = list(enumerate(sites))
            if number % 2:
                order.reverse()
            for position, site in order:
                own = sum(os.times()[:2])
                before = site.processor_seconds
                seconds = timers[position][name]()
                spent = site.processor_seconds - before
                if name.startswith("search"):
                    spent = sum(os.times()[:2]) - own
                print(
                    f"round {number}, store {position}, {name}: {seconds:.2f} s, "
                    f"{spent:.2f} s of a processor",
                    flush=True,
                )
                if number:
                    yield {
                        "what": name,
                        "store": position,
                        "round": number,
                        "seconds": seconds,
                        "processor_seconds": spent,
                    }
        browser.close()


def report(rows: Sequence[dict[str, Any]], name: str) -> None:
    """Print medians of both stores, and the ratios of pairs with their range."""
    chosen = [row for row in rows if row["what"] == name]
    parts = []
    for quantity in ("seconds", "processor_seconds"):
        sides = [[row[quantity] for row in chosen if row["store"] == side] for side in (0, 1)]
        middle = [statistics.median(side) for side in sides]
        parts.append(f"{quantity} {middle[0]:.2f} -> {middle[1]:.2f}")
        ratios = sorted(after / before for before, after in zip(*sides, strict=True) if before)
        if ratios:
            low, high = ratios[0], ratios[-1]
            parts.append(f"ratio {statistics.median(ratios):.2f} ({low:.2f} .. {high:.2f})")
    print(f"{name:>10}: {'; '.join(parts)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stores", nargs=2, type=Path, help="databases of the two measured sweeps")
    parser.add_argument("--runs", type=int, default=10_000, help="points of each copy")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mlflow-pages-") as name, ExitStack() as stack:
        sites = []
        for number, source in enumerate(given.stores):
            folder = Path(name) / str(number)
            folder.mkdir()
            copy_points(source, folder / "mlflow.db", given.runs)
            size = (folder / "mlflow.db").stat().st_size / 1e6
            print(f"store {number}: {given.runs:,} points, {size:,.0f} MB", flush=True)
            sites.append(stack.enter_context(served(folder / "mlflow.db")))
        rows = list(measure(sites, given.rounds))
    for what in dict.fromkeys(str(row["what"]) for row in rows):
        report(rows, what)
    save("mlflow_pages", rows)


if __name__ == "__main__":
    main()
