"""Processes of a point on other hosts, where `python -m paradnn.worker.host` serves.

The point's process connects to a server for each process that it wants there; both show that they know the same key
before anything else is read, and before the server forks: it sends a number, drawn at random, and gets another with
the proof for both (HMAC-SHA256), which it answers with its own. Each side then knows the other by the address that
the connection has: no host's name is looked up. A second connection, over which nothing is sent, ends each with the
other (`process_group.die_with`); the kernel looks every few seconds whether the other host is still there.
"""

from __future__ import annotations

import hmac
import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from typing import Any

from paradnn.worker.addresses import LOOPBACK, host_and_port, listen, with_port
from paradnn.worker.errors import Unavailable
from paradnn.worker.messages import PROTOCOL_VERSION
from paradnn.worker.process_group import RankFailed, die_with, patience_of, silent
from paradnn.worker.remote_process import RemoteProcess

__all__ = ["KEY", "Asked", "Stranger", "accept", "local_address", "processes_elsewhere"]

#: The variable that holds the key of a server, and of those that may ask it.
KEY = "PARADNN_HOSTS_KEY"
#: Bytes of the numbers that are drawn, and of a proof.
_NONCE = 32
#: Seconds of silence until the kernel asks whether the other host is there, between two such questions, and how many.
_ALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


@dataclass(frozen=True)
class Asked:
    """What a server is asked for: process number `rank` of a point (a request's), with these environment variables.

    `port` is what it shall listen on, 0: any that is free.
    """

    protocol: int
    rank: int
    port: int
    environ: Mapping[str, str]
    point: Mapping[str, Any]


def processes_elsewhere(point: Mapping[str, Any], count: int, port: int = 0) -> list[RemoteProcess]:
    """Those of `count` processes that are on other hosts: each host has as many, this one the first of them.

    They wait to begin. `port`: the first that each host's processes listen on, 0 for free ones. Raises Unavailable and
    RankFailed.
    """
    hosts = int(point.get("hosts", 1))
    if hosts == 1:
        return []
    others, each = point["other_hosts"], count // hosts
    found: list[RemoteProcess] = []
    try:
        for rank in range(each, count):
            own_port = port and port + rank % each
            asked = Asked(PROTOCOL_VERSION, rank, own_port, others["environ"], {**point, "other_hosts": None})
            address = others["addresses"][rank // each - 1]
            found.append(_ask(address, others["key"].encode(), asked, patience_of(point)))
    except BaseException:
        for one in found:
            one.close()
        raise
    return found


def local_address(elsewhere: Sequence[RemoteProcess]) -> str:
    """Where processes of this host listen: the loopback, where there are no others."""
    return elsewhere[0].local if elsewhere else LOOPBACK


def _ask(address: str, key: bytes, asked: Asked, patience: float) -> RemoteProcess:
    """Connect to a server and have it start a process."""
    connected = _connect(host_and_port(address), address, patience)
    local, there = connected.getsockname()[0], connected.getpeername()[0]
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        with _closed_on_fault(connected):
            _prove(connected, key, address, patience)
        channel = Connection(connected.detach())
        channel.send(asked)
        _wait(channel, address, patience)
        answer = channel.recv()
    except AuthenticationError:
        raise Unavailable(f"the server at {address} has another key: set the same {KEY} on both hosts") from None
    except (EOFError, OSError):
        raise RankFailed("crash", f"the server at {address} closed the connection") from None
    if isinstance(answer, Exception):
        raise answer
    own_port, life_port = answer
    life = _connect((there, life_port), address, patience)
    return RemoteProcess(asked.rank, with_port(there, own_port), local, channel, _keep(life))


@contextmanager
def _closed_on_fault(connected: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connected.close()
        raise


def _prove(connected: socket.socket, key: bytes, address: str, patience: float) -> None:
    """Show that this side has the key, and see that the other has. Raises AuthenticationError."""
    connected.settimeout(patience)
    try:
        theirs, own = _receive(connected), os.urandom(_NONCE)
        if len(theirs) < _NONCE:
            raise EOFError
        connected.sendall(own + _proof(key, b"point", theirs + own))
        if not hmac.compare_digest(_receive(connected), _proof(key, b"server", own + theirs)):
            raise AuthenticationError
    except ConnectionError:
        raise EOFError from None
    except TimeoutError:
        raise silent(f"the server at {address}", patience) from None
    connected.settimeout(None)


def _receive(connected: socket.socket) -> bytes:
    """As many bytes as a proof has, fewer where the other side ends before."""
    data = b""
    while len(data) < _NONCE and (part := connected.recv(_NONCE - len(data))):
        data += part
    return data


def _proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, side + nonces, "sha256")


class Stranger:
    """A connection to a server, until whoever is there has shown the key: nothing here waits.

    `since`: when it came, on a clock of the caller's.
    """

    def __init__(self, connected: socket.socket, since: float) -> None:
        self.connected, self.since = connected, since
        self._own, self._said = os.urandom(_NONCE), b""
        connected.setblocking(False)
        connected.send(self._own)  # fits any buffer

    def is_known(self, key: bytes) -> bool:
        """Read what it has said: whether it has the key; False as long as that is open.

        Raises AuthenticationError where it has another, and OSError where it is gone.
        """
        part = self.connected.recv(2 * _NONCE - len(self._said))
        if not part:
            raise ConnectionError("it has gone")
        self._said += part
        if len(self._said) < 2 * _NONCE:
            return False
        other, proof = self._said[:_NONCE], self._said[_NONCE:]
        if not hmac.compare_digest(proof, _proof(key, b"point", self._own + other)):
            raise AuthenticationError
        self.connected.setblocking(True)
        self.connected.sendall(_proof(key, b"server", other + self._own))
        return True


def accept(connected: socket.socket, patience: float) -> tuple[Asked, Connection, socket.socket, list[str]]:
    """The other side, once it knows who is there: what is asked for, the channel to the point's process, what this
    process listens on, and where the processes find each other. Raises RankFailed, and what a connection that is no
    point's raises. A client that asks for nothing in `patience` seconds ends this process (SIGALRM)."""
    local = connected.getsockname()[0]
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel = Connection(connected.detach())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, patience)
    asked: Asked = channel.recv()
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        if asked.protocol != PROTOCOL_VERSION:
            raise Unavailable(f"the server at {local} is of another version of ParaDnn: start it again")
        listening = listen(asked.port, local)
    except Unavailable as error:
        channel.send(error)
        raise
    with closing(listen(0, local)) as awaiting:
        channel.send((listening.getsockname()[1], awaiting.getsockname()[1]))
        awaiting.settimeout(patience)
        life, _ = awaiting.accept()
    die_with(_keep(life))
    return asked, channel, listening, list(channel.recv())


def _connect(to: tuple[str, int], address: str, patience: float) -> socket.socket:
    try:
        connected = socket.create_connection(to, timeout=patience)
    except TimeoutError:
        raise silent(f"the server at {address}", patience) from None
    except OSError as error:
        raise Unavailable(f"the server at {address} cannot be reached: {error.strerror or error}") from error
    connected.settimeout(None)
    return connected


def _wait(channel: Connection, address: str, patience: float) -> None:
    """Wait for its next message."""
    if not channel.poll(patience):
        raise silent(f"the server at {address}", patience)


def _keep(life: socket.socket) -> int:
    """The descriptor of a connection of whose other end the kernel asks now and then whether it is there."""
    life.settimeout(None)
    life.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE:
        life.setsockopt(socket.IPPROTO_TCP, name, value)
    return life.detach()
