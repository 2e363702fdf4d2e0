"""Compare ParaDnn's step with hand-written loops, per framework and family.

    python -m benchmarks.fidelity [--frameworks tensorflow,jax,torch] [--families fc,lstm]
        [--rounds 60] [--starts 3]

Four programs run at the same time in separate processes. They take turns with short blocks, in a
new random order per round, and sleep between their turns:

- `ours`: the worker's step (`ours.py`);
- `plain` and `copy`: the same model in a hand-written loop (`plain_*.py`, which import nothing of
  ParaDnn), twice, since two processes of one program differ too;
- `keras`: the hand-written loop with the loss and optimizer of Keras.

A cell is measured only if all programs train weights of the same shapes and have the same losses
from the same initial weights. Ratios are of throughput: 1.02 means 2% faster. Within a start the
ratio is the median over rounds, with an interval that allows for correlated rounds. The result is
the geometric mean of the starts. Its interval is the wider of two: that of the rounds, and
Student's t over the starts.
"""

import argparse
import contextlib
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, ROOT, save
from benchmarks.ours import POINTS, point
from benchmarks.turns import Failed, Program, Ready, Stage
from paradnn.session.measured import mean_interval
from paradnn.session.workers import WorkerKey
from paradnn.worker.series import block_interval

FRAMEWORKS = ("tensorflow", "jax", "torch")
FAMILIES = tuple(name for name in POINTS if name != "resnet50")
#: Ranges of the ratio and of the interval in a sound cell.
WITHIN = (0.98, 1.02)
INTERVAL_WITHIN = (0.96, 1.04)
#: Largest share of its time that other processes use on an idle machine.
BUSY = 0.05
#: Discarded rounds at the beginning of each start.
WARM_ROUNDS = 8
#: Largest differences of losses, as shares of the initial loss and of its change. Programs sum in
#: different orders, and every step adds rounding differences.
FIRST_TOLERANCE = 1e-4
CHANGE_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Ratio:
    """A ratio with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def sound(self) -> bool:
        """Whether the ratio is within 0.98 .. 1.02 and its interval within 0.96 .. 1.04."""
        inside = WITHIN[0] <= self.value <= WITHIN[1]
        return inside and INTERVAL_WITHIN[0] <= self.low and self.high <= INTERVAL_WITHIN[1]

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} .. {self.high:.3f})"


@dataclass
class Cell:
    """One framework and family.

    `starts` holds the seconds of a step in every round, by program, per start.
    """

    framework: str
    family: str
    starts: list[Mapping[str, Sequence[float]]] = field(default_factory=list)

    def ratio(self, over: Sequence[str], under: Sequence[str]) -> Ratio:
        """Return the throughput of `over` relative to `under`."""
        return combine([round_ratios(start, over, under) for start in self.starts])

    def row(self) -> dict[str, Ratio]:
        """Return the cell's row of the table, by column."""
        by_hand = ("plain", "copy")
        return {
            "ours / by hand": self.ratio(["ours"], by_hand),
            "ours / with Keras": self.ratio(["ours"], ["keras"]),
            "with Keras / by hand": self.ratio(["keras"], by_hand),
            "by hand / by hand": self.ratio(["plain"], ["copy"]),
        }


def round_ratios(
    start: Mapping[str, Sequence[float]], over: Sequence[str], under: Sequence[str]
) -> list[float]:
    """Return the ratio of rates of `over` to `under` in each round.

    Several programs on one side count with their geometric mean.
    """
    below, above = (zip(*(start[name] for name in names), strict=True) for names in (over, under))
    mean = statistics.geometric_mean
    return [mean(one) / mean(other) for one, other in zip(above, below, strict=True)]


def combine(starts: Sequence[Sequence[float]]) -> Ratio:
    """Return the ratio over several starts, from the ratios of the rounds of each.

    On the log scale it is the mean of the starts' medians. Half its interval is the larger of t(S
    - 1) sd / sqrt(S) over the S starts, and sqrt(sum of squares) / S of the half widths of the
    single starts. One start has only the second; fewer than six rounds have none.
    """
    centers = [math.log(statistics.median(ratios)) for ratios in starts]
    center = statistics.fmean(centers)
    count = len(starts)
    halves = []
    for ratios in starts:
        interval = block_interval(ratios)
        halves.append(math.log(interval[1] / interval[0]) / 2 if interval else math.inf)
    half = math.sqrt(sum(own**2 for own in halves)) / count
    if count > 1:
        low, high = mean_interval([math.exp(each) for each in centers])
        half = max(half, math.log(high / low) / 2)
    return Ratio(math.exp(center), math.exp(center - half), math.exp(center + half))


def differences(found: Mapping[str, Ready]) -> str | None:
    """Return a text about different computations of the programs; None if they agree."""
    first, *others = found
    reference = found[first]
    for name in others:
        if found[name].shapes != reference.shapes:
            return (
                f"{name} trains {found[name].parameters} weights, "
                f"{first} {reference.parameters}, or other shapes"
            )
        for step, (a, b) in enumerate(zip(reference.losses, found[name].losses, strict=True), 1):
            start = reference.losses[0]
            if not abs(a - b) <= FIRST_TOLERANCE * abs(start) + CHANGE_TOLERANCE * abs(a - start):
                return f"after {step} steps the loss of {name} is {b:.6g}, of {first} {a:.6g}"
    return None


def commands(framework: str, platform: str) -> dict[str, list[str]]:
    """Return the arguments of `python -m` by program name."""
    plain = [f"benchmarks.plain_{framework}"]
    ours = ["benchmarks.ours", framework, "--platform", platform]
    return {"ours": ours, "plain": plain, "keras": [*plain, "--keras"], "copy": plain}


def environment(framework: str, platform: str, scratch: Path) -> dict[str, str]:
    """Return the environment of the worker, for all programs, so that threads and allocator
    agree.

    PyTorch's compiler results stay in `scratch` for the other starts, which would take minutes
    otherwise. Results from before are not found again.
    """
    environ = WorkerKey.of(point("fc", framework, platform)).environ()
    # PyTorch must not touch CUDA before the programs fork, nor start processes that compile.
    torch = {"TORCHINDUCTOR_CACHE_DIR": str(scratch), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return {**environ, **torch, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def open_cell(stage: Stage, family: str) -> list[Program]:
    """Return the compiled and verified programs of a family. Raises Failed."""
    programs = stage.open(family)
    problem = differences({program.name: program.ready() for program in programs})
    if problem:
        raise Failed(problem)
    return programs


def take_turns(
    programs: Sequence[Program], rounds: int, block_seconds: float, order: random.Random
) -> dict[str, list[float]]:
    """Return the seconds of a step in every round by program; all blocks have the same number of
    steps.

    Raises:
        Failed: If a program ended.
    """
    steps = 1
    for _ in range(3):
        shortest = min(program.block(steps) / steps for program in programs)
        steps = max(1, math.ceil(block_seconds / shortest))
    times: dict[str, list[float]] = {program.name: [] for program in programs}
    for number in range(-WARM_ROUNDS, rounds):
        for program in order.sample(programs, len(programs)):
            # A tenth of a block, which is not timed, refills the caches after the other programs.
            seconds = program.block(steps, lead=max(1, steps // 10)) / steps
            if number >= 0:
                times[program.name].append(seconds)
    return times


def settle(longest: float) -> None:
    """Wait until the machine is idle, for at most `longest` seconds."""
    end = time.monotonic() + longest
    while psutil.cpu_percent(interval=1.0) > 100 * BUSY and time.monotonic() < end:
        pass


def measure(given: argparse.Namespace, console: Console) -> list[Cell]:
    """Measure every available cell, one framework after the other."""
    cells = []
    order = random.Random(given.seed)
    for framework in given.frameworks:
        own = {family: Cell(framework, family) for family in given.families}
        with contextlib.ExitStack() as stages:
            scratch = Path(stages.enter_context(tempfile.TemporaryDirectory(prefix="fidelity-")))
            opened: list[tuple[str, list[Program]]] = []
            for start in range(1, given.starts + 1):
                environ = environment(framework, given.platform, scratch)
                stage = stages.enter_context(
                    Stage(commands(framework, given.platform), environ, ROOT)
                )
                for family in own:
                    with reported_failure(console, f"{framework} {family}"):
                        opened.append((family, open_cell(stage, family)))
                console.print(f"{framework}: start {start} of {given.starts} is compiled")
            settle(given.settle)
            for family, programs in order.sample(opened, len(opened)):
                with reported_failure(console, f"{framework} {family}"):
                    own[family].starts.append(
                        take_turns(programs, given.rounds, given.block, order)
                    )
        cells += [cell for cell in own.values() if cell.starts]
    return cells


@contextlib.contextmanager
def reported_failure(console: Console, what: str) -> Iterator[None]:
    """Print a failure and continue with the other cells."""
    try:
        yield
    except Failed as error:
        console.print(f"{what}: {error}", style="red", markup=False)


def table_of(cells: Sequence[Cell]) -> Table:
    """Return one row per cell."""
    table = Table(box=None)
    rows = [cell.row() for cell in cells]
    for heading in ("framework", "family", "step", *rows[0], "verdict"):
        table.add_column(heading)
    for cell, row in zip(cells, rows, strict=True):
        step = statistics.median(seconds for start in cell.starts for seconds in start["plain"])
        verdict = " ".join("sound" if ratio.sound else "NOT" for ratio in list(row.values())[:2])
        table.add_row(
            cell.framework, cell.family, f"{step * 1e3:.3g} ms", *map(str, row.values()), verdict
        )
    return table


def save_rounds(cells: Sequence[Cell], folder: Path) -> None:
    """Write every block of every start, and the table."""
    rounds = [
        {"framework": cell.framework, "family": cell.family, "start": start, "round": number}
        | dict(zip(times, row, strict=True))
        for cell in cells
        for start, times in enumerate(cell.starts)
        for number, row in enumerate(zip(*times.values(), strict=True))
    ]
    save("fidelity_rounds", rounds, folder)
    table = [{"framework": cell.framework, "family": cell.family, **cell.row()} for cell in cells]
    save("fidelity", table, folder)


def take_options(
    parser: argparse.ArgumentParser, rounds: int = 60, block: float = 0.1, starts: int = 3
) -> None:
    """Parse the options of a command whose programs run in turn, with these defaults."""
    parser.add_argument("--rounds", type=int, default=rounds, help="of each start")
    parser.add_argument(
        "--block", type=float, default=block, help="seconds of a turn, at least one step"
    )
    parser.add_argument("--starts", type=int, default=starts, help="of all processes")
    parser.add_argument(
        "--settle", type=float, default=30.0, help="seconds to wait at most until nothing else runs"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV files")


def names_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(known)}")
        return names

    return read


def main() -> int:
    """Measure and print the table; return 1 if a requested cell is missing or not sound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--frameworks",
        type=names_of(FRAMEWORKS),
        default=["tensorflow"],
        help="separated by commas",
    )
    parser.add_argument(
        "--families",
        type=names_of(tuple(POINTS)),
        default=list(FAMILIES),
        help="separated by commas",
    )
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    take_options(parser)
    given = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    cells = measure(given, console)
    if not cells:
        return 1
    console.print(table_of(cells))
    save_rounds(cells, given.out)
    whole = len(cells) == len(given.frameworks) * len(given.families)
    if whole and all(cell.row()["ours / with Keras"].sound for cell in cells):
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
