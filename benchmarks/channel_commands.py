"""iperf3 and sockperf: us of a message over TCP between two processes of this host, by other people's programs."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.channel_plain import free_port
from benchmarks.turns import Failed

__all__ = ["COMMANDS", "Command"]


@dataclass(frozen=True)
class Command:
    """A program: `run(bytes, seconds)` gives the us of a message; `longest` is the largest that it sends, in bytes."""

    name: str
    run: Callable[[int, int], float]
    longest: int

    @property
    def installed(self) -> bool:
        """Whether it is found in PATH."""
        return shutil.which(self.name) is not None


def iperf3(size: int, seconds: int) -> float:
    """Messages one way, from the rate at which bytes arrive. Raises Failed."""
    port = str(free_port())
    words = ["-c", "127.0.0.1", "-p", port, "-l", str(size), "-t", str(seconds), "-N", "-J"]
    said = _beside(["iperf3", "-s", "-1", "-p", port], ["iperf3", *words], int(port))
    return 8e6 * size / float(json.loads(said)["end"]["sum_received"]["bits_per_second"])


def sockperf(size: int, seconds: int) -> float:
    """Half the mean time of a message there and back. Raises Failed."""
    port = free_port()
    where = ["--tcp", "-i", "127.0.0.1", "-p", str(port)]
    words = ["ping-pong", *where, "-m", str(size), "-t", str(seconds)]
    said = _beside(["sockperf", "server", *where], ["sockperf", *words], port)
    (line,) = (line for line in said.splitlines() if "Summary: Latency is" in line)
    return float(line.split("Latency is")[1].split()[0])


#: sockperf's largest is that of a UDP datagram, over TCP too.
COMMANDS = {each.name: each for each in (Command("iperf3", iperf3, 2**20), Command("sockperf", sockperf, 65507))}


def _beside(server: list[str], client: list[str], port: int) -> str:
    """What the client prints while the server runs."""
    with subprocess.Popen(server, stdout=subprocess.DEVNULL) as serving:
        try:
            _wait_for(port)
            done = subprocess.run(client, capture_output=True, text=True, check=False)
        finally:
            serving.kill()  # it would wait for a client that failed
    if done.returncode:
        raise Failed(f"{' '.join(client)} failed: {(done.stderr or done.stdout)[-500:]}")
    return done.stdout


def _wait_for(port: int) -> None:
    """Until something listens, without being its one client: the kernel's table tells (state 0A)."""
    for _ in range(1000):
        lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
        if any(f":{port:04X} " in line and " 0A " in line for line in lines):
            return
        time.sleep(0.01)
    raise Failed(f"nothing listens on port {port}")
