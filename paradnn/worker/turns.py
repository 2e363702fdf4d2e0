"""A point that takes turns with another: it computes only while its driver lets it (`paradnn.session.turns`).

It holds the machine while it is built and warmed up, and then a block at a time.
"""

from __future__ import annotations

import os
import socket


class Turn:
    """The turns of one side, given at the socket `path`."""

    def __init__(self, path: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(path)
        self._lines = self._connection.makefile("rw")
        self.end(os.getpgrp())

    def wait(self) -> bool:
        """Sleep until it is this side's turn; False once there are no more."""
        if self._lines.readline():
            return True
        self.close()
        return False

    def end(self, seconds: float = 0.0) -> None:
        """The turn is over; `seconds` that a step of its block took."""
        self._lines.write(f"{seconds!r}\n")
        self._lines.flush()

    def close(self) -> None:
        """Take no more turns."""
        self._lines.close()
        self._connection.close()
