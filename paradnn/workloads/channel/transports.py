"""Messages over TCP and over the Python library of gRPC.

TCP gives a lower bound for the time of any transport over a network. Shared memory gives the lower
bound within one host (`paradnn.workloads.channel.shared_memory`).

Both sides know the length of every message. With pattern=latency, the server echoes each message.
With pattern=bandwidth, it receives a window of messages. It then answers with one byte over TCP.
Over gRPC, it answers every call with an empty message. Unary gRPC calls whose messages are bytes
need no generated code.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from paradnn.core.errors import UnavailableError
from paradnn.worker.frameworks import Step
from paradnn.worker.process_group import RankFailed, host_and_port, reply_timeout_error, with_port
from paradnn.workloads.channel.payload import buffer_sizes, codec, split

_TIME = struct.Struct("ll")
#: Largest read, in bytes. The kernel lets the sender continue only when a read ends, so larger
#: reads are slower: reads of 1 MiB halve the rate.
_MAX_READ = 1 << 16


class Connection:
    """A connected TCP socket that sends and receives whole messages.

    Args:
        connected: The socket.
        peer: Name of the process at the other end, for error messages.
        patience: Seconds without progress after which a read or write raises RankFailed; None:
            never.
    """

    def __init__(self, connected: socket.socket, peer: str, patience: float | None) -> None:
        self._socket = connected
        self._peer = peer
        self._patience = patience
        self.close = connected.close
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if patience is not None:
            # The kernel enforces the timeout: Python would poll the socket before every read.
            connected.settimeout(None)
            limit = _TIME.pack(int(patience), int(patience % 1 * 1e6))
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def send(self, message: bytes | memoryview) -> None:
        """Send a whole message: return once the kernel has accepted all of its bytes.

        Raises:
            RankFailed: If the connection fails, or makes no progress for `patience` seconds.
        """
        try:
            self._socket.sendall(message)
        except OSError as error:
            raise self._failure(error) from error

    def receive(self, into: memoryview) -> None:
        """Receive a message of `len(into)` bytes into a buffer.

        Args:
            into: The buffer.

        Raises:
            RankFailed: If the connection fails, or makes no progress for `patience` seconds.
        """
        received = 0
        length = len(into)
        while received < length:
            try:
                count = self._socket.recv_into(into[received : received + _MAX_READ])
            except OSError as error:
                raise self._failure(error) from error
            if not count:
                progress = f"{received:,} of {length:,} bytes of a message"
                raise RankFailed("crash", f"{self._peer} closed the connection after {progress}")
            received += count

    def _failure(self, error: OSError) -> RankFailed:
        if isinstance(error, BlockingIOError):
            return reply_timeout_error(self._peer, self._patience or 0.0)
        return RankFailed("crash", f"{self._peer} closed the connection: {error.strerror}")


def message_window(point: Mapping[str, Any]) -> int:
    """Return the number of messages that a process sends before it waits for one answer.

    The number is 1 for model.pattern=latency, and model.window for every other pattern.

    Args:
        point: Configuration to measure, as the driver sends it; `point["model"]` has the options of
            the model.
    """
    model = point["model"]
    return 1 if model["pattern"] == "latency" else int(model["window"])


def answer_bytes(point: Mapping[str, Any]) -> int:
    """Return the size of an answer over TCP or shared memory in bytes.

    For model.pattern=latency, the answer is an echo of the message, so it has model.bytes bytes.
    For every other pattern, it has a single byte.

    Args:
        point: Configuration to measure, as the driver sends it; `point["model"]` has the options of
            the model.
    """
    model = point["model"]
    return int(model["bytes"]) if model["pattern"] == "latency" else 1


class TcpStep(Step):
    """A step that sends messages to a server over TCP and waits for an answer.

    With model.pattern=latency, a step sends one message and receives an echo of this message. With
    every other pattern, a step sends model.window messages and receives one byte.

    Args:
        point: Configuration to measure, as the driver sends it; `point["model"]` has the options of
            the model.
        address: Address (host:port) of the server.
        message: Content of every message that a step sends.
        patience: Seconds without progress after which a step raises RankFailed.

    Raises:
        RankFailed: If the server does not accept the connection within `patience` seconds.
        UnavailableError: If the server cannot be reached.
    """

    def __init__(
        self, point: Mapping[str, Any], address: str, message: bytes, patience: float
    ) -> None:
        self._window = message_window(point)
        self._message = message
        self._answer = memoryview(bytearray(answer_bytes(point)))
        peer = f"the peer at {address}"
        try:
            connected = socket.create_connection(host_and_port(address), timeout=patience)
        except TimeoutError:
            raise reply_timeout_error(peer, patience) from None
        except OSError as error:
            reason = error.strerror or error
            raise UnavailableError(f"{peer} cannot be reached: {reason}") from error
        self._connection = Connection(connected, peer, patience)
        self.close = self._connection.close

    def run(self, steps: int) -> None:
        """Run the given number of steps. A step ends when the server has answered.

        Raises:
            RankFailed: If the connection fails, or makes no progress for `patience` seconds.
        """
        for _ in range(steps):
            for _ in range(self._window):
                self._connection.send(self._message)
            self._connection.receive(self._answer)


def serve_connections(listening: socket.socket, point: Mapping[str, Any]) -> None:
    """Accept connections and answer their messages, until the listening socket is closed.

    Each connection is served in a separate thread, so its failure does not affect others.

    Args:
        listening: The listening socket.
        point: Configuration to measure, as the driver sends it; `point["model"]` has the options of
            the model.
    """
    while listening.fileno() >= 0:
        try:
            connected, (host, port, *_) = listening.accept()
        except OSError:
            # The socket is closed, the peer is gone, or too many peers are connected.
            time.sleep(0.1)
            continue
        connection = Connection(connected, f"the peer at {with_port(host, port)}", None)
        threading.Thread(
            target=_serve_connection, args=(connected, connection, point), daemon=True
        ).start()


def _serve_connection(
    connected: socket.socket, connection: Connection, point: Mapping[str, Any]
) -> None:
    window = message_window(point)
    message = memoryview(bytearray(point["model"]["bytes"]))
    answer = message[: answer_bytes(point)]
    with connected, contextlib.suppress(RankFailed):
        while True:
            for _ in range(window):
                connection.receive(message)
            connection.send(answer)


_SERVICE = "paradnn.Messages"
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    # Otherwise, two servers could share a port, and each message would go to one of them at random.
    ("grpc.so_reuseport", 0),
)
#: A server must queue a whole window of calls for its threads. By default, gRPC cancels some calls
#: if more than 1,000 are queued, all further calls beyond 3,000, and calls that wait over 30 s.
_SERVER_OPTIONS = (
    *_OPTIONS,
    ("grpc.server.max_pending_requests", 2**24),
    ("grpc.server.max_pending_requests_hard_limit", 2**24),
    ("grpc.server_max_unrequested_time_in_server", 24 * 60 * 60),
)
_SERVER_THREADS = 8


def require_grpc() -> Any:
    """Import and return the module `grpc`.

    Raises:
        UnavailableError: If the interpreter under test lacks grpcio.
    """
    try:
        import grpc
    except ImportError as error:
        raise UnavailableError(
            f"model.transport=grpc needs the package grpcio in the interpreter under test; install "
            f"it there: {error}"
        ) from error
    return grpc


class GrpcStep(Step):
    """A step that calls one or more gRPC servers, each call with one message.

    With model.pattern=bandwidth, a step makes model.window calls of one server, which answers with
    empty messages. With every other pattern, a step makes one call of each server, and the servers
    echo the message. All calls of a step are concurrent.

    Args:
        point: Configuration to measure, as the driver sends it; `point["model"]` has the options of
            the model.
        addresses: Addresses (host:port) of the servers.
        message: Content of the message of every call.
        patience: Seconds to wait until a server is ready.

    Raises:
        RankFailed: If a server is not ready within `patience` seconds.
        UnavailableError: If the interpreter under test lacks grpcio or protobuf.
    """

    def __init__(
        self,
        point: Mapping[str, Any],
        addresses: Sequence[str],
        message: bytes,
        patience: float,
    ) -> None:
        model = point["model"]
        self._grpc = require_grpc()
        self._message: Any = message
        serializers: dict[str, Any] = {}
        if model.get("serialized"):
            encode, decode = codec()
            self._message = split(message, message_sizes(model))
            serializers["request_serializer"] = encode
            if model["pattern"] != "bandwidth":
                serializers["response_deserializer"] = decode
        window = 1
        method = "Echo"
        if model["pattern"] == "bandwidth":
            window = int(model["window"])
            method = "Take"
        self._channels = [self._connect(address, patience) for address in addresses]
        calls = [
            channel.unary_unary(f"/{_SERVICE}/{method}", **serializers)
            for channel in self._channels
        ]
        #: The calls of one step.
        self._calls = calls * window

    def close(self) -> None:
        """Close all connections."""
        for channel in self._channels:
            channel.close()

    def _connect(self, address: str, patience: float) -> Any:
        """Wait until a gRPC server is ready, and return a channel to the server.

        Args:
            address: Address (host:port) of the server.
            patience: Seconds to wait.

        Raises:
            RankFailed: If the server is not ready within `patience` seconds.
        """
        channel = self._grpc.insecure_channel(address, options=_OPTIONS)
        ready = self._grpc.channel_ready_future(channel)
        try:
            ready.result(timeout=patience)
        except self._grpc.FutureTimeoutError:
            ready.cancel()
            channel.close()
            raise reply_timeout_error(f"the peer at {address}", patience) from None
        return channel

    def run(self, steps: int) -> None:
        """Run the given number of steps. A step ends when all calls of the step are answered.

        Raises:
            RankFailed: If a call fails.
        """
        try:
            for _ in range(steps):
                if len(self._calls) == 1:
                    self._calls[0](self._message)
                    continue
                for answer in [call.future(self._message) for call in self._calls]:
                    answer.result()
        except self._grpc.RpcError as error:
            reason = f"a call failed: {error.code().name}: {error.details()}"
            raise RankFailed("crash", reason) from error


def message_sizes(model: Mapping[str, Any]) -> Sequence[int]:
    """Return the sizes in bytes of the buffers into which a message is split.

    Args:
        model: The options of the model.

    Returns:
        Bytes of each buffer, in order.
    """
    if model.get("payload", "single") == "single":
        return [model["bytes"]]
    return buffer_sizes(model["payload"], model["buffers"])


def serve_calls(address: str, *, serialized: bool = False) -> Any:
    """Start a gRPC server that answers messages, and return it.

    The server runs until it is stopped or garbage-collected.

    Args:
        address: Address (host:port) to listen on.
        serialized: Whether protobuf decodes every message and encodes every echo.

    Raises:
        UnavailableError: If the address is in use, or if the interpreter under test lacks grpcio or
            protobuf.
    """
    grpc = require_grpc()
    encode = None
    decode = None
    if serialized:
        encode, decode = codec()
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(
            lambda request, _: request, request_deserializer=decode, response_serializer=encode
        ),
        "Take": grpc.unary_unary_rpc_method_handler(lambda _, __: b"", request_deserializer=decode),
    }
    server = grpc.server(ThreadPoolExecutor(_SERVER_THREADS), options=_SERVER_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise UnavailableError(
            f"the address {address} is in use; set model.port to a different port, or to 0 for any "
            "free port"
        ) from error
    server.start()
    return server
