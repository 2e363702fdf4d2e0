"""Messages over TCP: the floor under every transport that uses the network.

A connection begins with a header that says what will come; from then on both sides know how long every message is. The
server echoes each message (latency), or answers a window of them with one byte.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from paradnn.worker.addresses import host_and_port, with_port
from paradnn.worker.errors import Unavailable
from paradnn.worker.process_group import RankFailed, silent, truncated
from paradnn.workloads.channel.payload import decode, encode

#: A magic word, bytes of a message on the wire, messages that are answered together (0: each is echoed), serialized.
_HEADER = struct.Struct("!8sQIB")
_MAGIC = b"paradnn1"
_READY = b"!"
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

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """All buffers, one after the other, in as few calls as the system takes. Raises RankFailed."""
        try:
            if len(buffers) == 1:
                self._socket.sendall(buffers[0])
                return
            left = list(buffers)
            while left:
                sent = self._socket.sendmsg(left)
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if sent:
                    left[0] = memoryview(left[0])[sent:]
        except BlockingIOError:
            raise silent(self._peer, self._patience or 0.0) from None
        except OSError as error:
            raise RankFailed("crash", f"{self._peer} closed the connection: {error.strerror}") from error

    def receive(self, into: memoryview) -> None:
        """Fill `into`. Raises RankFailed, and EOFError where the connection ends between two messages."""
        got, wanted = 0, len(into)
        while got < wanted:
            try:
                count = self._socket.recv_into(into[got : got + _PIECE])
            except BlockingIOError:
                raise silent(self._peer, self._patience or 0.0) from None
            except OSError as error:
                raise RankFailed("crash", f"{self._peer} closed the connection: {error.strerror}") from error
            if not count and not got:
                raise EOFError
            if not count:
                raise truncated(self._peer, got, wanted)
            got += count

    def answer(self, into: memoryview) -> None:
        """As `receive`, of a message that must come."""
        try:
            self.receive(into)
        except EOFError:
            raise truncated(self._peer, 0, len(into)) from None


class TcpStep:
    """A step over connections to one server or several: a message there and back, or a window that is answered."""

    def __init__(self, point: Mapping[str, Any], addresses: Sequence[str], buffers: list[bytes], wait: float) -> None:
        model = point["model"]
        self._buffers, self._serialized = buffers, bool(model["serialized"])
        size = len(encode(buffers)) if self._serialized else sum(map(len, buffers))
        self._echoes = model["pattern"] == "latency"
        self._window = model["window"] if model["pattern"] == "bandwidth" else 1
        self._back = memoryview(bytearray(size if self._echoes else 1))
        self._connections: list[Connection] = []
        header = _HEADER.pack(_MAGIC, size, 0 if self._echoes else self._window, self._serialized)
        try:
            for address in addresses:
                self._connections.append(Connection.to(host_and_port(address), wait))
                self._connections[-1].send([header])
                self._greeted(self._connections[-1], address, size)
        except BaseException:
            self.close()
            raise

    def _greeted(self, connection: Connection, address: str, size: int) -> None:
        """Raises Unavailable where what listens there is no server of this module, or does not take such messages."""
        try:
            connection.receive(self._back[:1])
        except EOFError:
            reason = f"takes no messages of {size:,} bytes; start it with a larger --most-bytes"
            raise Unavailable(f"the peer at {address} {reason}, or give its port if this is not its") from None
        if self._back[:1] != _READY:
            reason = "is another program; start python -m paradnn.worker.communication.peer"
            raise Unavailable(f"the peer at {address} {reason}, and give its port")

    def close(self) -> None:
        """End all connections."""
        for connection in self._connections:
            connection.close()

    def run(self, steps: int) -> None:
        """So many steps; each ends when all servers have answered."""
        for _ in range(steps):
            for connection in self._connections:
                for _ in range(self._window):
                    connection.send([encode(self._buffers)] if self._serialized else self._buffers)
            for connection in self._connections:
                connection.answer(self._back)
                if self._serialized and self._echoes:
                    decode(self._back)


def serve_connections(listening: socket.socket, most_bytes: int | None = None) -> None:
    """Serve every connection in a thread of its own until the socket closes; a fault ends its connection alone."""
    while listening.fileno() >= 0:
        try:
            connected, (host, port, *_) = listening.accept()
        except OSError:  # it is closed, or who connected is gone, or too many are connected
            time.sleep(_PAUSE)
            continue
        connection = Connection(connected, f"the peer at {with_port(host, port)}", None)
        threading.Thread(target=_serve, args=(connected, connection, most_bytes), daemon=True).start()


def _serve(connected: socket.socket, connection: Connection, most_bytes: int | None) -> None:
    with connected, contextlib.suppress(EOFError, RankFailed, ValueError, MemoryError):
        header = memoryview(bytearray(_HEADER.size))
        connection.receive(header)
        magic, size, window, serialized = _HEADER.unpack(header)
        if magic != _MAGIC or not size or (most_bytes is not None and size > most_bytes):
            return
        message = memoryview(bytearray(size))
        connection.send([_READY])
        while True:
            for _ in range(max(1, window)):
                connection.receive(message)
                buffers = decode(message) if serialized else [message]
            connection.send([_READY] if window else [encode(buffers)] if serialized else buffers)
