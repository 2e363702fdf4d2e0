"""A data-parallel step on paper: what processes send each other of gradients.

    messages("ring", 4, 1e6)                          # what one process sends, one message after the other
    exchange_seconds("ring", 4, 1e6, link)            # over a link: bytes of a message -> its seconds

Seconds are numbers, or arrays (draws,) throughout.

Sums of gradients cost nothing here (gamma of Thakur and others); in the time of a measured collective they are counted.
All processes are the same, start together and have links of their own: no network is shared, and none is late. All
gradients go at once when the backward pass is over, as TensorFlow's strategies have it in a compiled step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

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
