"""Measure time and memory of choosing the next points of an adaptive sweep.

    python -m benchmarks.few_seconds [--measured 50 200 600 1000 2000]

A look reads the store, fits, predicts and chooses among the 9,720 points of the paper's FC space on
a simulated machine. Prints the median seconds of a look and the peak memory. Each number of points
runs in a separate process, so that its memory is measured separately.
"""

import argparse
import itertools
import resource
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from paradnn.config.identity import Identity, point_id
from paradnn.config.point import Measure, Point
from paradnn.config.settings import Settings, Sweep
from paradnn.config.tasks import SweepInfo
from paradnn.designs.adaptive import AdaptiveSweep, DesignKnowledge
from paradnn.families.fc import FullyConnected
from paradnn.forecast.history import CompletedRun, History
from paradnn.session.environments import current_environments
from paradnn.store.runs import Finished
from tests.forecast.planted import Machine

#: Number of looks; the median is reported.
LOOKS = 5


class Measured:
    """Store of an adaptive sweep with given runs, one measurement each."""

    def __init__(self, runs: Mapping[Identity, CompletedRun]) -> None:
        self.runs = runs

    def finished(
        self, environment_ids: Collection[str], sweep_id: str | None = None
    ) -> dict[Identity, list[Finished]]:
        return {identity: [Finished(run.run_id, run.tags)] for identity, run in self.runs.items()}

    def claimed(self) -> set[Identity]:
        return set()


def space() -> list[Point]:
    """Return the fully connected models of Table 2 of the paper."""
    layers, nodes, batches = (
        [2**power for power in range(*ends)] for ends in ((2, 8), (5, 14), (6, 15))
    )
    axes = itertools.product(layers, nodes, range(2000, 8001, 2000), range(200, 1001, 200), batches)
    protocol = Measure(profile=False, processes=1, memory_limit=2**50)
    return [
        Point(FullyConnected("fc", *sizes), batch_size=batch, measure=protocol)
        for *sizes, batch in axes
    ]


def prepared(count: int) -> AdaptiveSweep:
    """Return an adaptive sweep with the given number of measured points, drawn at random."""
    points = space()
    random = np.random.default_rng(0)
    [environment] = current_environments(points[:1]).values()
    assert environment is not None
    machine = Machine(random, noise=0.03, session=0.0)
    runs = {}
    for number, index in enumerate(random.permutation(len(points))[:count]):
        past = machine.run(points[index], number)
        point = points[index]
        tags = {
            **past.tags,
            "environment_id": environment.environment_id,
            "device": environment.device,
        }
        tags |= {"point_id": point_id(point), "replicate": "0"}
        identity = Identity(tags["point_id"], environment.environment_id, point.replicate)
        runs[identity] = replace(
            past, tags=tags, metrics={**past.metrics, "peak_memory_bytes": 1e9}
        )
    settings = Settings(ceilings=False, sweep=Sweep(design="adaptive", error=1e-6))
    history = History("memory", Measured(runs), lambda devices, most: [*runs.values()])  # type: ignore[arg-type]
    sweep = AdaptiveSweep(points, settings, SweepInfo("planted", "", ""))
    sweep.knowledge = DesignKnowledge(points, settings, history, "planted")
    return sweep


def timed(count: int) -> None:
    """Print the seconds of each look, and the memory at the end."""
    design = prepared(count)
    design.next()
    spent = []
    for _ in range(LOOKS):
        begin = time.perf_counter()
        design.next()
        spent.append(time.perf_counter() - begin)
    mebibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{count:6d}  {np.median(spent):6.2f} ({min(spent):.2f} .. {max(spent):.2f})  "
        f"{mebibytes:7.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measured", type=int, nargs="*", default=[50, 200, 600, 1000, 2000])
    parser.add_argument(
        "--single", action="store_true", help="in this process, such as under python -m cProfile"
    )
    given = parser.parse_args()
    if given.single:
        timed(given.measured[0])
    else:
        print("points  seconds of a look      MiB at most")
        for count in given.measured:
            command = [
                sys.executable,
                "-m",
                "benchmarks.few_seconds",
                "--single",
                "--measured",
                str(count),
            ]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
