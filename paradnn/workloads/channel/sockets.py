"""Messages over TCP: the floor under every transport that uses the network.

Both sides know how long every message is. The server echoes each (latency), or answers a window of them with one byte.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any

from paradnn.worker.addresses import host_and_port, with_port
from paradnn.worker.errors import Unavailable
from paradnn.worker.process_group import RankFailed, silent, truncated

_TIME = struct.Struct("ll")
#: Most bytes of a read: the kernel lets the sender go on when a read ends, and so a read of 1 MiB halves the rate.
_PIECE = 1 << 16
#: Seconds before another connection is accepted, once one could not be.
_PAUSE = 0.1


class Connection:
    """A connected socket whose reads and writes end after `patience` seconds without progress (None: never)."""

    def __init__(self, connected: socket.socket, peer: str, patience: float | None) -> None:
        self._socket, self._peer, self._patience = connected, peer, patience
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if patience is not None:
            connected.settimeout(None)  # the kernel keeps the time: Python would ask before every read
            limit = _TIME.pack(int(patience), int(patience % 1 * 1e6))
            for name in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connected.setsockopt(socket.SOL_SOCKET, name, limit)

    @classmethod
    def to(cls, address: tuple[str, int], patience: float) -> Connection:
        """Connected to a server. Raises Unavailable where none listens, RankFailed where none answers."""
        peer = f"the peer at {with_port(*address)}"
        try:
            return cls(socket.create_connection(address, timeout=patience), peer, patience)
        except TimeoutError:
            raise silent(peer, patience) from None
        except OSError as error:
            raise Unavailable(f"{peer} cannot be reached: {error.strerror or error}") from error

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    def send(self, message: bytes | memoryview) -> None:
        """All of a message. Raises RankFailed."""
        try:
            self._socket.sendall(message)
        except OSError as error:
            raise self._failed(error) from error

    def receive(self, into: memoryview) -> None:
        """Fill `into`. Raises RankFailed."""
        got, wanted = 0, len(into)
        while got < wanted:
            try:
                count = self._socket.recv_into(into[got : got + _PIECE])
            except OSError as error:
                raise self._failed(error) from error
            if not count:
                raise truncated(self._peer, got, wanted)
            got += count

    def _failed(self, error: OSError) -> RankFailed:
        if isinstance(error, BlockingIOError):
            return silent(self._peer, self._patience or 0.0)
        return RankFailed("crash", f"{self._peer} closed the connection: {error.strerror}")


def _lengths(point: Mapping[str, Any]) -> tuple[int, int, int]:
    """Messages that are answered together, bytes of each, and bytes of the answer."""
    model = point["model"]
    size = int(model["bytes"])
    return (1, size, size) if model["pattern"] == "latency" else (int(model["window"]), size, 1)


class TcpStep:
    """A step over a connection to a server: a message there and back, or a window that is answered."""

    def __init__(self, point: Mapping[str, Any], address: str, message: bytes, patience: float) -> None:
        self._window, _, back = _lengths(point)
        self._message, self._back = message, memoryview(bytearray(back))
        self._connection = Connection.to(host_and_port(address), patience)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def run(self, steps: int) -> None:
        """So many steps; each ends when the server has answered."""
        for _ in range(steps):
            for _ in range(self._window):
                self._connection.send(self._message)
            self._connection.receive(self._back)


def serve_connections(listening: socket.socket, point: Mapping[str, Any]) -> None:
    """Serve every connection in a thread of its own until the socket closes; a fault ends its connection alone."""
    while listening.fileno() >= 0:
        try:
            connected, (host, port, *_) = listening.accept()
        except OSError:  # it is closed, or who connected is gone, or too many are connected
            time.sleep(_PAUSE)
            continue
        connection = Connection(connected, f"the peer at {with_port(host, port)}", None)
        threading.Thread(target=_serve, args=(connected, connection, point), daemon=True).start()


def _serve(connected: socket.socket, connection: Connection, point: Mapping[str, Any]) -> None:
    window, size, back = _lengths(point)
    with connected, contextlib.suppress(RankFailed):
        message = memoryview(bytearray(size))
        while True:
            for _ in range(window):
                connection.receive(message)
            connection.send(message[:back])
