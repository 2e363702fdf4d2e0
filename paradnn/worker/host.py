"""`python -m paradnn.worker.host --host ADDRESS`: run processes for other hosts.

    node2$ PARADNN_HOSTS_KEY=... python -m paradnn.worker.host --host 10.0.0.2 --port 5000
    node1$ PARADNN_HOSTS_KEY=... PARADNN_HOSTS=10.0.0.2:5000 \\
           python -m paradnn.train model=channel hosts=2

See docs/how-to/clusters.md. The server imports no framework. For each client that proves that it
has the key, it forks a process, which imports the requested framework. The server runs until it
is stopped. With --with-stdin, it also ends when standard input ends.
"""

import argparse
import os
import select
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection

from paradnn.core.errors import UnavailableError
from paradnn.core.scratch import Scratch, remove_leftovers
from paradnn.core.workload import requested_workload
from paradnn.worker.fork_server import die_with_parent
from paradnn.worker.process_group import (
    KEY,
    LOOPBACK,
    PendingConnection,
    RankFailed,
    accept,
    listen,
    run_rank,
    with_port,
)
from paradnn.worker.workload import WorkerSide

#: Longest time to wait for the request of a client, and then for its second connection, in seconds.
_SECOND_CONNECTION_SECONDS = 30.0
#: Seconds within which a client must prove that it has the key.
_KEY_SECONDS = 10.0
#: Largest number of clients that have not yet proved that they have the key. If one more connects,
#: the oldest of them is dropped.
_MAX_PENDING = 64
#: Largest number of running processes. Further requests are rejected.
_MAX_PROCESSES = 512


def main() -> int:
    """Run the server until it is stopped, and return the exit code; 2 if it cannot start."""
    parser = argparse.ArgumentParser(
        prog="python -m paradnn.worker.host",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--host",
        type=_own_address,
        default=LOOPBACK,
        help="address to listen on (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--port",
        type=_port_number,
        default=0,
        help="port to listen on (default: 0, any free port); the port is printed",
    )
    parser.add_argument("--with-stdin", action="store_true", help="end when standard input ends")
    arguments = parser.parse_args()
    key = os.environ.pop(KEY, "")
    if not key:
        print(
            f"error: {KEY} is not set: choose a secret, and set it on every host",
            file=sys.stderr,
        )
        return 2
    try:
        listening = listen(arguments.port, arguments.host, "--port")
    except UnavailableError as error:
        print(f"error: --port: {error}", file=sys.stderr)
        return 2
    print(f"listening on {with_port(*listening.getsockname()[:2])}", flush=True)
    os.dup2(2, 1)  # print nothing but the address to standard output
    remove_leftovers()
    try:
        with Scratch() as folder:
            # AutoGraph leaves a temporary file per function if a process skips the clean-up at
            # exit, as the forked processes do. Collect these files in this folder.
            tempfile.tempdir = str(folder)
            _serve(listening, key.encode(), with_stdin=arguments.with_stdin)
    except KeyboardInterrupt:
        return 130
    return 0


def _port_number(text: str) -> int:
    """Return a port from 0 to 65535, for argparse."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port; choose one up to 65535, or 0 for any free port"
        )
    return int(text)


def _own_address(text: str) -> str:
    """Return an address or name of this host, for argparse."""
    try:
        listen(0, text).close()
    except (UnavailableError, UnicodeError):
        reason = (
            "this host cannot listen on it; "
            "give an address of this host, or 0.0.0.0 (IPv6: ::) for all of its addresses"
        )
        raise argparse.ArgumentTypeError(f"{text!r}: {reason}") from None
    return text


def _serve(listening: socket.socket, key: bytes, *, with_stdin: bool) -> None:
    """Fork a process for each client that proves that it has the key.

    Args:
        listening: The socket on which clients connect.
        key: The secret key that this server shares with its clients.
        with_stdin: Whether to return when standard input ends. If False, this never returns.
    """
    pending: dict[int, PendingConnection] = {}
    running: set[int] = set()
    listening.setblocking(False)
    while True:
        watched = [listening.fileno(), *pending, *([0] if with_stdin else [])]
        ready, _, _ = select.select(watched, [], [], 1.0 if pending or running else None)
        if 0 in ready and not os.read(0, 4096):
            return
        running -= {pid for pid in running if os.waitpid(pid, os.WNOHANG)[0]}
        if listening.fileno() in ready:
            _accept_client(listening, pending)
        for number, client in list(pending.items()):
            has_key = False
            is_gone = time.monotonic() - client.since > _KEY_SECONDS
            if number in ready:
                try:
                    has_key = client.is_authenticated(key)
                except (AuthenticationError, OSError):
                    is_gone = True
            if has_key and len(running) < _MAX_PROCESSES:
                running.add(_fork(client, pending, listening))
            if has_key or is_gone:
                pending.pop(number).connected.close()


def _accept_client(listening: socket.socket, pending: dict[int, PendingConnection]) -> None:
    """Accept a new client, and drop the oldest pending client if `_MAX_PENDING` are pending.

    Args:
        listening: The socket on which clients connect.
        pending: Clients that have not yet proved that they have the key, by file descriptor. The
            new client is added.
    """
    try:
        connected, _ = listening.accept()
        client = PendingConnection(connected, time.monotonic())
    except OSError:  # the client is gone, or no file descriptor is left
        return
    if len(pending) == _MAX_PENDING:
        pending.pop(next(iter(pending))).connected.close()
    pending[connected.fileno()] = client


def _fork(
    client: PendingConnection,
    pending: Mapping[int, PendingConnection],
    listening: socket.socket,
) -> int:
    """Fork the process that a client requests, and return its process id.

    Args:
        client: The client, which has proved that it has the key.
        pending: Connections of `client` and of the clients that have not yet proved that they have
            the key, by file descriptor. The new process closes all but that of `client`.
        listening: The socket on which clients connect, which the new process closes.
    """
    server = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    die_with_parent(server)
    try:
        listening.close()
        for other in pending.values():
            if other is not client:
                other.connected.close()
        request, channel, own, addresses = accept(client.connected, _SECOND_CONNECTION_SECONDS)
    except (EOFError, OSError):  # the client disconnected
        os._exit(1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os.environ.update(request.environ)

    def serve(rank: int, channel: Connection) -> None:
        work = requested_workload(request.point)
        serve_process = work.role(WorkerSide).remote_process_server()
        if serve_process is None:
            raise RankFailed(
                "unavailable", f"task={work.name} cannot run processes on other hosts: set hosts=1"
            )
        serve_process(request.point, rank, addresses, own, channel)

    return run_rank(request.rank, server, channel, [], serve)


if __name__ == "__main__":
    sys.exit(main())
