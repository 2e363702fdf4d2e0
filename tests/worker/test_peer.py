"""`python -m paradnn.worker.communication.peer`: what answers messages on another host, as a command."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from paradnn.worker.addresses import listen
from paradnn.worker.communication.rpc import GrpcStep
from paradnn.worker.communication.sockets import TcpStep
from paradnn.worker.errors import Unavailable
from tests.conftest import ROOT
from tests.worker.test_communication import PATIENCE, buffers_of, point

#: `python -m` for the command, which hears Ctrl-C where this suite ignores it. Not preexec_fn: gRPC's threads are here.
PEER = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("paradnn.worker.communication.peer", run_name="__main__", alter_sys=True)
"""


@contextlib.contextmanager
def a_peer(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that answers, and its address; it ends with the test, whatever the test finds."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as peer:
        try:
            assert peer.stdout
            yield peer, peer.stdout.readline().split()[2]
        finally:
            peer.kill()


def has_ipv6() -> bool:
    with contextlib.suppress(Unavailable):
        listen(0, "::1").close()
        return True
    return False


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
def test_a_peer_may_have_an_ipv6_address(transport: str) -> None:
    with a_peer([sys.executable, "-c", PEER, "--transport", transport, "--host", "::1"]) as (_, address):
        assert address.startswith("[::1]:")
        given = point(transport=transport, peer=address)
        step = TcpStep(given, [address], buffers_of(given), PATIENCE) if transport == "tcp" else None
        (step or GrpcStep(given, [address], buffers_of(given), PATIENCE)).run(2)
        if step:
            step.close()
    if transport == "tcp":
        with pytest.raises(Unavailable, match=re.escape(f"the peer at {address} cannot be reached")):
            TcpStep(given, [address], buffers_of(given), 5.0)


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_a_peer_of_another_host_is_a_command(transport: str) -> None:
    command = [sys.executable, "-c", PEER, "--transport", transport]
    with a_peer(command) as (peer, address):
        given = point(transport=transport, peer=address)
        step = TcpStep(given, [address], buffers_of(given), PATIENCE) if transport == "tcp" else None
        (step or GrpcStep(given, [address], buffers_of(given), PATIENCE)).run(2)
        if step:
            step.close()
        again = subprocess.run([*command, "--port", address.split(":")[1]], cwd=ROOT, capture_output=True, text=True)
        peer.send_signal(signal.SIGINT)
        assert peer.wait(PATIENCE) == 130
    assert again.returncode == 2
    assert again.stderr.startswith("error: --port: port ")
    assert "choose another with --port, or 0" in again.stderr


def test_a_grpc_server_keeps_a_whole_window_waiting() -> None:
    """By itself it would cancel calls as soon as some thousand wait for a thread."""
    with a_peer([sys.executable, "-c", PEER, "--transport", "grpc"]) as (_, address):
        given = point(transport="grpc", pattern="bandwidth", window=8192, bytes=16)
        GrpcStep(given, [address], buffers_of(given), PATIENCE).run(1)


def test_a_peer_outlives_more_connections_than_it_may_have() -> None:
    command = ["sh", "-c", f"ulimit -n 20; exec {sys.executable} -c '{PEER}'"]
    with a_peer(command) as (peer, address):
        host, _, port = address.partition(":")
        for each in [socket.create_connection((host, int(port))) for _ in range(30)]:
            each.close()
        step = TcpStep(point(peer=address), [address], buffers_of(point()), PATIENCE)
        step.run(2)
        step.close()
        assert peer.poll() is None
        peer.send_signal(signal.SIGINT)
