"""Turns of two points on one machine: a block of one point follows a block of the other.

Both points are built first. The machine affects a block and the next one, a moment later, in
similar ways. Most of the differences between whole processes therefore cancel in the ratio of the
two points (duet benchmarking: Bulej et al., ICPE 2020).

A side reports the end of its turn (`paradnn.worker.turns`). The driver stops its processes until
its next turn, so that its thread pools do not spin in the meantime.
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

HasEnded = Callable[[], bool]  # whether a side's process has ended, with any outcome
_CHECK_SECONDS = 0.2  # seconds between two checks for a premature end of a side


def takes_turns(point: Point) -> bool:
    """Return whether blocks of the point can alternate with those of another point.

    A waiting point must neither compute nor hold memory of a device that the other one needs.
    """
    alone = point.devices == point.hosts == 1 and point.data.name == "synthetic"
    return alone and point.platform.name == "cpu" and point.workload.role(RunRecords).can_take_turns


class _Line:
    """The driver's end of a side's socket, and the side's process group."""

    def __init__(self, connection: socket.socket, timeout: float | None) -> None:
        connection.settimeout(timeout)
        self._connection = connection
        self._lines = connection.makefile("rw")
        self._group = int(self._receive_seconds() or 0)

    def turn(self) -> float | None:
        """Let the side run for one turn.

        Returns:
            The value in seconds that the side reports at the end of its turn; None if the side
            ended or exceeded the time limit instead.
        """
        self._signal(signal.SIGCONT)
        try:
            self._lines.write("go\n")
            self._lines.flush()
        except OSError:
            return None
        seconds = self._receive_seconds()
        self._signal(signal.SIGSTOP)
        return seconds

    def close(self) -> None:
        """Close the connection and let the side continue without turns."""
        with contextlib.suppress(OSError):
            self._lines.close()
        self._connection.close()
        self._signal(signal.SIGCONT)

    def _receive_seconds(self) -> float | None:
        try:
            return float(self._lines.readline())
        except (OSError, ValueError):
            return None

    def _signal(self, number: signal.Signals) -> None:
        if self._group not in (0, os.getpgrp()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, number)


class BlockTurns(contextlib.ExitStack):
    """Turns of two points, until both have the required time and number of blocks.

    Args:
        orders: Yields the order of the two sides in each round.
        seconds: Minimum total duration of each side's turns in seconds.
        blocks: Minimum number of rounds.
        timeout: Maximum duration of a turn in seconds. A turn that exceeds it is the side's last.

    Attributes:
        pairs: Seconds per step of the first and the second side, for blocks that ran one
            directly after the other.
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
        self._sockets = [self.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        for side, listener in enumerate(self._sockets):
            listener.bind(self.path(side))
            listener.listen(1)
            listener.settimeout(_CHECK_SECONDS)
        return self

    def path(self, side: int) -> str:
        """Return the path of the socket on which a side's worker waits for its turn."""
        return str(self._folder / str(side))

    def play(self, ended: Sequence[HasEnded]) -> None:
        """Give turns until there are enough blocks, then let the sides finish one after the other.

        Args:
            ended: A function per side that returns whether its process has ended.
        """
        lines: dict[int, _Line] = {}
        for side in next(self._orders):
            line = self._accept(side, ended[side])
            if line:
                if line.turn() is None:
                    line.close()
                else:  # the side is built and warmed up
                    lines[side] = line
        spent = [0.0, 0.0]
        blocks = 0
        while lines and (
            blocks < self._blocks or min(spent[side] for side in lines) < self._seconds
        ):
            took = {}
            for side in [side for side in next(self._orders) if side in lines]:
                begun = time.perf_counter()
                seconds = lines[side].turn()
                if seconds is None:
                    # The other side continues alone; its run is valid like any other.
                    lines.pop(side).close()
                    break
                took[side] = seconds
                spent[side] += time.perf_counter() - begun
            if len(took) == 2:
                self.pairs.append((took[0], took[1]))
            blocks += 1
        for side, line in lines.items():
            line.close()
            while not ended[side]():
                time.sleep(0.01)

    def _accept(self, side: int, ended: HasEnded) -> _Line | None:
        """Return the connection of a side's process.

        Returns:
            The connection; None if the process ended without one, or on a timeout.
        """
        deadline = time.monotonic() + (self._timeout or math.inf)
        while not ended() and time.monotonic() < deadline:
            try:
                return _Line(self._sockets[side].accept()[0], self._timeout)
            except TimeoutError:
                continue
        return None
