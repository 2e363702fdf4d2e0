"""Two sides that take turns: never at the same time, in pairs, and until both have ended."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from paradnn.session.turns import BlockTurns
from paradnn.statistics.paired_rounds import orders, trimmed
from paradnn.worker.measure import Protocol, measure_steps
from paradnn.worker.turns import Turn
from tests.processes import PATIENCE

PROTOCOL = Protocol(
    min_seconds=0.02, min_blocks=8, max_seconds=10.0, block_seconds=0.004, warmup_seconds=0.02
)


class Gone(Exception):
    """Signals that a side's process has ended."""


class Machine:
    """Shared machine of both sides, with a clock.

    `overlaps` counts calls of one side while the other side was computing.
    """

    def __init__(self) -> None:
        self._held = threading.Lock()
        self.overlaps = 0
        self.now = 0.0

    def steps(self, seconds: float, gone_after: int | None) -> Callable[[int], None]:
        """Return a function that runs steps of a given length.

        Call number `gone_after` ends the process of the side.
        """
        calls = 0

        def run(count: int) -> None:
            nonlocal calls
            calls += 1
            if calls == gone_after:
                raise Gone
            if not self._held.acquire(blocking=False):
                self.overlaps += 1
                return
            self.now += count * seconds
            time.sleep(0.001)  # long enough to detect the other side
            self._held.release()

        return run


def play(
    machine: Machine, seconds: tuple[float, float], gone: tuple[int | None, int | None]
) -> tuple[BlockTurns, list[int]]:
    """Run both sides in threads, as the child of a worker does.

    Returns:
        The turns, and the number of blocks of each side: 0 for a side that is gone.
    """

    def side(number: int) -> int:
        if gone[number] == 0:
            return 0  # the side ends before its first call
        turn = Turn(turns.path(number))
        turn.wait()
        try:
            run = machine.steps(seconds[number], gone[number])
            return len(
                measure_steps(
                    run, PROTOCOL, lambda _: nullcontext(), lambda: machine.now, turn=turn
                ).blocks
            )
        except Gone:
            turn.close()
            return 0

    with (
        BlockTurns(orders(1), PROTOCOL.min_seconds, PROTOCOL.min_blocks) as turns,
        ThreadPoolExecutor(2) as threads,
    ):
        sides = [threads.submit(side, number) for number in (0, 1)]
        turns.play([one.done for one in sides])
        return turns, [one.result(PATIENCE) for one in sides]


def test_blocks_alternate_and_the_pairs_say_which_side_is_slower() -> None:
    machine = Machine()
    turns, blocks = play(machine, (0.001, 0.003), (None, None))
    assert machine.overlaps == 0
    assert blocks == [len(turns.pairs)] * 2
    assert len(turns.pairs) >= PROTOCOL.min_blocks
    assert trimmed(turns.pairs) > 0
    assert turns.pairs == [pytest.approx((0.001, 0.003))] * len(turns.pairs)


@pytest.mark.parametrize("gone", [(0, None), (None, 1), (5, None), (None, 40)])
def test_a_side_is_measured_after_the_other_has_ended(
    gone: tuple[int | None, int | None],
) -> None:
    machine = Machine()
    turns, blocks = play(machine, (0.001, 0.001), gone)
    assert machine.overlaps == 0
    [left] = [count for count, call in zip(blocks, gone, strict=True) if call is None]
    assert left >= PROTOCOL.min_blocks
    assert len(turns.pairs) <= left


def test_two_ended_sides_end_the_turns() -> None:
    turns, blocks = play(Machine(), (0.001, 0.001), (0, 2))
    assert (turns.pairs, blocks) == ([], [0, 0])
