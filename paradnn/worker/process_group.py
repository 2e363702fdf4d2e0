"""The other processes of a point that has several (`model=channel`): forked from its own, or on
other hosts (`python -m paradnn.worker.host`), and gone with it.

Each runs as many steps as it is asked for through a channel of its own. When one exits that should
not, the kernel kills the point's own process (SIGIO), whatever that is waiting for; the driver
reports it.
"""

import contextlib
import errno
import fcntl
import hmac
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn

from paradnn.core.channel import MessageError, encode, read_json, read_message
from paradnn.core.errors import PointEnded, UnavailableError
from paradnn.core.messages import PROTOCOL_VERSION
from paradnn.worker.fork_server import die_with_parent
from paradnn.worker.frameworks import Step

#: Seconds without any answer after which a peer counts as gone, that a process which failed leaves
#: the point's own process to report it, and to wait for another's report once this one has failed.
_LONGEST = 30.0
_GRACE = 10.0
_REPORT_SECONDS = 2.0
#: Bytes that a message may have: the longest is a point with its environment variables.
_MOST_BYTES = 1 << 20

LOOPBACK = "127.0.0.1"


def host_and_port(address: str) -> tuple[str, int]:
    """Both parts of host:port, the brackets of an IPv6 address taken off: `[::1]:5000`."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def with_port(host: str, port: int) -> str:
    """host:port, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(port: int, host: str = LOOPBACK, option: str = "model.port") -> socket.socket:
    """A socket that listens on `port`, 0 for a free one. Raises UnavailableError, naming `option`, where
    it is taken.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        if taken:
            why = "is taken"
        else:
            why = f"cannot be listened on: {os.strerror(error.errno or 0)}"
        raise UnavailableError(
            f"port {port} of {host} {why}; choose another with {option}, or 0"
        ) from error


class RankFailed(PointEnded):
    """Another process of the group failed with an outcome of its own."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(outcome, reason)
        self.outcome = outcome

    def __str__(self) -> str:
        return str(self.args[1])

    def message(self) -> bytes:
        """It as another process of the group raises it (`hear`)."""
        return encode({"outcome": self.outcome, "reason": str(self)})


def hear(channel: Connection, kind: Any) -> Any:
    """The next message, JSON that is read as a `kind` (`paradnn.core.channel`): nothing is
    unpickled. Raises the RankFailed that the other side says, MessageError for anything else,
    EOFError and OSError where the channel ends.
    """
    content = read_json(channel.recv_bytes(_MOST_BYTES))
    if isinstance(content, dict) and set(content) == {"outcome", "reason"}:
        raise RankFailed(str(content["outcome"]), str(content["reason"]))
    return read_message(kind, content, "message")


def reply_timeout(point: Mapping[str, Any]) -> float:
    """Seconds to wait for an answer: less than the driver waits for the point, so that the reason
    names the peer.
    """
    return float(min(_LONGEST, 0.5 * point["measure"]["timeout"]))


def silent(peer: str, seconds: float) -> RankFailed:
    """The outcome of a peer that does not answer."""
    return RankFailed("timeout", f"{peer} did not answer within {seconds:g} s")


@dataclass(frozen=True)
class RemoteProcess:
    """Process number `rank` of a point, on another host: host:port that is free for it, and the
    address of this host as it is known there. Over `channel` it is sent the addresses at which all
    find each other; `life` closes when either side exits.
    """

    rank: int
    address: str
    local: str
    channel: Connection
    life: int

    def close(self) -> None:
        os.close(self.life)
        self.channel.close()


class ProcessGroup:
    """Processes 1 to `count` - 1 of a point; this one is number 0. `serve(rank, channel)` runs in
    each of this host and returns when the channel closes; `elsewhere` are the last ones, on other
    hosts, which are there already.
    """

    def __init__(
        self,
        count: int,
        serve: Callable[[int, Connection], None],
        elsewhere: Sequence[RemoteProcess] = (),
    ) -> None:
        self.channels: list[Connection] = [each.channel for each in elsewhere]
        self._lives: list[int] = [each.life for each in elsewhere]
        self._pids: list[int] = []
        for rank in range(1, count - len(elsewhere)):
            ours, child = Pipe()
            life, held = os.pipe()
            point = os.getpid()
            pid = os.fork()
            if pid == 0:
                # Those of earlier ranks too: a pipe that is open here would still send its signal
                # when we close it.
                for each in (life, *self._lives):
                    os.close(each)
                run_rank(rank, point, child, [ours, *self.channels], serve)
            child.close()
            os.close(held)
            self.channels.append(ours)
            self._lives.append(life)
            self._pids.append(pid)
        for life in self._lives:
            die_with(life)

    def failure(self) -> RankFailed | None:
        """The failure that another process reports, waiting a moment for it."""
        deadline = time.monotonic() + _REPORT_SECONDS
        for channel in self.channels:
            try:
                while channel.poll(max(0.0, deadline - time.monotonic())):
                    hear(channel, int | None)
            except RankFailed as failure:
                return failure
            except (EOFError, OSError, MessageError):
                continue
        return None

    def close(self) -> None:
        """Kill the other processes; nothing more is asked of them."""
        for life in self._lives:
            os.close(life)
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)


class GroupStep(Step):
    """A step of all processes at once, of this one `step`, without a loss. Raises the RankFailed of
    another process.
    """

    def __init__(self, step: Step, group: ProcessGroup) -> None:
        self._step = step
        self._group = group

    def run(self, steps: int) -> None:
        try:
            for channel in self._group.channels:
                channel.send_bytes(encode(steps))
        except OSError as error:
            raise self._group.failure() or RankFailed(
                "crash", f"a process of the point is gone: {error}"
            ) from error
        self._step.run(steps)
        try:
            for channel in self._group.channels:
                hear(channel, int | None)
        except (EOFError, OSError):
            raise RankFailed("crash", "a process of the point exited without a report") from None


def serve_steps(channel: Connection, step: Step) -> None:
    """Run as many steps as are asked for, until the channel closes."""
    with contextlib.suppress(EOFError):
        while True:
            step.run(hear(channel, int))
            channel.send_bytes(encode(None))


def die_with(life: int) -> None:
    """Let the kernel kill this process by SIGIO when the other end of a pipe or a connection is
    closed, over which nothing is sent: Python cannot, where a framework waits for one that is gone
    and holds the interpreter's lock.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def run_rank(
    rank: int,
    point: int,
    channel: Connection,
    others: list[Connection],
    serve: Callable[[int, Connection], None],
) -> NoReturn:
    """What a forked process does; it exits without the clean-up of the process that it was forked
    from.
    """
    code = 1
    try:
        die_with_parent(point)
        for other in others:
            other.close()
        serve(rank, channel)
        code = 0
    except RankFailed as failure:
        with contextlib.suppress(OSError):
            channel.send_bytes(failure.message())
        time.sleep(_GRACE)
        print(failure, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


# Processes of a point on other hosts, where `python -m paradnn.worker.host` serves. The point's
# process connects to a server for each process that it wants there; both show that they know the
# same key before anything else is read, and before the server forks: it sends a number, drawn at
# random, and gets another with the proof for both (HMAC-SHA256), which it answers with its own.
# Each side knows the other by the connection's address: no host's name is looked up. A second
# connection ends each with the other (`die_with`).

#: The variable that holds the key of a server, and of those that may ask it.
KEY = "PARADNN_HOSTS_KEY"
#: Bytes of the numbers that are drawn, and of a proof.
_NONCE = 32
#: Seconds of silence until the kernel asks whether the other host is there, between two such
#: questions, and how many.
_ALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


@dataclass(frozen=True)
class Asked:
    """What a server is asked for: process number `rank` of a point (a request's), with these
    environment variables, that listens on `port`, 0: any that is free.
    """

    protocol: int
    rank: int
    port: int
    environ: Mapping[str, str]
    point: Mapping[str, Any]


def processes_elsewhere(point: Mapping[str, Any], count: int, port: int = 0) -> list[RemoteProcess]:
    """Those of `count` processes that are on other hosts, waiting to begin: each host has as many,
    this one the first of them. `port`: the first that each host's processes listen on, 0 for free
    ones. Raises UnavailableError, RankFailed.
    """
    hosts = int(point.get("hosts", 1))
    if hosts == 1:
        return []
    others = point["other_hosts"]
    each = count // hosts
    found: list[RemoteProcess] = []
    try:
        for rank in range(each, count):
            own_port = port and port + rank % each
            asked = Asked(
                PROTOCOL_VERSION, rank, own_port, others["environ"], {**point, "other_hosts": None}
            )
            address = others["addresses"][rank // each - 1]
            found.append(_ask(address, others["key"].encode(), asked, reply_timeout(point)))
    except BaseException:
        for one in found:
            one.close()
        raise
    return found


def _ask(address: str, key: bytes, asked: Asked, patience: float) -> RemoteProcess:
    """Connect to a server and have it start a process."""
    connected = _connect(host_and_port(address), address, patience)
    local = connected.getsockname()[0]
    there = connected.getpeername()[0]
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        try:
            _prove(connected, key, address, patience)
            channel = Connection(connected.detach())
        finally:
            connected.close()  # what is detached stays open
        channel.send_bytes(encode(asked))
        if not channel.poll(patience):
            raise silent(f"the server at {address}", patience)
        own_port, life_port = hear(channel, list[int])
    except AuthenticationError:
        raise UnavailableError(
            f"the server at {address} has another key: set the same {KEY} on both hosts"
        ) from None
    except (EOFError, OSError):
        raise RankFailed("crash", f"the server at {address} closed the connection") from None
    except ValueError as error:
        raise RankFailed(
            "crash", f"the server at {address} answered something else: {error}"
        ) from None
    life = _connect((there, life_port), address, patience)
    return RemoteProcess(asked.rank, with_port(there, own_port), local, channel, _keep(life))


def _prove(connected: socket.socket, key: bytes, address: str, patience: float) -> None:
    """Show that this side has the key, and see that the other has. Raises AuthenticationError."""
    connected.settimeout(patience)
    try:
        nonce = _receive(connected)
        own = os.urandom(_NONCE)
        if len(nonce) < _NONCE:
            raise EOFError
        connected.sendall(own + _proof(key, b"point", nonce + own))
        if not hmac.compare_digest(_receive(connected), _proof(key, b"server", own + nonce)):
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


class PendingConnection:
    """A connection to a server, until its other end has shown the key: nothing here waits. `since`:
    when it came.
    """

    def __init__(self, connected: socket.socket, since: float) -> None:
        self.connected = connected
        self.since = since
        self._own = os.urandom(_NONCE)
        self._said = b""
        connected.setblocking(False)
        connected.send(self._own)  # fits any buffer

    def is_known(self, key: bytes) -> bool:
        """Whether what it has said shows the key; False as long as that is open. Raises
        AuthenticationError where it has another, and OSError where it is gone.
        """
        part = self.connected.recv(2 * _NONCE - len(self._said))
        if not part:
            raise ConnectionError("it has gone")
        self._said += part
        if len(self._said) < 2 * _NONCE:
            return False
        other = self._said[:_NONCE]
        proof = self._said[_NONCE:]
        if not hmac.compare_digest(proof, _proof(key, b"point", self._own + other)):
            raise AuthenticationError
        self.connected.setblocking(True)
        self.connected.sendall(_proof(key, b"server", other + self._own))
        return True


def accept(
    connected: socket.socket, patience: float
) -> tuple[Asked, Connection, socket.socket, list[str]]:
    """What a client that has shown the key asks for, the channel to it, what this process listens
    on, and where the processes find each other. One that asks for nothing in `patience` seconds
    ends this process (SIGALRM).
    """
    local = connected.getsockname()[0]
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel = Connection(connected.detach())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, patience)
    try:
        asked: Asked = hear(channel, Asked)
        listening = listen(asked.port, local)
    except (MessageError, UnavailableError) as error:
        another = (
            f"the server at {local} is of another version of ParaDnn: start it again ({error})"
        )
        reason = another if isinstance(error, MessageError) else str(error)
        channel.send_bytes(RankFailed("unavailable", reason).message())
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    with closing(listen(0, local)) as awaiting:
        channel.send_bytes(encode([listening.getsockname()[1], awaiting.getsockname()[1]]))
        awaiting.settimeout(patience)
        life, _ = awaiting.accept()
    die_with(_keep(life))
    return asked, channel, listening, hear(channel, list[str])


def _connect(to: tuple[str, int], address: str, patience: float) -> socket.socket:
    try:
        connected = socket.create_connection(to, timeout=patience)
    except TimeoutError:
        raise silent(f"the server at {address}", patience) from None
    except OSError as error:
        raise UnavailableError(
            f"the server at {address} cannot be reached: {error.strerror or error}"
        ) from error
    connected.settimeout(None)
    return connected


def _keep(life: socket.socket) -> int:
    """The descriptor of a connection of whose other end the kernel asks now and then whether it is
    there.
    """
    life.settimeout(None)
    life.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE:
        life.setsockopt(socket.IPPROTO_TCP, name, value)
    return life.detach()
