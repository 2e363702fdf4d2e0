"""Points measured in several processes: records, and results after a driver was killed."""

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paradnn.config.identity import Identity
from paradnn.config.outcome import PointResult
from paradnn.config.settings import Tracking
from paradnn.core.channel import plain
from paradnn.core.messages import PROTOCOL_VERSION
from paradnn.session.open_point import OpenPoint
from paradnn.store import leases
from paradnn.store.journal import PartialResults, write_document
from paradnn.store.tracker import Tracker
from tests.conftest import TINY, Store, run, succeeded
from tests.processes import PATIENCE, children_of, wait_for
from tests.session.test_faults import all_gone, crash_the_point, driver, is_stopped, meanwhile

pytestmark = pytest.mark.framework

#: Twice the relative rounding error of a metric: seven digits of a number that begins with 1.
ROUNDING = 2e-6
REST = [entry for entry in TINY if "nodes" not in entry]


def blocks_of(store: Store, run_id: str) -> list[dict[str, Any]]:
    content = json.loads((store.files(run_id) / "blocks.json").read_text())
    assert content["unit"] == "s"
    return content["processes"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Store:
    """Return a store with two points, measured in three processes each."""
    store = Store(tmp_path_factory.mktemp("processes"))
    (store.folder / "mlflow.db").write_bytes(empty_database.read_bytes())
    axes = ["-m", "model.nodes=8,9", *REST, "measure.processes=3"]
    succeeded(["paradnn.train", *axes, f"tracking.folder={store.folder}"], store)
    return store


def test_the_step_time_combines_all_processes(measured: Store) -> None:
    """Compare with the value and the interval that SciPy computes from the raw blocks."""
    for point in measured.runs():
        metrics = measured.values("latest_metrics", point["run_id"])
        processes = blocks_of(measured, point["run_id"])
        assert len(processes) == metrics["processes"] == 3
        assert metrics["blocks"] == sum(len(entry["blocks"]) for entry in processes)
        logs = np.log(
            [statistics.median(entry["blocks"]) / entry["steps_per_block"] for entry in processes]
        )
        low, high = np.exp(stats.t.interval(0.95, 2, loc=logs.mean(), scale=stats.sem(logs))) * 1e3
        assert metrics["step_time_ms"] == pytest.approx(np.exp(logs.mean()) * 1e3, rel=ROUNDING)
        # On a busy machine, three processes may differ too much for an interval.
        if "interval_reason" in point:
            times = np.concatenate(
                [np.array(entry["blocks"]) / entry["steps_per_block"] for entry in processes]
            )
            spread = times.max() / times.min()
            assert low / 1e3 < times.min() / spread or high / 1e3 > times.max() * spread
            assert "step_time_low_ms" not in metrics
        else:
            assert (metrics["step_time_low_ms"], metrics["step_time_high_ms"]) == pytest.approx(
                (low, high), rel=ROUNDING
            )
        assert metrics["process_cv"] == pytest.approx(logs.std(ddof=1), rel=ROUNDING)
        assert metrics["phase_measure_seconds"] >= sum(sum(entry["blocks"]) for entry in processes)


def test_points_alternate_between_processes(measured: Store) -> None:
    begin_times = [
        (one["begun"], run["run_id"])
        for run in measured.runs()
        for one in blocks_of(measured, run["run_id"])
    ]
    rounds = [name for _, name in sorted(begin_times)]
    assert [len(set(rounds[at : at + 2])) for at in (0, 2, 4)] == [2, 2, 2], (
        "each point is measured once before any is measured again"
    )


def test_partial_results_of_recorded_points_are_removed(measured: Store) -> None:
    """Plant the partial results of a driver that was killed before it could remove them."""
    assert not list(measured.folder.glob("partial-*"))
    tags = measured.runs()[0]
    partial_results = PartialResults(Tracking(uri=measured.uri, folder=str(measured.folder)))
    partial_results.save(Identity(tags["point_id"], tags["environment_id"], 0), [])
    assert len(list(measured.folder.glob("partial-*"))) == 1
    axes = [
        "-m",
        "model.nodes=8,9",
        *REST,
        "measure.processes=3",
        f"tracking.folder={measured.folder}",
    ]
    assert "2 skipped" in run(["paradnn.train", *axes], measured).stdout
    assert len(measured.runs()) == 2
    assert not list(measured.folder.glob("partial-*"))


def test_no_result_is_lost_or_measured_twice_after_a_driver_is_killed(
    store: Store,
) -> None:
    """Kill the driver when one point is complete and the others have only one process."""
    folder = store.folder / "kept"
    axes = [
        "-m",
        "model.nodes=range(8,11)",
        *REST,
        "measure.processes=2",
        f"tracking.folder={folder}",
    ]
    with driver(store, *axes, until="completed") as running:
        assert wait_for(lambda: is_stopped(running))
        started = children_of(running.pid)
        running.kill()
        running.wait(PATIENCE)
    assert all_gone(started)
    finished = {entry["run_id"] for entry in store.runs() if "outcome" in entry}
    partial_results = [
        json.loads(json.loads(path.read_text())["body"])["results"]
        for path in folder.glob("partial-*.json")
    ]
    before = {result["begun"] for results in partial_results for result in results}
    assert finished
    assert before
    succeeded(["paradnn.train", *axes], store)
    runs = [entry for entry in store.runs() if "outcome" in entry]
    assert finished <= {entry["run_id"] for entry in runs}
    assert Counter(entry["outcome"] for entry in runs) == {"ok": 3}
    assert len({entry["point_id"] for entry in runs}) == 3
    begin_times = [entry["begun"] for point in runs for entry in blocks_of(store, point["run_id"])]
    assert len(begin_times) == len(set(begin_times)) == 6
    assert before <= set(begin_times)
    assert not [
        entry for entry in store.runs() + store.runs("sweep") if entry["status"] == "RUNNING"
    ]
    assert not list(folder.glob("partial-*"))


def test_a_crashed_process_ends_only_its_point(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store.folder / "kept"
    axes = ["-m", "model.nodes=8,9", *REST, "measure.processes=2", "sweep.order=given"]
    request = OpenPoint.request

    def request_long_measurement(entry: OpenPoint) -> dict[str, Any]:
        """Let the second process of the first point measure until it is killed."""
        requested = request(entry)
        if entry.results and requested["model"]["nodes"] == 8:
            requested["measure"] = requested["measure"] | {
                "min_seconds": 1000.0,
                "max_seconds": 1000.0,
            }
        return requested

    monkeypatch.setattr(OpenPoint, "request", request_long_measurement)

    def crash() -> None:
        assert wait_for(lambda: len(list(folder.glob("partial-*.json"))) == 2)
        crash_the_point()

    with meanwhile(crash):
        completed = run(["paradnn.train", *axes, f"tracking.folder={folder}"], store)
    assert completed.returncode == 0, completed.stderr
    run_by_nodes = {
        store.values("params", entry["run_id"])["model.nodes"]: entry for entry in store.runs()
    }
    assert {nodes: entry["outcome"] for nodes, entry in run_by_nodes.items()} == {
        "8": "crash",
        "9": "ok",
    }
    assert run_by_nodes["8"]["reason"].startswith("process 2: SIGSEGV")
    assert len(blocks_of(store, run_by_nodes["8"]["run_id"])) == 1, (
        "the result of the first process is kept"
    )


def test_damaged_partial_results_are_ignored(tmp_path: Path) -> None:
    partial_results = PartialResults(Tracking(folder=str(tmp_path)))
    identity = Identity("a", "b", 0)
    result = PointResult("timeout", "took longer than 1 s", phases={"build": 0.5}, begun=3.0)
    partial_results.save(identity, [result])
    assert partial_results.load(identity) == [result]
    assert partial_results.load(Identity("a", "b", 1)) == []
    assert PartialResults(Tracking(folder=str(tmp_path), experiment="other")).load(identity) == []
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace("timeout", "timeover"))
    assert partial_results.load(identity) == []
    write_document(path, {"protocol": PROTOCOL_VERSION - 1, "results": [plain(result)]})
    assert partial_results.load(identity) == [], "another version may use a different format"
    partial_results.save(identity, [result])
    partial_results.forget(identity, ended=False)
    assert not list(tmp_path.iterdir())


def test_results_without_a_profile_do_not_continue_a_profiled_point(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emulate a driver that is killed between recording a point and removing partial results."""
    axes = [
        "paradnn.train",
        "model.nodes=8",
        *REST,
        "measure.processes=2",
        f"tracking.folder={store.folder / 'kept'}",
    ]
    with monkeypatch.context() as patch:
        patch.setattr(PartialResults, "forget", lambda *_, **__: None)
        run(axes, store)
    assert len(list((store.folder / "kept").glob("partial-*.json"))) == 1
    succeeded([*axes, "measure.profile=true"], store)
    first, second = sorted(store.runs(), key=lambda entry: "extras" in entry)
    assert second["profile"] == "ok"
    begin_times = [
        {entry["begun"] for entry in blocks_of(store, point["run_id"])} for point in (first, second)
    ]
    assert [len(times) for times in begin_times] == [2, 2]
    assert not begin_times[0] & begin_times[1]
    assert not list((store.folder / "kept").iterdir())


def test_leases_are_renewed_while_a_worker_measures(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses_at_renewal = []
    renew_lease = Tracker.renew_lease

    def renew_and_note(tracker: Tracker) -> str:
        reason = renew_lease(tracker)
        statuses_at_renewal.append([run["status"] for run in store.runs()])
        return reason

    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(Tracker, "renew_lease", renew_and_note)
    axes = [*REST, "measure.processes=2", "tracking.folder=/dev/null/x"]
    completed = run(["paradnn.train", "model.nodes=8", *axes], store)
    # Only a driver that is killed needs the partial results, so the sweep continues without them.
    message = "results of incomplete points are not saved: tracking.folder=/dev/null/x"
    assert completed.stderr.count(message) == 1
    assert [entry["outcome"] for entry in store.runs()] == ["ok"]
    assert ["RUNNING"] in statuses_at_renewal
