"""Measure the cost of recording through a tracking server.

    python -m benchmarks.recording [--rounds 3] [--points 30] [--drivers 1,4] [--server OPTIONS]

Reports requests and seconds per run, runs per second of several drivers, and the processor time of
drivers, server and database. A run is the record of a real point: metrics, params, tags, artifacts,
and with --profile its tables and picture. Runs are claimed and written as by a driver, but the
model is not measured again. Takes two minutes. Needs PostgreSQL (Debian: postgresql) and
paradnn[server].
"""

import argparse
import functools
import itertools
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from benchmarks.common import ROOT, save
from paradnn.config.identity import Identity
from paradnn.config.settings import Tracking
from paradnn.store.files import file_content
from paradnn.store.journal import read_document
from paradnn.store.runs import Claim, Record
from paradnn.store.tracker import Tracker, open_tracker
from tests.cluster.postgres import postgres, server
from tests.conftest import environment
from tests.tracking.counting import counting

#: Default options of the server, as in docs/how-to/tracking-server.md; "" selects uvicorn.
SERVER = "--gunicorn-opts '--worker-class gthread --threads 4 --keep-alive 75'"
POINT = [
    "model.nodes=64",
    "batch_size=64",
    "measure.min_seconds=0.2",
    "measure.processes=1",
    "ceilings=false",
]


def real_record(folder: Path, *, profile: bool) -> Record:
    """Measure one real point, and return the record of its driver."""
    how = [
        "tracking=offline",
        f"tracking.folder={folder}",
        f"measure.profile={str(profile).lower()}",
    ]
    command = [sys.executable, "-m", "paradnn.train", *POINT, *how]
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, capture_output=True)
    [path] = folder.glob("point-*.json")
    return Record(**read_document(path)["record"])


def keep(tracker: Tracker, record: Record, number: int) -> tuple[float, float]:
    """Claim and record a point; return the seconds of the claim and of the record."""
    identity = Identity(f"point-{number}", record.tags["environment_id"], 0)
    tags = {**record.tags, "point_id": identity.point_id}
    open_tags = {key: value for key, value in tags.items() if key != "outcome"}
    begin = time.perf_counter()
    claim = tracker.begin(identity, record.name, open_tags, lambda known: True)
    assert isinstance(claim, Claim)
    claimed = time.perf_counter()
    now = int(time.time() * 1000)
    tracker.record(
        claim, replace(record, tags=tags, start_time=claim.start_time, end_time=now), dict
    )
    return claimed - begin, time.perf_counter() - claimed


def drive(template: Path) -> None:
    """Act as a driver: for each line `uri experiment first count` on standard input, prepare,
    wait for another line, and record.
    """
    record = Record(**json.loads(template.read_text()))
    for line in sys.stdin:
        uri, experiment, first, count = json.loads(line)
        tracker = open_tracker(
            Tracking(uri=uri, experiment=experiment), lambda text: print(text, file=sys.stderr)
        )
        tracker.finished([record.tags["environment_id"]])
        keep(tracker, record, first)  # the first is also when drivers learn of each other
        print("ready", flush=True)
        sys.stdin.readline()
        begin = time.time()
        spent = [keep(tracker, record, number) for number in range(first + 1, first + 1 + count)]
        print(json.dumps({"begin": begin, "end": time.time(), "spent": spent}), flush=True)


def processor_seconds() -> dict[str, float]:
    """Return the processor time of drivers, server and database so far."""
    seconds = dict.fromkeys(("drivers", "server", "database"), 0.0)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # The database may end a process at any time.
            times = process.cpu_times()
            command = process.cmdline()
            if "--drive" in command:
                kind = "drivers"
            elif "python" in command[0]:
                kind = "server"
            else:
                kind = "database"
            seconds[kind] += times.user + times.system
    return seconds


class Drivers:
    """Processes that record at the same time."""

    def __init__(self, template: Path, count: int) -> None:
        command = [sys.executable, "-m", "benchmarks.recording", "--drive", str(template)]
        pipes = {"text": True, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._processes = [
            subprocess.Popen(command, cwd=ROOT, env=environment(), **pipes) for _ in range(count)
        ]

    def record(
        self, uri: str, name: str, count: int, points: int, ready: Callable[[], object] = dict
    ) -> list[dict]:
        """Let drivers record points, after a call of `ready`; return their reports."""
        used = self._processes[:count]
        for index, one in enumerate(used):
            print(json.dumps([uri, name, index * (points + 1), points]), file=one.stdin, flush=True)
        for one in used:
            assert one.stdout.readline() == "ready\n"
        ready()
        for one in used:
            print("go", file=one.stdin, flush=True)
        return [json.loads(one.stdout.readline()) for one in used]

    def close(self) -> None:
        for one in self._processes:
            one.stdin.close()
            one.wait()


def requests_per_run(drivers: Drivers, port: int, count: int, points: int) -> float:
    """Count requests with a proxy before the server; the proxy takes part in no other
    measurement.
    """
    with counting(port) as log:
        drivers.record(log.uri, f"counted, {count} drivers", count, points, log.requests.clear)
        return len(log.requests) / (count * points)


def measure(
    folder: Path, template: Path, counts: Sequence[int], given: argparse.Namespace
) -> Iterator[dict]:
    """Return each recorded run with number of drivers, round and seconds; print the summaries."""
    drivers = Drivers(template, max(counts))
    options = shlex.split(given.server)
    with (
        postgres() as cluster,
        server(cluster.uri(cluster.new_database()), folder, *options) as one,
    ):
        try:
            drivers.record(one.uri, "warm-up", max(counts), 2)
            asked = {
                count: requests_per_run(drivers, one.port, count, given.points // 2)
                for count in counts
            }
            rates: dict[int, list[float]] = {count: [] for count in counts}
            rows = []
            for number, count in itertools.product(range(given.rounds), counts):
                before: dict[str, float] = {}
                look = functools.partial(lambda seen: seen.update(processor_seconds()), before)
                answers = drivers.record(
                    one.uri, f"round {number}, {count} drivers", count, given.points, look
                )
                spent = {
                    name: seconds - before[name] for name, seconds in processor_seconds().items()
                }
                runs = count * given.points
                rates[count].append(
                    runs / (max(a["end"] for a in answers) - min(a["begin"] for a in answers))
                )
                shares = {f"{name}_ms": 1e3 * seconds / runs for name, seconds in spent.items()}
                for claim, record in (pair for answer in answers for pair in answer["spent"]):
                    seconds = {"claim_seconds": claim, "record_seconds": record}
                    rows.append({"drivers": count, "round": number, **seconds, **shares})
        finally:
            drivers.close()
    for count in counts:
        report(count, asked[count], rates[count], [row for row in rows if row["drivers"] == count])
    yield from rows


def report(count: int, asked: float, rates: Sequence[float], rows: Sequence[dict]) -> None:
    """Print the results for one number of drivers."""
    seconds = [row["claim_seconds"] + row["record_seconds"] for row in rows]
    low, middle, high = statistics.quantiles(seconds, n=4)
    cores = {
        name: statistics.mean(row[f"{name}_ms"] for row in rows)
        for name in ("drivers", "server", "database")
    }
    print(f"{count} driver(s):")
    print(f"  requests a run    {asked:.2f}")
    print(
        f"  seconds a run     median {middle:.3f}, quartiles {low:.3f} .. {high:.3f}, longest "
        f"{max(seconds):.3f}"
    )
    print(
        f"  runs a second     median {statistics.median(rates):.1f}, {min(rates):.1f} .. "
        f"{max(rates):.1f} of rounds"
    )
    parts = ", ".join(f"{name} {value:.0f}" for name, value in cores.items())
    print(f"  ms of a core each {sum(cores.values()):.0f}: {parts}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--points", type=int, default=30, help="of each driver in each round")
    parser.add_argument("--drivers", default="1,4", help="default: %(default)s")
    parser.add_argument(
        "--server", default=SERVER, help="further options of mlflow server; default: %(default)s"
    )
    parser.add_argument(
        "--profile", action="store_true", help="record a profiled point: three files more"
    )
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        return drive(given.drive)
    with tempfile.TemporaryDirectory(prefix="recording-") as name:
        folder = Path(name)
        record = real_record(folder / "point", profile=given.profile)
        template = folder / "record.json"
        template.write_text(json.dumps(asdict(record)))
        size = sum(len(file_content(content)) for content in record.artifacts.values())
        parts = ", ".join(
            f"{len(getattr(record, name))} {name}"
            for name in ("metrics", "params", "tags", "artifacts")
        )
        print(f"a run: {parts} of {size / 1024:.0f} KiB")
        rows = list(
            measure(folder, template, [int(word) for word in given.drivers.split(",")], given)
        )
    save("recording", rows)
    return None


if __name__ == "__main__":
    main()
