"""Messages between real processes and threads: what arrives, and what is said where nothing does."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from paradnn.core.workload import Unavailable
from paradnn.worker.process_group import RankFailed, listen
from paradnn.workloads.channel.processes import make_message
from paradnn.workloads.channel.transports import GrpcStep, TcpStep, serve_calls, serve_connections
from tests.processes import PATIENCE
from tests.worker.channel_points import point


@contextlib.contextmanager
def tcp_server(given: dict[str, Any]) -> Iterator[str]:
    listening = listen(0)
    serving = threading.Thread(target=serve_connections, args=(listening, given), daemon=True)
    serving.start()
    yield f"127.0.0.1:{listening.getsockname()[1]}"
    with closing(listening):
        listening.shutdown(socket.SHUT_RDWR)  # which wakes who accepts
    serving.join(PATIENCE)
    assert not serving.is_alive()


def served_once(answer: Callable[[socket.socket], object]) -> tuple[str, threading.Thread]:
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


@pytest.mark.parametrize("pattern", ["latency", "bandwidth"])
def test_tcp_carries_whole_messages(pattern: str) -> None:
    given, message = point(pattern=pattern, bytes=300_001), make_message(300_001, 7)
    with tcp_server(given) as address, closing(TcpStep(given, address, message, PATIENCE)) as step:
        step.run(20)
        assert pattern == "bandwidth" or bytes(step._back) == message


@pytest.mark.parametrize("pattern", ["latency", "bandwidth"])
def test_grpc_carries_whole_messages(pattern: str) -> None:
    with closing(listen(0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    server = serve_calls(address)
    given, message = point(transport="grpc", pattern=pattern), make_message(5 * 2**20, 7)
    with closing(GrpcStep(given, address, message, PATIENCE)) as step:
        step.run(3)
        assert step._call(message) == (message if pattern == "latency" else b"")
        assert server.stop(None).wait(PATIENCE)
        with pytest.raises(RankFailed, match="a call failed: UNAVAILABLE"):
            step.run(1)


def test_a_server_that_never_answers_is_a_timeout() -> None:
    released = threading.Event()
    address, thread = served_once(lambda connected: released.wait(PATIENCE))
    silent = pytest.raises(RankFailed, match=f"the peer at {address} did not answer within 1.5 s")
    with closing(TcpStep(point(), address, bytes(1000), 1.5)) as step, silent as failed:
        step.run(1)
    assert failed.value.outcome == "timeout"
    released.set()
    thread.join(PATIENCE)


def test_a_truncated_message_says_how_much_came() -> None:
    def half(connected: socket.socket) -> None:
        connected.recv(1000, socket.MSG_WAITALL)
        connected.sendall(bytes(400))

    address, _ = served_once(half)
    cut = pytest.raises(RankFailed, match="closed the connection after 400 of 1,000 bytes of a message")
    with closing(TcpStep(point(), address, bytes(1000), PATIENCE)) as step, cut as failed:
        step.run(1)
    assert failed.value.outcome == "crash"


def test_a_port_that_is_taken_and_a_host_that_is_not_there() -> None:
    with closing(listen(0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(Unavailable, match=f"port {port} of 127.0.0.1 is taken; choose another with model.port"):
            listen(port)
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port} is taken"):
            serve_calls(f"127.0.0.1:{port}")
    with pytest.raises(Unavailable, match=f"the peer at 127.0.0.1:{port} cannot be reached: Connection refused"):
        TcpStep(point(), f"127.0.0.1:{port}", bytes(1000), 1.0)
