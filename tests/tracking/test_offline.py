"""Results in files, their upload to the store, and tracking servers that become unavailable."""

import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from paradnn.config.identity import Identity
from paradnn.config.settings import Tracking
from paradnn.core.errors import StoreAwayError, StoreError
from paradnn.store.journal import Journal, read_document, read_record, write_document
from paradnn.store.leases import owner_tag
from paradnn.store.mlflow_store import MlflowStore
from paradnn.store.runs import Claim, Finished
from paradnn.store.tracker import Tracker, open_tracker, sync
from tests.cluster.postgres import server
from tests.cluster.recorder import ENVIRONMENT, claimed, record_of, tags_of
from tests.conftest import TINY, Store, run
from tests.processes import PATIENCE, wait_for
from tests.session.test_faults import driver, is_stopped
from tests.tracking.counting import counting

AXES = [entry for entry in TINY if "nodes" not in entry]
SECRET = "hunter2-is-secret"


@pytest.mark.framework
def test_offline_results_are_logged_once_and_damaged_files_are_reported(
    store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    sweep = [
        "paradnn.train",
        "-m",
        "model.nodes=8,9,10",
        *AXES,
        "tracking=offline",
        f"tracking.folder={folder}",
    ]
    completed = run(sweep, store)
    assert completed.returncode == 0, completed.stderr
    assert f"python -m paradnn.sync {folder}" in completed.stdout
    repeated = run(sweep, store)
    assert "3 skipped" in repeated.stdout
    assert store.runs() == []
    assert not list(folder.glob("*.claim")) + list(folder.glob(".*"))
    files = sorted(folder.glob("point-*.json"))
    assert len(files) == 3
    content = files[0].read_text()
    files[0].write_text(content.replace("examples_per_second", "examples_per_minute"))
    (folder / "point-torn.json").write_text(content[:500])
    first = run(["paradnn.sync", str(folder)], store)
    assert first.returncode == 1
    assert "2 logged, 0 logged before, 0 not logged, 2 rejected" in first.stdout
    assert f"rejected: {files[0]}: is damaged: its checksum does not match" in first.stderr
    assert "point-torn.json: is not a result file, or is damaged" in first.stderr
    files[0].write_text(content)
    (folder / "point-torn.json").unlink()
    second = run(["paradnn.sync", str(folder)], store)
    assert second.returncode == 0
    assert "1 logged, 2 logged before, 0 not logged, 0 rejected" in second.stdout
    assert [point["outcome"] for point in store.runs()] == ["ok"] * 3
    [parent] = store.runs("sweep")
    assert (parent["status"], "3 ok" in parent["mlflow.note.content"]) == ("FINISHED", True)
    assert {point["mlflow.parentRunId"] for point in store.runs()} == {parent["run_id"]}
    # Two drivers may measure a point while neither could claim it. It is recorded once, but a
    # requested repetition is uploaded too.
    for name, repeats in (("point-other", False), ("point-repeated", True)):
        document = read_document(files[1]) | {"offline_id": name, "repeats": repeats}
        write_document(folder / f"{name}.json", document)
    third = run(["paradnn.sync", str(folder)], store)
    assert "1 logged, 3 logged before, 1 not logged, 0 rejected" in third.stdout
    assert "1 point not logged: the store has a measurement of the same point" in third.stdout
    assert "point-other.json here" in third.stdout
    assert [point["outcome"] for point in store.runs()] == ["ok"] * 4
    [command] = [
        line.partition("repetitions: ")[2]
        for line in third.stdout.splitlines()
        if "--repeats" in line
    ]
    assert (
        "1 logged, 4 logged before, 0 not logged, 0 rejected"
        in run(command.split()[2:], store).stdout
    )
    assert [point["outcome"] for point in store.runs()] == ["ok"] * 5
    online = run(["paradnn.train", "-m", "model.nodes=8,9,10", *AXES], store)
    assert "3 skipped" in online.stdout


@pytest.mark.framework
def test_a_shared_sweep_without_resume_is_measured_and_logged_again(
    store: Store, tmp_path: Path
) -> None:
    """Run two sweeps; the second finds the first one's results in its folder and in the store."""
    folder = tmp_path / "results"
    sweep = ["paradnn.train", "-m", "model.nodes=8,9", *AXES, "resume=false"]
    sweep += ["tracking=offline", f"tracking.folder={folder}"]
    for name in ("first", "second"):
        variables = {"PARADNN_SWEEP": name, "PARADNN_DRIVER": "0"}
        completed = run(sweep, store, **variables)
        assert completed.returncode == 0, completed.stderr
        assert "2 ok" in completed.stdout

        logged = run(["paradnn.sync", str(folder)], store)

        assert "2 logged" in logged.stdout
    assert not list(folder.glob("*.claim"))
    assert Counter(run["sweep_id"] for run in store.runs()) == {"first": 2, "second": 2}


def test_results_of_a_sweep_are_found_among_those_of_other_sweeps(tmp_path: Path) -> None:
    files = Journal(tmp_path)
    claim = claimed(files, 1)
    for sweep_id in ("first", "second"):
        record = record_of(claim)
        of_sweep = replace(record, tags={**record.tags, "sweep_id": sweep_id})
        files.record(replace(claim, run_id=f"point-{sweep_id}"), of_sweep, dict)

    finished_runs = [Journal(tmp_path).finished((), sweep_id) for sweep_id in ("first", "second")]

    assert [list(runs) for runs in finished_runs] == [[claim.identity], [claim.identity]]


def test_a_run_recorded_without_its_end_is_ended(store: Store, tmp_path: Path) -> None:
    """Emulate a server that became unavailable before it ended the run.

    The result is then also in a file. The upload of the file must find that the run is known, and
    end the run.
    """
    tracker = MlflowStore(Tracking(uri=store.uri))
    claim = claimed(tracker, 1)
    record = record_of(claim)
    files = Journal(tmp_path)
    kept_file = tmp_path / f"{files.record(claim, record, dict)}.json"
    tracker.record(claim, record, dict)
    store.change("UPDATE runs SET status = 'RUNNING', end_time = NULL")
    assert tracker.upload(read_record(kept_file)).state == "known"
    assert store.query("SELECT run_uuid, status, end_time FROM runs") == [
        (claim.run_id, "FINISHED", record.end_time)
    ]


@pytest.mark.framework
def test_two_drivers_lose_no_point_if_their_server_becomes_unavailable(
    store: Store, tmp_path: Path
) -> None:
    """Break the connections of two drivers; the second is this process.

    No point may be lost or recorded twice, and no password may leak. The server itself continues.
    It may have processed a last request whose answer no driver received.
    """
    folder = tmp_path / "results"
    axes = [*AXES, "model.nodes=range(8,12)", "measure.processes=2"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = SECRET

    def both_drivers_have_claimed() -> bool:
        """Return whether this process has claimed a point, too; if so, resume the other driver."""
        have_claimed = len(store.runs()) >= 2
        if have_claimed:
            other.send_signal(signal.SIGCONT)
        return have_claimed

    try:
        with (
            server(store.uri, store.folder, "--workers", "1") as tracking_server,
            counting(
                tracking_server.port,
                lambda: (
                    both_drivers_have_claimed() and any("outcome" in run for run in store.runs())
                ),
            ) as proxy,
        ):
            tracking = [f"tracking.uri={with_password(proxy.uri)}", f"tracking.folder={folder}"]
            sweep = ["-m", *axes, *tracking, "tracking.patience=2"]
            with driver(store, *sweep, until="claimed") as other:
                assert wait_for(lambda: is_stopped(other))
                completed = run(["paradnn.train", *sweep], store)
                outputs = [
                    other.communicate(timeout=PATIENCE),
                    (completed.stdout, completed.stderr),
                ]
            assert [other.returncode, completed.returncode] == [0, 0], outputs
            assert any(f"python -m paradnn.sync {folder}" in errors for _, errors in outputs)
            completed = run(
                ["paradnn.sync", str(folder), "--uri", with_password(tracking_server.uri)]
            )
    finally:
        del os.environ["AWS_SECRET_ACCESS_KEY"]
    assert completed.returncode == 0, completed.stderr
    measured = Counter(entry["point_id"] for entry in store.runs() if entry.get("outcome") == "ok")
    assert sorted(measured.values()) == [1] * 4
    assert {entry["status"] for entry in store.runs("sweep")} == {"FINISHED"}
    assert not list(folder.glob("partial-*")), "the results of incomplete points are in the runs"
    for text in [*(part for output in outputs for part in output), *file_contents(tmp_path)]:
        assert SECRET not in text


def with_password(uri: str) -> str:
    return uri.replace("://", f"://someone:{SECRET}@")


def file_contents(folder: Path) -> Iterator[str]:
    """Yield the contents of all files in a folder and in its subfolders."""
    for path in folder.rglob("*"):
        # SQLite removes temporary files when a server ends.
        with suppress(FileNotFoundError, IsADirectoryError):
            yield path.read_bytes().decode(errors="replace")


def test_claims_survive_an_outage_of_the_store(store: Store, tmp_path: Path) -> None:
    """Claim points before and after an outage; only the claim without an answer is removed."""
    settings = Tracking(uri=store.uri, folder=str(tmp_path), patience=0.0)
    tracker = open_tracker(settings, lambda _: None)
    assert isinstance(tracker, Tracker)
    claims = [claimed(tracker, number) for number in (1, 2)]
    lost = claimed(MlflowStore(settings), 3)
    tracker._note_failure(StoreAwayError("it does not answer"))
    tracker._next_attempt = 0.0
    claims.append(claimed(tracker, 4))
    remaining = {entry["run_id"] for entry in store.runs()}
    assert {claim.run_id for claim in claims} <= remaining
    assert lost.run_id not in remaining


def test_drivers_use_each_others_results_during_an_outage(store: Store, tmp_path: Path) -> None:
    """Let each of two living drivers record a point that the other driver requests.

    After the outage, the store must have every point once.
    """
    settings = Tracking(uri=store.uri, folder=str(tmp_path), patience=0.0)
    messages = []
    drivers = [open_tracker(settings, messages.append) for _ in range(2)]
    identities = [Identity(name, ENVIRONMENT, 0) for name in "12"]
    for driver_ in drivers:
        driver_._note_failure(StoreAwayError("it does not answer"))
    claims = [claimed(tracking_server, number) for number, tracking_server in enumerate(drivers, 1)]
    for tracking_server, claim in zip(drivers, claims, strict=True):
        tracking_server.record(claim, record_of(claim), dict)
    for tracking_server, location in zip(drivers, reversed(identities), strict=True):
        assert isinstance(
            tracking_server.begin(location, "p", tags_of(location), lambda _: True), Finished
        )
    drivers[0]._next_attempt = drivers[1]._next_attempt = 0.0
    third, fourth = (Identity(name, ENVIRONMENT, 0) for name in "34")
    late = Journal.begin(drivers[0], third, "p", tags_of(third), lambda _: True)
    assert all(tracking_server._is_available() for tracking_server in drivers)
    for claim in (drivers[0].begin(fourth, "p", tags_of(fourth), lambda _: True), late):
        assert isinstance(claim, Claim)
        # One of the claims is a file, although the store is available again.
        drivers[0].record(claim, record_of(claim), dict)
    assert sorted(entry["point_id"] for entry in store.runs()) == ["1", "2", "3", "4"]
    assert not list(tmp_path.glob("*.claim")) + list(tmp_path.glob("point-*.json"))


def valid_record(folder: Path) -> tuple[Path, dict[str, object]]:
    """Write a valid result file; return its path and its content."""
    journal = Journal(folder)
    claim = claimed(journal, 1)
    path = journal.path_of(journal.record(claim, record_of(claim), dict))
    return path, read_document(path)


#: Location and value of a changed field, by the name of the defect.
DEFECTS: dict[str, tuple[str, object]] = json.loads(
    Path(__file__).with_name("crafted.json").read_text()
)
DEFECTS["a huge metric"] = "record.metrics", {"m": 10**400}
DEFECTS["a huge time"] = "record.start_time", 10**400
DEFECTS["a huge replicate"] = "record.tags.replicate", "9" * 5000


def test_crafted_records_are_rejected_and_valid_ones_are_logged(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, good = valid_record(tmp_path)
    for number, (location, value) in enumerate(DEFECTS.values()):
        changed = json.loads(json.dumps(good)) | {"offline_id": f"point-{number}"}
        changed["record"]["tags"]["point_id"] = str(100 + number)
        *parents, last = location.split(".")
        inner = changed
        for key in parents:
            inner = inner[key]
        inner[last] = value
        write_document(tmp_path / f"point-{number}.json", changed)
    (tmp_path / "point-deep.json").write_text("[" * 100_000)
    (tmp_path / "point-bytes.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "sweep-x.json").write_text("{}")
    write_document(tmp_path / "sweep-y.json", {"sweep": {"name": 1}})
    completed, problems = sync(tmp_path, Tracking(uri=store.uri))
    named = [
        next((line for line in problems if f"point-{number}.json" in line), "")
        for number in range(len(DEFECTS))
    ]
    assert [name for name, line in zip(DEFECTS, named, strict=True) if not line] == []
    assert len(problems) == len(DEFECTS) + 4
    assert all("\n" not in line and len(line) < 800 for line in problems)
    assert [each[0] for each in completed] == [path]
    assert [point["point_id"] for point in store.runs()] == ["1"]
    assert not Path("/tmp/paradnn-outside").exists()


def test_the_next_driver_logs_the_results_of_a_killed_one(store: Store, tmp_path: Path) -> None:
    """Emulate a driver that was killed after it wrote a result to a file, before its upload."""
    settings = Tracking(uri=store.uri, folder=str(tmp_path))
    messages = []
    first = open_tracker(settings, messages.append)
    claim = claimed(first, 1)
    dead = json.dumps(json.loads(owner_tag()) | {"started": 1.0})
    document = first.document(claim, record_of(claim), {})
    kept_file = first.keep(replace(document, owner=dead))
    living = first.keep(replace(document, offline_id=f"{document.offline_id}b"))
    open_tracker(settings, messages.append).close_abandoned()
    assert (kept_file.exists(), living.exists()) == (False, True)
    assert [(run["run_id"], run["status"]) for run in store.runs()] == [(claim.run_id, "FINISHED")]
    assert messages == ["1 result uploaded: left by drivers that ended early"]


def test_a_full_disk_is_reported_in_one_line_and_loses_no_result(
    tmp_path: Path, empty_database: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", tmp_path], check=False
    )
    if mounted.returncode:
        pytest.skip("no file system may be mounted here")
    try:
        shutil.copy(empty_database, tmp_path / "mlflow.db")
        capfd.readouterr()
        settings = Tracking(uri=f"sqlite:///{tmp_path}/mlflow.db", folder=str(tmp_path / "off"))
        messages = []
        tracker = open_tracker(settings, messages.append)
        with pytest.raises(
            StoreError,
            match=r"neither sqlite.* nor .* accepts results(, so .* is lost)?; \d+ results? in",
        ):
            record_until_full(tracker)
        assert len(messages) <= 2
        assert [line for line in capfd.readouterr().err.splitlines() if "Traceback" in line] == []
        subprocess.run(["mount", "-o", "remount,size=50m", tmp_path], check=True)
        tracker._next_attempt = 0.0
        assert tracker._is_available()
        finished_runs = tracker.finished([ENVIRONMENT])
        assert {identity.point_id for identity in finished_runs} >= set(
            map(str, range(len(finished_runs)))
        )
        assert all(len(runs) == 1 for runs in finished_runs.values())
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=False)


def record_until_full(tracker: Tracker) -> None:
    """Record 500 points with large artifacts."""
    for number in range(500):
        claim = claimed(tracker, number)
        tracker.record(claim, replace(record_of(claim), artifacts={"a.txt": "x" * 9000}), dict)
