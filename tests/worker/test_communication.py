"""Messages between real processes and threads, and the errors if no message arrives.

Processes that a server starts represent a second host. In these tests both hosts are this machine,
connected by its loopback interface.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from typing import Any

import psutil
import pytest

from paradnn.core.errors import UnavailableError
from paradnn.families import make_model
from paradnn.worker import process_group as remote
from paradnn.worker.process_group import KEY, RankFailed, listen, processes_elsewhere
from paradnn.workloads.channel.payload import buffer_sizes, codec, split
from paradnn.workloads.channel.processes import make_message
from paradnn.workloads.channel.shared_memory import SharedMemoryStep, SharedQueue
from paradnn.workloads.channel.transports import (
    GrpcStep,
    TcpStep,
    message_sizes,
    serve_calls,
    serve_connections,
)
from tests.conftest import ROOT
from tests.processes import PATIENCE, exit_code, new_interpreter, run_in_new_interpreter, wait_for
from tests.worker.channel_points import (
    exchange_by_shared_memory,
    measure_until_killed,
    measure_with_server,
    point,
)
from tests.worker.two_hosts import SECRET, host_server


@contextlib.contextmanager
def tcp_server(requested: dict[str, Any]) -> Iterator[str]:
    listening = listen(0)
    serving = threading.Thread(target=serve_connections, args=(listening, requested), daemon=True)
    serving.start()
    yield f"127.0.0.1:{listening.getsockname()[1]}"
    with closing(listening):
        listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
    serving.join(PATIENCE)
    assert not serving.is_alive()


def serve_one_connection(handle: Callable[[socket.socket], object]) -> tuple[str, threading.Thread]:
    """Serve one connection with `handle`; return the address and the serving thread."""
    listening = listen(0)

    def serve() -> None:
        with closing(listening):
            connected, _ = listening.accept()
            with closing(connected):
                handle(connected)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return f"127.0.0.1:{listening.getsockname()[1]}", thread


@pytest.mark.parametrize("pattern", ["latency", "bandwidth"])
def test_tcp_carries_whole_messages(pattern: str) -> None:
    requested = point(pattern=pattern, bytes=300_001)
    message = make_message(300_001, 7)
    with (
        tcp_server(requested) as address,
        closing(TcpStep(requested, address, message, PATIENCE)) as step,
    ):
        step.run(20)
        assert pattern == "bandwidth" or bytes(step._answer) == message


def grpc_server(*, serialized: bool = False) -> tuple[Any, str]:
    """Start a server and return its address; retry if another process takes the free port first."""
    for _ in range(20):
        with closing(listen(0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        with suppress(UnavailableError):
            return serve_calls(address, serialized=serialized), address
    raise RuntimeError("other processes took 20 free ports")


@pytest.mark.parametrize("pattern", ["latency", "bandwidth"])
def test_grpc_carries_whole_messages(pattern: str) -> None:
    server, address = grpc_server()
    requested = point(transport="grpc", pattern=pattern)
    message = make_message(5 * 2**20, 7)
    with closing(GrpcStep(requested, [address], message, PATIENCE)) as step:
        step.run(3)
        assert step._calls[0](message) == (message if pattern == "latency" else b"")
        assert server.stop(None).wait(PATIENCE)
        with pytest.raises(RankFailed, match="a call failed: UNAVAILABLE"):
            step.run(1)


@pytest.mark.parametrize("payload", ["single", "uniform", "random", "skew"])
def test_serialized_buffers_are_protobufs(payload: str) -> None:
    """Compare with the wire format: tag 0x0a, the length as a varint, and the bytes."""
    server, address = grpc_server(serialized=True)
    model = make_model({"name": "channel", "transport": "grpc", "payload": payload, "bytes": 300})
    requested = point(**{**asdict(model), "serialized": True})
    sizes = message_sizes(requested["model"])
    message = make_message(sum(sizes), 7)

    with closing(GrpcStep(requested, [address], message, PATIENCE)) as step:
        step.run(2)
        echo = step._calls[0](step._message)
    encode, _ = codec()
    encoded = encode(echo)
    server.stop(None).wait(PATIENCE)

    assert [len(buffer) for buffer in echo] == sizes
    assert b"".join(echo) == message
    wire = b""
    for buffer in split(message, sizes):
        wire += b"\x0a" + varint(len(buffer)) + buffer
    assert encoded == wire


def varint(value: int) -> bytes:
    content = []
    while value > 127:
        content.append(value % 128 + 128)
        value //= 128
    return bytes([*content, value])


def test_payloads_have_the_stated_mixture() -> None:
    small, medium, large = 10, 10 * 1024, 1024 * 1024

    assert buffer_sizes("uniform", 9) == [small] * 3 + [medium] * 3 + [large] * 3
    assert buffer_sizes("skew", 20) == [small] * 2 + [medium] * 6 + [large] * 12
    drawn = Counter(buffer_sizes("random", 9_000))
    assert drawn.keys() == {small, medium, large}
    # Binomial: 3,000 expected, standard deviation 45.
    assert all(abs(count - 3_000) < 225 for count in drawn.values())


@pytest.mark.parametrize("pattern", ["latency", "bandwidth"])
def test_shared_memory_carries_whole_messages(pattern: str) -> None:
    requested = point(transport="shared_memory", pattern=pattern, bytes=300_001)
    run_in_new_interpreter(exchange_by_shared_memory, requested)


def test_shared_memory_without_an_answer_is_a_timeout() -> None:
    given = point(transport="shared_memory")
    step = SharedMemoryStep(given, SharedQueue(1000), SharedQueue(1000), bytes(1000), 0.1)
    with pytest.raises(RankFailed, match=r"did not reply within 0\.1 s") as failed:
        step.run(1)
    assert failed.value.outcome == "timeout"


def test_a_server_that_never_answers_is_a_timeout() -> None:
    released = threading.Event()
    address, thread = serve_one_connection(lambda connected: released.wait(PATIENCE))
    silent = pytest.raises(RankFailed, match=f"the peer at {address} did not reply within 1.5 s")
    with closing(TcpStep(point(), address, bytes(1000), 1.5)) as step, silent as failed:
        step.run(1)
    assert failed.value.outcome == "timeout"
    released.set()
    thread.join(PATIENCE)


def test_a_truncated_message_reports_the_received_bytes() -> None:
    def send_half(connected: socket.socket) -> None:
        connected.recv(1000, socket.MSG_WAITALL)
        connected.sendall(bytes(400))

    address, _ = serve_one_connection(send_half)
    truncated = pytest.raises(
        RankFailed, match="closed the connection after 400 of 1,000 bytes of a message"
    )
    with closing(TcpStep(point(), address, bytes(1000), PATIENCE)) as step, truncated as failed:
        step.run(1)
    assert failed.value.outcome == "crash"


def test_a_taken_port_is_unavailable() -> None:
    with closing(listen(0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(
            UnavailableError,
            match=f"port {port} of 127.0.0.1 is taken; set model.port to another port, or to 0",
        ):
            listen(port)
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port} is in use"):
            serve_calls(f"127.0.0.1:{port}")


def test_an_unreachable_peer_is_unavailable() -> None:
    # A bound socket that does not listen keeps other processes from the port.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(
            UnavailableError,
            match=f"the peer at {address} cannot be reached: Connection refused",
        ):
            TcpStep(point(), address, bytes(1000), 1.0)


COMMAND = [sys.executable, "-m", "paradnn.worker.host"]


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[str]
    inspected: psutil.Process
    address: str

    def children(self) -> list[psutil.Process]:
        return self.inspected.children() if self.inspected.is_running() else []


@pytest.fixture
def server() -> Iterator[Server]:
    with host_server() as (running, address):
        yield Server(running, psutil.Process(running.pid), address)


def point_on_two_hosts(address: str) -> dict[str, Any]:
    """Return a point on two hosts; the server at `address` represents the second host."""
    other_hosts = {"addresses": [address], "key": SECRET, "environ": {}}
    platform = {"name": "cpu", "threads": None, "cores": None}
    return point() | {
        "platform": platform,
        "hosts": 2,
        "other_hosts": other_hosts,
        "measure": {"timeout": 200.0},
    }


@pytest.mark.parametrize("killed", ["point", "server"])
def test_neither_side_outlives_the_other(server: Server, killed: str) -> None:
    receiver, sender = Pipe(duplex=False)
    with (
        receiver,
        sender,
        new_interpreter(
            measure_until_killed, point_on_two_hosts(server.address), sender
        ) as measuring,
    ):
        assert receiver.poll(PATIENCE)
        if killed == "server":
            server.children()[0].kill()
            assert -exit_code(measuring) == signal.SIGIO
        else:
            measuring.kill()
    assert wait_for(lambda: not server.children())


def test_clients_with_a_different_key_or_version_are_rejected(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = point_on_two_hosts(server.address)
    other_key = {**requested, "other_hosts": {**requested["other_hosts"], "key": "another"}}
    with pytest.raises(
        UnavailableError,
        match=f"the server at {server.address} has a different key: set the same {KEY} on",
    ):
        processes_elsewhere(other_key, 2)
    assert wait_for(lambda: not server.children())
    monkeypatch.setattr(remote, "PROTOCOL_VERSION", 0)
    with pytest.raises(
        RankFailed, match=r"runs a different version of ParaDnn: restart it"
    ) as refused:
        processes_elsewhere(requested, 2)
    assert refused.value.outcome == "unavailable"


def test_clients_without_the_key_start_no_process(server: Server) -> None:
    """Open two hundred connections that stay silent or send invalid data.

    The server still admits a process that knows the key.
    """
    host, _, port = server.address.partition(":")
    with contextlib.ExitStack() as connections:
        for number in range(200):
            connection = connections.enter_context(socket.create_connection((host, int(port))))
            if number % 3 == 0:
                connection.sendall(bytes(64 if number % 2 else 63))
        assert not server.children()
        run_in_new_interpreter(
            measure_with_server, point_on_two_hosts(server.address), server.process.pid
        )
        assert server.inspected.num_fds() < 100
    assert wait_for(lambda: not server.children())


def environ_without_key() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != KEY}


def test_a_server_requires_a_key() -> None:
    completed = subprocess.run(
        COMMAND, cwd=ROOT, env=environ_without_key(), capture_output=True, text=True
    )

    assert (completed.returncode, completed.stderr.split(":")[:2]) == (
        2,
        ["error", f" {KEY} is not set"],
    )


def test_a_server_requires_a_free_port(server: Server) -> None:
    port = server.address.split(":")[1]

    completed = subprocess.run(
        [*COMMAND, "--port", port],
        cwd=ROOT,
        env={**environ_without_key(), KEY: SECRET},
        capture_output=True,
        text=True,
    )

    assert completed.returncode == 2
    assert completed.stderr.startswith(f"error: --port: port {port} of 127.0.0.1 is taken")
