"""A Ray cluster on this machine: two raylets of one core each, on free ports of the loopback."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from tests.cluster.slurm import free_ports

_RAY = str(Path(sys.executable).parent / "ray")


class RayCluster:
    """The cluster; `environ` lets a driver find it."""

    def __init__(self, cores: int = 1, nodes: int = 2) -> None:
        self._cores = cores
        # Sockets lie below it, whose paths may be 107 characters long at most.
        self._folder = tempfile.TemporaryDirectory(prefix="ray-")
        self._port, client = free_ports(2)
        self._variables = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_AUTH_MODE": "disabled",  # it is on loopback; else a token is asked for where the user has one
        }
        self.environ = {"RAY_ADDRESS": f"127.0.0.1:{self._port}", **self._variables}
        self._node(
            "--head",
            f"--port={self._port}",
            f"--temp-dir={self._folder.name}",
            "--include-dashboard=false",
            f"--ray-client-server-port={client}",
        )
        self.second = self.add_node() if nodes == 2 else None

    def add_node(self) -> psutil.Process:
        """One more node; its raylet."""
        before = {process.pid for process in self._ours("raylet")}
        self._node(f"--address=127.0.0.1:{self._port}")
        [raylet] = [process for process in self._ours("raylet") if process.pid not in before]
        return raylet

    def power_off(self, raylet: psutil.Process) -> None:
        """Lose a node at once, with all that runs on it."""
        for process in [raylet, *raylet.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def workers(self) -> list[psutil.Process]:
        """Processes in which a sweep's task runs: those that have a worker of ParaDnn's below them."""
        found = []
        for raylet in self._ours("raylet"):
            for process in raylet.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "paradnn.worker" in process.cmdline() and "--driver" in process.cmdline():
                        parent = process.parent()
                        if parent is not None and "paradnn.worker" not in parent.cmdline():
                            found.append(parent)
        return found

    def stop(self) -> None:
        """End every process that was started here."""
        killed = []
        for process in self._ours(""):
            with contextlib.suppress(psutil.Error):
                for entry in [*process.children(recursive=True), process]:
                    killed.append(entry)
                    with contextlib.suppress(psutil.Error):
                        entry.kill()
        psutil.wait_procs(killed, 60)  # none writes into the folder any more
        self._folder.cleanup()

    def _node(self, *arguments: str) -> None:
        command = [
            _RAY,
            "start",
            "--node-ip-address=127.0.0.1",
            f"--num-cpus={self._cores}",
            "--num-gpus=0",
            "--object-store-memory=80000000",
            *arguments,
        ]
        done = subprocess.run(
            command, env={**os.environ, **self._variables}, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise RuntimeError(f"ray start: {done.stdout[-1500:]}{done.stderr[-1500:]}")

    def _ours(self, name: str) -> list[psutil.Process]:
        """Daemons of this cluster, known by its folder or its port on their command lines."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                mine = self._folder.name in line or f"127.0.0.1:{self._port}" in line
                if mine and name in process.name() and process.pid != os.getpid():
                    found.append(process)
        return found
