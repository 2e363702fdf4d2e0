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
from paradnn.worker.turns import TurnConnection
from tests.processes import PATIENCE

PROTOCOL = Protocol(
    min_seconds=0.02, min_blocks=8, max_seconds=10.0, block_seconds=0.004, warmup_seconds=0.02
)


class ProcessEnded(Exception):
    """Exception that emulates the end of a side's process."""


class Machine:
    """Machine that both sides share, with a clock.

    Attributes:
        overlaps: Number of calls of one side while the other side was computing.
        now: Simulated time in seconds.
    """

    def __init__(self) -> None:
        self._held = threading.Lock()
        self.overlaps = 0
        self.now = 0.0

    def steps(self, seconds: float, ends_at_call: int | None) -> Callable[[int], None]:
        """Return a function that runs steps of a given length.

        Call number `gone_after` ends the process of the side.
        """
        calls = 0

        def run(count: int) -> None:
            nonlocal calls
            calls += 1
            if calls == ends_at_call:
                raise ProcessEnded
            if not self._held.acquire(blocking=False):
                self.overlaps += 1
                return
            self.now += count * seconds
            time.sleep(0.001)  # long enough to detect the other side
            self._held.release()

        return run


def play(
    machine: Machine, seconds: tuple[float, float], ends_at_call: tuple[int | None, int | None]
) -> tuple[BlockTurns, list[int]]:
    """Run two sides in threads, in the same way as the child of a worker.

    Args:
        machine: Machine of both sides.
        seconds: Seconds per step of each side.
        ends_at_call: Call at which the process of each side ends; 0 is before the first call, and
            None is never.

    Returns:
        The turns, and the number of blocks of each side: 0 for a side whose process ended.
    """

    def side(number: int) -> int:
        if ends_at_call[number] == 0:
            return 0  # the side ends before its first call
        turn = TurnConnection(turns.path(number))
        turn.wait()
        try:
            run = machine.steps(seconds[number], ends_at_call[number])
            return len(
                measure_steps(
                    run, PROTOCOL, lambda _: nullcontext(), lambda: machine.now, turn=turn
                ).blocks
            )
        except ProcessEnded:
            turn.close()
            return 0

    with (
        BlockTurns(orders(1), PROTOCOL.min_seconds, PROTOCOL.min_blocks) as turns,
        ThreadPoolExecutor(2) as threads,
    ):
        sides = [threads.submit(side, number) for number in (0, 1)]
        turns.play([future.done for future in sides])
        return turns, [future.result(PATIENCE) for future in sides]


def test_blocks_alternate_and_pairs_show_the_slower_side() -> None:
    machine = Machine()
    turns, blocks = play(machine, (0.001, 0.003), (None, None))
    assert machine.overlaps == 0
    assert blocks == [len(turns.pairs)] * 2
    assert len(turns.pairs) >= PROTOCOL.min_blocks
    assert trimmed(turns.pairs) > 0
    assert turns.pairs == [pytest.approx((0.001, 0.003))] * len(turns.pairs)


@pytest.mark.parametrize(
    "ends_at_call",
    [
        pytest.param((0, None), id="first side before its first call"),
        pytest.param((None, 1), id="second side in its first call"),
        pytest.param((5, None), id="first side in call 5"),
        pytest.param((None, 40), id="second side in call 40"),
    ],
)
def test_a_side_is_measured_to_its_end_if_the_other_process_ends(
    ends_at_call: tuple[int | None, int | None],
) -> None:
    machine = Machine()
    turns, blocks = play(machine, (0.001, 0.001), ends_at_call)
    assert machine.overlaps == 0
    [remaining_blocks] = [
        count for count, call in zip(blocks, ends_at_call, strict=True) if call is None
    ]
    assert remaining_blocks >= PROTOCOL.min_blocks
    assert len(turns.pairs) <= remaining_blocks


def test_turns_end_if_the_processes_of_both_sides_end() -> None:
    turns, blocks = play(Machine(), (0.001, 0.001), (0, 2))
    assert (turns.pairs, blocks) == ([], [0, 0])
