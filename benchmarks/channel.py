"""python -m benchmarks.channel [--cases grpc,tcp,gloo,iperf3,sockperf] [--bytes 64,4096,65536,1048576] [--rounds 7]

`model=channel` beside programs that share none of its code: bare loops over gRPC, TCP and gloo
(`benchmarks.channel_plain`), `iperf3` (bandwidth) and `sockperf` (latency). What is not installed is left out; gloo
needs PyTorch in this interpreter. Each round runs every side once, in random order and in processes of its own; ratios
are other / ours of the time of a message, above 1 where ours is faster, as geometric means with 95% intervals over
rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, ROOT, runs, save, train
from paradnn.record.statistics import mean_interval

#: Case -> transport and pattern of ours.
CASES = {
    "grpc": ("grpc", "latency"),
    "tcp": ("tcp", "latency"),
    "gloo": ("gloo", "all_reduce"),
    "iperf3": ("tcp", "bandwidth"),
    "sockperf": ("tcp", "latency"),
}


@dataclass(frozen=True)
class Cell:
    """One case at one size."""

    case: str
    size: int
    seconds: float

    def ours(self) -> float:
        """us of a message, measured by the command in one process."""
        transport, pattern = CASES[self.case]
        words = [
            "model=channel",
            f"model.transport={transport}",
            f"model.pattern={pattern}",
            f"model.bytes={self.size}",
        ]
        words += ["measure.processes=1", f"measure.min_seconds={self.seconds}", "measure.block_seconds=0.05"]
        with tempfile.TemporaryDirectory() as folder:
            train(words, Path(folder))
            (run,) = runs(Path(folder))
        if run["outcome"] != "ok":
            sys.exit(f"{self.case} {self.size}: {run['outcome']}: {run.get('reason')}")
        return float(run["transfer_us"])

    def other(self) -> float:
        """us of a message, measured by the other program."""
        if self.case == "iperf3":
            return _iperf3(self.size, self.seconds)
        if self.case == "sockperf":
            return _sockperf(self.size, self.seconds)
        words = ["benchmarks.channel_plain", self.case, CASES[self.case][1], str(self.size), str(self.seconds)]
        return float(_output([sys.executable, "-m", *words]))


def _output(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: {done.stderr[-500:]}")
    return done.stdout


def _iperf3(size: int, seconds: float) -> float:
    port = str(_free_port())
    with subprocess.Popen(["iperf3", "-s", "-1", "-p", port], stdout=subprocess.DEVNULL) as server:
        _wait_for(int(port))
        words = ["-c", "127.0.0.1", "-p", port, "-l", str(size), "-t", str(max(1, round(seconds))), "-N", "-J"]
        try:
            rate = json.loads(_output(["iperf3", *words]))["end"]["sum_received"]["bits_per_second"] / 8
        finally:
            server.kill()  # it would wait for a client that failed
    return 1e6 * size / float(rate)


def _sockperf(size: int, seconds: float) -> float:
    where = ["--tcp", "-i", "127.0.0.1", "-p", str(_free_port())]
    with subprocess.Popen(["sockperf", "server", *where], stdout=subprocess.DEVNULL) as server:
        try:
            _wait_for(int(where[-1]))
            text = _output(["sockperf", "ping-pong", *where, "-m", str(size), "-t", str(max(1, round(seconds)))])
        finally:
            server.kill()
    (line,) = (line for line in text.splitlines() if "percentile 50.000" in line)
    return float(line.split("=")[1])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _wait_for(port: int) -> None:
    """Until something listens, without being its one client: the kernel's table tells (state 0A)."""
    for _ in range(1000):
        lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
        if any(f":{port:04X} " in line and " 0A " in line for line in lines):
            return
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="grpc,tcp,gloo,iperf3,sockperf", help="separated by commas")
    parser.add_argument("--bytes", default="64,4096,65536,1048576", help="sizes, separated by commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each side in a round")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV file")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error(f"--rounds {given.rounds}: an interval takes two")
    rows: list[dict[str, object]] = []
    table = Table("case", "bytes", "ours (us)", "other (us)", "other / ours", box=None)
    for case in given.cases.split(","):
        if case not in CASES:
            parser.error(f"--cases {case}: choose among {', '.join(CASES)}")
        if not _is_there(case):
            print(f"{case} is not installed: left out", file=sys.stderr)
            continue
        for size in map(int, given.bytes.split(",")):
            if case == "sockperf" and size > 65507:
                continue  # the longest that it sends
            row = _turns(Cell(case, size, given.seconds), given.rounds)
            rows.append(row)
            table.add_row(*map(str, row.values()))
    Console(width=160).print(table)
    if rows:
        save("channel", rows, given.out)
    return 0 if rows else 1


def _is_there(case: str) -> bool:
    if case == "gloo":
        return importlib.util.find_spec("torch") is not None
    return case not in ("iperf3", "sockperf") or shutil.which(case) is not None


def _turns(cell: Cell, rounds: int) -> dict[str, object]:
    order, ours, others = random.Random(cell.size), [], []
    for _ in range(rounds):
        sides = [(ours, cell.ours), (others, cell.other)]
        order.shuffle(sides)
        for times, measure in sides:
            times.append(measure())
    ratios = [other / own for own, other in zip(ours, others, strict=True)]
    low, high = mean_interval(ratios)
    return {
        "case": cell.case,
        "bytes": cell.size,
        "ours_us": round(statistics.median(ours), 2),
        "other_us": round(statistics.median(others), 2),
        "ratio": f"{statistics.geometric_mean(ratios):.3f} ({low:.3f} to {high:.3f})",
    }


if __name__ == "__main__":
    sys.exit(main())
