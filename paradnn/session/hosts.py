"""The other hosts of a session's points: servers (`paradnn.worker.host`) that run their processes. Where they are says
the variable PARADNN_HOSTS."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from paradnn.core.errors import ConfigError, WorkerError
from paradnn.worker.addresses import host_and_port
from paradnn.worker.process_group import KEY

__all__ = ["HOSTS", "KEY", "other_hosts", "require_answers", "require_hosts"]

#: The variable with the addresses of the servers, host:port, in the order of the hosts.
HOSTS = "PARADNN_HOSTS"
#: One of them. An address of one link alone (fe80::2%eth0) would mean nothing to the other host.
_ADDRESS = re.compile(r"([\w.-]+|\[[\w.:]+\]):\d{1,5}")
_ANSWER = 5.0  # seconds in which a server answers that is there
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
    """Raise ConfigError where every point wants more hosts than the session has: `counts` are the points'."""
    if max(counts, default=1) > 1 and min(counts) > (there := 1 + len(_named(environ))):
        raise ConfigError("hosts", min(counts), f"this session has {there}", _REMEDY)


def other_hosts(hosts: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """What a request says of the others of so many hosts; processes there get the variables `environ`. Raises
    WorkerError where there are fewer."""
    addresses = _named(os.environ)
    if len(addresses) < hosts - 1:
        raise WorkerError(f"hosts={hosts}: this session has {1 + len(addresses)}; {_REMEDY}")
    return {"addresses": addresses[: hosts - 1], "key": os.environ[KEY], "environ": dict(environ)}


def require_answers() -> None:
    """Raise WorkerError where a host is gone: that a point failed says nothing of it then."""
    for address in _named(os.environ):
        try:
            socket.create_connection(host_and_port(address), timeout=_ANSWER).close()
        except OSError:
            raise WorkerError(f"no server answers at {address}; {_RESTART}") from None
