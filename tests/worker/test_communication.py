"""Messages between real processes and threads: what arrives, and what is said where nothing does."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from paradnn.worker.addresses import listen
from paradnn.worker.errors import Unavailable
from paradnn.worker.process_group import RankFailed
from paradnn.workloads.channel.payload import decode, encode
from paradnn.workloads.channel.rpc import GrpcStep, serve_calls
from paradnn.workloads.channel.sockets import TcpStep, serve_connections
from tests.conftest import ROOT
from tests.processes import PATIENCE, hearing_ctrl_c, in_fresh_process, started
from tests.worker.channel_points import buffers_of, point, send_through_shared_memory


@pytest.fixture
def tcp_server() -> Iterator[str]:
    listening = listen(0)
    serving = threading.Thread(target=serve_connections, args=(listening,), daemon=True)
    serving.start()
    yield f"127.0.0.1:{listening.getsockname()[1]}"
    with closing(listening):
        listening.shutdown(socket.SHUT_RDWR)  # which wakes who accepts
    serving.join(PATIENCE)
    assert not serving.is_alive()


def two_free_ports() -> int:
    """The first of two in a row that are free."""
    while True:
        with closing(listen(0)) as first, contextlib.suppress(Unavailable):
            port = int(first.getsockname()[1])
            listen(port + 1).close()
            return port


def served_once(answer: Callable[[socket.socket], None]) -> tuple[str, threading.Thread]:
    """A server of one connection that does as it likes."""
    listening = listen(0)

    def serve() -> None:
        with closing(listening):
            connected, _ = listening.accept()
            with closing(connected):
                answer(connected)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return f"127.0.0.1:{listening.getsockname()[1]}", thread


def test_a_serialized_message_is_a_protocol_buffer() -> None:
    """Against Google's own library: `ListValue` is no bytes, but `FieldMask` is `repeated string paths = 1`."""
    from google.protobuf.field_mask_pb2 import FieldMask

    parts = ["", "a", "b" * 127, "c" * 128, "d" * 70_000]
    ours = encode([part.encode() for part in parts])
    assert ours == FieldMask(paths=parts).SerializeToString()
    assert [bytes(part).decode() for part in decode(ours)] == parts
    for cut in (1, 100, 60_000):
        with pytest.raises(ValueError, match="ends"):
            decode(ours[:-cut])


@pytest.mark.parametrize("serialized", [False, True])
@pytest.mark.parametrize("pattern", ["latency", "bandwidth", "parameter_server"])
def test_tcp_carries_whole_messages(tcp_server: str, pattern: str, serialized: bool) -> None:
    given = point(pattern=pattern, serialized=serialized, bytes=300_001)
    step = TcpStep(given, [tcp_server, tcp_server], buffers_of(given), PATIENCE)
    step.run(20)
    if pattern == "latency":
        back = bytes(step._back)
        assert (b"".join(decode(back)) if serialized else back) == b"".join(buffers_of(given))
    step.close()


def test_a_peer_that_never_answers_is_a_timeout() -> None:
    released = threading.Event()

    def greet(connected: socket.socket) -> None:
        connected.sendall(b"!")
        released.wait(PATIENCE)

    address, thread = served_once(greet)
    step = TcpStep(point(), [address], buffers_of(point()), 1.5)
    with pytest.raises(RankFailed, match=f"the peer at {address} did not answer within 1.5 s") as failed:
        step.run(1)
    assert failed.value.outcome == "timeout"
    step.close()
    released.set()
    thread.join(PATIENCE)
    with closing(listen(0)) as deaf, pytest.raises(RankFailed, match="did not answer"):
        TcpStep(point(), [f"127.0.0.1:{deaf.getsockname()[1]}"], buffers_of(point()), 0.3)


def test_a_truncated_message_says_how_much_came() -> None:
    def half(connected: socket.socket) -> None:
        connected.sendall(b"!")
        connected.recv(21 + 1000, socket.MSG_WAITALL)
        connected.sendall(bytes(400))

    address, _ = served_once(half)
    step = TcpStep(point(), [address], buffers_of(point()), PATIENCE)
    with pytest.raises(RankFailed, match="closed the connection after 400 of 1,000 bytes of a message") as failed:
        step.run(1)
    assert failed.value.outcome == "crash"
    step.close()


def test_a_port_that_is_taken_and_a_host_that_is_not_there() -> None:
    with closing(listen(0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(Unavailable, match=f"port {port} of 127.0.0.1 is taken; choose another with model.port"):
            listen(port)
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port} is taken"):
            serve_calls(f"127.0.0.1:{port}")
    with pytest.raises(Unavailable, match=f"the peer at 127.0.0.1:{port} cannot be reached: Connection refused"):
        TcpStep(point(), [f"127.0.0.1:{port}"], buffers_of(point()), 1.0)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "is another program; start python -m paradnn.worker.communication.peer"),
        (b"", "takes no messages of 1,000 bytes; start it with a larger --most-bytes"),
    ],
)
def test_what_listens_there_is_a_peer_that_takes_such_messages(said: bytes, reason: str) -> None:
    def greet(connected: socket.socket) -> None:
        connected.recv(21, socket.MSG_WAITALL)
        connected.sendall(said)

    address, thread = served_once(greet)
    with pytest.raises(Unavailable, match=f"the peer at {address} {reason}"):
        TcpStep(point(), [address], buffers_of(point()), PATIENCE)
    thread.join(PATIENCE)


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--port", "99999", "is no port; choose one up to 65535"),
        ("--port", "-1", "is no port"),
        ("--host", "no.such.host.invalid", "give one of its addresses"),
        ("--most-bytes", "0", "is no number of bytes"),
    ],
)
def test_a_wrong_option_of_a_peer_is_named(option: str, value: str, reason: str) -> None:
    command = [sys.executable, "-m", "paradnn.worker.communication.peer", f"{option}={value}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert f"error: argument {option}: '{value}'" in done.stderr
    assert reason in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("serialized", [False, True])
@pytest.mark.parametrize("pattern", ["latency", "bandwidth", "parameter_server"])
def test_grpc_carries_whole_messages(pattern: str, serialized: bool) -> None:
    with closing(listen(0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    server = serve_calls(address)
    given = point(transport="grpc", pattern=pattern, serialized=serialized, bytes=5 * 2**20)
    with closing(GrpcStep(given, [address], buffers_of(given), PATIENCE)) as step:
        step.run(3)
        if pattern == "latency":
            back = step._calls[0](step._buffers)
            assert (b"".join(back) if serialized else back) == b"".join(buffers_of(given))
        assert server.stop(None).wait(PATIENCE)
        with pytest.raises(RankFailed, match="a call failed: UNAVAILABLE"):
            step.run(1)


@pytest.mark.parametrize("pattern", ["latency", "bandwidth"])
def test_shared_memory_carries_whole_messages_between_processes(pattern: str) -> None:
    given = point(transport="shared_memory", pattern=pattern, window=11)
    in_fresh_process(send_through_shared_memory, given)


# `python -m paradnn.worker.communication.peer`: what answers messages on another host, as a command.

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
