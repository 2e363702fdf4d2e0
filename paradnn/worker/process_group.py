"""The additional processes of a multi-process point: `model=channel`, or training.

The point's own process forks them, or they run on other hosts (`python -m paradnn.worker.host`).
They end when the point's own process ends.

Each process runs the requested number of steps, which it receives over its own channel. If one
exits unexpectedly, the kernel kills the point's own process (SIGIO), even while that process is
blocked. The driver reports the failure.
"""

import contextlib
import errno
import fcntl
import hmac
import os
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

from paradnn.core.channel import MessageError, encode, read_json, read_message
from paradnn.core.errors import PointEnded, UnavailableError
from paradnn.core.messages import PROTOCOL_VERSION
from paradnn.worker.fork_server import die_with_parent
from paradnn.worker.frameworks import Step

#: Seconds without a reply after which a peer counts as gone (_LONGEST). Seconds that a failed
#: process leaves the point's own process to report the failure (_GRACE). Seconds to wait for
#: another process's report after this process has failed (_REPORT_SECONDS).
_LONGEST = 30.0
_GRACE = 10.0
_REPORT_SECONDS = 2.0
#: Largest message in bytes. The longest messages are points with their environment variables.
_MAX_BYTES = 1 << 20

LOOPBACK = "127.0.0.1"
#: The request for the IPv4 address of an interface (netdevice(7)).
_SIOCGIFADDR = 0x8915


def host_and_port(address: str) -> tuple[str, int]:
    """Split host:port into its parts, without the brackets of an IPv6 address (`[::1]:5000`)."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def with_port(host: str, port: int) -> str:
    """Return host:port, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def interface_of(host: str) -> str | None:
    """Return the name of the network interface that has an address of this host, such as "eth0".

    None if the system does not report it.
    """
    with contextlib.suppress(OSError):
        if ":" in host:
            packed = socket.inet_pton(socket.AF_INET6, host).hex()
            for line in Path("/proc/net/if_inet6").read_text().splitlines():
                address, *_, name = line.split()
                if address == packed:
                    return name
            return None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode())
                with contextlib.suppress(OSError):  # an interface without an IPv4 address
                    answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
                    if socket.inet_ntoa(answer[20:24]) == host:
                        return name
    return None


def listen(port: int, host: str = LOOPBACK, option: str = "model.port") -> socket.socket:
    """Return a socket that listens on a port.

    Args:
        port: The port; 0 for any free one.
        host: The address to listen on.
        option: The option that the error message proposes to change.

    Raises:
        UnavailableError: If the port is taken or cannot be listened on.
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


def free_addresses(count: int, host: str = LOOPBACK, first: int = 0) -> list[str]:
    """Return the addresses of free ports, host:port, for programs that open them later.

    Args:
        count: The number of ports.
        host: The address of this host.
        first: The first port; 0 for any free ones.

    Raises:
        UnavailableError: If a port is taken.
    """
    # Keep each socket open until the last is chosen, so that no port is chosen twice.
    with contextlib.ExitStack() as sockets:
        free = [
            sockets.enter_context(listen(first and first + number, host)) for number in range(count)
        ]
        return [with_port(*listening.getsockname()[:2]) for listening in free]


class RankFailed(PointEnded):
    """Failure of another process of the group, with its own outcome."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(outcome, reason)
        self.outcome = outcome

    def __str__(self) -> str:
        return str(self.args[1])

    def message(self) -> bytes:
        """Return the message from which `receive_message` raises this failure in another process."""
        return encode({"outcome": self.outcome, "reason": str(self)})


def receive_message(channel: Connection, kind: Any) -> Any:
    """Return the next message of a channel, parsed as a `kind`.

    The message is JSON, read by `paradnn.core.channel`; nothing is unpickled.

    Args:
        channel: The channel to read.
        kind: The expected type of the message.

    Raises:
        RankFailed: If the other side reports a failure.
        MessageError: If the message is not a valid `kind`.
        EOFError: If the channel is closed.
        OSError: If the channel is broken.
    """
    content = read_json(channel.recv_bytes(_MAX_BYTES))
    if isinstance(content, dict) and set(content) == {"outcome", "reason"}:
        raise RankFailed(str(content["outcome"]), str(content["reason"]))
    return read_message(kind, content, "message")


def reply_timeout(point: Mapping[str, Any]) -> float:
    """Return the seconds to wait for a reply.

    They are fewer than the driver waits for the point, so that the reason names the peer.
    """
    return float(min(_LONGEST, 0.5 * point["measure"]["timeout"]))


def reply_timeout_error(peer: str, seconds: float) -> RankFailed:
    """Return the failure of a peer that does not reply."""
    return RankFailed("timeout", f"{peer} did not answer within {seconds:g} s")


@dataclass(frozen=True)
class RemoteProcess:
    """Process of a point on another host.

    Attributes:
        rank: The number of the process in its point.
        address: Free address (host:port) at which the process can listen.
        local: The address of this host as the other host sees it.
        channel: Sends the process the addresses at which all processes find each other.
        life: Descriptor of a connection that closes when either side exits.
    """

    rank: int
    address: str
    local: str
    channel: Connection
    life: int

    def close(self) -> None:
        os.close(self.life)
        self.channel.close()


class ProcessGroup(contextlib.AbstractContextManager["ProcessGroup"]):
    """Processes 1 to `count` - 1 of a point; the calling process is number 0.

    The processes end with the context, at the latest with the calling process.

    Args:
        count: The number of processes of the point.
        serve: Runs in each further process of this host as `serve(rank, channel)`. It returns when
            the channel closes.
        elsewhere: The processes on other hosts, which have the highest ranks and exist already.
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
                # Close the pipes of earlier ranks too. A copy that stays open in this process would
                # still send the parent its signal after the parent has closed the pipe.
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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # A process that fails takes the others with it. The first one says why, unless this process
        # knows itself: its memory ended, or it lacks something.
        first = None
        knows_reason = isinstance(error, MemoryError | UnavailableError)
        if isinstance(error, Exception) and not knows_reason:
            first = self.failure()
        self.close()
        if first:
            raise first from error

    def failure(self) -> RankFailed | None:
        """Return the failure that another process reports within `_REPORT_SECONDS`."""
        deadline = time.monotonic() + _REPORT_SECONDS
        for channel in self.channels:
            try:
                while channel.poll(max(0.0, deadline - time.monotonic())):
                    receive_message(channel, Any)
            except RankFailed as failure:
                return failure
            except (EOFError, OSError, MessageError):
                continue
        return None

    def close(self) -> None:
        """Kill the other processes. The group is unusable afterwards."""
        for life in self._lives:
            os.close(life)
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)

    def send(self, message: Any) -> None:
        """Send a message to every other process.

        Raises:
            RankFailed: If a process has exited.
        """
        try:
            for channel in self.channels:
                channel.send_bytes(encode(message))
        except OSError as error:
            raise self.failure() or RankFailed(
                "crash", f"a process of the point exited: {error}"
            ) from error

    def receive(self, kind: Any) -> list[Any]:
        """Return the next message of every other process, parsed as a `kind`, by rank.

        Raises:
            RankFailed: If a process reports a failure, or has exited.
        """
        try:
            return [receive_message(channel, kind) for channel in self.channels]
        except (EOFError, OSError):
            raise RankFailed("crash", "a process of the point exited without a report") from None


class GroupStep(Step):
    """Step that all processes run at once, without a loss; `step` is this process's part.

    `run` raises the RankFailed of another process.
    """

    def __init__(self, step: Step, group: ProcessGroup) -> None:
        self._step = step
        self._group = group

    def run(self, steps: int) -> None:
        self._group.send(steps)
        self._step.run(steps)
        self._group.receive(int | None)


def serve_steps(channel: Connection, step: Step) -> None:
    """Run the requested numbers of steps until the channel closes."""
    with contextlib.suppress(EOFError):
        while True:
            step.run(receive_message(channel, int))
            channel.send_bytes(encode(None))


def die_with(life: int) -> None:
    """Let the kernel kill this process by SIGIO when the other end of `life` closes.

    `life` is a pipe or a connection that carries no data. Python code could not react, because a
    framework may wait for the missing process while it holds the interpreter's lock.
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
    """Run a forked process, and exit without the clean-up of its parent.

    Args:
        rank: The number of the process in its point.
        point: The id of the parent process.
        channel: The channel to the parent.
        others: Inherited channels, which this process closes.
        serve: The work of the process.
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


# Processes of a point on other hosts, where `python -m paradnn.worker.host` serves. The point's own
# process opens one connection to a server for each process that it needs there. Both sides prove
# that they have the same key before they read anything else, and before the server forks. The
# server sends a random nonce. The client replies with its own nonce and a proof over both
# (HMAC-SHA256), and the server replies with its own proof. Each side identifies the other by the
# address of the connection; no host name is looked up. A second connection ends each process when
# the other ends (`die_with`).

#: Environment variable with the key that a server and its clients share.
KEY = "PARADNN_HOSTS_KEY"
#: Bytes of a nonce, and of a proof.
_NONCE = 32
#: TCP keep-alive: seconds of silence before the first probe, seconds between probes, and the number
#: of unanswered probes after which the connection counts as closed.
_ALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


@dataclass(frozen=True)
class ProcessRequest:
    """Request for a process of a point, sent to a server.

    Attributes:
        protocol: The version of the protocol.
        rank: The number of the process in its point.
        port: The port to listen on; 0 for any free one.
        environ: Environment variables of the process.
        point: The point as in a request to a worker.
    """

    protocol: int
    rank: int
    port: int
    environ: Mapping[str, str]
    point: Mapping[str, Any]


def processes_elsewhere(point: Mapping[str, Any], count: int, port: int = 0) -> list[RemoteProcess]:
    """Start the processes of a point that run on other hosts; they wait to begin.

    Every host runs the same number of processes. This host runs the first of them.

    Args:
        point: The point as in a request to a worker.
        count: The number of processes of the point on all hosts.
        port: The first port that the processes of each host listen on; 0 for free ports.

    Raises:
        UnavailableError: If a server cannot be reached or has another key.
        RankFailed: If a server fails or does not reply.

    Returns:
        The processes by rank; empty if all processes of the point run on this host.
    """
    hosts = int(point.get("hosts", 1))
    others = point.get("other_hosts")
    if hosts == 1 or others is None:
        return []
    each = count // hosts
    found: list[RemoteProcess] = []
    try:
        for rank in range(each, count):
            own_port = port and port + rank % each
            request = ProcessRequest(
                PROTOCOL_VERSION, rank, own_port, others["environ"], {**point, "other_hosts": None}
            )
            address = others["addresses"][rank // each - 1]
            found.append(_ask(address, others["key"].encode(), request, reply_timeout(point)))
    except BaseException:
        for one in found:
            one.close()
        raise
    return found


def _ask(address: str, key: bytes, request: ProcessRequest, patience: float) -> RemoteProcess:
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
            connected.close()  # a detached socket stays open
        channel.send_bytes(encode(request))
        if not channel.poll(patience):
            raise reply_timeout_error(f"the server at {address}", patience)
        own_port, life_port = receive_message(channel, list[int])
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
    return RemoteProcess(request.rank, with_port(there, own_port), local, channel, _keep(life))


def _prove(connected: socket.socket, key: bytes, address: str, patience: float) -> None:
    """Prove that this side has the key, and verify the proof of the other side.

    Raises:
        AuthenticationError: If the other side has another key.
        EOFError: If the other side closes the connection.
        RankFailed: If the other side does not reply in time.
    """
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
        raise reply_timeout_error(f"the server at {address}", patience) from None
    connected.settimeout(None)


def _receive(connected: socket.socket) -> bytes:
    """Receive a proof; return fewer bytes if the connection closes early."""
    data = b""
    while len(data) < _NONCE and (part := connected.recv(_NONCE - len(data))):
        data += part
    return data


def _proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, side + nonces, "sha256")


class PendingConnection:
    """Connection whose client has not shown the key to this server yet. No method waits.

    Attributes:
        connected: The socket of the connection.
        since: The time at which the client connected.
    """

    def __init__(self, connected: socket.socket, since: float) -> None:
        self.connected = connected
        self.since = since
        self._own = os.urandom(_NONCE)
        self._received = b""
        connected.setblocking(False)
        connected.send(self._own)  # fits any buffer

    def is_known(self, key: bytes) -> bool:
        """Return whether the received bytes prove the key; False while they are incomplete.

        Raises:
            AuthenticationError: If the client has another key.
            OSError: If the client is gone.
        """
        part = self.connected.recv(2 * _NONCE - len(self._received))
        if not part:
            raise ConnectionError("it exited")
        self._received += part
        if len(self._received) < 2 * _NONCE:
            return False
        other = self._received[:_NONCE]
        proof = self._received[_NONCE:]
        if not hmac.compare_digest(proof, _proof(key, b"point", self._own + other)):
            raise AuthenticationError
        self.connected.setblocking(True)
        self.connected.sendall(_proof(key, b"server", other + self._own))
        return True


def accept(
    connected: socket.socket, patience: float
) -> tuple[ProcessRequest, Connection, socket.socket, list[str]]:
    """Read the request of a client that has shown the key.

    A client that makes no request within `patience` seconds ends this process (SIGALRM).

    Returns:
        The request, the channel to the client, the socket on which this process listens, and the
        addresses at which the processes find each other.
    """
    local = connected.getsockname()[0]
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel = Connection(connected.detach())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, patience)
    try:
        request: ProcessRequest = receive_message(channel, ProcessRequest)
        listening = listen(request.port, local)
    except (MessageError, UnavailableError) as error:
        another = f"the server at {local} runs another version of ParaDnn: restart it ({error})"
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
    return request, channel, listening, receive_message(channel, list[str])


def _connect(to: tuple[str, int], address: str, patience: float) -> socket.socket:
    try:
        connected = socket.create_connection(to, timeout=patience)
    except TimeoutError:
        raise reply_timeout_error(f"the server at {address}", patience) from None
    except OSError as error:
        raise UnavailableError(
            f"the server at {address} cannot be reached: {error.strerror or error}"
        ) from error
    connected.settimeout(None)
    return connected


def _keep(life: socket.socket) -> int:
    """Return the descriptor of a connection whose other end the kernel probes (TCP keep-alive)."""
    life.settimeout(None)
    life.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE:
        life.setsockopt(socket.IPPROTO_TCP, name, value)
    return life.detach()
