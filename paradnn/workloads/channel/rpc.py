"""Messages over gRPC, by its Python library: unary calls of bytes, without generated code.

The server echoes (latency) or answers with nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from paradnn.worker.errors import Unavailable
from paradnn.worker.process_group import RankFailed, silent

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


class GrpcStep:
    """A step of calls to a server: one that is echoed, or so many at once that are answered."""

    def __init__(self, point: Mapping[str, Any], address: str, message: bytes, patience: float) -> None:
        grpc, model = require_grpc(), point["model"]
        self._grpc, self._message = grpc, message
        self._window = model["window"] if model["pattern"] == "bandwidth" else 1
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(timeout=patience)
        except grpc.FutureTimeoutError:
            ready.cancel()
            self.close()
            raise silent(f"the peer at {address}", patience) from None
        self._call = self._channel.unary_unary(f"/{_SERVICE}/{'Echo' if model['pattern'] == 'latency' else 'Take'}")

    def close(self) -> None:
        """End the connection, and the threads that watch it."""
        self._channel.close()

    def run(self, steps: int) -> None:
        """So many steps; each ends when all calls are answered."""
        try:
            if self._window == 1:
                for _ in range(steps):
                    self._call(self._message)
                return
            for _ in range(steps):
                for answer in [self._call.future(self._message) for _ in range(self._window)]:
                    answer.result()
        except self._grpc.RpcError as error:
            raise RankFailed("crash", f"a call failed: {error.code().name}: {error.details()}") from error


def serve_calls(address: str) -> Any:
    """A server that is started, and runs until it is dropped. Raises Unavailable where the address is taken."""
    grpc = require_grpc()
    answers = {"Echo": lambda request, _: request, "Take": lambda _, __: b""}
    handlers = {name: grpc.unary_unary_rpc_method_handler(answer) for name, answer in answers.items()}
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=_SERVER_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise Unavailable(f"{address} is taken; choose another port with model.port, or 0") from error
    server.start()
    return server
