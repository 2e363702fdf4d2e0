"""The other hosts of a session's points, and the servers there (`paradnn.worker.host`) that run their processes. Where
they are says the variable PARADNN_HOSTS: by hand, or by a launcher that has started them. In an allocation of Slurm
with several nodes the session starts them, each as a step of its own."""

from __future__ import annotations

import os
import re
import secrets
import selectors
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from paradnn.errors import ConfigError, WorkerError
from paradnn.worker.addresses import host_and_port
from paradnn.worker.process_group import KEY

__all__ = ["HOSTS", "KEY", "OtherHosts", "require_hosts"]

#: The variable with the addresses of the servers, host:port, in the order of the hosts.
HOSTS = "PARADNN_HOSTS"
#: One of them. An address of one link alone (fe80::2%eth0) would mean nothing to the other host.
_ADDRESS = re.compile(r"([\w.-]+|\[[\w.:]+\]):\d{1,5}")
#: Seconds in which a server must tell its address, in which it ends, and in which one that is there answers.
_PATIENCE, _GRACE, _ANSWER = 60.0, 10.0, 5.0
_REMEDY = "docs/clusters.md says how points come to have several hosts"
_RESTART = "start python -m paradnn.worker.host there (docs/clusters.md), then the same command again"


def _named(environ: Mapping[str, str]) -> list[str]:
    """The addresses of the servers that PARADNN_HOSTS names; none where it is not set. ConfigError for what is no
    address, and where the key is not there that the servers have."""
    given = environ.get(HOSTS)
    addresses = given.split(",") if given else []
    for address in addresses:
        if not _ADDRESS.fullmatch(address) or not 0 < host_and_port(address)[1] < 65536:
            remedy = "write what each server says that it listens on, as 10.0.0.2:5000,[2001:db8::3]:5000"
            raise ConfigError(HOSTS, given, f"{address!r} is no host:port", remedy)
    if addresses and not environ.get(KEY):
        raise ConfigError(KEY, "", f"{HOSTS} is set without it", "give it the value that the servers have")
    return addresses


def require_hosts(counts: Sequence[int], environ: Mapping[str, str]) -> None:
    """Raise ConfigError where every point wants more hosts than the session has: `counts` are the points'. Nodes of
    Slurm are known once there are servers on them."""
    if max(counts, default=1) == 1:
        return
    there = 1 + len(_named(environ))
    if min(counts) > there and (HOSTS in environ or "SLURM_JOB_NODELIST" not in environ):
        raise ConfigError("hosts", min(counts), f"this session has {there}", _REMEDY)


class OtherHosts:
    """Those of one session, sought when first a point asks for them."""

    def __init__(self) -> None:
        self._servers: list[subprocess.Popen[bytes]] = []
        self._addresses: list[str] | None = None
        self._problem = ""
        self._key = ""

    def of(self, hosts: int, environ: Mapping[str, str]) -> dict[str, Any]:
        """What a request says of the others of so many hosts; processes there get the variables `environ`. Raises
        WorkerError where there are fewer."""
        if self._addresses is None:
            self._addresses = _named(os.environ)
            self._key = os.environ[KEY] if self._addresses else secrets.token_hex()
            try:
                self._addresses += [self._start(node) for node in ([] if self._addresses else _other_nodes())]
            except WorkerError as error:
                self._problem = str(error)
        if len(self._addresses) < hosts - 1:
            problem = self._problem or f"this session has {1 + len(self._addresses)}; {_REMEDY}"
            raise WorkerError(f"hosts={hosts}: {problem}")
        return {"addresses": self._addresses[: hosts - 1], "key": self._key, "environ": dict(environ)}

    def require(self) -> None:
        """Raise WorkerError where a host is gone: that a point failed says nothing of it then."""
        for address in self._addresses or ():
            try:
                socket.create_connection(host_and_port(address), timeout=_ANSWER).close()
            except OSError:
                raise WorkerError(f"no server answers at {address}; {_RESTART}") from None

    def close(self) -> None:
        """End the servers that were started here."""
        for server in self._servers:
            try:
                server.communicate(timeout=_GRACE)  # the end of its input ends it
            except subprocess.TimeoutExpired:
                server.kill()
                server.communicate()
        self._servers, self._addresses = [], None

    def _start(self, node: str) -> str:
        """Start a server on a node of Slurm's, which ends with this process; its address. Raises WorkerError."""
        step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--unbuffered"]
        command = [*step, sys.executable, "-m", "paradnn.worker.host", "--with-stdin"]
        pipe, environ = subprocess.PIPE, {**os.environ, KEY: self._key}
        try:
            # Ctrl-C in the terminal is for the session, which ends it.
            server = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environ, start_new_session=True)
        except OSError as error:
            raise WorkerError(f"srun cannot be started: {error.strerror}") from error
        self._servers.append(server)
        assert server.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(server.stdout, selectors.EVENT_READ)
            said = server.stdout.readline().decode() if selector.select(_PATIENCE) else ""
        if not said.startswith("listening on "):
            raise WorkerError(f"{' '.join(command)} does not start")
        return said.split()[-1]


def _other_nodes() -> list[str]:
    """The nodes of this allocation of Slurm but for the one that runs this; none outside of one."""
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if nodes is None:
        return []
    try:
        asked = ["scontrol", "show", "hostnames", nodes]
        listed = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise WorkerError(f"Slurm does not tell the nodes of {nodes}: {error}") from error
    return [node for node in listed.stdout.split() if node != os.environ.get("SLURMD_NODENAME")]
