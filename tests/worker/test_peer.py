"""`python -m paradnn.worker.communication.peer`: what answers messages on another host, as a command."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from paradnn.worker.addresses import listen
from paradnn.worker.errors import Unavailable
from paradnn.workloads.channel.rpc import GrpcStep
from paradnn.workloads.channel.sockets import TcpStep
from tests.conftest import ROOT
from tests.processes import PATIENCE, hearing_ctrl_c, started
from tests.worker.channel_points import buffers_of, point

PEER = hearing_ctrl_c([sys.executable, "-m", "paradnn.worker.communication.peer"])


STEPS = {"tcp": TcpStep, "grpc": GrpcStep}


@contextlib.contextmanager
def a_peer(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that answers, and its address; it ends with the test, whatever the test finds."""
    with started(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as peer:
        yield peer, peer.stdout.readline().split()[2]


def has_ipv6() -> bool:
    with contextlib.suppress(Unavailable):
        listen(0, "::1").close()
        return True
    return False


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
def test_a_peer_may_have_an_ipv6_address(transport: str) -> None:
    with a_peer([*PEER, "--transport", transport, "--host", "::1"]) as (_, address):
        assert address.startswith("[::1]:")
        given = point(transport=transport, peer=address)
        with closing(STEPS[transport](given, [address], buffers_of(given), PATIENCE)) as step:
            step.run(2)
    if transport == "tcp":
        with pytest.raises(Unavailable, match=re.escape(f"the peer at {address} cannot be reached")):
            TcpStep(given, [address], buffers_of(given), 5.0)


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_a_peer_of_another_host_is_a_command(transport: str) -> None:
    command = [*PEER, "--transport", transport]
    with a_peer(command) as (peer, address):
        given = point(transport=transport, peer=address)
        with closing(STEPS[transport](given, [address], buffers_of(given), PATIENCE)) as step:
            step.run(2)
        again = subprocess.run([*command, "--port", address.split(":")[1]], cwd=ROOT, capture_output=True, text=True)
        peer.send_signal(signal.SIGINT)
        assert peer.wait(PATIENCE) == 130
    assert again.returncode == 2
    assert again.stderr.startswith("error: --port: port ")
    assert "choose another with --port, or 0" in again.stderr


def test_a_grpc_server_keeps_a_whole_window_waiting() -> None:
    """By itself it would cancel calls as soon as some thousand wait for a thread."""
    with a_peer([*PEER, "--transport", "grpc"]) as (_, address):
        given = point(transport="grpc", pattern="bandwidth", window=8192, bytes=16)
        with closing(GrpcStep(given, [address], buffers_of(given), PATIENCE)) as step:
            step.run(1)


def test_a_peer_outlives_more_connections_than_it_may_have() -> None:
    command = ["sh", "-c", 'ulimit -n 20; exec "$@"', "sh", *PEER]
    with a_peer(command) as (peer, address):
        host, _, port = address.partition(":")
        for each in [socket.create_connection((host, int(port))) for _ in range(30)]:
            each.close()
        step = TcpStep(point(peer=address), [address], buffers_of(point()), PATIENCE)
        step.run(2)
        step.close()
        assert peer.poll() is None
        peer.send_signal(signal.SIGINT)
