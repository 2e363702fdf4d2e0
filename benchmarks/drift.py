"""Drift as a sweep tells it, on planted machines: false alarms, coverage, what a drift and a jump are called.

    python -m benchmarks.drift [--sweeps 1000]

Step times have noise of 3% (AR(1) from process to process, coefficient 0 to 0.9) and come in the order in which a sweep
measures: groups of 24 points, a round for each process, five seconds a process.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from paradnn.session.measuring import GROUP
from paradnn.session.summary import DriftEstimate, drift_of

_NOISE, _SECONDS = 0.03, 5.0


def schedule(points: int, processes: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Which point each process is of, in the order in which they are measured."""
    groups = [np.arange(first, min(first + GROUP, points)) for first in range(0, points, GROUP)]
    return np.concatenate([random.permutation(group) for group in groups for _ in range(processes)])


def correlated(count: int, coefficient: float, random: np.random.Generator) -> NDArray[np.float64]:
    """AR(1) noise of standard deviation `_NOISE`."""
    values = random.normal(0, _NOISE, count)
    for index in range(1, count):
        values[index] = coefficient * values[index - 1] + np.sqrt(1 - coefficient**2) * values[index]
    return values


def planted(
    points: int, processes: int, logs: NDArray[np.float64], random: np.random.Generator
) -> DriftEstimate | None:
    """The drift where the process that is measured n-th takes exp(logs[n]) seconds a step."""
    order = schedule(points, processes, random)
    places = [np.flatnonzero(order == point) for point in range(points)]
    return drift_of([[(1.8e9 + _SECONDS * float(at), float(np.exp(logs[at]))) for at in each] for each in places])


def main() -> None:
    """A row a sweep and coefficient."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sweeps", type=int, default=1000)
    count = parser.parse_args().sweeps
    print("points  processes  coefficient  false alarms  covers 5% over the sweep  tells it  tells a jump of 10%")
    for points, processes in ((8, 5), (24, 2), (24, 5), (100, 2), (100, 5)):
        measured = points * processes
        hours = _SECONDS * (measured - 1) / 3600
        slope = 0.05 / hours
        for coefficient in (0.0, 0.5, 0.7, 0.9):
            random = np.random.default_rng(0)
            told, covered, found, jumps = 0, 0, 0, 0
            for _ in range(count):
                noise = correlated(measured, coefficient, random)
                told += _tells(planted(points, processes, noise, random))
                estimate = planted(points, processes, noise + np.linspace(0, 0.05, measured), random)
                covered += estimate is not None and estimate.low <= slope <= estimate.high
                found += _tells(estimate)
                jump = 0.1 * (np.arange(measured) > random.uniform(0.1, 0.9) * measured)
                jumps += _tells(planted(points, processes, noise + jump, random))
            shares = (f"{100 * hits / count:5.1f}%" for hits in (told, covered, found, jumps))
            print(points, processes, coefficient, *shares, sep="\t", flush=True)


def _tells(estimate: DriftEstimate | None) -> bool:
    return estimate is not None and estimate.matters


if __name__ == "__main__":
    main()
