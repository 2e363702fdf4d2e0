"""ParaDnn's side of `benchmarks.channel`: the processes and the step of a point with `model=channel`."""

from __future__ import annotations

import argparse

from benchmarks.turns import Step, take_part
from paradnn.config.identity import request_of
from paradnn.config.point import Point, read_point
from paradnn.core.versions import FRAMEWORKS
from paradnn.worker import frameworks


def point(model: str) -> Point:
    """The point of "TRANSPORT PATTERN BYTES", with every default that a user's would have."""
    transport, pattern, size = model.split()
    given = {"name": "channel", "transport": transport, "pattern": pattern, "bytes": int(size)}
    return read_point({"model": given, "batch_size": 1, "mode": "inference"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=FRAMEWORKS)
    given, _ = parser.parse_known_args()
    frameworks.load(given.framework)
    from paradnn.workloads.channel.processes import Processes

    kept: list[Processes] = []  # the pipes to the other processes close when nothing refers to them

    def make(model: str) -> Step:
        kept.append(Processes(request_of(point(model))))
        step = kept[-1].step()

        def run(steps: int) -> float:
            step.run(steps)
            return 0.0

        return Step(run, ())

    take_part(make, parser)


if __name__ == "__main__":
    main()
