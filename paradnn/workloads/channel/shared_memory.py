"""Messages through memory that two processes share: the floor of what one host can do.

A ring of slots in each direction; who waits looks at a counter again and again, and lets others run between. Each side
copies its message once. Counters are plain 64-bit numbers, written after the message: x86 keeps that order.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from paradnn.worker.process_group import silent

#: Slots of a ring, and looks at a counter before others may run.
_SLOTS, _LOOKS = 4, 200
_LINE = 64
#: A sleep of 0 s need not yield.
_let_others_run = getattr(os, "sched_yield", lambda: time.sleep(0))


class Ring:
    """Messages of `size` bytes in one direction, in memory that is shared by a fork."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._memory = memoryview(mmap.mmap(-1, 2 * _LINE + _SLOTS * size))
        self._written = self._memory[:8].cast("Q")
        self._read = self._memory[_LINE : _LINE + 8].cast("Q")

    def send(self, buffers: Sequence[bytes | memoryview], patience: float) -> None:
        """Copy a message into the next slot, once that is free."""
        number = self._written[0]
        self._wait(self._read, number - _SLOTS + 1, patience)
        place = 2 * _LINE + number % _SLOTS * self._size
        for buffer in buffers:
            self._memory[place : place + len(buffer)] = buffer
            place += len(buffer)
        self._written[0] = number + 1

    def receive(self, into: memoryview, patience: float) -> None:
        """Copy the next message out, once it is there."""
        number = self._read[0]
        self._wait(self._written, number + 1, patience)
        place = 2 * _LINE + number % _SLOTS * self._size
        into[:] = self._memory[place : place + self._size]
        self._read[0] = number + 1

    def drained(self, patience: float) -> None:
        """Wait until all that was sent is received."""
        self._wait(self._read, self._written[0], patience)

    @staticmethod
    def _wait(counter: memoryview, least: int, patience: float) -> None:
        deadline = None
        while True:
            for _ in range(_LOOKS):
                if counter[0] >= least:
                    return
            now = time.monotonic()
            deadline = deadline or now + patience
            if now > deadline:
                raise silent("the other process", patience)
            _let_others_run()


def open_rings(point: Mapping[str, Any]) -> tuple[Ring, Ring]:
    """There and back, made before the processes part."""
    size = point["model"]["bytes"]
    return Ring(size), Ring(size)


class SharedMemoryStep:
    """A step through two rings: a message there and back, or a window of them that is drained."""

    def __init__(self, point: Mapping[str, Any], rings: tuple[Ring, Ring], buffers: list[bytes], wait: float) -> None:
        model = point["model"]
        (self._there, self._back), self._buffers, self._patience = rings, buffers, wait
        self._window = model["window"] if model["pattern"] == "bandwidth" else 0
        self._into = memoryview(bytearray(model["bytes"]))

    def run(self, steps: int) -> None:
        """So many steps; each ends when all its messages have been received."""
        for _ in range(steps):
            for _ in range(self._window or 1):
                self._there.send(self._buffers, self._patience)
            if self._window:
                self._there.drained(self._patience)
            else:
                self._back.receive(self._into, self._patience)


def serve_ring(point: Mapping[str, Any], rings: tuple[Ring, Ring]) -> None:
    """Receive for ever, and echo where the pattern asks for it; ends with the process."""
    there, back = rings
    echoes = point["model"]["pattern"] == "latency"
    message, long = memoryview(bytearray(point["model"]["bytes"])), float(point["measure"]["timeout"])
    while True:
        there.receive(message, long)
        if echoes:
            back.send([message], long)
