"""What a message holds: buffers of stated sizes, sent one after the other or serialized as one Protocol Buffer.

Standard library alone: the driver asks for the sizes, and a peer on another host needs nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

#: Bytes of a buffer of each category of TF-gRPC-Bench, which found buffers of a few bytes, kilobytes and megabytes in
#: what TensorFlow sends (Biswas, Lu and Panda, arXiv 1804.01138).
SMALL, MEDIUM, LARGE = 10, 10 * 2**10, 2**20
#: equal: as many bytes in each buffer. The others are that benchmark's: categories in turn, at random, mostly large.
PAYLOADS = ("equal", "uniform", "random", "skewed")
#: Of ten buffers of a skewed payload.
_SKEWED = (LARGE,) * 6 + (MEDIUM,) * 3 + (SMALL,)
#: Noise is drawn once for so many bytes and then repeated.
_NOISE = 2**20
#: Field 1 of a message, of a type that has its length before it.
_TAG = b"\x0a"


def buffer_sizes(payload: str, size: int, buffers: int) -> list[int]:
    """Bytes of each of `buffers`; `size` is that of an equal payload as a whole, of the others it says nothing."""
    if payload == "equal":
        share, more = divmod(size, buffers)
        return [share + (index < more) for index in range(buffers)]
    if payload == "uniform":
        return [(SMALL, MEDIUM, LARGE)[index % 3] for index in range(buffers)]
    if payload == "skewed":
        return [_SKEWED[index % len(_SKEWED)] for index in range(buffers)]
    return random.Random(buffers).choices((SMALL, MEDIUM, LARGE), k=buffers)


def make_buffers(sizes: Sequence[int], seed: int) -> list[bytes]:
    """Buffers of noise."""
    noise = random.Random(seed).randbytes(min(_NOISE, max(sizes)))
    return [(noise * -(-size // len(noise)))[:size] for size in sizes]


def encode(buffers: Sequence[bytes | memoryview]) -> bytes:
    """The bytes of a Protocol Buffer `message { repeated bytes buffers = 1; }`."""
    return b"".join(part for buffer in buffers for part in (_TAG, _varint(len(buffer)), buffer))


def decode(data: bytes | memoryview) -> list[memoryview]:
    """The buffers in such a message, not copied; ValueError where it ends before they do."""
    return list(_fields(memoryview(data)))


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that more follow."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _fields(data: memoryview) -> Iterator[memoryview]:
    place = 0
    while place < len(data):
        if data[place] != _TAG[0]:
            raise ValueError(f"byte {place} of a message begins no buffer")
        place, length, shift, more = place + 1, 0, 0, True
        while more:
            if place >= len(data):
                raise ValueError("the message ends within a length")
            length |= (data[place] & 0x7F) << shift
            more, shift, place = data[place] > 0x7F, shift + 7, place + 1
        if place + length > len(data):
            raise ValueError(f"the message ends {place + length - len(data)} bytes before its buffer does")
        yield data[place : place + length]
        place += length
