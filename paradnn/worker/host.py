"""`python -m paradnn.worker.host --host ADDRESS`: let this host run processes of points that
another host measures.

    node2$ PARADNN_HOSTS_KEY=... python -m paradnn.worker.host --host 10.0.0.2 --port 5000
    node1$ PARADNN_HOSTS_KEY=... PARADNN_HOSTS=10.0.0.2:5000 python -m paradnn.train model=channel hosts=2

docs/how-to/clusters.md says more. Each process is forked from this one, which imports no framework, once
who connects has shown the key, and imports the one that its point asks for. This runs until it is
stopped, with --with-stdin until standard input ends.
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

#: Seconds in which the point's process makes its second connection, and in which who connects shows
#: the key.
_PATIENCE = 30.0
_SHOW = 10.0
#: Connections that have not shown the key yet, of which the oldest goes first, and processes that
#: run.
_MOST_STRANGERS = 64
_MOST_PROCESSES = 512


def main() -> int:
    """Serve until stopped; 2 for what cannot be."""
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
        help="0: any that is free, which is printed (default)",
    )
    parser.add_argument("--with-stdin", action="store_true", help="end when standard input does")
    given = parser.parse_args()
    key = os.environ.pop(KEY, "")
    if not key:
        print(
            f"error: {KEY} is not set: give the hosts a secret of their own, the same on each",
            file=sys.stderr,
        )
        return 2
    try:
        listening = listen(given.port, given.host, "--port")
    except UnavailableError as error:
        print(f"error: --port: {error}", file=sys.stderr)
        return 2
    print(f"listening on {with_port(*listening.getsockname()[:2])}", flush=True)
    os.dup2(2, 1)  # what processes print is not for who reads the address
    remove_leftovers()
    try:
        with Scratch() as folder:
            # AutoGraph leaves a file for each function where a process does not end by itself: none
            # of these does.
            tempfile.tempdir = str(folder)
            _serve(listening, key.encode(), given.with_stdin)
    except KeyboardInterrupt:
        return 130
    return 0


def _port_number(text: str) -> int:
    """A port as argparse reads it: 0 to 65535."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no port; choose one up to 65535, or 0 for any that is free"
        )
    return int(text)


def _own_address(text: str) -> str:
    """An address or name of this host as argparse reads it."""
    try:
        listen(0, text).close()
    except (UnavailableError, UnicodeError):
        reason = "no process of this host can listen there; give one of its addresses, or 0.0.0.0 (:: of IPv6) for all"
        raise argparse.ArgumentTypeError(f"{text!r}: {reason}") from None
    return text


def _serve(listening: socket.socket, key: bytes, with_stdin: bool) -> None:
    """Fork a process for each connection that has shown the key."""
    strangers: dict[int, PendingConnection] = {}
    running: set[int] = set()
    listening.setblocking(False)
    while True:
        watched = [listening.fileno(), *strangers, *([0] if with_stdin else [])]
        ready, _, _ = select.select(watched, [], [], 1.0 if strangers or running else None)
        if 0 in ready and not os.read(0, 4096):
            return
        running -= {pid for pid in running if os.waitpid(pid, os.WNOHANG)[0]}
        if listening.fileno() in ready:
            _let_in(listening, strangers)
        for number, stranger in list(strangers.items()):
            known = False
            gone = time.monotonic() - stranger.since > _SHOW
            if number in ready:
                try:
                    known = stranger.is_known(key)
                except (AuthenticationError, OSError):
                    gone = True
            if known and len(running) < _MOST_PROCESSES:
                running.add(_fork(stranger, strangers, listening))
            if known or gone:
                strangers.pop(number).connected.close()


def _let_in(listening: socket.socket, strangers: dict[int, PendingConnection]) -> None:
    """Take a new connection, in the place of the oldest where there are too many."""
    try:
        connected, _ = listening.accept()
        stranger = PendingConnection(connected, time.monotonic())
    except OSError:  # gone again, or no descriptor is left
        return
    if len(strangers) == _MOST_STRANGERS:
        strangers.pop(next(iter(strangers))).connected.close()
    strangers[connected.fileno()] = stranger


def _fork(
    stranger: PendingConnection,
    strangers: Mapping[int, PendingConnection],
    listening: socket.socket,
) -> int:
    """The number of the process that is asked for, which this becomes there."""
    server = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    die_with_parent(server)
    try:
        listening.close()
        for other in strangers.values():
            if other is not stranger:
                other.connected.close()
        asked, channel, own, addresses = accept(stranger.connected, _PATIENCE)
    except (EOFError, OSError):  # the client has gone
        os._exit(1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os.environ.update(asked.environ)

    def serve(rank: int, channel: Connection) -> None:
        work = requested_workload(asked.point)
        serve_elsewhere = work.role(WorkerSide).remote_process_server()
        if serve_elsewhere is None:
            raise RankFailed("unavailable", f"{work.name} has no processes on other hosts")
        serve_elsewhere(asked.point, rank, addresses, own, channel)

    return run_rank(asked.rank, server, channel, [], serve)


if __name__ == "__main__":
    sys.exit(main())
