"""Two hosts on this machine: network namespaces, connected by a link with a planted rate.

Each host has its own network and one core. Processes of the hosts communicate only over the link.
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from paradnn.platform.environment import HOSTS
from paradnn.worker.process_group import KEY
from tests.conftest import ROOT
from tests.processes import PATIENCE, started

SECRET = "shared secret of both hosts"
PORT = 5000


@dataclass(frozen=True)
class Namespace:
    """One host.

    Attributes:
        name: Name of the network namespace.
        link: Network device of this end of the link.
        address: IP address.
        core: Number of the core on which all processes run.
    """

    name: str
    link: str
    address: str
    core: int

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on this host."""
        return ["ip", "netns", "exec", self.name, "taskset", "-c", str(self.core), *words]

    def limit(self, megabits: float) -> None:
        """Limit the rate at which this host sends, in Mbit/s (tc-tbf(8))."""
        shape = ["tbf", "rate", f"{megabits}mbit", "burst", "64kb", "latency", "1s"]
        tc = ["tc", "qdisc", "replace", "dev", self.link, "root", *shape]
        _run("ip", "netns", "exec", self.name, *tc)

    def cut(self) -> None:
        """Take this end of the link down, so that packets are lost without notice."""
        _run("ip", "-n", self.name, "link", "set", self.link, "down")

    def received(self) -> int:
        """Return the number of bytes that the host received over the link."""
        shown = _run("ip", "-n", self.name, "-json", "-stats", "link", "show", "dev", self.link)
        [link] = json.loads(shown)
        return int(link["stats64"]["rx"]["bytes"])

    def processes(self) -> list[int]:
        """Return the process ids of this host."""
        return [int(pid) for pid in _run("ip", "netns", "pids", self.name).split()]

    def kill_all(self) -> None:
        """Kill all processes of this host."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _run(*words: str) -> str:
    """Run a command and return its output; raise RuntimeError if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def two_hosts() -> Iterator[tuple[Namespace, Namespace]]:
    """Yield two connected hosts; skip the test if this user cannot create them."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "taskset"))):
        pytest.skip("network namespaces need root, ip, tc and taskset")
    cores = sorted(os.sched_getaffinity(0))
    hosts = [
        Namespace(
            f"paradnn{os.getpid()}{letter}",
            f"pd{os.getpid()}{letter}",
            f"10.77.0.{number}",
            cores[(number - 1) % len(cores)],
        )
        for number, letter in enumerate("ab", 1)
    ]
    with ExitStack() as stack:
        for host in hosts:
            try:
                _run("ip", "netns", "add", host.name)
            except RuntimeError as error:
                pytest.skip(f"no network namespace: {error}")
            stack.callback(_run, "ip", "netns", "delete", host.name)
            # JAX resolves the name of its host.
            files = Path("/etc/netns") / host.name
            files.mkdir(parents=True)
            stack.callback(shutil.rmtree, files)
            (files / "hosts").write_text(f"127.0.0.1 localhost\n{host.address} {platform.node()}\n")
        first, second = hosts
        veth = ["type", "veth", "peer", "name", second.link, "netns", second.name]
        _run("ip", "link", "add", first.link, "netns", first.name, *veth)
        for host in hosts:
            _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.link)
            for device in ("lo", host.link):
                _run("ip", "-n", host.name, "link", "set", device, "up")
        yield first, second


@contextmanager
def serving(host: Namespace, python: str = sys.executable) -> Iterator[Mapping[str, str]]:
    """Start the process server of a host.

    Yields the environment variables with which a command on the other host finds the server.
    """
    words = [python, "-m", "paradnn.worker.host", "--with-stdin", "--host", host.address]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environ = {**os.environ, KEY: SECRET}
    command = host.command([*words, "--port", str(PORT)])
    with started(command, cwd=ROOT, env=environ, text=True, **pipes) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == f"listening on {host.address}:{PORT}\n"
        yield {HOSTS: f"{host.address}:{PORT}", KEY: SECRET}
        if server.stdin and server.poll() is None:
            server.stdin.close()
            server.wait(PATIENCE)
