"""Planted series through the real protocol, on a clock that is turned by hand: false and missed
alarms, coverage.

    python -m benchmarks.steadiness [--series 400]     # the tables of docs/explanation/method.md
    python -m benchmarks.steadiness --coverage         # the second of them alone
    python -m benchmarks.steadiness --stop 0.02        # coverage where the interval itself decides when to stop
    python -m benchmarks.steadiness --table            # the critical values of paradnn/worker/series.py

Noise is Gaussian and AR(1) from block to block. `false`: a series without a change that is called
unsteady; `missed`: one with a change that is called steady, with the reported step time beside the
true one at the end.
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
from paradnn.worker.series import FEWEST, block_interval, find_change, median_interval

RHO = (0.0, 0.5, 0.7, 0.9)
PROTOCOLS = {
    "standard": Protocol(0.5, 10, 120.0, 0.05, 10.0),
    "quick": Protocol(0.5, 6, 20.0, 0.05, 2.0),
}
#: Step time at a second of the measurement, with blocks of so many seconds, over that of a machine
#: at rest.
PLANTED: dict[str, Callable[[float, float], float]] = {
    "nothing": lambda now, block: 1.0,
    "drift of 5%/s": lambda now, block: 1 + 0.05 * now,
    "jump of 50%": lambda now, block: 1.0 if now < 16 * block else 1.5,
    "slow warm-up": lambda now, block: 1 + 0.5 * math.exp(-now / 2),
}


def ar1(length: int, rho: float, random: np.random.Generator) -> list[float]:
    """A stationary Gaussian AR(1) series with mean 0 and variance 1."""
    values = [float(random.standard_normal())]
    for shock in random.standard_normal(length - 1) * math.sqrt(1 - rho**2):
        values.append(rho * values[-1] + float(shock))
    return values


class Machine:
    """Runs steps of some 10 ms in simulated time, its noise one value a block."""

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
    """The timings of so many machines with a planted change, and the true step time at the end of
    each, in seconds.
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
    """Shares of series: that have an interval, and that have one which does not hold the true
    median; and the width of the intervals over that for independent values (median).
    """

    given: float
    wrong: float
    width: float

    def __str__(self) -> str:
        held = 1 - self.wrong / self.given if self.given else math.nan
        return f"{self.wrong:5.1%} wrong, {self.given:4.0%} have one, {held:5.1%} of those hold"


def drawn(kind: str, length: int, random: np.random.Generator) -> list[float]:
    """Block times whose true median is 1: AR(1), heavy-tailed, or of two levels 6% apart that
    change at random.
    """
    if kind == "heavy tails":
        return (1 + 0.02 * np.clip(random.standard_t(2, length), -40, 40)).tolist()
    if kind == "two levels":
        level = (random.integers(2) + np.cumsum(random.random(length) < 0.1)) % 2
        return (1 + 0.03 * (2 * level - 1) + 0.01 * random.standard_normal(length)).tolist()
    return [1 + 0.02 * value for value in ar1(length, float(kind.removeprefix("ar ")), random)]


def coverage(length: int, kind: str, series: int, seed: int = 0) -> Coverage:
    """What the intervals of so many series say."""
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
    return Coverage(
        len(widths) / series, wrong / series, statistics.median(widths) if widths else math.nan
    )


def errors_of_steady(timings: list[Timing], truths: list[float]) -> list[float]:
    """How far the reported step is from the true one, of those that are called steady."""
    pairs = zip(timings, truths, strict=True)
    steps = (
        (statistics.median(one.blocks) / one.steps_per_block, truth)
        for one, truth in pairs
        if one.steady
    )
    return [abs(step / truth - 1) for step, truth in steps]


def print_alarms(series: int) -> None:
    """Verdicts on planted machines, and what they cost."""
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
    """What the intervals of short and long series say, of each kind of noise."""
    for kind in (*(f"ar {rho}" for rho in RHO), "heavy tails", "two levels"):
        for length in (FEWEST, 8, 10, 12, 16, 24, 40, 60, 100):
            found = coverage(length, kind, series)
            print(f"{kind:12} n={length:<4} {found}  width {found.width:.2f}", flush=True)


def stopped(
    protocol: Protocol, rho: float, noise: float, series: int, seed: int = 0
) -> tuple[float, float, float]:
    """Of machines at rest: share of intervals that hold the true step time, share at their goal,
    seconds measured.

    The interval is that of the blocks on which the measurement ended: the looks before are chances
    to end early on an interval that happens to be narrow.
    """
    held = 0
    reached = 0
    seconds = []
    timings, truths = planted("nothing", protocol, rho, noise, series, seed)
    for timing, truth in zip(timings, truths, strict=True):
        steps = [block / timing.steps_per_block for block in timing.blocks]
        seconds.append(sum(timing.blocks))
        interval = block_interval(steps)
        if interval:
            held += interval[0] <= truth <= interval[1]
            goal = protocol.relative_interval or math.inf
            reached += (interval[1] - interval[0]) / 2 / statistics.median(steps) <= goal
    return held / series, reached / series, statistics.median(seconds)


def print_stopped(series: int, goal: float) -> None:
    """Coverage beside that of the protocol that does not look."""
    for label, noise, rho in itertools.product(PROTOCOLS, (0.01, 0.03), RHO):
        looking = dataclasses.replace(PROTOCOLS[label], relative_interval=goal)
        held, reached, seconds = stopped(looking, rho, noise, series)
        fixed, _, _ = stopped(PROTOCOLS[label], rho, noise, series)
        said = f"held {held:.1%}  goal {reached:.1%}  {seconds:.1f} s  without looking {fixed:.1%}"
        print(f"{label:9} noise {noise:.0%} rho {rho}: {said}", flush=True)


def print_table(series: int) -> None:
    """The critical values: what chance explains in one of ten, by length and correlation of the
    residuals.
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
            # Where such series hardly ever come to a correlation, those that are nearest to it.
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
        "--series", type=int, default=400, help="series a cell; ten times as many for --table"
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
