"""Turns of two points on one machine: blocks of one point alternate with blocks of the other.

A point is one configuration to measure, and a block is a number of its steps. Both points are built
first. A disturbance of the machine affects two successive blocks in similar ways, so most of it
cancels in the ratio of the two points (duet benchmarking: Bulej et al., ICPE 2020).

Each point of the pair is a side. A side reports the end of its turn (`paradnn.worker.turns`). The
driver then stops the side's processes until the side's next turn, so that their thread pools do not
spin.
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

HasEnded = Callable[[], bool]  # returns whether a side's process has ended, with any outcome
_CHECK_SECONDS = 0.2  # seconds between two checks for a premature end of a side


def takes_turns(point: Point) -> bool:
    """Return whether blocks of a point can alternate with blocks of another point.

    A block is a number of steps that are timed together. While a point waits, it must neither
    compute nor hold device memory that the other point needs.

    Args:
        point: A configuration to measure.
    """
    alone = point.devices == point.hosts == 1 and point.data.name == "synthetic"
    return alone and point.platform.name == "cpu" and point.workload.role(RunRecords).can_take_turns


class _SideConnection:
    """The driver's connection to a side (one of two alternating points) and its process group."""

    def __init__(self, connection: socket.socket, timeout: float | None) -> None:
        connection.settimeout(timeout)
        self._connection = connection
        self._lines = connection.makefile("rw")
        self._group = int(self._receive_number() or 0)

    def turn(self) -> float | None:
        """Let the side (one of two alternating points) run for one turn, then stop it.

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
        seconds = self._receive_number()
        self._signal(signal.SIGSTOP)
        return seconds

    def close(self) -> None:
        """Close the connection, and let the process of this point run on without further pauses."""
        with contextlib.suppress(OSError):
            self._lines.close()
        self._connection.close()
        self._signal(signal.SIGCONT)

    def _receive_number(self) -> float | None:
        try:
            return float(self._lines.readline())
        except (OSError, ValueError):
            return None

    def _signal(self, number: signal.Signals) -> None:
        if self._group not in (0, os.getpgrp()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, number)


class BlockTurns(contextlib.ExitStack):
    """Alternates blocks of two points until both have the required time and number of blocks.

    The two points are sides 0 and 1. In each round, each side runs one block, which is its turn.

    Args:
        orders: Yields, for each round, the order in which sides 0 and 1 run.
        seconds: Minimum total duration of each side's turns in seconds.
        blocks: Minimum number of rounds.
        timeout: Maximum duration of a turn in seconds; None means no limit. A turn that exceeds
            the limit is the last turn of its side.

    Attributes:
        pairs: Pairs of the seconds per step of side 0 and side 1, one pair per round in which both
            sides ran.
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
        """Return the path of the socket on which a side's worker waits for its turn.

        Args:
            side: Number of the side, 0 or 1.
        """
        return str(self._folder / str(side))

    def play(self, ended: Sequence[HasEnded]) -> None:
        """Alternate blocks of the two points until there are enough.

        Then let the processes of the two points (sides) finish, one after the other.

        Args:
            ended: For each side, a function that returns whether the side's process has ended.
        """
        connections: dict[int, _SideConnection] = {}
        for side in next(self._orders):
            connection = self._accept(side, ended[side])
            if connection:
                if connection.turn() is None:
                    connection.close()
                else:  # the side is built and warmed up
                    connections[side] = connection
        turn_seconds = [0.0, 0.0]
        blocks = 0
        while connections and (
            blocks < self._blocks or min(turn_seconds[side] for side in connections) < self._seconds
        ):
            step_seconds = {}
            for side in [side for side in next(self._orders) if side in connections]:
                begin = time.perf_counter()
                seconds = connections[side].turn()
                if seconds is None:
                    # The other side continues alone; its run is valid like any other.
                    connections.pop(side).close()
                    break
                step_seconds[side] = seconds
                turn_seconds[side] += time.perf_counter() - begin
            if len(step_seconds) == 2:
                self.pairs.append((step_seconds[0], step_seconds[1]))
            blocks += 1
        for side, connection in connections.items():
            connection.close()
            while not ended[side]():
                time.sleep(0.01)

    def _accept(self, side: int, ended: HasEnded) -> _SideConnection | None:
        """Wait until the process of a side connects.

        Args:
            side: Number of the side, 0 or 1.
            ended: Returns whether the process has ended.

        Returns:
            The connection; None if the process ended before it connected, or on a timeout.
        """
        deadline = time.monotonic() + (self._timeout or math.inf)
        while not ended() and time.monotonic() < deadline:
            try:
                return _SideConnection(self._sockets[side].accept()[0], self._timeout)
            except TimeoutError:
                continue
        return None
