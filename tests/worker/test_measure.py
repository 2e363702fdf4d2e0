"""The protocol on a clock that the test turns itself: no real time decides anything."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from paradnn.worker.measure import NotFinite, Protocol, is_steady, measure_steps
from paradnn.worker.messages import Timing

PROTOCOL = Protocol(min_seconds=1.0, min_blocks=10, max_seconds=60.0, block_seconds=0.1, warmup_seconds=5.0)


class Machine:
    """Runs steps in simulated time: `cost(n)` is the duration of the n-th step."""

    def __init__(self, cost: Callable[[int], float], loss: Callable[[int], float] = lambda _: 1.0) -> None:
        self.now = 0.0
        self.steps = 0
        self.phases: list[str] = []
        self._cost = cost
        self._loss = loss

    def run(self, steps: int) -> float:
        for _ in range(steps):
            self.now += self._cost(self.steps)
            self.steps += 1
        return self._loss(self.steps)

    def clock(self) -> float:
        return self.now

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.phases.append(name)
        yield


def measured(machine: Machine, protocol: Protocol = PROTOCOL) -> Timing:
    return measure_steps(machine.run, protocol, machine.phase, machine.clock)


def test_constant_steps_are_steady_and_exact() -> None:
    machine = Machine(lambda _: 0.003)
    result = measured(machine)
    assert result.steady
    assert machine.phases == ["warmup", "measure"]
    assert result.steps_per_block * 0.003 >= PROTOCOL.block_seconds
    assert all(block / result.steps_per_block == pytest.approx(0.003) for block in result.blocks)
    assert len(result.blocks) >= PROTOCOL.min_blocks
    assert sum(result.blocks) >= PROTOCOL.min_seconds
    assert result.final_loss == 1.0


def test_every_step_is_in_some_raw_value() -> None:
    machine = Machine(lambda _: 0.004)
    result = measured(machine)
    per_block = result.steps_per_block
    trials = sum(trial.steps for trial in result.calibration)
    assert trials + per_block * (len(result.warmup) - 1 + len(result.blocks)) == machine.steps


def test_warm_up_lasts_while_steps_get_faster() -> None:
    machine = Machine(lambda n: 0.01 + 0.2 * 0.7**n)
    result = measured(machine)
    assert result.steady
    assert max(result.blocks) < 1.2 * min(result.blocks)


def test_a_machine_that_never_settles_is_said_not_to() -> None:
    machine = Machine(lambda n: 0.05 * (1 + n % 7))
    result = measured(machine)
    assert not result.steady
    assert "warm-up cap reached" in result.steady_reason
    assert result.blocks


def test_a_slow_step_stops_at_the_longest_time() -> None:
    machine = Machine(lambda _: 25.0)
    result = measured(machine)
    assert result.steps_per_block == 1
    assert len(result.blocks) == 3  # 75 s are the first to exceed 60 s


def test_a_loss_that_is_not_finite_ends_the_point() -> None:
    machine = Machine(lambda _: 0.01, lambda steps: float("nan") if steps > 50 else 1.0)
    with pytest.raises(NotFinite, match="nan"):
        measured(machine)


def test_an_early_outlier_is_not_steady() -> None:
    assert not is_steady([2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])[0]
    assert is_steady([1.0] * 8)[0]
    assert is_steady([1.0] * 7) == (False, "7 of 8 blocks")
