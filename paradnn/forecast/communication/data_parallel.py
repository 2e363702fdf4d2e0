"""A data-parallel step on paper: what processes send each other of gradients, and what of it the backward pass hides.

    messages("ring", 4, 1e6)                          # what one process sends, one message after the other
    exchange_seconds("ring", 4, 1e6, link)            # over a link: bytes of a message -> its seconds
    simulate(layers, 0.02, exchange)                  # the step, with and without overlap
    Exchange("tcp latency").step(layers, 0.02, 4, link)   # all of these

Seconds are numbers, or arrays (draws,) throughout.

Sums of gradients cost nothing here (gamma of Thakur and others); in the time of a measured collective they are counted.
All processes are the same, start together and have links of their own: no network is shared, and none is late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from paradnn.families.layers import LayerWork

Algorithm = Literal["ring", "tree", "halving"]
#: A number, or an array of draws.
Seconds = Any
#: Bytes of a message -> seconds until it has arrived.
Link = Callable[[float], Seconds]


def messages(algorithm: Algorithm, processes: int, size: float) -> list[tuple[int, float]]:
    """(how many, bytes of each) of the messages that follow each other until all have the sum of `size` bytes.

    ring: 2 (N - 1) of size / N, the least that any algorithm sends (Patarasuk and Yuan, JPDC 69, 2009).
    tree: recursive doubling, log2 N of all bytes; halving: recursive halving and doubling, twice size / 2, size / 4,
    ... size / N (Thakur, Rabenseifner and Gropp, IJHPCA 19, 2005; Rabenseifner, ICCS 2004). Where N is no power of two
    the processes beyond one send their gradients before, and receive the sum after.

    One process keeps what it has. ValueError for less than one.
    """
    if processes < 1:
        raise ValueError(f"{processes} processes: one is the least")
    if processes == 1:
        return []
    if algorithm == "ring":
        return [(2 * (processes - 1), size / processes)]
    rounds = processes.bit_length() - 1
    beyond = [] if processes == 2**rounds else [(2, size)]
    if algorithm == "tree":
        return [(rounds, size), *beyond]
    return [*((2, size / 2**each) for each in range(1, rounds + 1)), *beyond]


def exchange_seconds(algorithm: Algorithm, processes: int, size: float, link: Link) -> Seconds:
    """Seconds until `processes` have the sum of their `size` bytes.

    Over a link of alpha + bytes / bandwidth: ring 2 (N - 1) alpha + 2 (N - 1) / N size / bandwidth, tree
    log2 N (alpha + size / bandwidth), halving 2 log2 N alpha + 2 (N - 1) / N size / bandwidth.
    """
    return sum(count * link(each) for count, each in messages(algorithm, processes, size))


def as_link(collective: Link, processes: int) -> Link:
    """The link whose ring takes as long as a measured all-reduce of so many processes, whatever its size.

    It holds what a collective does beside sending: sums, and waiting for each other.
    """
    return lambda size: collective(processes * size) / (2 * (processes - 1))


@dataclass(frozen=True)
class Step:
    """Seconds of a step. `computing`: what the device does by itself; `exchanging`: what the link is busy for;
    `overlapped`: the step where gradients are sent as soon as they are there, `serial`: where all wait for the last.
    """

    computing: Seconds
    exchanging: Seconds
    overlapped: Seconds

    @property
    def serial(self) -> Seconds:
        """Seconds of the step without overlap."""
        return self.computing + self.exchanging


def simulate(layers: Sequence[LayerWork], computing: Seconds, exchange: Link, bucket: float = 0) -> Step:
    """A step that takes `computing` seconds on a device alone, over an `exchange`: bytes of gradients -> seconds.

    The pass runs forward, then backward from the last layer to the first, each layer for its share of all FLOPs.
    Gradients are gathered until there are `bucket` bytes of them (0: those of a layer go by themselves) and sent in
    that order, one bucket after the other, while the pass goes on (Li et al., VLDB 2020, of PyTorch's buckets). The
    update is part of the pass. The step ends with the pass or with the last bucket.
    """
    work = sum(layer.forward + layer.backward for layer in layers)
    left = sum(layer.backward for layer in layers)
    free: Seconds = 0.0
    exchanging: Seconds = 0.0
    waiting = 0.0
    for place, layer in enumerate(reversed(layers), 1):
        left -= layer.backward
        waiting += layer.gradient_bytes
        is_last = place == len(layers)
        if waiting and (is_last or waiting >= bucket):
            ready = computing * (1 - left / work) if work else computing
            seconds = exchange(waiting)
            free, exchanging, waiting = np.maximum(free, ready) + seconds, exchanging + seconds, 0.0
    return Step(computing, exchanging, np.maximum(computing, free))


@dataclass(frozen=True)
class Exchange:
    """How gradients are exchanged: over which channel (its name), by which algorithm, in buckets of how many bytes.

    All at once by default, which hides nothing: so do TensorFlow's strategies in a compiled step.
    """

    channel: str
    algorithm: Algorithm = "ring"
    bucket: float = math.inf

    @property
    def hides(self) -> bool:
        """Whether some gradients can be sent before the last are there."""
        return math.isfinite(self.bucket)

    @property
    def words(self) -> str:
        """Such as "tcp latency (ring, all gradients at once)"."""
        parts = f"buckets of {self.bucket:,.0f} B" if self.bucket else "each layer by itself"
        gathered = parts if self.hides else "all gradients at once"
        return f"{self.channel} ({self.algorithm}, {gathered})"

    def step(self, layers: Sequence[LayerWork], computing: Seconds, devices: int, link: Link) -> Step:
        """The step of one of so many `devices`, which by itself would take `computing` seconds."""

        def cost(size: float) -> Seconds:
            return exchange_seconds(self.algorithm, devices, size, link)

        return simulate(layers, computing, cost, self.bucket)

    def largest_message(self, layers: Sequence[LayerWork], devices: int) -> float:
        """Bytes of the largest message of a step, 0 on one device."""
        gradients = [layer.gradient_bytes for layer in layers]
        together = min(max(self.bucket, *gradients), sum(gradients))
        return max((size for _, size in messages(self.algorithm, devices, together)), default=0.0)
