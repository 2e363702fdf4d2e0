"""Measure simulated series with the real protocol: false alarms, missed changes and coverage.

    python -m benchmarks.steadiness [--series 400]     # the tables of docs/validation/intervals.md
        python -m benchmarks.steadiness --coverage         # only the table of coverage
    python -m benchmarks.steadiness --stop 0.02  # coverage if the interval decides when to stop
    python -m benchmarks.steadiness --table  # the critical values of paradnn/worker/series.py

Noise is Gaussian and AR(1) from block to block. `false` counts series without a change that are
called unsteady. `missed` counts series with a change that are called steady, with the reported
step time relative to the true one at the end.
"""

import argparse
import contextlib
import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.common import save
from paradnn.core.messages import Timing
from paradnn.worker.measure import Protocol, measure_steps
from paradnn.worker.series import MIN_VALUES, block_interval, find_change, median_interval

RHO = (0.0, 0.5, 0.7, 0.9)
PROTOCOLS = {
    "standard": Protocol(0.5, 10, 120.0, 0.05, 10.0),
    "quick": Protocol(0.5, 6, 20.0, 0.05, 2.0),
}
#: Step time relative to a machine at rest, from the seconds since the start of the measurement and
#: the duration of a block in seconds.
PLANTED: dict[str, Callable[[float, float], float]] = {
    "nothing": lambda now, block: 1.0,
    "drift of 5%/s": lambda now, block: 1 + 0.05 * now,
    "jump of 50%": lambda now, block: 1.0 if now < 16 * block else 1.5,
    "slow warm-up": lambda now, block: 1 + 0.5 * math.exp(-now / 2),
}


def ar1(length: int, rho: float, random: np.random.Generator) -> list[float]:
    """Return a stationary Gaussian AR(1) series with mean 0 and variance 1."""
    values = [float(random.standard_normal())]
    for shock in random.standard_normal(length - 1) * math.sqrt(1 - rho**2):
        values.append(rho * values[-1] + float(shock))
    return values


class Machine:
    """Runs steps of about 10 ms in simulated time, with one noise value per block."""

    def __init__(
        self, shape: Callable[[float], float], rho: float, noise: float, random: np.random.Generator
    ) -> None:
        self.now = 0.0
        self._shape = shape
        self._noise = noise
        self._values = iter(ar1(3000, rho, random))

    def run(self, steps: int) -> None:
        self.now += steps * 0.01 * self._shape(self.now) * (1 + self._noise * next(self._values))

    def clock(self) -> float:
        return self.now

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield


def planted(
    name: str, protocol: Protocol, rho: float, noise: float, series: int, seed: int = 0
) -> tuple[list[Timing], list[float]]:
    """Return timings of machines with a planted change, and the true step time at the end in
    seconds.
    """
    timings = []
    truths = []

    def shape(now: float) -> float:
        return PLANTED[name](now, protocol.block_seconds)

    for child in np.random.default_rng(seed).spawn(series):
        machine = Machine(shape, rho, noise, child)
        timings.append(measure_steps(machine.run, protocol, machine.phase, machine.clock))
        truths.append(0.01 * shape(machine.now))
    return timings, truths


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Shares of series that have an interval and whose interval misses the true median.

    Also the median width relative to the interval for independent values.
    """

    given: float
    wrong: float
    width: float

    def __str__(self) -> str:
        coverage = 1 - self.wrong / self.given if self.given else math.nan
        return f"{self.wrong:5.1%} wrong, {self.given:4.0%} have one, {coverage:5.1%} of those hold"


def drawn(kind: str, length: int, random: np.random.Generator) -> list[float]:
    """Draw block times with a true median of 1: AR(1), heavy-tailed, or of two levels 6% apart."""
    if kind == "heavy tails":
        return (1 + 0.02 * np.clip(random.standard_t(2, length), -40, 40)).tolist()
    if kind == "two levels":
        level = (random.integers(2) + np.cumsum(random.random(length) < 0.1)) % 2
        return (1 + 0.03 * (2 * level - 1) + 0.01 * random.standard_normal(length)).tolist()
    return [1 + 0.02 * value for value in ar1(length, float(kind.removeprefix("ar ")), random)]


def coverage(length: int, kind: str, series: int, seed: int = 0) -> Coverage:
    """Return the coverage of the intervals of the given number of series."""
    random = np.random.default_rng(seed)
    wrong = 0
    widths = []
    for _ in range(series):
        values = drawn(kind, length, random)
        interval = block_interval(values)
        plain = median_interval(values)
        if interval and plain:
            wrong += not interval[0] <= 1 <= interval[1]
            widths.append((interval[1] - interval[0]) / (plain[1] - plain[0]))
    median_width = math.nan
    if widths:
        median_width = statistics.median(widths)
    return Coverage(len(widths) / series, wrong / series, median_width)


def errors_of_steady(timings: list[Timing], truths: list[float]) -> list[float]:
    """Return the errors of the reported step times of series that are called steady."""
    pairs = zip(timings, truths, strict=True)
    steps = (
        (statistics.median(one.blocks) / one.steps_per_block, truth)
        for one, truth in pairs
        if one.steady
    )
    return [abs(step / truth - 1) for step, truth in steps]


def print_alarms(series: int) -> None:
    """Print verdicts on planted machines and their cost."""
    rows: list[dict[str, object]] = []
    for (label, protocol), name, noise, rho in itertools.product(
        PROTOCOLS.items(), PLANTED, (0.01, 0.03), RHO
    ):
        timings, truths = planted(name, protocol, rho, noise, series)
        errors = errors_of_steady(timings, truths)
        row: dict[str, object] = {"protocol": label, "planted": name, "noise": noise, "rho": rho}
        row["called steady"] = f"{len(errors) / series:.1%}"
        row["seconds"] = (
            f"{statistics.fmean(sum(timing.warmup) + sum(timing.blocks) for timing in timings):.1f}"
        )
        row["error of the steady"] = f"{statistics.median(errors):.1%}" if errors else ""
        print("  ".join(f"{value!s:>14}" for value in row.values()), flush=True)
        rows.append(row)
    save("steadiness", rows)


def print_coverage(series: int) -> None:
    """Print the coverage for short and long series with each kind of noise."""
    for kind in (*(f"ar {rho}" for rho in RHO), "heavy tails", "two levels"):
        for length in (MIN_VALUES, 8, 10, 12, 16, 24, 40, 60, 100):
            found = coverage(length, kind, series)
            print(f"{kind:12} n={length:<4} {found}  width {found.width:.2f}", flush=True)


def stopped(
    protocol: Protocol, rho: float, noise: float, series: int, seed: int = 0
) -> tuple[float, float, float]:
    """Return coverage, share at the goal, and measured seconds for machines at rest.

    The interval is that of the blocks at which the measurement stopped. Earlier looks are chances
    to stop at an interval that is narrow by accident.
    """
    covered = 0
    reached = 0
    seconds = []
    timings, truths = planted("nothing", protocol, rho, noise, series, seed)
    for timing, truth in zip(timings, truths, strict=True):
        steps = [block / timing.steps_per_block for block in timing.blocks]
        seconds.append(sum(timing.blocks))
        interval = block_interval(steps)
        if interval:
            covered += interval[0] <= truth <= interval[1]
            goal = protocol.relative_interval or math.inf
            reached += (interval[1] - interval[0]) / 2 / statistics.median(steps) <= goal
    return covered / series, reached / series, statistics.median(seconds)


def print_stopped(series: int, goal: float) -> None:
    """Print the coverage with and without stopping on the interval."""
    for label, noise, rho in itertools.product(PROTOCOLS, (0.01, 0.03), RHO):
        looking = dataclasses.replace(PROTOCOLS[label], relative_interval=goal)
        coverage, reached, seconds = stopped(looking, rho, noise, series)
        fixed, _, _ = stopped(PROTOCOLS[label], rho, noise, series)
        said = (
            f"coverage {coverage:.1%}  goal {reached:.1%}  {seconds:.1f} s  "
            f"without looking {fixed:.1%}"
        )
        print(f"{label:9} noise {noise:.0%} rho {rho}: {said}", flush=True)


def print_table(series: int) -> None:
    """Print the critical values: what chance explains in one of ten, by length and
    autocorrelation.
    """
    random = np.random.default_rng(0)
    for length in (6, 8, 10, 14, 20, 30, 40, 60, 80, 160, 320):
        changes = [
            find_change([1 + 0.01 * value for value in ar1(length, rho, random)])
            for rho in RHO
            for _ in range(series)
        ]
        explained = np.array([change.explained for change in changes])
        found = np.array([change.correlation for change in changes])
        row: list[float] = []
        for column in (-0.2, 0.0, 0.2, 0.4, 0.6):
            # If few such series have the given autocorrelation, use the nearest ones.
            distance = np.abs(np.clip(found, -0.2, 0.6) - column)
            near = distance <= max(0.1, float(np.sort(distance)[len(distance) // 100]))
            row.append(float(np.quantile(explained[near], 0.9)))
        print(length, *(f"{value:.2f}" for value in row), sep=",", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--series", type=int, default=400, help="series per cell; --table uses ten times the number"
    )
    parser.add_argument(
        "--stop", type=float, help="measure.relative_interval: its coverage instead"
    )
    parser.add_argument(
        "--coverage", action="store_true", help="the coverage of the interval alone"
    )
    parser.add_argument("--table", action="store_true", help="draw the critical values instead")
    arguments = parser.parse_args()
    if arguments.table:
        print_table(10 * arguments.series)
    elif arguments.stop:
        print_stopped(arguments.series, arguments.stop)
    else:
        if not arguments.coverage:
            print_alarms(arguments.series)
        print_coverage(10 * arguments.series)


if __name__ == "__main__":
    main()
