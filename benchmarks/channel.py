"""Compare `model=channel` with programs that share no code with it.

    python -m benchmarks.channel [--cases grpc,tcp] [--bytes 64,4096,65536,1048576] [--starts 5]
        [--rounds 10]

References are bare loops over gRPC, TCP and gloo (`channel_plain.py`), `iperf3` (bandwidth) and
`sockperf` (latency). Missing programs are skipped; gloo needs PyTorch in this interpreter.

A start consists of a worker with its framework (`ours.py`) and two copies of the bare program,
`plain` and `copy`, since two processes of one program differ too. For each case and size they fork
fresh processes, which alternately run short blocks in random order. iperf3 and sockperf are
commands; in comparisons with them, each turn takes a second.

Ratios are of messages per second, and above 1 if ParaDnn is faster. A start has the median over
rounds; the result is the geometric mean of the starts with Student's 95% interval.
"""

import argparse
import importlib.util
import itertools
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.channel_plain import free_port
from benchmarks.common import ROOT, save
from benchmarks.fidelity import Ratio, names_of, round_ratios, settle, take_options, take_turns
from benchmarks.ours import point
from benchmarks.turns import Failed, Program, Stage
from paradnn.session.measured import mean_interval
from paradnn.session.workers import WorkerKey
from paradnn.workloads.channel import transfer_metrics

#: Transport and pattern of ParaDnn by case.
CASES = {
    "grpc": "grpc latency",
    "grpc_bandwidth": "grpc bandwidth",
    "tcp": "tcp latency",
    "gloo": "gloo all_reduce",
    "iperf3": "tcp bandwidth",
    "sockperf": "tcp latency",
}
#: Rounds of a start with a command, and seconds per turn.
COMMAND_ROUNDS = 2
COMMAND_SECONDS = 1


def iperf3(size: int, seconds: int) -> float:
    """Return microseconds per message, from the rate at which bytes arrive. Raises Failed."""
    port = str(free_port())
    words = ["-c", "127.0.0.1", "-p", port, "-l", str(size), "-t", str(seconds), "-N", "-J"]
    said = _beside(["iperf3", "-s", "-1", "-p", port], ["iperf3", *words], int(port))
    return 8e6 * size / float(json.loads(said)["end"]["sum_received"]["bits_per_second"])


def sockperf(size: int, seconds: int) -> float:
    """Return half the mean round-trip time in microseconds. Raises Failed."""
    port = free_port()
    where = ["--tcp", "-i", "127.0.0.1", "-p", str(port)]
    words = ["ping-pong", *where, "-m", str(size), "-t", str(seconds)]
    said = _beside(["sockperf", "server", *where], ["sockperf", *words], port)
    (line,) = (line for line in said.splitlines() if "Summary: Latency is" in line)
    return float(line.split("Latency is")[1].split()[0])


#: Reference programs: microseconds per message from its bytes and the seconds to measure.
COMMANDS = {"iperf3": iperf3, "sockperf": sockperf}
#: The largest messages that they send, in bytes. sockperf sends at most a UDP datagram, also over
#: TCP.
LONGEST = {"iperf3": 2**20, "sockperf": 65507}


def _beside(server: list[str], client: list[str], port: int) -> str:
    """Run a client while a server runs, and return the output of the client. Raises Failed."""
    with subprocess.Popen(server, stdout=subprocess.DEVNULL) as serving:
        try:
            _wait_for(port)
            done = subprocess.run(client, capture_output=True, text=True, check=False)
        finally:
            serving.kill()  # otherwise it would wait for a failed client
    if done.returncode:
        raise Failed(f"{' '.join(client)} failed: {(done.stderr or done.stdout)[-500:]}")
    return done.stdout


def _wait_for(port: int) -> None:
    """Wait until a port is listening, without connecting to it: /proc/net/tcp shows state 0A."""
    for _ in range(1000):
        lines = [
            line
            for name in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{name}").read_text().splitlines()
        ]
        if any(f":{port:04X} " in line and " 0A " in line for line in lines):
            return
        time.sleep(0.01)
    raise Failed(f"nothing listens on port {port}")


@dataclass
class Cell:
    """One case at one size.

    `starts` holds the microseconds per message in every round, by program, per start.
    """

    case: str
    size: int
    starts: list[Mapping[str, Sequence[float]]] = field(default_factory=list)

    @property
    def model(self) -> str:
        """Model that both sides run."""
        return f"{CASES[self.case]} {self.size}"

    @property
    def framework(self) -> str:
        """Framework of the worker that measures the case."""
        return point(self.model).framework.name

    @property
    def others(self) -> tuple[str, ...]:
        """Names of the reference programs."""
        return (self.case,) if self.case in COMMANDS else ("plain", "copy")

    def us(self, seconds: float) -> float:
        """Return microseconds per message, as ParaDnn records them, from the seconds of a step."""
        return transfer_metrics(point(self.model).model, {"step_time_ms": 1e3 * seconds})[
            "transfer_us"
        ]

    def median_us(
        self, names: Sequence[str], starts: Sequence[Mapping[str, Sequence[float]]]
    ) -> float:
        """Return the median microseconds per message over all rounds of these starts."""
        return statistics.median(
            value for start in starts for name in names for value in start[name]
        )

    def ratio(self, over: Sequence[str], under: Sequence[str]) -> Ratio:
        """Return messages per second of `over` relative to `under`."""
        found = [statistics.median(round_ratios(start, over, under)) for start in self.starts]
        low, high = mean_interval(found) if len(found) > 1 else (0.0, math.inf)
        return Ratio(statistics.geometric_mean(found), low, high)

    def last(self) -> str:
        """Describe the last start in one line."""
        times = ", ".join(
            f"{name} {self.median_us([name], self.starts[-1:]):.4g} us" for name in self.starts[-1]
        )
        ratio = statistics.median(round_ratios(self.starts[-1], ["ours"], self.others))
        return f"{self.case} {self.size} B: {times}; ours / other {ratio:.3f}"

    def row(self) -> dict[str, object]:
        """Return the cell's row of the table, by column."""
        twice = len(self.others) > 1
        return {
            "case": self.case,
            "bytes": self.size,
            "ours (us)": f"{self.median_us(['ours'], self.starts):.4g}",
            "other (us)": f"{self.median_us(self.others, self.starts):.4g}",
            "ours / other": self.ratio(["ours"], self.others),
            "plain / copy": self.ratio(["plain"], ["copy"]) if twice else "",
        }


def measure(cells: Sequence[Cell], given: argparse.Namespace) -> Iterator[tuple[int, Cell]]:
    """Yield every start of the cells of one framework as it is measured. Raises Failed."""
    order = random.Random(0)
    framework = cells[0].framework
    environ = WorkerKey.of(point(cells[0].model)).environ()
    plain = ["benchmarks.channel_plain", framework]
    for start in range(1, given.starts + 1):
        with (
            Stage({"ours": ["benchmarks.ours", framework]}, environ, ROOT) as ours,
            Stage({"plain": plain, "copy": plain}, environ, ROOT) as bare,
        ):
            for cell in order.sample(cells, len(cells)):
                programs = ours.open(cell.model)
                if cell.case not in COMMANDS:
                    programs = programs + bare.open(cell.model)
                for program in programs:
                    program.ready()
                if cell.case in COMMANDS:
                    times = _beside_command(programs[0], cell, order)
                else:
                    steps = take_turns(programs, given.rounds, given.block, order)
                    times = {
                        name: [cell.us(seconds) for seconds in values]
                        for name, values in steps.items()
                    }
                cell.starts.append(times)
                for program in programs:
                    program.close()
                yield start, cell


def _beside_command(ours: Program, cell: Cell, order: random.Random) -> dict[str, list[float]]:
    """Return the microseconds per message in every round. Raises Failed."""
    steps = 1
    for seconds in (0.1, 0.1, COMMAND_SECONDS):
        steps = max(1, math.ceil(seconds * steps / ours.block(steps)))
    times: dict[str, list[float]] = {"ours": [], cell.case: []}
    for _ in range(COMMAND_ROUNDS):
        for name in order.sample(list(times), 2):
            if name == "ours":
                us = cell.us(ours.block(steps, lead=max(1, steps // 10)) / steps)
            else:
                us = COMMANDS[name](cell.size, COMMAND_SECONDS)
            times[name].append(us)
    return times


def cells_of(given: argparse.Namespace) -> list[Cell]:
    """Return all cells that can be measured here; print the omitted ones."""
    cells = []
    for case in given.cases:
        if case in COMMANDS:
            is_installed = shutil.which(case) is not None
        elif case == "gloo":
            is_installed = importlib.util.find_spec("torch") is not None
        else:
            is_installed = True
        if not is_installed:
            print(f"{case} is not installed: skipped", file=sys.stderr)
            continue
        cells += [Cell(case, size) for size in given.bytes if size <= LONGEST.get(case, size)]
    return cells


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases", type=names_of(tuple(CASES)), default=[*CASES], help="separated by commas"
    )
    parser.add_argument(
        "--bytes", default="64,4096,65536,1048576", help="sizes, separated by commas"
    )
    take_options(parser, rounds=10, block=0.03, starts=5)  # two rounds against iperf3 and sockperf
    given = parser.parse_args()
    given.bytes = [int(size) for size in given.bytes.split(",")]
    if given.starts < 2:
        parser.error(f"--starts {given.starts}: an interval takes two")
    return given


def main() -> int:
    """Measure and print; return 1 if a requested cell could not be measured."""
    given = arguments()
    console = Console(width=160)
    failed = False
    cells = cells_of(given)
    settle(given.settle)
    for _, own in itertools.groupby(
        sorted(cells, key=lambda cell: cell.framework), lambda cell: cell.framework
    ):
        try:
            for start, cell in measure(list(own), given):
                print(f"start {start} of {given.starts}: {cell.last()}", flush=True)
        except Failed as error:
            console.print(error, style="red", markup=False)
            failed = True
    rows = [cell.row() for cell in cells if cell.starts]
    if not rows:
        return 1
    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)
    save("channel", rows, given.out)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
