"""Leases of the drivers of a sweep: heartbeats, lost hosts, restarted drivers, and the parent run.

The boot id in the owner tag simulates drivers on other hosts. tests/cluster kills real drivers.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paradnn.config.identity import Identity
from paradnn.config.point import Point
from paradnn.config.settings import Tracking
from paradnn.core.errors import ClaimLostError, StoreAwayError, StoreError
from paradnn.families.fc import FullyConnected
from paradnn.store import leases, mlflow_store
from paradnn.store.claims import RunIndex
from paradnn.store.journal import Journal
from paradnn.store.leases import (
    LAUNCH,
    LEASE_SECONDS,
    Heartbeat,
    Lease,
    Owner,
    no_point_is_left,
    planned_points,
)
from paradnn.store.mlflow_store import MlflowStore
from paradnn.store.reader import open_reader
from paradnn.store.runs import EXPIRES, Claim, ResumePolicy
from paradnn.store.tracker import Tracker
from tests.cluster.recorder import ENVIRONMENT, claimed, record_of, tags_of
from tests.conftest import Store
from tests.processes import wait_for

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload``")

SWEEP = {"sweep_id": "shared"}
HERE = Owner.current()
ELSEWHERE = replace(HERE, host="lost", boot="other/boot")


def lease_of(owner: Owner = HERE, **values: object) -> Lease:
    return replace(Lease(owner=owner, expires=0.0, cores="0-3"), **values)


def driver_of(store: Store, owner: Owner, number: str) -> MlflowStore:
    """Return the store of a driver that has joined the sweep as a process of `owner`."""
    driver = MlflowStore(Tracking(uri=store.uri))
    driver._owner = json.dumps(vars(owner))
    driver.join_sweep("sweep", "", SWEEP)
    driver.register(number, lease_of(owner))
    return driver


def expire(store: Store, driver: str, seconds_ago: float) -> None:
    """Change the lease of a driver as if its last heartbeat was `seconds_ago`."""
    key = f"mlflow.paradnn.driver.{driver}"
    [[text]] = store.query("SELECT value FROM tags WHERE key = ?", key)
    lease = json.loads(text) | {"expires": time.time() - seconds_ago + LEASE_SECONDS}
    store.change(f"UPDATE tags SET value = '{json.dumps(lease)}' WHERE key = '{key}'")


def can_claim(driver: MlflowStore, number: int) -> bool:
    """Claim a point, and return whether the driver got the claim."""
    identity = Identity(str(number), ENVIRONMENT, 0)
    answer = driver.begin(identity, "p", tags_of(identity), lambda _: True)
    return isinstance(answer, Claim)


@pytest.mark.parametrize(
    ("silent_seconds", "is_free"),
    [
        pytest.param(0, False, id="heartbeat now"),
        pytest.param(LEASE_SECONDS - 5, False, id="lease still valid"),
        pytest.param(LEASE_SECONDS + 5, True, id="lease expired"),
    ],
)
def test_points_of_a_lost_host_are_free_once_its_lease_expires(
    silent_seconds: float, is_free: bool, store: Store
) -> None:
    lost = driver_of(store, ELSEWHERE, "0")
    claims = [claimed(lost, number) for number in range(3)]
    other = driver_of(store, HERE, "1")
    # The claims themselves are old: only the one lease is renewed.
    store.change(f"UPDATE tags SET value = '1' WHERE key = '{EXPIRES}'")
    expire(store, "0", silent_seconds)

    assert [can_claim(other, number) for number in range(3)] == [is_free] * 3
    states = dict(store.query("SELECT run_uuid, status FROM runs"))
    expected = "KILLED" if is_free else "RUNNING"
    assert {states[claim.run_id] for claim in claims} == {expected}


@pytest.mark.parametrize(
    ("silent_seconds", "lost_points"),
    [
        pytest.param(0, {"2"}, id="heartbeat now"),
        pytest.param(LEASE_SECONDS + 5, {"0", "1", "2"}, id="lease expired"),
    ],
)
def test_lost_points_are_claimed_points_without_a_living_driver(
    silent_seconds: float, lost_points: set[str], store: Store
) -> None:
    def claimed_in_sweep(driver: MlflowStore, number: int) -> Claim:
        identity = Identity(str(number), ENVIRONMENT, 0)
        claim = driver.begin(identity, "p", tags_of(identity) | SWEEP, lambda _: True)
        assert isinstance(claim, Claim)
        return claim

    lost_driver = driver_of(store, ELSEWHERE, "0")
    for number in range(2):
        claimed_in_sweep(lost_driver, number)
    other = driver_of(store, HERE, "1")
    other.abandon(claimed_in_sweep(other, 2), "interrupted before its end")
    claimed_in_sweep(other, 3)
    measured = claimed_in_sweep(other, 4)
    other.record(measured, record_of(measured), dict)
    expire(store, "0", silent_seconds)

    lost = other.lost_points("shared")

    assert {identity.point_id for identity in lost} == lost_points
    assert other.lost_points("another sweep") == set()


def test_a_restarted_driver_claims_its_own_points_at_once(store: Store) -> None:
    former_driver = driver_of(store, ELSEWHERE, "0")
    claimed(former_driver, 1)
    other = driver_of(store, HERE, "1")
    assert not can_claim(other, 1)

    restarted = driver_of(store, HERE, "0")

    assert can_claim(restarted, 1)
    reason = former_driver.renew_lease(())
    assert reason == "another process continues as driver 0"


def test_a_suspended_driver_does_not_record_a_point_that_was_taken_over(
    store: Store, tmp_path: Path
) -> None:
    suspended = Tracker(
        Tracking(uri=store.uri, folder=str(tmp_path / "files")),
        driver_of(store, ELSEWHERE, "0"),
        pytest.fail,
    )
    claim = claimed(suspended, 1)
    kept_claim = claimed(suspended, 2)
    suspended._store._renewed -= LEASE_SECONDS + 1
    expire(store, "0", LEASE_SECONDS + 5)
    other = driver_of(store, HERE, "1")
    taken_over = claimed(other, 1)

    with pytest.raises(ClaimLostError, match="another driver has taken over this point"):
        suspended.record(claim, record_of(claim), dict)
    suspended.record(kept_claim, record_of(kept_claim), dict)
    other.record(taken_over, record_of(taken_over), dict)

    ended = store.query("SELECT run_uuid FROM tags WHERE key = 'outcome'")
    assert sorted(ended) == sorted([(taken_over.run_id,), (kept_claim.run_id,)])


def test_leases_do_not_expire_right_after_an_outage_of_the_store(store: Store) -> None:
    lost = driver_of(store, ELSEWHERE, "0")
    claimed(lost, 1)
    other = driver_of(store, HERE, "1")
    expire(store, "0", LEASE_SECONDS + 5)
    other.expiries_count_from = time.monotonic() + 1000
    assert not can_claim(other, 1)
    other.expiries_count_from = 0.0
    assert can_claim(other, 1)


def test_one_heartbeat_renews_every_claim_of_a_driver(store: Store) -> None:
    driver = driver_of(store, ELSEWHERE, "0")
    for number in range(3):
        claimed(driver, number)
    expire(store, "0", LEASE_SECONDS + 5)
    with changed_tags(store) as changes:
        assert driver.renew_lease(()) == ""
    assert len(changes) == 1
    other = driver_of(store, HERE, "1")
    assert not any(can_claim(other, number) for number in range(3))


class changed_tags:  # noqa: N801  reads as a statement
    """Context manager that lists the tags which the body added or changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed: list[tuple] = []

    def _tags(self) -> set[tuple]:
        return set(self._store.query("SELECT run_uuid, key, value FROM tags"))

    def __enter__(self) -> list[tuple]:
        self._before = self._tags()
        return self._changed

    def __exit__(self, *_: object) -> None:
        self._changed += self._tags() - self._before


def test_the_claim_of_a_point_without_a_sweep_is_renewed(store: Store, tmp_path: Path) -> None:
    settings = Tracking(uri=store.uri, folder=str(tmp_path))
    tracker = Tracker(settings, MlflowStore(settings), pytest.fail)
    claimed(tracker, 1)
    store.change(f"UPDATE tags SET value = '1' WHERE key = '{EXPIRES}'")
    assert tracker.renew_lease() == ""
    [[expires]] = store.query("SELECT value FROM tags WHERE key = ?", EXPIRES)
    assert LEASE_SECONDS - 60 < float(expires) - time.time() <= LEASE_SECONDS + 1


def test_drivers_end_if_their_sweep_is_interrupted(store: Store) -> None:
    launcher = MlflowStore(Tracking(uri=store.uri))
    launcher.open_sweep("sweep", "", SWEEP)
    launcher.register(LAUNCH, lease_of(HERE))
    driver = driver_of(store, ELSEWHERE, "0")
    assert driver.renew_lease(()) == ""
    launcher.register(LAUNCH, lease_of(HERE, is_stopped=True))
    assert driver.renew_lease(()) == "the sweep was interrupted"
    assert launcher.renew_lease(()) == ""


def test_drivers_that_start_at_the_same_time_create_one_parent_run(store: Store) -> None:
    def join(number: int) -> str:
        driver = MlflowStore(Tracking(uri=store.uri))
        run_id = driver.join_sweep("sweep", "", SWEEP)
        driver.register(str(number), lease_of(HERE))
        return run_id

    MlflowStore(Tracking(uri=store.uri))  # makes the experiment
    with ThreadPoolExecutor(4) as threads:
        joined = set(threads.map(join, range(4)))

    assert len(joined) == 1
    assert {run["run_id"] for run in store.runs("sweep")} == joined


class Script:
    """Clock that advances by a second per pause, and changes the store at given times.

    Attributes:
        now: Simulated time in seconds.
        changes: Pairs of a time and a function that changes the store, in order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.changes: list[tuple[float, Callable[[], object]]] = []
        monkeypatch.setattr(mlflow_store, "time", self)

    time = staticmethod(time.time)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 1.0
        while self.changes and self.changes[0][0] <= self.now:
            self.changes.pop(0)[1]()


def test_a_driver_joins_only_a_run_that_its_creator_confirms(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emulate many drivers that create and delete runs on a slow store before one is confirmed."""
    creators = [MlflowStore(Tracking(uri=store.uri)) for _ in range(3)]
    first, second, third = [creator.open_sweep("sweep", "", SWEEP) for creator in creators]
    for run_id in (second, third):
        store.change(f"UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = '{run_id}'")

    def replace_run(old: str, new: str) -> None:
        store.change(f"UPDATE runs SET lifecycle_stage = 'active' WHERE run_uuid = '{new}'")
        store.change(f"UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = '{old}'")

    script = Script(monkeypatch)
    script.changes = [
        (25.0, lambda: replace_run(first, second)),
        (50.0, lambda: replace_run(second, third)),
        (60.0, lambda: creators[2].register("2", lease_of(HERE))),
    ]
    driver = MlflowStore(Tracking(uri=store.uri))

    joined = driver.join_sweep("sweep", "", SWEEP)
    driver.register("3", lease_of(HERE))

    assert joined == third
    assert set(driver.leases_of_sweep()) == {"2", "3"}


@pytest.mark.parametrize(
    ("other", "is_kept"),
    [pytest.param("f" * 32, True, id="own id first"), pytest.param("0" * 32, False, id="second")],
)
def test_one_of_two_runs_of_a_sweep_is_withdrawn(
    other: str, is_kept: bool, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    creator = MlflowStore(Tracking(uri=store.uri))
    driver = MlflowStore(Tracking(uri=store.uri))
    open_sweep = driver.open_sweep

    def open_both(*arguments: Any) -> str:
        """Emulate another driver that creates a run at the same time."""
        run_id = creator.open_sweep(*arguments)
        for table in ("tags", "runs"):
            store.change(f"UPDATE {table} SET run_uuid = '{other}' WHERE run_uuid = '{run_id}'")
        creator._parent = other
        return open_sweep(*arguments)

    def end_other() -> None:
        """Let the other driver withdraw or confirm its run by the same rule."""
        if is_kept:
            store.change(f"UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = '{other}'")
        else:
            creator.register("0", lease_of(HERE))

    monkeypatch.setattr(driver, "open_sweep", open_both)
    Script(monkeypatch).changes = [(5.0, end_other)]

    joined = driver.join_sweep("sweep", "", SWEEP)

    [parent] = store.runs("sweep")
    assert parent["run_id"] == joined
    assert (joined != other) == is_kept


def test_a_driver_that_starts_after_the_end_of_its_sweep_reopens_it(store: Store) -> None:
    first = driver_of(store, HERE, "0")
    first.close_sweep(mlflow_store.SweepRun("FINISHED", "done"))
    driver_of(store, HERE, "1")
    assert [run["status"] for run in store.runs("sweep")] == ["RUNNING"]


def is_sweep_abandoned(store: Store) -> bool:
    """Return whether the only running sweep of the store is abandoned."""
    reader = open_reader(mlflow_store.address_of(store.uri))
    [entry] = RunIndex(reader, "paradnn").running()
    return entry.is_abandoned()


def test_a_sweep_is_abandoned_once_none_of_its_drivers_is_alive(store: Store) -> None:
    """The process that launched the drivers may have ended earlier."""
    # The start time differs, so the process id now belongs to a different process.
    driver_of(store, replace(HERE, started=1.0), LAUNCH)
    assert is_sweep_abandoned(store)
    driver = driver_of(store, ELSEWHERE, "0")
    assert not is_sweep_abandoned(store)
    driver.unregister(is_complete=True)
    assert is_sweep_abandoned(store)


def test_a_driver_ends_its_lease_despite_a_locked_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If two drivers end at the same time, the last one must see that the other has ended."""
    locked = iter([True, True])
    unregister = MlflowStore.unregister

    def unregister_unless_locked(driver: MlflowStore, **values: Any) -> None:
        if next(locked, False):
            raise StoreAwayError("database is locked")
        unregister(driver, **values)

    monkeypatch.setattr(MlflowStore, "unregister", unregister_unless_locked)
    settings = Tracking(uri=store.uri)
    tracker = Tracker(settings, driver_of(store, HERE, "0"), pytest.fail)

    tracker.unregister(is_complete=True)

    assert tracker.leases_of_sweep()["0"].ended


def test_a_driver_interrupted_during_a_claim_leaves_no_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt when the run of the claim exists, but the driver does not know its id yet."""

    def interrupt(*_: object, **__: object) -> None:
        assert [run["status"] for run in store.runs()] == ["RUNNING"]
        raise KeyboardInterrupt

    driver = driver_of(store, HERE, "0")
    monkeypatch.setattr(driver, "_others", interrupt)
    tracker = Tracker(Tracking(uri=store.uri), driver, pytest.fail)

    with pytest.raises(KeyboardInterrupt):
        claimed(tracker, 1)
    tracker.unregister()

    assert store.runs() == []


@pytest.fixture
def files(tmp_path: Path) -> list[Journal]:
    """Return two drivers without a store that share a folder."""
    drivers = [Journal(tmp_path / "shared") for _ in range(2)]
    for number, driver in enumerate(drivers):
        driver.join_sweep("sweep", "", SWEEP, is_launched=False)
        driver.register(str(number), lease_of(HERE))
    return drivers


def test_drivers_without_a_store_share_points_through_files(files: list[Journal]) -> None:
    first, second = files
    claim = claimed(first, 1)
    assert second.begin(claim.identity, "p", tags_of(claim.identity), lambda _: True) is None
    assert set(second.leases_of_sweep()) == {"0", "1"}
    [path] = first.folder.glob("*.claim")
    content = json.loads(path.read_text())
    lost_driver = content | {"owner": json.dumps(vars(ELSEWHERE)), "claim_expires": "1"}
    path.write_text(json.dumps(lost_driver))
    assert first.renew_lease() == ""
    assert float(json.loads(path.read_text())["claim_expires"]) > time.time()
    path.write_text(json.dumps(lost_driver))
    assert isinstance(
        second.begin(claim.identity, "p", tags_of(claim.identity), lambda _: True), Claim
    )


def test_launched_drivers_without_a_store_need_a_shared_folder(tmp_path: Path) -> None:
    launcher = Journal(tmp_path / "a")
    launcher.open_sweep("sweep", "", SWEEP)
    launcher.register(LAUNCH, lease_of(HERE))
    Journal(tmp_path / "a").join_sweep("sweep", "", SWEEP, is_launched=True)
    with pytest.raises(StoreError, match="the launching process uses a different folder"):
        Journal(tmp_path / "b").join_sweep("sweep", "", SWEEP, is_launched=True)


@pytest.mark.parametrize(
    ("first", "second", "shares"),
    [
        pytest.param({}, {}, True, id="same cores"),
        pytest.param({"cores": "0-1"}, {"cores": "2,3"}, False, id="different cores"),
        pytest.param({"cores": "0-2,7"}, {"cores": "5-8"}, True, id="one core in common"),
        pytest.param({"devices": "0"}, {"devices": "1"}, False, id="different accelerators"),
        pytest.param({"owner": ELSEWHERE}, {}, False, id="different hosts"),
    ],
)
def test_drivers_on_the_same_cores_are_found(
    first: dict[str, object], second: dict[str, object], shares: bool
) -> None:
    one = lease_of(**first)
    assert one.shares_cores_with(lease_of(**second)) is shares


def test_planned_points_are_counted_once_per_environment() -> None:
    leases_by_number = {
        "0": lease_of(HERE, planned={"a": 5}),
        "1": lease_of(HERE, planned={"a": 5}),
        "2": lease_of(ELSEWHERE, planned={"b": 3}),
        LAUNCH: lease_of(HERE),
    }
    assert planned_points(leases_by_number) == 8
    assert planned_points({LAUNCH: lease_of(HERE)}) is None
    assert planned_points({"0": lease_of(planned={}), LAUNCH: lease_of(HERE)}) == 0
    assert planned_points({"0": lease_of(HERE)}) is None, "a design chooses the points"


@pytest.mark.parametrize(
    ("leases_by_number", "is_over"),
    [
        pytest.param({"0": {"planned": {"a": 5}, "is_complete": True}}, True, id="completed"),
        pytest.param({"0": {"planned": {"a": 5}}}, False, id="killed"),
        pytest.param(
            {"0": {"planned": {"a": 5}}, "1": {"planned": {"a": 3}, "is_complete": True}},
            True,
            id="killed, and completed by another",
        ),
        pytest.param(
            {"0": {"planned": {"b": 2}}, "1": {"planned": {"a": 3}, "is_complete": True}},
            False,
            id="killed in another environment",
        ),
        pytest.param({"0": {}, "1": {}}, False, id="no driver has planned points"),
    ],
)
def test_no_point_is_left_once_a_driver_of_each_environment_has_completed(
    leases_by_number: dict[str, dict[str, object]], is_over: bool
) -> None:
    leases = {number: lease_of(HERE, **fields) for number, fields in leases_by_number.items()}
    assert no_point_is_left(leases) is is_over


def test_a_heartbeat_retries_and_then_ends_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(leases, "RETRY_SECONDS", 0.01)
    answers = iter(["", StoreError("away"), "", "the sweep was interrupted"])
    reasons: list[str] = []

    def renew() -> str:
        answer = next(answers)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    Heartbeat(renew, reasons.append)
    assert wait_for(lambda: reasons == ["the sweep was interrupted"])
    assert not list(answers)


@pytest.mark.parametrize(
    ("resume", "sweep_id", "accepted"),
    [
        pytest.param(False, "shared", True, id="measured by another driver of this sweep"),
        pytest.param(False, "earlier", False, id="measure everything again"),
        pytest.param("retry", "shared", True, id="a crash of this sweep is not repeated"),
        pytest.param("retry", "earlier", False, id="a crash of an earlier sweep is repeated"),
    ],
)
def test_outcomes_of_a_shared_sweep_are_accepted(
    resume: bool | str, sweep_id: str, accepted: bool
) -> None:
    policy = ResumePolicy(resume, ["crash"], "shared")
    tags = {"outcome": "crash", "sweep_id": sweep_id}
    assert policy.accepts(Point(FullyConnected()), tags) is accepted
