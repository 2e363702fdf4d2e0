"""Start and control the processes of a measurement that needs several: `model=channel`, training.

The fork server forks the measuring process, which has rank 0. The measuring process forks the
additional processes, or starts them on other hosts (`python -m paradnn.worker.host`). They end when
the measuring process ends.

Each additional process has a channel, over which it receives the number of steps to run. If an
additional process exits unexpectedly, the kernel kills the measuring process with SIGIO, even while
that process is blocked. The driver then reports the failure.
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

#: Longest time to wait for a reply, in seconds.
_MAX_REPLY_SECONDS = 30.0
#: Seconds for which a failed process stays alive after its report. Its exit kills the measuring
#: process, which must read the report first.
_GRACE_SECONDS = 10.0
#: Seconds to wait for the reports of other processes after this process has failed.
_REPORT_SECONDS = 2.0
#: Largest message in bytes. The longest messages are points with their environment variables.
_MAX_BYTES = 1 << 20

LOOPBACK = "127.0.0.1"
#: The ioctl request for the IPv4 address of an interface (netdevice(7)).
_SIOCGIFADDR = 0x8915


def host_and_port(address: str) -> tuple[str, int]:
    """Split "host:port" into host and port; remove the brackets of an IPv6 address."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def with_port(host: str, port: int) -> str:
    """Return "host:port", with an IPv6 address in brackets, such as "[::1]:5000"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def interface_of(host: str) -> str | None:
    """Return the name of the network interface with a given address, such as "eth0".

    Args:
        host: An IP address of this host.

    Returns:
        The name; None if the system does not report it.
    """
    with contextlib.suppress(OSError):
        if ":" in host:
            packed = socket.inet_pton(socket.AF_INET6, host).hex()
            for line in Path("/proc/net/if_inet6").read_text().splitlines():
                address, *_, name = line.split()
                if address == packed:
                    return name
            return None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query_socket:
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode())
                with contextlib.suppress(OSError):  # an interface without an IPv4 address
                    answer = fcntl.ioctl(query_socket.fileno(), _SIOCGIFADDR, request)
                    if socket.inet_ntoa(answer[20:24]) == host:
                        return name
    return None


def listen(port: int, host: str = LOOPBACK, option: str = "model.port") -> socket.socket:
    """Return a socket that listens on a port.

    Args:
        port: The port; 0 for any free port.
        host: The IP address to listen on.
        option: The option with which the user chooses the port, for the error message.

    Raises:
        UnavailableError: If the port is taken, or this process cannot listen on it.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = "is taken"
        else:
            why = f"cannot be opened: {os.strerror(error.errno or 0)}"
        raise UnavailableError(
            f"port {port} of {host} {why}; set {option} to another port, or to 0 for any free port"
        ) from error


def free_addresses(count: int, host: str = LOOPBACK, first: int = 0) -> list[str]:
    """Return addresses (host:port) with free ports, for programs that open them later.

    Args:
        count: The number of addresses.
        host: An IP address of this host.
        first: The first of `count` consecutive ports; 0 for any free ports.

    Raises:
        UnavailableError: If a port is taken, or this process cannot listen on it.
    """
    # Keep each socket open until the last is chosen, so that no port is chosen twice.
    with contextlib.ExitStack() as sockets:
        free = [
            sockets.enter_context(listen(first and first + number, host)) for number in range(count)
        ]
        return [with_port(*listening.getsockname()[:2]) for listening in free]


class RankFailed(PointEnded):
    """One of the processes that share a measurement failed.

    Args:
        outcome: How the measurement ends, such as "crash" or "oom_host".
        reason: One line that describes the failure.
    """

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(outcome, reason)
        self.outcome = outcome

    def __str__(self) -> str:
        return str(self.args[1])

    def message(self) -> bytes:
        """Return the message that makes `receive_message` raise this failure in another process."""
        return encode({"outcome": self.outcome, "reason": str(self)})


def receive_message(channel: Connection, kind: Any) -> Any:
    """Wait for the next message of a channel, and return it.

    The message is JSON, read by `paradnn.core.channel`; nothing is unpickled.

    Args:
        channel: The connection to another process.
        kind: The type of the message, such as `int`, `list[str]` or a dataclass.

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
    """Return the longest time to wait for a reply of another process, in seconds.

    The result is below the driver's time limit for the measurement. This timeout therefore occurs
    first, and its reason names the process that did not reply.

    Args:
        point: The configuration to measure. Its `measure.timeout` is the driver's time limit in
            seconds.
    """
    return float(min(_MAX_REPLY_SECONDS, 0.5 * point["measure"]["timeout"]))


def reply_timeout_error(peer: str, seconds: float) -> RankFailed:
    """Return the error for a process that did not reply in time.

    Args:
        peer: Description of the process, such as "the server at 10.0.0.2:5000".
        seconds: The number of seconds within which it should have replied.
    """
    return RankFailed("timeout", f"{peer} did not reply within {seconds:g} s")


@dataclass(frozen=True)
class RemoteProcess:
    """Connection to a process on another host that takes part in a measurement.

    Attributes:
        rank: Number of the process among all processes of the measurement.
        address: Free address (host:port) at which the process can listen.
        local: IP address that this host uses in the connection to the other host.
        channel: Connection to the process. The first message sent over it must be the addresses of
            all processes of the measurement, in order of rank.
        life: File descriptor of a connection that closes when the process on either host exits (see
            `die_with`).
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
    """The processes that take part in a measurement besides the calling process.

    The calling process has rank 0, and the others have ranks 1 to `count` - 1. They are killed when
    the context exits, or when the calling process ends.

    Args:
        count: The number of processes, including the calling process.
        serve: Called as `serve(rank, channel)` in each additional process on this host. It must
            return when the channel closes.
        elsewhere: Processes on other hosts, which are already running and have the highest ranks.
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
            parent_end, child_end = Pipe()
            # The child keeps `child_life` open, so `life` signals the exit of the child.
            life, child_life = os.pipe()
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                # Also close the inherited pipes of earlier ranks. A copy that stays open here would
                # still send the parent a signal after the parent has closed the pipe.
                for descriptor in (life, *self._lives):
                    os.close(descriptor)
                run_rank(rank, parent, child_end, [parent_end, *self.channels], serve)
            child_end.close()
            os.close(child_life)
            self.channels.append(parent_end)
            self._lives.append(life)
            self._pids.append(pid)
        for life in self._lives:
            die_with(life)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # If one process fails, the steps of the others fail too. Prefer the reported failure of
        # another process, unless the error of this process is itself the cause.
        reported = None
        is_cause = isinstance(error, MemoryError | UnavailableError)
        if isinstance(error, Exception) and not is_cause:
            reported = self.failure()
        self.close()
        if reported:
            raise reported from error

    def failure(self) -> RankFailed | None:
        """Wait for a failure report of another process.

        Returns:
            The failure; None if no process reports one within `_REPORT_SECONDS`.
        """
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

        Args:
            message: An object that `paradnn.core.channel.encode` can convert to JSON.

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
        """Wait for the next message of every other process, and return the messages.

        Args:
            kind: The type of the messages, such as `int` or a dataclass.

        Returns:
            One message per process: first from processes on other hosts, then from those on this
            host.

        Raises:
            RankFailed: If a process reports a failure, or has exited.
        """
        try:
            return [receive_message(channel, kind) for channel in self.channels]
        except (EOFError, OSError):
            raise RankFailed(
                "crash", "one of the point's processes exited without a result"
            ) from None


class GroupStep(Step):
    """Step that several processes run at the same time. It has no loss.

    `run` raises RankFailed if another process fails.

    Args:
        step: This process's part of the step.
        group: The other processes.
    """

    def __init__(self, step: Step, group: ProcessGroup) -> None:
        self._step = step
        self._group = group

    def run(self, steps: int) -> None:
        self._group.send(steps)
        self._step.run(steps)
        self._group.receive(int | None)


def serve_steps(channel: Connection, step: Step) -> None:
    """Receive numbers of steps from a channel, and run these steps, until the channel closes.

    Args:
        channel: Connection to the measuring process.
        step: This process's part of the step.
    """
    with contextlib.suppress(EOFError):
        while True:
            step.run(receive_message(channel, int))
            channel.send_bytes(encode(None))


def die_with(life: int) -> None:
    """Let the kernel kill this process with SIGIO when the other end of `life` closes.

    Python code could not react, because a framework may wait for the missing process while it holds
    the interpreter's lock.

    Args:
        life: File descriptor of a pipe or a connection that carries no data.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def run_rank(
    rank: int,
    parent: int,
    channel: Connection,
    others: list[Connection],
    serve: Callable[[int, Connection], None],
) -> NoReturn:
    """Do the work of a forked process, then exit without running the parent's clean-up handlers.

    Args:
        rank: Number of the process among all processes of the measurement, from 1.
        parent: Process id of the parent.
        channel: Connection to the measuring process, which has rank 0.
        others: Inherited channels of other processes, which this process closes.
        serve: The work of the process, called as `serve(rank, channel)`.
    """
    code = 1
    try:
        die_with_parent(parent)
        for other in others:
            other.close()
        serve(rank, channel)
        code = 0
    except RankFailed as failure:
        with contextlib.suppress(OSError):
            channel.send_bytes(failure.message())
        time.sleep(_GRACE_SECONDS)
        print(failure, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


# Processes on other hosts. On each of these hosts, `python -m paradnn.worker.host` runs as a
# server. The measuring process, the client, opens one connection to a server for each process that
# it needs. Both sides prove that they have the same key before they read anything else, and before
# the server forks:
# 1. The server sends a random nonce.
# 2. The client replies with its own nonce and a proof (HMAC-SHA256) over both nonces.
# 3. The server replies with its own proof.
# Each side identifies the other by the IP address of the connection; no host name is looked up. The
# client then opens a second connection, which ends each side when the other side ends (`die_with`).

#: Environment variable with the key that a server and its clients share.
KEY = "PARADNN_HOSTS_KEY"
#: Length of a nonce, and of a proof, in bytes.
_NONCE_BYTES = 32
#: TCP keep-alive: seconds of silence before the first probe, seconds between probes, and the number
#: of unanswered probes after which the connection counts as closed.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


@dataclass(frozen=True)
class ProcessRequest:
    """Request that asks the server on another host to start a process.

    Attributes:
        protocol: The protocol version of the client (`PROTOCOL_VERSION`).
        rank: Number of the process among all processes of the measurement.
        port: The port on which the process listens; 0 for any free port.
        environ: Environment variables of the process.
        point: The configuration to measure, as nested mappings of plain values.
    """

    protocol: int
    rank: int
    port: int
    environ: Mapping[str, str]
    point: Mapping[str, Any]


def processes_elsewhere(point: Mapping[str, Any], count: int, port: int = 0) -> list[RemoteProcess]:
    """Start the processes of a measurement that run on other hosts.

    Every host runs the same number of processes, and this host runs those with the lowest ranks.
    The started processes wait for the addresses of all processes.

    Args:
        point: The configuration to measure. Its `other_hosts` has the `addresses` of the servers,
            their `key`, and the variables to set as `environ`. None to run all processes on this
            host.
        count: The number of processes on all hosts together.
        port: The port on which the first process of each host listens. The other processes of the
            host use the following ports. 0 for any free ports.

    Returns:
        The started processes, in order of rank; empty if all processes run on this host.

    Raises:
        UnavailableError: If a server cannot be reached or has a different key.
        RankFailed: If a server fails or does not reply.
    """
    hosts = int(point.get("hosts", 1))
    others = point.get("other_hosts")
    if hosts == 1 or others is None:
        return []
    per_host = count // hosts
    started: list[RemoteProcess] = []
    try:
        for rank in range(per_host, count):
            own_port = port and port + rank % per_host
            request = ProcessRequest(
                PROTOCOL_VERSION, rank, own_port, others["environ"], {**point, "other_hosts": None}
            )
            address = others["addresses"][rank // per_host - 1]
            started.append(
                _start_remote(address, others["key"].encode(), request, reply_timeout(point))
            )
    except BaseException:
        for process in started:
            process.close()
        raise
    return started


def _start_remote(
    address: str, key: bytes, request: ProcessRequest, timeout: float
) -> RemoteProcess:
    """Start a process on another host, and return the process.

    Args:
        address: Address (host:port) of the server on the other host.
        key: The secret key that both hosts share.
        request: The process to start.
        timeout: Seconds to wait for the server.

    Raises:
        UnavailableError: If the server cannot be reached or has a different key.
        RankFailed: If the server fails or does not reply.
    """
    connected = _connect(host_and_port(address), address, timeout)
    local = connected.getsockname()[0]
    server = connected.getpeername()[0]
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        try:
            _prove(connected, key, address, timeout)
            channel = Connection(connected.detach())
        finally:
            connected.close()  # a detached socket stays open
        channel.send_bytes(encode(request))
        if not channel.poll(timeout):
            raise reply_timeout_error(f"the server at {address}", timeout)
        process_port, life_port = receive_message(channel, list[int])
    except AuthenticationError:
        raise UnavailableError(
            f"the server at {address} has a different key: set the same {KEY} on both hosts"
        ) from None
    except (EOFError, OSError):
        raise RankFailed("crash", f"the server at {address} closed the connection") from None
    except ValueError as error:
        raise RankFailed(
            "crash", f"the server at {address} sent an invalid reply: {error}"
        ) from None
    life = _connect((server, life_port), address, timeout)
    return RemoteProcess(
        rank=request.rank,
        address=with_port(server, process_port),
        local=local,
        channel=channel,
        life=_detach_kept_alive(life),
    )


def _prove(connected: socket.socket, key: bytes, address: str, timeout: float) -> None:
    """Prove to a server that this process has the key, and verify the proof of the server.

    Args:
        connected: The connection to the server.
        key: The secret key that both hosts share.
        address: Address (host:port) of the server, for error messages.
        timeout: Seconds to wait for each reply.

    Raises:
        AuthenticationError: If the server has a different key.
        EOFError: If the server closes the connection.
        RankFailed: If the server does not reply in time.
    """
    connected.settimeout(timeout)
    try:
        nonce = _receive(connected)
        own_nonce = os.urandom(_NONCE_BYTES)
        if len(nonce) < _NONCE_BYTES:
            raise EOFError
        connected.sendall(own_nonce + _proof(key, b"point", nonce + own_nonce))
        expected = _proof(key, b"server", own_nonce + nonce)
        if not hmac.compare_digest(_receive(connected), expected):
            raise AuthenticationError
    except ConnectionError:
        raise EOFError from None
    except TimeoutError:
        raise reply_timeout_error(f"the server at {address}", timeout) from None
    connected.settimeout(None)


def _receive(connected: socket.socket) -> bytes:
    """Receive a nonce or a proof; return fewer bytes if the connection closes early."""
    data = b""
    while len(data) < _NONCE_BYTES and (part := connected.recv(_NONCE_BYTES - len(data))):
        data += part
    return data


def _proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, side + nonces, "sha256")


class PendingConnection:
    """Connection of a client that has not yet proved that it has the key. No method blocks.

    Attributes:
        connected: The socket of the connection.
        since: The time at which the client connected, in seconds of `time.monotonic`.
    """

    def __init__(self, connected: socket.socket, since: float) -> None:
        self.connected = connected
        self.since = since
        self._own_nonce = os.urandom(_NONCE_BYTES)
        self._received = b""
        connected.setblocking(False)
        connected.send(self._own_nonce)  # short enough for any send buffer

    def is_authenticated(self, key: bytes) -> bool:
        """Read available bytes, and return whether the client has proved that it has the key.

        The result is False while the client's nonce and proof are incomplete.

        Args:
            key: The secret key that the server shares with its clients.

        Raises:
            AuthenticationError: If the client has a different key.
            OSError: If the client has closed the connection, or no bytes are available.
        """
        part = self.connected.recv(2 * _NONCE_BYTES - len(self._received))
        if not part:
            raise ConnectionError("the client closed the connection")
        self._received += part
        if len(self._received) < 2 * _NONCE_BYTES:
            return False
        client_nonce = self._received[:_NONCE_BYTES]
        proof = self._received[_NONCE_BYTES:]
        if not hmac.compare_digest(proof, _proof(key, b"point", self._own_nonce + client_nonce)):
            raise AuthenticationError
        self.connected.setblocking(True)
        self.connected.sendall(_proof(key, b"server", client_nonce + self._own_nonce))
        return True


def accept(
    connected: socket.socket, timeout: float
) -> tuple[ProcessRequest, Connection, socket.socket, list[str]]:
    """Read the request of a client that has proved to have the key, and exchange addresses with it.

    Args:
        connected: The connection to the client.
        timeout: Seconds to wait for the request, after which SIGALRM kills this process.

    Returns:
        The request, the channel to the client, the socket on which this process listens, and the
        addresses of all processes in order of rank.

    Raises:
        MessageError: If the request is not valid.
        UnavailableError: If the requested port is not free.
        OSError: If the client does not open the second connection in time.
    """
    local = connected.getsockname()[0]
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel = Connection(connected.detach())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        request: ProcessRequest = receive_message(channel, ProcessRequest)
        listening = listen(request.port, local)
    except (MessageError, UnavailableError) as error:
        reason = str(error)
        if isinstance(error, MessageError):
            reason = (
                f"the server at {local} runs a different version of ParaDnn: restart it ({error})"
            )
        channel.send_bytes(RankFailed("unavailable", reason).message())
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    with closing(listen(0, local)) as life_listener:
        channel.send_bytes(encode([listening.getsockname()[1], life_listener.getsockname()[1]]))
        life_listener.settimeout(timeout)
        life, _ = life_listener.accept()
    die_with(_detach_kept_alive(life))
    return request, channel, listening, receive_message(channel, list[str])


def _connect(target: tuple[str, int], address: str, timeout: float) -> socket.socket:
    """Connect to a server.

    Args:
        target: Host and port.
        address: Address (host:port) by which error messages name the server.
        timeout: Seconds to wait.

    Raises:
        UnavailableError: If the server cannot be reached.
        RankFailed: If the server does not reply in time.
    """
    try:
        connected = socket.create_connection(target, timeout=timeout)
    except TimeoutError:
        raise reply_timeout_error(f"the server at {address}", timeout) from None
    except OSError as error:
        raise UnavailableError(
            f"the server at {address} cannot be reached: {error.strerror or error}"
        ) from error
    connected.settimeout(None)
    return connected


def _detach_kept_alive(life: socket.socket) -> int:
    """Enable TCP keep-alive, and return the descriptor of the socket.

    Keep-alive closes the connection if the other host is lost.

    Args:
        life: Socket of a connection that carries no data and closes when the other process exits.
    """
    life.settimeout(None)
    life.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        life.setsockopt(socket.IPPROTO_TCP, name, value)
    return life.detach()
