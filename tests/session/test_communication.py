"""Runs of `model=channel` on one host and on two: records, failures, and processes that end."""

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


def no_process_is_left() -> bool:
    """Return whether all processes of points end soon.

    The kernel ends the children of a killed process with a short delay.
    """
    return wait_for(lambda: not processes_of_points())


def only_run(store: Store) -> dict[str, str]:
    """Return the tags of the only run."""
    [tags] = store.runs()
    return tags


def test_a_sweep_of_transports_is_recorded_and_resumed(store: Store) -> None:
    command = [
        MESSAGES[0],
        "-m",
        *MESSAGES[1:],
        "model.transport=tcp,grpc",
        "model.pattern=latency,bandwidth",
        "model.bytes=1000",
    ]
    succeeded(command, store)
    runs = store.runs()
    assert [tags["outcome"] for tags in runs] == ["ok"] * 4
    assert {tags["checks"] for tags in runs} == {"passed"}
    assert store.runs("ceilings") == []
    for tags in runs:
        metrics = store.values("latest_metrics", tags["run_id"])
        params = store.values("params", tags["run_id"])
        step = metrics["step_time_ms"]
        is_latency = params["model.pattern"] == "latency"
        messages = 2 if is_latency else 64
        assert metrics["transfer_us"] == pytest.approx(1e3 * step / messages)
        assert metrics["sent_bytes_per_second"] == pytest.approx(1e9 / metrics["transfer_us"])
        # A run of a few blocks has no interval.
        low = metrics.get("transfer_low_us", 0.0)
        high = metrics.get("transfer_high_us", 1e9)
        assert low <= metrics["transfer_us"] <= high
        assert ("round_trip_us" in metrics) == is_latency
        assert ("latency_p50_ms" in metrics) == is_latency
        assert not {"flops_per_step", "flops_per_second", "arithmetic_intensity"} & set(metrics)
    repeated = run(command, store)
    assert len(store.runs()) == 4
    assert "4" in repeated.stdout
    assert no_process_is_left()


def test_parameter_servers_answer_every_worker(store: Store) -> None:
    command = [
        *MESSAGES,
        "model.transport=grpc",
        "model.pattern=parameter_server",
        "model.servers=2",
        "model.workers=3",
        "model.payload=skew",
        "model.buffers=3",
        "model.serialized=true",
    ]
    succeeded(command, store)
    tags = only_run(store)
    metrics = store.values("latest_metrics", tags["run_id"])
    params = store.values("params", tags["run_id"])

    # 3 buffers of the skewed payload: one of 10 KiB and two of 1 MiB. Each of 3 workers sends it to
    # 2 servers, and gets it back.
    assert int(params["model.bytes"]) == 10 * 2**10 + 2 * 2**20
    assert metrics["round_trip_us"] == pytest.approx(1e3 * metrics["step_time_ms"])
    assert metrics["messages_per_second"] == pytest.approx(12e3 / metrics["step_time_ms"])
    assert metrics["sent_bytes_per_second"] == pytest.approx(
        metrics["messages_per_second"] * float(params["model.bytes"])
    )
    assert no_process_is_left()


def test_a_payload_larger_than_the_memory_limit_is_not_measured(store: Store) -> None:
    run([*MESSAGES, f"model.bytes={2**33}", "measure.memory_limit=1GiB"], store)
    tags = only_run(store)
    assert tags["outcome"] == "oom_predicted"
    assert tags["reason"] == "needs at least 8.00 GiB, the limit is 1.00 GiB"


def test_the_death_of_a_server_ends_its_point(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill the server from outside during the measurement."""
    measure = Worker.measure
    measuring = threading.Event()

    def measure_and_signal(
        worker: Worker, point: dict[str, Any], limits: Limits, news: Callable[[Any], None]
    ) -> PointResult:
        def report(event: Any) -> None:
            if event == "measure":
                measuring.set()
            news(event)

        return measure(worker, point, limits, report)

    def kill_server() -> None:
        assert measuring.wait(200)
        points = processes_of_points()
        [server] = [pid for pid, parent in points.items() if parent in points]
        os.kill(server, signal.SIGKILL)

    monkeypatch.setattr(Worker, "measure", measure_and_signal)
    with meanwhile(kill_server):
        run([*MESSAGES, "measure.min_seconds=1000", "measure.max_seconds=1000"], store)
    assert only_run(store)["outcome"] == "crash"
    assert no_process_is_left()


def test_points_on_two_hosts_are_recorded(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measure over IPv6 if it is available; tests/worker/test_communication.py uses IPv4."""
    address = "::1" if has_ipv6() else "127.0.0.1"
    point_to_point = ["model.transport=tcp,grpc"]
    reduction = ["model.transport=tensorflow", "model.pattern=all_reduce", "model.bytes=64"]
    temporary_folder = tmp_path / "temporary"
    temporary_folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary_folder))
    with second_host(address) as variables:
        for command in (point_to_point, reduction):
            succeeded(
                ["paradnn.train", "-m", "model=channel", *command, *QUICK], store, **variables
            )
    points = store.runs()
    assert [(point["outcome"], point.get("reason")) for point in points] == [("ok", None)] * 3
    runs = [store.values("latest_metrics", point["run_id"]) for point in points]
    [metrics] = [metrics for metrics in runs if "bus_bytes_per_second" in metrics]
    # TensorFlow's AutoGraph would write here.
    assert not list(temporary_folder.iterdir())
    # With two processes, the bus carries as much as each process sends.
    assert metrics["bus_bytes_per_second"] == pytest.approx(metrics["sent_bytes_per_second"])


def test_a_lost_host_ends_the_command_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with second_host() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        require_answers()
    errors: list[str] = []

    def is_gone() -> bool:
        try:
            require_answers()
        except WorkerError as error:
            errors.append(str(error))
        return bool(errors)

    # The process that the server forked for the last connection keeps the port open for a moment.
    assert wait_for(is_gone)
    remedy = "start python -m paradnn.worker.host there (docs/how-to/clusters.md), then repeat this command here"
    assert errors == [f"no server answers at {variables[HOSTS]}; {remedy}"]
