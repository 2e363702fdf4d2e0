"""The arithmetic of the protocol, held against the protocol itself on a clock that the test turns."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paradnn.forecast.phases import (
    FIRST_VERDICT,
    calibrate,
    extra_blocks,
    latency_seconds,
    measure_seconds,
    profile_seconds,
    warmup_seconds,
)
from paradnn.worker import measure
from paradnn.worker.messages import Timing
from paradnn.worker.profile.run import profile_steps


class Machine:
    """Runs steps of `seconds` each in simulated time; every block may be longer or shorter by `jitter`."""

    def __init__(self, seconds: float, jitter: float = 0.0, seed: int = 0) -> None:
        self.now = 0.0
        self.steps = 0
        self.spent: dict[str, float] = {}
        self._seconds = seconds
        self._jitter = jitter
        self._random = np.random.default_rng(seed)

    def run(self, steps: int) -> float:
        self.now += steps * self._seconds * (1 + self._jitter * self._random.standard_normal())
        self.steps += steps
        return 1.0

    def clock(self) -> float:
        return self.now

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = self.now
        yield
        self.spent[name] = self.now - begin


def protocols(count: int) -> list[dict[str, float]]:
    random = np.random.default_rng(7)
    groups = []
    for _ in range(count):
        groups.append(
            {
                "min_seconds": random.uniform(0.01, 3),
                "min_blocks": int(random.integers(1, 20)),
                "max_seconds": random.uniform(0.5, 60),
                "block_seconds": 10 ** random.uniform(-3, 0),
                "warmup_seconds": random.uniform(0.05, 12),
                "timeout": 600.0,
            }
        )
    return groups


def columns_of(settings: list[dict[str, float]]) -> dict[str, np.ndarray]:
    return {name: np.array([[float(group[name])] for group in settings]) for name in settings[0]}


def really(machine: Machine, settings: dict[str, float]) -> Timing:
    return measure.measure_steps(machine.run, measure.Protocol.of(settings), machine.phase, machine.clock)


def test_constant_steps_take_what_the_protocol_takes() -> None:
    settings = protocols(200)
    steps = 10 ** np.random.default_rng(3).uniform(-5, 1, (200, 1))
    columns = columns_of(settings)
    blocks = calibrate(steps, columns)
    warmup = warmup_seconds(blocks, columns, np.zeros((200, 1)))
    measured = measure_seconds(blocks, columns)
    for index, group in enumerate(settings):
        machine = Machine(float(steps[index, 0]))
        result = really(machine, group)
        assert blocks.steps[index, 0] == result.steps_per_block
        assert blocks.trials[index, 0] == len(result.calibration)
        assert warmup[index, 0] == pytest.approx(machine.spent["warmup"])
        assert measured[index, 0] == pytest.approx(machine.spent["measure"])


def test_blocks_until_steady_are_read_back_from_a_run() -> None:
    """A restless machine needs more blocks; with their number the arithmetic gives its warm-up again."""
    settings = {**protocols(1)[0], "block_seconds": 0.1, "warmup_seconds": 1e6}
    columns = columns_of([settings])
    needed = []
    for seed in range(40):
        machine = Machine(0.0301, jitter=0.06, seed=seed)
        result = really(machine, settings)
        if result.steps_per_block != 4:
            continue  # a trial fell just short of a block
        recorded = np.array([[len(result.calibration) - 1 + len(result.warmup)]], dtype=float)
        blocks = calibrate(np.array([[0.0301]]), columns)
        extra = extra_blocks(recorded + blocks.trials - len(result.calibration), blocks)
        needed.append(float(extra[0, 0]))
        # Blocks that were measured in vain count as warm-up.
        before = machine.now - sum(result.blocks)
        assert warmup_seconds(blocks, columns, extra)[0, 0] == pytest.approx(before, rel=0.15)
    assert max(needed) > 3
    assert min(needed) == 0


def test_the_warm_up_ends_at_its_cap() -> None:
    settings = {**protocols(1)[0], "block_seconds": 0.1, "warmup_seconds": 4.5}
    columns = columns_of([settings])
    machine = Machine(1.0)  # no eight blocks fit
    assert len(really(machine, settings).warmup) < FIRST_VERDICT
    warmup = warmup_seconds(calibrate(np.array([[1.0]]), columns), columns, np.array([[1e9]]))
    assert warmup[0, 0] == machine.spent["warmup"] == 5.0


class Profiled:
    """The profiler's part of a framework: its trace holds nothing, so only steps are counted."""

    @contextlib.contextmanager
    def trace(self, folder: Path) -> Iterator[Any]:
        yield contextlib.nullcontext

    def read_trace(self, folder: Path) -> None:
        raise ValueError("no trace")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces are written to the working folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("seconds", [1e-4, 0.0099, 0.1, 0.3, 4.0, 7.0])
@pytest.mark.parametrize("left", [5.0, 30.0, math.inf])
@pytest.mark.usefixtures("here")
def test_as_many_steps_are_profiled(
    seconds: float, left: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = Machine(seconds)
    profile_steps(Profiled(), machine, seconds, False, left)  # type: ignore[arg-type]
    assert profile_seconds(np.array(seconds), np.array(left)) == pytest.approx(machine.steps * seconds)


@pytest.mark.parametrize(("seconds", "expected"), [(0.001, 0.2), (0.06, 10.02), (30.0, 30.0)])
def test_latency_steps_end_by_count_or_by_time(seconds: float, expected: float) -> None:
    """200 steps; or those that begin within ten seconds, the last of which may end later."""
    assert latency_seconds(np.array(seconds)) == pytest.approx(expected)
