"""Two points that take turns on one machine: both are built, then a block of the one follows a
block of the other. What the machine does to one block it does to its neighbour a moment later, so
most of what differs between whole processes cancels in their ratio (duet benchmarking: Bulej et
al., ICPE 2020). A side says where its turn ends (`paradnn.worker.turns`), and is stopped until the
next one: no pool of threads of its own spins meanwhile.
"""

import contextlib
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from paradnn.config.point import Point
from paradnn.core.scratch import Scratch
from paradnn.session.run_records import RunRecords

HasEnded = Callable[[], bool]  # whether a side's process has ended, whatever became of it
_LOOK = 0.2  # seconds between two looks at whether a side has ended before its time


def takes_turns(point: Point) -> bool:
    """Whether blocks of a point can stand between those of another: while it waits it must not
    compute, nor hold a device of which the other needs the memory.
    """
    alone = point.devices == point.hosts == 1 and point.data.name == "synthetic"
    return alone and point.platform.name == "cpu" and point.workload.role(RunRecords).can_take_turns


class _Line:
    """The driver's end of a side's socket, and the side's group of processes."""

    def __init__(self, connection: socket.socket, timeout: float | None) -> None:
        connection.settimeout(timeout)
        self._connection = connection
        self._lines = connection.makefile("rw")
        self._group = int(self._told() or 0)

    def turn(self) -> float | None:
        """Let the side run until it says that its turn is over: what it says; None where it ended
        instead.
        """
        self._signal(signal.SIGCONT)
        try:
            self._lines.write("go\n")
            self._lines.flush()
        except OSError:
            return None
        seconds = self._told()
        self._signal(signal.SIGSTOP)
        return seconds

    def close(self) -> None:
        """There are no more turns."""
        with contextlib.suppress(OSError):
            self._lines.close()
        self._connection.close()
        self._signal(signal.SIGCONT)

    def _told(self) -> float | None:
        try:
            return float(self._lines.readline())
        except (OSError, ValueError):
            return None

    def _signal(self, number: signal.Signals) -> None:
        if self._group not in (0, os.getpgrp()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, number)


class BlockTurns(contextlib.ExitStack):
    """The turns of two points: blocks until both have `seconds` and `blocks`, in the order that
    `orders` says. A turn that takes longer than `timeout` s is a side's last. `pairs` are seconds a
    step, first side and second, of blocks that ran one right after the other.
    """

    def __init__(
        self,
        orders: Iterator[tuple[int, int]],
        seconds: float,
        blocks: int,
        timeout: float | None = None,
    ) -> None:
        super().__init__()
        self.pairs: list[tuple[float, float]] = []
        self._orders = orders
        self._seconds = seconds
        self._blocks = blocks
        self._timeout = timeout

    def __enter__(self) -> Self:
        self._folder = self.enter_context(Scratch())
        self._doors = [self.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        for side, door in enumerate(self._doors):
            door.bind(self.path(side))
            door.listen(1)
            door.settimeout(_LOOK)
        return self

    def path(self, side: int) -> str:
        """Where a side's worker waits for its turn."""
        return str(self._folder / str(side))

    def play(self, ended: Sequence[HasEnded]) -> None:
        """Give turns until there are enough; what a side does after its blocks it does alone, too."""
        lines: dict[int, _Line] = {}
        for side in next(self._orders):
            line = self._accept(side, ended[side])
            if line:
                if line.turn() is None:
                    line.close()
                else:  # built and warm
                    lines[side] = line
        spent = [0.0, 0.0]
        blocks = 0
        least = self._blocks
        while lines and (blocks < least or min(spent[side] for side in lines) < self._seconds):
            begun = time.perf_counter()
            took = {}
            for side in [side for side in next(self._orders) if side in lines]:
                seconds = lines[side].turn()
                if seconds is None:
                    lines.pop(
                        side
                    ).close()  # the other has its blocks alone: its run is one like any other
                    break
                took[side] = seconds
                spent[side] -= begun - (begun := time.perf_counter())
            if len(took) == 2:
                self.pairs.append((took[0], took[1]))
            blocks += 1
        for side, line in lines.items():
            line.close()
            while not ended[side]():
                time.sleep(0.01)

    def _accept(self, side: int, ended: HasEnded) -> _Line | None:
        """The call of a side's process; None where it ended without one."""
        until = time.monotonic() + (self._timeout or math.inf)
        while not ended() and time.monotonic() < until:
            try:
                return _Line(self._doors[side].accept()[0], self._timeout)
            except TimeoutError:
                continue
        return None
