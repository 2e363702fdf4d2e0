"""A private Ray cluster on loopback; its nodes are processes of this host."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.cluster.postgres import free_port

#: Environment variables of Ray on loopback.
RAY = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "300",
}
#: Time limit of a start in seconds. A start takes 10 s on an idle machine, and minutes on two busy
#: cores.
_START_SECONDS = 500.0
_PAUSE_SECONDS = 3.0
_START = [
    str(Path(sys.executable).with_name("ray")),
    "start",
    "--block",
    "--object-store-memory=100000000",
    "--node-ip-address=127.0.0.1",
    "--min-worker-port=0",  # free ports, not a range
    "--max-worker-port=0",
]


@contextmanager
def ray_head(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a cluster; yield its address and the process of its first node."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    command = [*_START, "--head", f"--port={port}", "--include-dashboard=false", *options]
    log = folder / "head.log"
    node = _started(command, log)
    try:
        _wait_for_node(address, set(), log)
        yield address, node
    finally:
        end_node(node)


def ray_node(
    address: str, log: Path, *options: str, before: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Add a node to a cluster, wait until it has joined, and return its process.

    `before` contains words that precede the command of the node.
    """
    known = nodes_of(address)
    node = start_ray_node(address, log, *options, before=before)
    _wait_for_node(address, known, log)
    return node


def start_ray_node(
    address: str, log: Path, *options: str, before: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a node of a cluster and return its process without waiting until it has joined."""
    return _started([*before, *_START, f"--address={address}", *options], log)


def nodes_of(address: str) -> set[str]:
    """Return the ids of the living nodes of a cluster; empty if it does not answer."""
    shown = subprocess.run(
        [_START[0], "status", f"--address={address}"],
        env=os.environ | RAY,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    active = shown.partition("Active:")[2].partition("Pending:")[0]
    return {line.split()[-1] for line in active.splitlines() if "node_" in line}


def end_node(node: subprocess.Popen[bytes]) -> None:
    """Kill a node with all its processes."""
    with suppress(psutil.Error):
        for process in psutil.Process(node.pid).children(recursive=True):
            with suppress(psutil.Error):
                process.kill()
    node.kill()
    node.wait()


def _wait_for_node(address: str, known: set[str], log: Path) -> None:
    """Wait until the cluster has a node that is not in `known`.

    Polling is slow, because each query takes seconds of processor time.
    """
    deadline = time.monotonic() + _START_SECONDS
    while not nodes_of(address) - known:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(_PAUSE_SECONDS)


def _started(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(command, env=os.environ | RAY, stdout=out, stderr=out)
