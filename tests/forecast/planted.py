"""Simulated machines with known step times, and their runs in the form that a store returns."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paradnn.config.point import Measure, Optimizer, Point, step_costs
from paradnn.families import FAMILIES
from paradnn.families.fc import FullyConnected
from paradnn.families.rnn import Recurrent
from paradnn.forecast.history import CompletedRun
from paradnn.forecast.phases import PointTimes, point_times
from paradnn.forecast.predict import StepTimeModel
from paradnn.forecast.table import RunHistory, Table, make_table, point_params

DEVICE = "a planted machine"
HOME = "home"
FLOPS = 1e11
BANDWIDTH = 2e10
CORES = 4
QUICK = Measure(
    min_seconds=0.5, min_blocks=6, block_seconds=0.05, warmup_seconds=2.0, max_seconds=20.0
)


def fc(layers: int, nodes: int, batch: int, **others: Any) -> Point:
    """Return a fully connected point with a quick protocol."""
    model = FullyConnected(layers=layers, nodes=nodes)
    return Point(model=model, batch_size=batch, measure=QUICK, optimizer=Optimizer(), **others)


def lstm(width: int, batch: int) -> Point:
    """Return a recurrent point with a quick protocol."""
    model = Recurrent(name="lstm", embedding_size=width)
    return Point(model=model, batch_size=batch, measure=QUICK)


def grid(random: np.random.Generator, count: int) -> list[Point]:
    """Return `count` distinct points of two families in random order."""
    points = [
        fc(layers, nodes, batch)
        for layers in (1, 2, 4, 8, 16)
        for nodes in (32, 64, 128, 256, 512, 1024, 2048)
        for batch in (64, 128, 256, 512, 1024)
    ]
    points += [lstm(width, batch) for width in (50, 100, 200, 400, 800) for batch in (16, 64, 256)]
    return [points[index] for index in random.permutation(len(points))[:count]]


class Machine:
    """Machine with random efficiencies and dispatch times.

    These are drawn once per machine. Each session draws a slowdown, and each run draws noise.

    Args:
        random: Generator of all draws.
        noise: Standard deviation of the logarithm of a run's noise.
        session: Standard deviation of the logarithm of a session's slowdown.
    """

    def __init__(
        self, random: np.random.Generator, noise: float = 0.1, session: float = 0.15
    ) -> None:
        self._random = random
        self._noise = noise
        self._session = session
        self.efficiency = random.uniform(0.3, 0.9)
        self.traffic = random.uniform(0.25, 0.8)
        self.dispatch = 2e-4 * np.exp(0.4 * random.standard_normal())
        self._families = {name: np.exp(0.3 * random.standard_normal()) for name in FAMILIES}
        self.begin_session("first")

    def begin_session(self, name: str) -> None:
        self.name = name
        self.slowness = float(np.exp(self._session * self._random.standard_normal()))

    def law(self, point: Point) -> float:
        """Return the true seconds of a step, without the effect of the session and noise."""
        costs = step_costs(point)
        layers = int(getattr(point.model, "layers", 1))
        work = costs.flops_per_step / (self.efficiency * FLOPS) + costs.bytes_per_step / (
            self.traffic * BANDWIDTH
        )
        return float((work + self.dispatch * layers) * self._families[point.model.name])

    def step(self, point: Point) -> float:
        """Return the seconds of a step in this session, with noise."""
        return (
            self.law(point)
            * self.slowness
            * float(np.exp(self._noise * self._random.standard_normal()))
        )

    def run(self, point: Point, number: int) -> CompletedRun:
        """Return the stored run of a point, which is number `number` of this session, from 0."""
        costs = step_costs(point)
        step = self.step(point)
        spent = {
            "schedule": 0.03,
            "start": 0.02 if number else 2.0,
            "build": 0.1,
            "compile": 0.3 + step,
        }
        spent |= {"warmup": 1.0, "measure": 1.0, "record": 0.01}
        counted = {
            name: getattr(costs, name)
            for name in ("flops_per_step", "bytes_per_step", "parameters")
        }
        metrics = {
            "step_time_ms": step * 1e3,
            "load_average": 4.0,
            "warmup_blocks": 12.0,
            **counted,
        }
        metrics |= {f"phase_{name}_seconds": seconds for name, seconds in spent.items()}
        tags = {
            "environment_id": HOME,
            "device": DEVICE,
            "sweep_id": self.name,
            "outcome": "ok",
            "steady": "true",
        }
        tags |= {"kind": "point", "source": "measured"}
        return CompletedRun(
            f"{self.name}-{number}", 5.0 * number, point_params(point), metrics, tags
        )

    def session(self, name: str, points: list[Point]) -> list[CompletedRun]:
        """Begin a session, and return its runs of the given points."""
        self.begin_session(name)
        return [self.run(point, number) for number, point in enumerate(points)]


def rates(device: str, framework: str, precision: str) -> tuple[float, float, float]:
    """Return FLOP/s, bytes/s and cores of the planted machine, for any arguments."""
    return FLOPS, BANDWIDTH, CORES


def planned_table(points: Sequence[Point], environment: str = HOME) -> Table:
    """Return a table of points to measure on the planted machine."""
    count = len(points)
    return make_table(points, [environment] * count, [DEVICE] * count, rates)


def expected_times(
    runs: Sequence[CompletedRun], points: Sequence[Point], environment: str = HOME
) -> PointTimes:
    """Predict times of points from past runs."""
    past = RunHistory.from_runs(runs, rates)
    planned = planned_table(points, environment)
    return point_times(
        past, planned, 300, StepTimeModel.fit(past.table, past.step, past.noise).predict(planned)
    )


def replicate_of(point: Point, replicate: int) -> Point:
    """Return a replicate of the point."""
    return replace(point, replicate=replicate)
