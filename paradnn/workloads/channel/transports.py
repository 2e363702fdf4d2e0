"""Messages over TCP, the floor under every transport that uses the network, and over gRPC, by its
Python library.

Both sides know how long every message is. The server echoes each (latency), or answers a window of
them: over TCP with one byte, over gRPC, whose unary calls of bytes need no generated code, every
call with nothing.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from paradnn.core.errors import UnavailableError
from paradnn.worker.frameworks import Step
from paradnn.worker.process_group import RankFailed, host_and_port, silent, with_port

_TIME = struct.Struct("ll")
#: Most bytes of a read: the kernel lets the sender go on when a read ends, and so a read of 1 MiB
#: halves the rate.
_PIECE = 1 << 16


class Connection:
    """A connected socket whose reads and writes end after `patience` seconds without progress
    (None: never).
    """

    def __init__(self, connected: socket.socket, peer: str, patience: float | None) -> None:
        self._socket = connected
        self._peer = peer
        self._patience = patience
        self.close = connected.close
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if patience is not None:
            connected.settimeout(
                None
            )  # the kernel keeps the time: Python would ask before every read
            limit = _TIME.pack(int(patience), int(patience % 1 * 1e6))
            for name in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connected.setsockopt(socket.SOL_SOCKET, name, limit)

    def send(self, message: bytes | memoryview) -> None:
        """All of a message. Raises RankFailed."""
        try:
            self._socket.sendall(message)
        except OSError as error:
            raise self._failed(error) from error

    def receive(self, into: memoryview) -> None:
        """Fill `into`. Raises RankFailed."""
        got = 0
        wanted = len(into)
        while got < wanted:
            try:
                count = self._socket.recv_into(into[got : got + _PIECE])
            except OSError as error:
                raise self._failed(error) from error
            if not count:
                short = f"{got:,} of {wanted:,} bytes of a message"
                raise RankFailed("crash", f"{self._peer} closed the connection after {short}")
            got += count

    def _failed(self, error: OSError) -> RankFailed:
        if isinstance(error, BlockingIOError):
            return silent(self._peer, self._patience or 0.0)
        return RankFailed("crash", f"{self._peer} closed the connection: {error.strerror}")


def _lengths(point: Mapping[str, Any]) -> tuple[int, int]:
    """Messages that are answered together, and bytes of the answer."""
    model = point["model"]
    if model["pattern"] == "latency":
        return (1, model["bytes"])
    return (model["window"], 1)


class TcpStep(Step):
    """A step over a connection to a server: a message there and back, or a window that is answered."""

    def __init__(
        self, point: Mapping[str, Any], address: str, message: bytes, patience: float
    ) -> None:
        self._window, back = _lengths(point)
        self._message = message
        self._back = memoryview(bytearray(back))
        peer = f"the peer at {address}"
        try:
            connected = socket.create_connection(host_and_port(address), timeout=patience)
        except TimeoutError:
            raise silent(peer, patience) from None
        except OSError as error:
            raise UnavailableError(
                f"{peer} cannot be reached: {error.strerror or error}"
            ) from error
        self._connection = Connection(connected, peer, patience)
        self.close = self._connection.close

    def run(self, steps: int) -> None:
        """So many steps; each ends when the server has answered."""
        for _ in range(steps):
            for _ in range(self._window):
                self._connection.send(self._message)
            self._connection.receive(self._back)


def serve_connections(listening: socket.socket, point: Mapping[str, Any]) -> None:
    """Serve every connection in a thread of its own until the socket closes; a fault ends its
    connection alone.
    """
    while listening.fileno() >= 0:
        try:
            connected, (host, port, *_) = listening.accept()
        except OSError:  # it is closed, or who connected is gone, or too many are connected
            time.sleep(0.1)
            continue
        connection = Connection(connected, f"the peer at {with_port(host, port)}", None)
        threading.Thread(target=_serve, args=(connected, connection, point), daemon=True).start()


def _serve(connected: socket.socket, connection: Connection, point: Mapping[str, Any]) -> None:
    (window, back), message = _lengths(point), memoryview(bytearray(point["model"]["bytes"]))
    with connected, contextlib.suppress(RankFailed):
        while True:
            for _ in range(window):
                connection.receive(message)
            connection.send(message[:back])


_SERVICE = "paradnn.Messages"
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),  # else two servers share a port, and messages go to either
)
#: A window of calls is more than a server keeps waiting for a thread by itself: it cancels some
#: beyond 1,000, all beyond 3,000, and any after 30 s.
_SERVER_OPTIONS = (
    *_OPTIONS,
    ("grpc.server.max_pending_requests", 2**24),
    ("grpc.server.max_pending_requests_hard_limit", 2**24),
    ("grpc.server_max_unrequested_time_in_server", 24 * 60 * 60),
)


def require_grpc() -> Any:
    """The library. Raises UnavailableError where the interpreter under test lacks it."""
    try:
        import grpc
    except ImportError as error:
        raise UnavailableError(
            f"model.transport=grpc needs the package grpcio in this interpreter: {error}"
        ) from error
    return grpc


class GrpcStep(Step):
    """A step of calls to a server: one that is echoed, or so many at once that are answered."""

    def __init__(
        self, point: Mapping[str, Any], address: str, message: bytes, patience: float
    ) -> None:
        self._grpc = grpc = require_grpc()
        self._message = message
        self._window = _lengths(point)[0]
        channel = grpc.insecure_channel(address, options=_OPTIONS)
        self.close = channel.close
        ready = grpc.channel_ready_future(channel)
        try:
            ready.result(timeout=patience)
        except grpc.FutureTimeoutError:
            ready.cancel()
            self.close()
            raise silent(f"the peer at {address}", patience) from None
        self._call = channel.unary_unary(
            f"/{_SERVICE}/{'Echo' if point['model']['pattern'] == 'latency' else 'Take'}"
        )

    def run(self, steps: int) -> None:
        """So many steps; each ends when all calls are answered."""
        try:
            for _ in range(steps):
                if self._window == 1:
                    self._call(self._message)
                    continue
                for answer in [self._call.future(self._message) for _ in range(self._window)]:
                    answer.result()
        except self._grpc.RpcError as error:
            raise RankFailed(
                "crash", f"a call failed: {error.code().name}: {error.details()}"
            ) from error


def serve_calls(address: str) -> Any:
    """A server that is started, and runs until it is dropped. Raises UnavailableError where the address
    is taken.
    """
    grpc = require_grpc()
    answers = {"Echo": lambda request, _: request, "Take": lambda _, __: b""}
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(answer) for name, answer in answers.items()
    }
    server = grpc.server(ThreadPoolExecutor(8), options=_SERVER_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise UnavailableError(
            f"{address} is taken; choose another port with model.port, or 0"
        ) from error
    server.start()
    return server
