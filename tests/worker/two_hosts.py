"""This machine as two hosts: a server of processes that the points of a command have there, as they
would elsewhere.
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


#: Of the second host, each of which has processes on one core.
ADDRESSES = [
    "127.0.0.1",
    pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")),
]
#: What makes points on two hosts as short as they can be.
QUICK = [*SHORT, "hosts=2", "platform.threads=1"]


@contextmanager
def host_server(address: str = "127.0.0.1") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of processes, and where its first line says that it listens; it ends by itself."""
    command = [sys.executable, "-m", "paradnn.worker.host", "--with-stdin", "--host", address]
    options = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "env": {**os.environ, KEY: SECRET},
        "text": True,
    }
    with started(command, cwd=ROOT, **options) as server:
        said = server.stdout.readline()
        assert said.startswith("listening on "), said
        try:
            yield server, said.split()[-1]
        finally:
            server.stdin.close()
            server.wait(PATIENCE)


@contextmanager
def second_host(address: str = "127.0.0.1") -> Iterator[dict[str, str]]:
    """The variables of a command whose points have one more host, which listens on an address."""
    with host_server(address) as (_, where):
        yield {HOSTS: where, KEY: SECRET}
