"""Messages over gRPC, by its Python library: unary calls of bytes, without generated code.

The server echoes (latency) or answers with nothing; serialized messages are encoded and decoded on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from paradnn.worker.errors import Unavailable
from paradnn.worker.process_group import RankFailed, silent
from paradnn.workloads.channel.payload import decode, encode

_SERVICE = "paradnn.Messages"
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),  # else two servers share a port, and messages go to either
)
#: Threads that answer calls.
_THREADS = 8
#: A window of calls is more than a server keeps waiting for a thread by itself: it cancels some beyond 1,000, all
#: beyond 3,000, and any after 30 s.
_SERVER_OPTIONS = (
    *_OPTIONS,
    ("grpc.server.max_pending_requests", 2**24),
    ("grpc.server.max_pending_requests_hard_limit", 2**24),
    ("grpc.server_max_unrequested_time_in_server", 24 * 60 * 60),
)


def require_grpc() -> Any:
    """The library. Raises Unavailable where the interpreter under test lacks it."""
    try:
        import grpc
    except ImportError as error:
        raise Unavailable(f"model.transport=grpc needs the package grpcio in this interpreter: {error}") from error
    return grpc


def _joined(buffers: Sequence[bytes]) -> bytes:
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def _plain(data: bytes) -> bytes:
    return data


class GrpcStep:
    """A step of calls to one server or several: each echoed, or so many at once that are answered."""

    def __init__(self, point: Mapping[str, Any], addresses: Sequence[str], buffers: list[bytes], wait: float) -> None:
        grpc, model = require_grpc(), point["model"]
        self._grpc, self._buffers, self._patience = grpc, buffers, wait
        self._window = model["window"] if model["pattern"] == "bandwidth" else 1
        echoes, coded = model["pattern"] == "latency", bool(model["serialized"])
        # A deadline costs a timer for every call: only who cannot watch the peer itself needs one.
        self._deadline = wait if model["peer"] else None
        self._channels: list[Any] = []
        try:
            for address in addresses:
                self._channels.append(grpc.insecure_channel(address, options=_OPTIONS))
                self._await(address)
        except BaseException:
            self.close()
            raise
        self._calls = [
            channel.unary_unary(
                _method(echoes, coded),
                request_serializer=encode if coded else _joined,
                response_deserializer=decode if coded and echoes else _plain,
            )
            for channel in self._channels
        ]

    def _await(self, address: str) -> None:
        """Until the newest channel is connected."""
        ready = self._grpc.channel_ready_future(self._channels[-1])
        try:
            ready.result(timeout=self._patience)
        except self._grpc.FutureTimeoutError:
            ready.cancel()
            raise silent(f"the peer at {address}", self._patience) from None

    def close(self) -> None:
        """End all connections, and the threads that watch them."""
        for channel in self._channels:
            channel.close()

    def run(self, steps: int) -> None:
        """So many steps; each ends when all calls are answered."""
        try:
            if self._window == 1 and len(self._calls) == 1:
                for _ in range(steps):
                    self._calls[0](self._buffers, timeout=self._deadline)
                return
            for _ in range(steps):
                sent = [
                    call.future(self._buffers, timeout=self._deadline)
                    for call in self._calls
                    for _ in range(self._window)
                ]
                for answer in sent:
                    answer.result()
        except self._grpc.RpcError as error:
            if error.code() is self._grpc.StatusCode.DEADLINE_EXCEEDED:
                raise silent("the peer", self._patience) from None
            raise RankFailed("crash", f"a call failed: {error.code().name}: {error.details()}") from error


def serve_calls(address: str) -> Any:
    """A server that is started, and runs until it is dropped. Raises Unavailable where the address is taken."""
    grpc = require_grpc()
    handlers: dict[str, Any] = {}
    for echoes in (False, True):
        for coded in (False, True):
            handlers[_method(echoes, coded).rpartition("/")[2]] = grpc.unary_unary_rpc_method_handler(
                _echo if echoes else _take,
                request_deserializer=decode if coded else _plain,
                response_serializer=encode if coded and echoes else _plain,
            )
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=_SERVER_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise Unavailable(f"{address} is taken; choose another port with model.port, or 0") from error
    server.start()
    return server


def _method(echoes: bool, coded: bool) -> str:
    return f"/{_SERVICE}/{'Echo' if echoes else 'Take'}{'Serialized' if coded else ''}"


def _echo(request: Any, context: Any) -> Any:
    return request


def _take(request: Any, context: Any) -> bytes:
    return b""
