"""python -m benchmarks.recording [--rounds 5] [--points 40] [--stores sqlite,...] [--profile]

How many runs a second 1, 2 and 4 drivers record: into SQLite, through a server on SQLite, through a server on
PostgreSQL. A run is the record of a real point (metrics, params, tags, artifacts; with --profile its tables and picture
too), claimed and written as a driver does it; only its model is not measured again. PostgreSQL must be installed
(Debian: postgresql), paradnn[postgres], and uvloop, without which the server is slow.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from benchmarks.common import ROOT, save
from paradnn.config.identity import Identity
from paradnn.config.point import Tracking
from paradnn.record.record import Record
from paradnn.store.files import file_content
from paradnn.tracking.base import Claim
from paradnn.tracking.fallback import open_tracker
from paradnn.tracking.offline import read_document
from tests.cluster.postgres import postgres, server
from tests.conftest import environment

STORES = ("sqlite", "server on sqlite", "server on postgresql")
DRIVERS = (1, 2, 4)
POINT = ["model.nodes=64", "batch_size=64", "measure.min_seconds=0.2", "measure.processes=1", "ceilings=false"]


def real_record(folder: Path, profile: bool) -> Record:
    """What the driver records of one real point."""
    how = ["tracking=offline", f"tracking.folder={folder}", f"measure.profile={str(profile).lower()}"]
    command = [sys.executable, "-m", "paradnn.train", *POINT, *how]
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, capture_output=True)
    [path] = folder.glob("point-*.json")
    return Record(**read_document(path)["record"])


def drive(uri: str, template: Path) -> None:
    """A driver: for each line `experiment first count start` on its input, record so many points and say when."""
    record = Record(**json.loads(template.read_text()))
    for line in sys.stdin:
        experiment, first, count, start = json.loads(line)
        tracker = open_tracker(Tracking(uri=uri, experiment=experiment), lambda text: print(text, file=sys.stderr))
        time.sleep(max(0.0, start - time.time()))
        claims, records = [], []
        begin = time.time()
        for number in range(first, first + count):
            identity = Identity(f"point-{number}", record.tags["environment_id"], 0)
            tags = {**record.tags, "point_id": identity.point_id}
            open_tags = {key: value for key, value in tags.items() if key != "outcome"}
            moments = [time.perf_counter()]
            claim = tracker.begin(identity, record.name, open_tags, 600.0, lambda known: True)
            assert isinstance(claim, Claim)
            moments.append(time.perf_counter())
            now = int(time.time() * 1000)
            tracker.record(claim, replace(record, tags=tags, start_time=claim.start_time, end_time=now), dict)
            moments.append(time.perf_counter())
            claims.append(moments[1] - moments[0])
            records.append(moments[2] - moments[1])
        answer = {"begin": begin, "end": time.time(), "claim": claims, "record": records}
        print(json.dumps(answer), flush=True)


@contextmanager
def store(kind: str, folder: Path) -> Iterator[str]:
    """The tracking URI of a fresh store of that kind."""
    with ExitStack() as stack:
        backend = f"sqlite:///{folder / 'mlflow.db'}"
        if kind == "server on postgresql":
            database = stack.enter_context(postgres())
            backend = database.uri(database.new_database())
        yield backend if kind == "sqlite" else stack.enter_context(server(backend, folder)).uri


def processor_seconds() -> float:
    """What drivers, server and database have taken of all cores so far: other work beside them takes no part."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # the database ends a process now and then
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


def measure(uri: str, template: Path, rounds: int, points: int) -> Iterator[dict[str, float]]:
    """Rates of every number of drivers, in turn, so often."""
    command = [sys.executable, "-m", "benchmarks.recording", "--drive", uri, "--template", str(template)]
    drivers = [
        subprocess.Popen(command, cwd=ROOT, env=environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(max(DRIVERS))
    ]

    def together(count: int, experiment: str, size: int) -> list[dict]:
        start = time.time() + (1.0 if size > 2 else 20.0)
        for index, one in enumerate(drivers[:count]):
            print(json.dumps([experiment, index * size, size, start]), file=one.stdin, flush=True)
        return [json.loads(one.stdout.readline()) for one in drivers[:count]]

    try:
        together(max(DRIVERS), "warm-up", 2)
        for number in range(rounds):
            for count in DRIVERS:
                before = processor_seconds()
                answers = together(count, f"round {number}, {count} drivers", points)
                spent = processor_seconds() - before
                seconds = max(one["end"] for one in answers) - min(one["begin"] for one in answers)
                yield {
                    "drivers": count,
                    "runs_per_second": count * points / seconds,
                    "processor_ms": 1e3 * spent / (count * points),
                    "claim_ms": 1e3 * statistics.median(value for one in answers for value in one["claim"]),
                    "record_ms": 1e3 * statistics.median(value for one in answers for value in one["record"]),
                }
    finally:
        for one in drivers:
            one.stdin.close()
            one.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--points", type=int, default=40, help="of each driver in each round")
    parser.add_argument("--stores", default=",".join(STORES), help="default: %(default)s")
    parser.add_argument("--profile", action="store_true", help="record a profiled point: three files more")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--template", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        return drive(given.drive, given.template)
    rows = []
    with tempfile.TemporaryDirectory(prefix="recording-") as name:
        folder = Path(name)
        record = real_record(folder / "point", given.profile)
        template = folder / "record.json"
        template.write_text(json.dumps(asdict(record)))
        size = sum(len(file_content(content)) for content in record.artifacts.values())
        print(
            f"a run: {len(record.metrics)} metrics, {len(record.params)} params, {len(record.tags)} tags, "
            f"{len(record.artifacts)} files of {size / 1024:.0f} KiB"
        )
        for index, kind in enumerate(given.stores.split(",")):
            place = folder / str(index)
            place.mkdir()
            with store(kind, place) as uri:
                for row in measure(uri, template, given.rounds, given.points):
                    rows.append({"store": kind, **row})
                    print(
                        ", ".join(
                            f"{key} {value:.1f}" if isinstance(value, float) else f"{value}"
                            for key, value in rows[-1].items()
                        ),
                        flush=True,
                    )
    for kind in given.stores.split(","):
        for count in DRIVERS:
            rates = [row["runs_per_second"] for row in rows if row["store"] == kind and row["drivers"] == count]
            spent = [row["processor_ms"] for row in rows if row["store"] == kind and row["drivers"] == count]
            print(
                f"{kind}, {count} driver(s): median {statistics.median(rates):.1f} runs/s "
                f"({min(rates):.1f} .. {max(rates):.1f}), {statistics.median(spent):.0f} ms of a core each"
            )
    save("recording", rows)
    return None


if __name__ == "__main__":
    main()
