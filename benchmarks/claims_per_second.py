"""Measure how many drivers one tracking store serves.

    python -m benchmarks.claims_per_second [--drivers 1,8,32,128] [--sleepers 1,8,32]

Simulated drivers claim points of one sweep and record them with 40 metrics. Like a real driver,
each has a separate order of the points and separate connections. Without a wait between claim and
record, the store is the limit. With a wait of `--sleep` seconds per point, the speed-up is the
number of points per second relative to one driver. Drivers are forked, so they share the memory of
their imports. Every point must be recorded once. Results that go to files while the store is locked
are logged at the end (column `kept`). Processor time includes that of PostgreSQL. Writes
benchmarks/results/claims_per_second.csv. Needs PostgreSQL.
"""

import argparse
import contextlib
import multiprocessing
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import mlflow.store.tracking.sqlalchemy_store  # noqa: F401  imported once, before the forks
import psutil

from benchmarks.common import save
from paradnn.config.identity import Identity
from paradnn.config.settings import Tracking
from paradnn.core.errors import StoreError
from paradnn.store.address import address_of
from paradnn.store.leases import Lease, Owner
from paradnn.store.reader import open_reader
from paradnn.store.runs import SCHEMA_VERSION, Claim, Query
from paradnn.store.tracker import open_tracker, sync
from tests.cluster.postgres import Postgres
from tests.cluster.recorder import ENVIRONMENT, record_of, tags_of

#: Each driver holds two connections; the default of PostgreSQL is 100.
_CONNECTIONS = 400
_FORK = multiprocessing.get_context("fork")


def drive(settings: Tracking, number: int, points: int, sleep: float, pipe: Connection) -> None:
    """Act as one driver of a sweep; send its counts, seconds per claim, end and processor time."""
    random.seed(number)
    experiment = settings.experiment_name
    tracker = open_tracker(settings, lambda line: None)
    tags = {"sweep_id": experiment, "kind": "sweep", "schema_version": SCHEMA_VERSION}
    tracker.join_sweep(experiment, "", tags, is_launched=False)
    tracker.register(str(number), Lease(owner=Owner.current(), expires=0.0))
    queue = random.sample(range(points), points)
    pipe.send("ready")
    deadline = pipe.recv()
    spent = []
    counts: Counter[str] = Counter()
    cpu = time.process_time()
    while time.time() < deadline and queue:
        identity = Identity(str(queue[-1]), ENVIRONMENT, 0)
        begin = time.perf_counter()
        try:
            claim = tracker.begin(
                identity, identity.point_id, tags_of(identity), lambda known: True
            )
        except StoreError:
            counts["errors"] += 1
            continue
        point = queue.pop()
        if claim is None:
            queue.insert(0, point)
        elif isinstance(claim, Claim):
            spent.append(time.perf_counter() - begin)
            time.sleep(sleep)
            tracker.record(claim, record_of(claim), dict)
            counts["recorded"] += 1
        else:
            counts["found"] += 1
    pipe.send((dict(counts), spent, time.time(), time.process_time() - cpu))


def server_seconds() -> float:
    """Return the processor time of all processes of PostgreSQL that this process started."""
    spent = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name() == "postgres":
                times = process.cpu_times()
                spent += times.user + times.system + times.children_user + times.children_system
    return spent


def recorded(settings: Tracking) -> tuple[list[str], int, int]:
    """Log results that went to files.

    Returns:
        The point of each run in the store, the number of logged files, and the number of files that
        the store rejected.
    """
    uploaded, problems = sync(Path(str(settings.folder)), settings)
    query = Query((settings.experiment_name,), tags={"kind": ("point",)})
    rows = open_reader(address_of(settings.uri)).read(query)
    return [row.tags["point_id"] for row in rows], len(uploaded), len(problems)


def measure(uri: str, drivers: int, sleep: float, seconds: float, folder: Path) -> dict[str, Any]:
    """Return one row of the table."""
    experiment = f"sweep-{drivers}-{sleep:g}"
    settings = Tracking(uri=uri, experiment=experiment, folder=str(folder / experiment))
    points = max(400, 100 * drivers)
    make_experiment = _FORK.Process(target=open_tracker, args=(settings, print))
    make_experiment.start()
    make_experiment.join()
    ends = []
    processes = []
    for number in range(drivers):
        here, there = _FORK.Pipe()
        process = _FORK.Process(
            target=drive, args=(settings, number, points, sleep, there), daemon=True
        )
        process.start()
        there.close()  # otherwise the end of a driver that dies would not show
        ends.append(here)
        processes.append(process)
    try:
        for end in ends:
            assert end.recv() == "ready"
        before = server_seconds()
        begin = time.time()
        for end in ends:
            end.send(begin + seconds)
        answers = [end.recv() for end in ends]
        cpu = server_seconds() - before + sum(answer[3] for answer in answers)
    except EOFError:
        codes = {number: process.exitcode for number, process in enumerate(processes)}
        sys.exit(f"{uri.partition(':')[0]}, {drivers} drivers: one has ended early: {codes}")
    for process in processes:
        process.join()
    counts: Counter[str] = Counter()
    for count, *_ in answers:
        counts.update(count)
    spent = [value for _, values, *_ in answers for value in values]
    elapsed = max(stop for _, _, stop, _ in answers) - begin
    # In another process, because drivers must not inherit connections of this one.
    with ProcessPoolExecutor(1, mp_context=_FORK) as other:
        found, kept, rejected = other.submit(recorded, settings).result()
    row = {
        "store": uri.partition(":")[0].partition("+")[0],
        "drivers": drivers,
        "sleep": sleep,
        "recorded": counts["recorded"],
        "seconds": round(elapsed, 1),
        "per_second": round(counts["recorded"] / elapsed, 2),
        "claim_median_ms": round(1e3 * statistics.median(spent), 1),
        "claim_p95_ms": round(1e3 * sorted(spent)[int(0.95 * len(spent))], 1),
        "cpu_ms_per_point": round(1e3 * cpu / counts["recorded"], 1),
        "kept": kept,
        "errors": counts["errors"] + rejected,
        "doubled": len(found) - len(set(found)),
        "lost": counts["recorded"] - len(found),
    }
    print(row, flush=True)
    return row


@contextmanager
def stores(kinds: list[str]) -> Iterator[list[str]]:
    """Yield the URIs of an SQLite file and of a database of PostgreSQL, on one disk."""
    with contextlib.ExitStack() as stack:
        uris = []
        if "sqlite" in kinds:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            uris.append(f"sqlite:///{folder}/mlflow.db")
        if "postgresql" in kinds:
            cluster = Postgres(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pg-"))))
            cluster.create()
            with (cluster.folder / "data" / "postgresql.conf").open("a") as settings:
                settings.write(f"max_connections = {_CONNECTIONS}\n")
            cluster.start()
            stack.callback(cluster.stop, signal.SIGQUIT)
            uris.append(cluster.uri(cluster.new_database()))
        yield uris


def main() -> None:
    """Measure both stores and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--drivers", default="1,8,32,128", help="without a wait")
    parser.add_argument("--sleepers", default="1,8,32", help="numbers of drivers with a wait")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--sleep", type=float, default=2.0)
    parser.add_argument("--stores", default="sqlite,postgresql")
    given = parser.parse_args()
    cases = [(int(count), 0.0) for count in given.drivers.split(",") if count]
    cases += [(int(count), given.sleep) for count in given.sleepers.split(",") if count]
    with stores(given.stores.split(",")) as uris, tempfile.TemporaryDirectory() as name:
        rows = []
        for number, uri in enumerate(uris):
            folder = Path(name) / str(number)
            rows += [measure(uri, count, sleep, given.seconds, folder) for count, sleep in cases]
    save("claims_per_second", rows)
    if any(row["doubled"] or row["lost"] for row in rows):
        sys.exit("a point was recorded twice or lost")


if __name__ == "__main__":
    main()
