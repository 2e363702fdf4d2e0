"""The buffers of a message: TensorFlow sends tensors of many sizes in one call of gRPC.

The sizes and mixtures are modeled on TF-gRPC-Bench (Biswas, Lu and Panda 2018): small buffers of
bytes, medium ones of KiB and large ones of MiB.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from paradnn.core.errors import UnavailableError

#: Bytes of a small, a medium and a large buffer.
SIZES = (10, 10 * 2**10, 2**20)
#: Weights of small, medium and large buffers in a skewed payload.
_SKEW = (1, 3, 6)
#: The ways to mix buffers of different sizes.
PAYLOADS = ("uniform", "random", "skew")


def buffer_sizes(payload: str, count: int) -> list[int]:
    """Return the bytes of each buffer of a message.

    Args:
        payload: Distribution of the sizes. `uniform`: equal numbers of each size. `random`: each
            size is drawn with equal probability; every message has the same sizes. `skew`: of 10
            buffers, 6 are large, 3 medium and 1 small.
        count: Number of buffers.
    """
    if payload == "random":
        return random.Random(count).choices(SIZES, k=count)
    weights = (1, 1, 1) if payload == "uniform" else _SKEW
    total = sum(weights)
    sizes: list[int] = []
    weight_so_far = 0
    for size, weight in zip(SIZES, weights, strict=True):
        weight_so_far += weight
        sizes += [size] * (round(count * weight_so_far / total) - len(sizes))
    return sizes


def split(message: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut a message into buffers of the given sizes."""
    buffers = []
    start = 0
    for size in sizes:
        buffers.append(message[start : start + size])
        start += size
    return buffers


def codec() -> tuple[Callable[[Sequence[bytes]], bytes], Callable[[bytes], Sequence[bytes]]]:
    """Return functions that encode buffers with protobuf, and decode them.

    The message has one field, `repeated bytes buffers = 1`.

    Raises:
        UnavailableError: If the interpreter under test lacks protobuf.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise UnavailableError(
            f"model.serialized=true needs the package protobuf in this interpreter: {error}"
        ) from error
    field: Any = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="paradnn_payload.proto", package="paradnn")
    message = file.message_type.add(name="Payload")
    message.field.add(name="buffers", number=1, type=field.TYPE_BYTES, label=field.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    payload = message_factory.GetMessageClass(pool.FindMessageTypeByName("paradnn.Payload"))

    def encode(buffers: Sequence[bytes]) -> bytes:
        return bytes(payload(buffers=buffers).SerializeToString())

    def decode(content: bytes) -> Sequence[bytes]:
        return list(payload.FromString(content).buffers)

    return encode, decode
