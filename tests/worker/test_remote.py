"""Processes of a point behind a server, as on another host: here both are this one, and meet on its loopback."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any

import psutil
import pytest

from paradnn.core.workload import Unavailable
from paradnn.worker import process_group as remote
from paradnn.worker.process_group import KEY, RankFailed, processes_elsewhere
from tests.conftest import ROOT
from tests.processes import PATIENCE, exit_code, fresh, in_fresh_process, wait_for
from tests.worker.channel_points import MODEL, measure_beside, measure_until_killed
from tests.worker.two_hosts import SECRET, host_server

COMMAND = [sys.executable, "-m", "paradnn.worker.host"]


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[str]
    seen: psutil.Process
    address: str

    def children(self) -> list[psutil.Process]:
        return self.seen.children() if self.seen.is_running() else []


@pytest.fixture
def server() -> Iterator[Server]:
    with host_server() as (running, address):
        yield Server(running, psutil.Process(running.pid), address)


def point(address: str, **model: Any) -> dict[str, Any]:
    return {
        "model": {**MODEL, **model},
        "platform": {"name": "cpu", "threads": None, "cores": None},
        "hosts": 2,
        "other_hosts": {"addresses": [address], "key": SECRET, "environ": {}},
        "seed": 0,
        "measure": {"timeout": 200.0},
    }


@pytest.mark.parametrize(
    ("given", "there"), [({"transport": "tcp"}, 1), ({"transport": "grpc", "pattern": "bandwidth"}, 1)]
)
def test_half_of_the_processes_are_behind_the_server(server: Server, given: dict[str, Any], there: int) -> None:
    in_fresh_process(measure_beside, point(server.address, **given), server.process.pid, there)
    assert wait_for(lambda: not server.children())


@pytest.mark.parametrize("first", ["point", "server"])
def test_neither_side_outlives_the_other(server: Server, first: str) -> None:
    hears, says = Pipe(duplex=False)
    with hears, says, fresh(measure_until_killed, point(server.address), says) as measuring:
        assert hears.poll(PATIENCE)
        if first == "server":
            server.children()[0].kill()
            assert -exit_code(measuring) == signal.SIGIO
        else:
            measuring.kill()
    assert wait_for(lambda: not server.children())


def test_who_has_another_key_or_version_gets_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    given = point(server.address)
    other = {**given, "other_hosts": {**given["other_hosts"], "key": "another"}}
    with pytest.raises(Unavailable, match=f"the server at {server.address} has another key: set the same {KEY} on"):
        processes_elsewhere(other, 2)
    assert wait_for(lambda: not server.children())
    monkeypatch.setattr(remote, "PROTOCOL_VERSION", 0)
    with pytest.raises(RankFailed, match=r"is of another version of ParaDnn: start it again") as refused:
        processes_elsewhere(given, 2)
    assert refused.value.outcome == "unavailable"


def test_who_does_not_show_the_key_gets_no_process_however_many_there_are(server: Server) -> None:
    """Two hundred that say nothing, or nonsense: a process that knows the key is let in beside them."""
    host, _, port = server.address.partition(":")
    with contextlib.ExitStack() as open_ones:
        for number in range(200):
            one = open_ones.enter_context(socket.create_connection((host, int(port))))
            if number % 3 == 0:
                one.sendall(bytes(64 if number % 2 else 63))
        assert not server.children()
        in_fresh_process(measure_beside, point(server.address, transport="tcp"), server.process.pid, 1)
        assert server.seen.num_fds() < 100
    assert wait_for(lambda: not server.children())


def test_a_server_wants_a_key_and_a_port_of_its_own(server: Server) -> None:
    without = {name: value for name, value in os.environ.items() if name != KEY}
    done = subprocess.run(COMMAND, cwd=ROOT, env=without, capture_output=True, text=True)
    assert (done.returncode, done.stderr.split(":")[:2]) == (2, ["error", f" {KEY} is not set"])
    port = server.address.split(":")[1]
    done = subprocess.run(
        [*COMMAND, "--port", port], cwd=ROOT, env={**without, KEY: SECRET}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --port: port {port} of 127.0.0.1 is taken")
