"""`paradnn watch` on sweeps that the driver's own tracker recorded."""

import io
import os
import pty
import re
import select
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace

import pytest
from rich.console import Console

from paradnn.config.identity import Identity
from paradnn.config.settings import Tracking
from paradnn.config.tasks import SweepInfo
from paradnn.session.design import DesignResult, Summary
from paradnn.session.sweep_page import SweepPage
from paradnn.session.sweep_run import end_parent, open_parent, shared_summary
from paradnn.store.address import address_of
from paradnn.store.leases import Lease, Owner
from paradnn.store.mlflow_store import MlflowStore
from paradnn.store.reader import open_reader
from paradnn.store.runs import Claim, Query
from paradnn.watch import progress_of, view
from tests.cluster.recorder import ENVIRONMENT, record_of, tags_of
from tests.conftest import ROOT, Store, environment, run
from tests.processes import PATIENCE, started, with_default_signal_handlers

# Some queries of MLflow cause this warning with SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload``")

NODES = ("64", "1024")
BATCHES = ("16", "128")


class Sweep:
    """Sweep of fc points whose runs are recorded without a measurement.

    Args:
        store: Store of the runs.
        name: Id of the sweep.
        planned: Number of planned points.
    """

    def __init__(self, store: Store, name: str, planned: int) -> None:
        self.tracker = MlflowStore(Tracking(uri=store.uri))
        self.info = SweepInfo(name, f"fc, {planned} points", "python -m paradnn.train -m ...")
        open_parent(self.tracker, self.info, planned_points=planned)
        self.open: Claim

    def begin(self, number: int, name: str | None = None) -> Claim:
        identity = Identity(str(number), ENVIRONMENT, 0)
        tags = tags_of(identity) | {"sweep_id": self.info.sweep_id}
        claim = self.tracker.begin(identity, name or f"fc point {number}", tags, lambda tags: True)
        assert isinstance(claim, Claim)
        return claim

    def record(
        self,
        claim: Claim,
        speed: float | None,
        place: dict[str, str] | None = None,
        reason: str = "too large",
    ) -> None:
        """Record a claimed point.

        Args:
            claim: Claim of the point.
            speed: Examples per second; None if the point is out of memory.
            place: Nodes and batch size; by default they follow from the number of the point.
            reason: Reason for the outcome if the point is out of memory.
        """
        record = record_of(claim)
        number = int(claim.identity.point_id)
        if speed:
            ending = {"outcome": "ok"}
        else:
            ending = {"outcome": "oom_host", "reason": reason}
        place = place or {"model.nodes": NODES[number // 2], "batch_size": BATCHES[number % 2]}
        whole = replace(
            record,
            outcome=ending["outcome"],
            params={"model.name": "fc", **place},
            metrics={"examples_per_second": speed} if speed else {},
            tags={**record.tags, "sweep_id": self.info.sweep_id, **ending},
        )
        self.tracker.record(claim, whole, dict)

    def end(self) -> None:
        no_page = SweepPage(Tracking(page=False), self.info, print)
        end_parent(self.tracker, self.info, Summary(total=4), DesignResult(), no_page)


def record_half(store: Store, name: str = "20260101-1") -> Sweep:
    """Record four points: two measured, one out of memory, one claimed."""
    sweep = Sweep(store, name, 4)
    for number, speed in enumerate((1500.0, 2500.0, None)):
        sweep.record(sweep.begin(number), speed)
    sweep.open = sweep.begin(3)
    return sweep


def watch_once(store: Store, *options: str) -> str:
    completed = run(["paradnn.watch", "--once", *options], store)
    assert (completed.returncode, completed.stderr) == (0, "")
    return completed.stdout


def test_all_points_of_a_running_sweep_are_shown(store: Store) -> None:
    record_half(store)
    lines = [line.rstrip() for line in watch_once(store).splitlines()]
    assert re.fullmatch(r"fc, 4 points: sweep 20260101-1, began \d\d:\d\d:\d\d", lines[0])
    assert lines[1] == "3 of 4 points: 2 ok, 1 oom_host, 1 running"
    assert re.fullmatch(
        r"running for \d:\d\d:\d\d, expected end \d\d:\d\d:\d\d, \d:\d\d:\d\d from now", lines[2]
    )
    text = "\n".join(lines)
    assert re.search(
        rf"^fc point 3 +running +0:\d\d:\d\d on {re.escape(os.uname().nodename)}, process {os.getpid()}$",
        text,
        re.M,
    )
    assert re.search(r"^fc point 2 +oom_host +too large$", text, re.MULTILINE)
    assert re.search(r"^fc point 1 +ok +2,500$", text, re.MULTILINE)


def test_points_of_another_sweep_are_subtracted_at_the_end(store: Store) -> None:
    """Record three of five planned points; in the meantime another sweep recorded the other two."""
    tracker = MlflowStore(Tracking(uri=store.uri))
    info = SweepInfo("20260101-1", "fc, 5 points", "python -m paradnn.train -m ...")
    open_parent(tracker, info)
    tracker.register("0", Lease(owner=Owner.current(), expires=0.0, planned={ENVIRONMENT: 5}))
    for number in range(3):
        identity = Identity(str(number), ENVIRONMENT, 0)
        tags = tags_of(identity) | {"sweep_id": info.sweep_id}
        claim = tracker.begin(identity, f"fc point {number}", tags, lambda tags: True)
        assert isinstance(claim, Claim)
        record = record_of(claim)
        complete_record = replace(record, tags={**record.tags, **tags, "outcome": "ok"})
        tracker.record(claim, complete_record, dict)
    assert "3 of 5 points" in watch_once(store)
    assert shared_summary(tracker, info, []).missing == 2

    tracker.unregister(is_complete=True)

    assert "3 of 3 points" in watch_once(store)
    assert shared_summary(tracker, info, []).missing == 0


@pytest.mark.parametrize("width", [40, 120])
def test_narrow_terminals_show_whole_numbers_and_unbroken_lines(store: Store, width: int) -> None:
    sweep = Sweep(store, "20260101-093011", 8)
    for number in range(8):
        claim = sweep.begin(number, f"fc 4x1024 b{2**number} float32 cpu xla x2 grpc")
        if number < 6:
            speed = None if number == 3 else 1_000_000.0 * (number + 11)
            place = {"model.nodes": NODES[number // 4], "batch_size": str(2**number)}
            sweep.record(
                claim, speed, place, f"too large: 1.0 GiB is more than {'what this host has ' * 5}"
            )
    reader = open_reader(address_of(store.uri))
    [parent] = reader.read(Query(("paradnn",), tags={"kind": ("sweep",)}, unfinished=True))
    shown = io.StringIO()
    console = Console(file=shown, width=width, color_system=None)
    console.print(view(progress_of(reader, "paradnn", parent)))
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    # The newest points show speed and outcome in full. Reasons of failures are cut to the available
    # width.
    newest = lines[next(place for place, line in enumerate(lines) if line.startswith("point  ")) :]
    assert [line.split()[-1] for line in newest if " ok " in line][:2] == [
        "16,000,000",
        "15,000,000",
    ]
    assert any(re.search("oom_host +too", line) for line in newest)
    running = [line for line in newest if " running " in line]
    assert len(running) == 2
    assert all(re.search(r"^fc 4x.* running +\d:\d\d:\d\d", line) for line in running)


def test_the_expected_end_follows_from_the_mean_rate(store: Store) -> None:
    sweep = record_half(store)
    reader = open_reader(address_of(store.uri))
    query = Query(("paradnn",), tags={"kind": ("sweep",)}, unfinished=True)
    [parent] = reader.read(query)
    progress = replace(progress_of(reader, "paradnn", parent), now=parent.run.start_ms / 1e3 + 60)
    assert progress.left == 60 / 3
    assert (len(progress.done), len(progress.running), progress.planned) == (3, 1, 4)
    assert replace(progress, done=()).left is None
    assert replace(progress, planned=None).left is None
    sweep.end()
    ended = progress_of(reader, "paradnn", parent)
    assert not ended.is_running
    assert ended.left is None


def test_impossible_times_are_shown_as_the_nearest_valid_time(store: Store) -> None:
    record_half(store)
    with closing(sqlite3.connect(store.uri.removeprefix("sqlite:///"))) as database, database:
        database.execute("UPDATE runs SET start_time = -9e18")
    assert "began 1970-01-01" in watch_once(store)


def test_which_sweep_is_meant(store: Store) -> None:
    done = run(["paradnn.watch", "--once"], store)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "has no experiment paradnn (existing: Default); name one with --experiment, or measure first"
        in done.stderr
    )
    Sweep(store, "20260101-1", 4).end()
    completed = run(["paradnn.watch", "--once"], store)
    assert completed.returncode == 2
    assert re.search(
        r"no sweep is running in .*, and the newest ended \d\d:\d\d:\d\d; "
        r"show it with --sweep 20260101-1",
        completed.stderr,
    )
    assert "ended with points missing" in watch_once(store, "--sweep", "20260101-1")
    record_half(store, "20260102-1")
    assert "sweep 20260102-1" in watch_once(store)
    completed = run(["paradnn.watch", "--once", "--sweep", "20260102-2"], store)
    assert (completed.returncode, "did you mean 20260102-1" in completed.stderr) == (2, True)


def test_a_sweep_without_its_driver_is_reported(store: Store) -> None:
    record_half(store)
    process = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    )
    store.change(
        f"UPDATE tags SET value = replace(value, '\"pid\": {os.getpid()}', '\"pid\": {int(process.stdout)}')"
    )
    text = watch_once(store)
    assert "the driver of the sweep has exited: repeat its command to continue the sweep" in text
    assert "3 of 4 points: 2 ok, 1 oom_host\n" in text


def test_a_terminal_is_updated_until_ctrl_c(store: Store) -> None:
    sweep = record_half(store)
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "paradnn.watch", "--interval", "0.1"]
    variables = environment(store, TERM="xterm", COLUMNS="120", LINES="50")
    terminal = {"stdin": follower, "stdout": follower, "stderr": follower}
    with started(
        with_default_signal_handlers(command), cwd=ROOT, env=variables, **terminal
    ) as watcher:
        os.close(follower)
        read_until(leader, "3 of 4 points")
        sweep.record(sweep.open, 700.0)
        read_until(leader, "4 of 4 points")
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(PATIENCE) == 0
    os.close(leader)


def read_until(terminal: int, text: str) -> None:
    """Wait until the terminal has received a text; fail the test after 200 s."""
    seen = ""
    end = time.monotonic() + 200
    while text not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")
    assert text in seen
