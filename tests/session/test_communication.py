"""`model=channel` through the command: what is recorded on one host and two, how it fails, that no
process stays.
"""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paradnn.config.outcome import PointResult
from paradnn.core.errors import WorkerError
from paradnn.session.environments import HOSTS, require_answers
from paradnn.session.workers import Limits, Worker
from tests.conftest import SHORT, Store, processes_of_points, run, succeeded
from tests.processes import wait_for
from tests.session.test_faults import meanwhile
from tests.worker.two_hosts import QUICK, has_ipv6, second_host

pytestmark = pytest.mark.framework

MESSAGES = ["paradnn.train", "model=channel", *SHORT]


def none_is_left() -> bool:
    """The kernel ends what a killed process started a moment after it."""
    return wait_for(lambda: not processes_of_points())


def ended(store: Store) -> dict[str, str]:
    (tags,) = store.runs()
    return tags


def test_a_sweep_of_transports_is_recorded_and_resumed(store: Store) -> None:
    words = [
        MESSAGES[0],
        "-m",
        *MESSAGES[1:],
        "model.transport=tcp,grpc",
        "model.pattern=latency,bandwidth",
        "model.bytes=1000",
    ]
    succeeded(words, store)
    runs = store.runs()
    assert [tags["outcome"] for tags in runs] == ["ok"] * 4
    assert {tags["checks"] for tags in runs} == {"passed"}
    assert store.runs("ceilings") == []
    for tags in runs:
        metrics, params = (
            store.values(table, tags["run_id"]) for table in ("latest_metrics", "params")
        )
        step = metrics["step_time_ms"]
        alone = params["model.pattern"] == "latency"
        assert metrics["transfer_us"] == pytest.approx(1e3 * step / (2 if alone else 64))
        assert metrics["sent_bytes_per_second"] == pytest.approx(1e9 / metrics["transfer_us"])
        # of few blocks none
        low = metrics.get("transfer_low_us", 0.0)
        high = metrics.get("transfer_high_us", 1e9)
        assert low <= metrics["transfer_us"] <= high
        assert ("round_trip_us" in metrics) == ("latency_p50_ms" in metrics) == alone
        assert not {"flops_per_step", "flops_per_second", "arithmetic_intensity"} & set(metrics)
    again = run(words, store)
    assert len(store.runs()) == 4
    assert "4" in again.stdout
    assert none_is_left()


def test_a_payload_larger_than_memory_is_not_tried(store: Store) -> None:
    run([*MESSAGES, f"model.bytes={2**33}", "measure.memory_limit=1GiB"], store)
    tags = ended(store)
    assert tags["outcome"] == "oom_predicted"
    assert tags["reason"] == "needs at least 8.00 GiB, the limit is 1.00 GiB"


def test_a_server_that_is_killed_ends_its_point(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From outside, in the middle of a measurement."""
    measure = Worker.measure
    measuring = threading.Event()

    def heard(
        worker: Worker, point: dict[str, Any], limits: Limits, news: Callable[[Any], None]
    ) -> PointResult:
        return measure(
            worker,
            point,
            limits,
            lambda event: (measuring.set() if event == "measure" else None, news(event)),
        )

    def kill_the_server() -> None:
        assert measuring.wait(200)
        points = processes_of_points()
        [server] = [pid for pid, parent in points.items() if parent in points]
        os.kill(server, signal.SIGKILL)

    monkeypatch.setattr(Worker, "measure", heard)
    with meanwhile(kill_the_server):
        run([*MESSAGES, "measure.min_seconds=1000", "measure.max_seconds=1000"], store)
    assert ended(store)["outcome"] == "crash"
    assert none_is_left()


def test_points_are_measured_on_two_hosts(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other kind of address, without a framework's own transport, is in
    tests/worker/test_communication.py.
    """
    address = "::1" if has_ipv6() else "127.0.0.1"
    plain = ["model.transport=tcp,grpc"]
    reduced = ["model.transport=tensorflow", "model.pattern=all_reduce", "model.bytes=64"]
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with second_host(address) as variables:
        for command in (plain, reduced):
            succeeded(
                ["paradnn.train", "-m", "model=channel", *command, *QUICK], store, **variables
            )
    points = store.runs()
    assert [(point["outcome"], point.get("reason")) for point in points] == [("ok", None)] * 3
    [metrics] = [
        found
        for each in points
        if "bus_bytes_per_second" in (found := store.values("latest_metrics", each["run_id"]))
    ]
    assert not [*temporary.iterdir()]  # where TensorFlow's AutoGraph would write
    # Two processes: the bus carries what the algorithm does.
    assert metrics["bus_bytes_per_second"] == pytest.approx(metrics["sent_bytes_per_second"])


def test_a_host_that_is_gone_is_no_outcome_of_a_point(monkeypatch: pytest.MonkeyPatch) -> None:
    with second_host() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        require_answers()
    said: list[str] = []

    def is_gone() -> bool:
        try:
            require_answers()
        except WorkerError as error:
            said.append(str(error))
        return bool(said)

    # What it forked for the last connection, perhaps only now, holds its port for a moment longer.
    assert wait_for(is_gone)
    remedy = "start python -m paradnn.worker.host there (docs/how-to/clusters.md), then the same command again"
    assert said == [f"no server answers at {variables[HOSTS]}; {remedy}"]
