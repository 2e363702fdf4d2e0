"""Tests of two hosts on this machine.

A process server on this machine starts a command's processes, as it would on a second host.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from paradnn.session.environments import HOSTS
from paradnn.worker.process_group import KEY
from tests.conftest import ROOT, SHORT
from tests.processes import PATIENCE, started

SECRET = "what both know"


def has_ipv6() -> bool:
    with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


#: Addresses of the second host, whose processes each run on one core.
ADDRESSES = [
    "127.0.0.1",
    pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")),
]
#: Options that make points on two hosts as short as possible.
QUICK = [*SHORT, "hosts=2", "platform.threads=1"]


@contextmanager
def host_server(address: str = "127.0.0.1") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process server; yield its process and the address from its first line.

    The server ends with the context.
    """
    command = [sys.executable, "-m", "paradnn.worker.host", "--with-stdin", "--host", address]
    options = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "env": {**os.environ, KEY: SECRET},
        "text": True,
    }
    with started(command, cwd=ROOT, **options) as server:
        first_line = server.stdout.readline()
        assert first_line.startswith("listening on "), first_line
        try:
            yield server, first_line.split()[-1]
        finally:
            server.stdin.close()
            server.wait(PATIENCE)


@contextmanager
def second_host(address: str = "127.0.0.1") -> Iterator[dict[str, str]]:
    """Yield the environment variables of a command whose points use a second host."""
    with host_server(address) as (_, server_address):
        yield {HOSTS: server_address, KEY: SECRET}
