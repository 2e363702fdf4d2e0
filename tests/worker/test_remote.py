"""Processes of a point behind a server, as on another host: here both are this one, and meet on its loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from paradnn.errors import ConfigError, WorkerError
from paradnn.execution.hosts import HOSTS, KEY, OtherHosts
from paradnn.worker import remote
from paradnn.worker.communication.run import Processes
from paradnn.worker.communication.waiting import listen
from paradnn.worker.errors import Unavailable
from tests.conftest import ROOT
from tests.session.test_faults import wait_for
from tests.worker.test_communication import MODEL

COMMAND = [sys.executable, "-m", "paradnn.worker.host"]
SECRET = "what both know"


@pytest.fixture
def server() -> Iterator[psutil.Popen]:
    """A server whose first line says where it listens."""
    environ = {**os.environ, KEY: SECRET}
    with psutil.Popen(
        [*COMMAND, "--with-stdin"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True
    ) as running:
        running.address = running.stdout.readline().split()[-1]
        yield running
        running.stdin.close()
        running.wait(200)  # it ends by itself


def point(address: str, **model: Any) -> dict[str, Any]:
    return {
        "model": {**MODEL, "buffers": 1, **model},
        "platform": {"name": "cpu", "threads": None, "cores": None},
        "hosts": 2,
        "other_hosts": {"addresses": [address], "key": SECRET, "environ": {}},
        "seed": 0,
        "measure": {"timeout": 200.0},
    }


def in_a_process(point: dict[str, Any], then: Callable[[Any], None]) -> int:
    """Measure in a process of its own, as a worker does; its number. It exits with 0 once `then` has returned."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            processes = Processes(point, None)
            then(processes.step())
            code = 0
        finally:
            os._exit(code)
    return pid


@pytest.mark.parametrize(
    ("given", "there"),
    [
        ({"transport": "tcp"}, 1),
        ({"transport": "grpc", "pattern": "bandwidth"}, 1),
        ({"transport": "tcp", "pattern": "parameter_server", "servers": 2, "workers": 2}, 2),
    ],
)
def test_half_of_the_processes_are_behind_the_server(server: psutil.Popen, given: dict[str, Any], there: int) -> None:
    def run(step: Any) -> None:
        step.run(5)
        assert wait_for(lambda: len(server.children()) == there)

    assert os.waitpid(in_a_process(point(server.address, **given), run), 0)[1] == 0
    assert wait_for(lambda: not server.children())


def test_neither_side_outlives_the_other(server: psutil.Popen) -> None:
    holds, says = os.pipe()

    def wait(step: Any) -> None:
        """Once a message went there and back both hold the connection that nothing is sent over."""
        step.run(1)
        os.write(says, b"!")
        time.sleep(1000)

    pid = in_a_process(point(server.address), wait)
    os.read(holds, 1)
    server.children()[0].kill()
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGIO
    pid = in_a_process(point(server.address), wait)
    os.read(holds, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert wait_for(lambda: not server.children())


def test_who_has_another_key_or_version_gets_nothing(server: psutil.Popen, monkeypatch: pytest.MonkeyPatch) -> None:
    given = point(server.address)
    other = {**given, "other_hosts": {**given["other_hosts"], "key": "another"}}
    with pytest.raises(Unavailable, match=f"the server at {server.address} has another key: set the same {KEY} on"):
        Processes(other, None)
    assert wait_for(lambda: not server.children())
    monkeypatch.setattr(remote, "PROTOCOL_VERSION", 0)
    with pytest.raises(Unavailable, match=r"is of another version of ParaDnn: start it again"):
        Processes(given, None)


def test_who_says_nothing_holds_no_process(server: psutil.Popen) -> None:
    host, _, port = server.address.partition(":")
    with socket.create_connection((host, int(port))):
        assert wait_for(lambda: bool(server.children()))
        child = server.children()[0]
        server.kill()
        server.wait()
        assert wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_who_asks_for_nothing_is_not_waited_for() -> None:
    with listen(0) as listening, socket.create_connection(listening.getsockname()):
        connected, _ = listening.accept()
        if (pid := os.fork()) == 0:
            try:
                remote.accept(connected, SECRET.encode(), 0.2)
            finally:
                os._exit(0)
        connected.close()
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGALRM


def test_a_server_that_is_not_there_is_named(server: psutil.Popen) -> None:
    server.kill()
    server.wait()
    with pytest.raises(Unavailable, match=f"the server at {server.address} cannot be reached: Connection refused"):
        Processes(point(server.address), None)


def test_a_server_wants_a_key_and_a_port_of_its_own(server: psutil.Popen) -> None:
    without = {name: value for name, value in os.environ.items() if name != KEY}
    done = subprocess.run(COMMAND, cwd=ROOT, env=without, capture_output=True, text=True)
    assert (done.returncode, done.stderr.split(":")[:2]) == (2, ["error", f" {KEY} is not set"])
    port = server.address.split(":")[1]
    done = subprocess.run(
        [*COMMAND, "--port", port], cwd=ROOT, env={**without, KEY: SECRET}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --port: port {port} of 127.0.0.1 is taken")


def test_a_session_knows_the_hosts_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.delenv(HOSTS, raising=False)
    with pytest.raises(WorkerError, match=r"hosts=2: this session has 1; docs/clusters\.md says how"):
        OtherHosts().of(2, {})
    monkeypatch.setenv(HOSTS, "10.0.0.2:5000,10.0.0.3:5000")
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(ConfigError, match=f"{KEY}='': {HOSTS} is set without it"):
        OtherHosts().of(2, {})
    monkeypatch.setenv(KEY, SECRET)
    hosts = OtherHosts()
    assert hosts.of(2, {"A": "1"}) == {"addresses": ["10.0.0.2:5000"], "key": SECRET, "environ": {"A": "1"}}
    with pytest.raises(WorkerError, match="hosts=4: this session has 3"):
        hosts.of(4, {})
    hosts.close()


def test_a_host_that_is_gone_is_no_outcome_of_a_point(server: psutil.Popen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOSTS, server.address)
    monkeypatch.setenv(KEY, SECRET)
    hosts = OtherHosts()
    hosts.of(2, {})
    hosts.require()
    server.kill()
    server.wait()
    said: list[str] = []

    def is_gone() -> bool:
        try:
            hosts.require()
        except WorkerError as error:
            said.append(str(error))
        return bool(said)

    # What it forked for the last connection, perhaps only now, holds its port for a moment longer.
    assert wait_for(is_gone)
    remedy = "start python -m paradnn.worker.host there (docs/clusters.md), then the same command again"
    assert said == [f"no server answers at {server.address}; {remedy}"]
