"""The buffers of a message and their protobuf encoding.

One gRPC call of TensorFlow carries tensors of many sizes. The sizes and mixtures of the buffers are
modeled on TF-gRPC-Bench (Biswas, Lu and Panda 2018): small (10 B), medium (10 KiB) and large
(1 MiB) buffers.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from paradnn.core.errors import UnavailableError

#: Bytes of a small, a medium and a large buffer.
SIZES = (10, 10 * 2**10, 2**20)
#: Relative numbers of small, medium and large buffers in a skewed payload.
_SKEW = (1, 3, 6)
#: The ways to mix buffers of different sizes.
PAYLOADS = ("uniform", "random", "skew")


def buffer_sizes(payload: str, count: int) -> list[int]:
    """Return the size of each buffer of a message, in bytes.

    Args:
        payload: Distribution of the sizes. `uniform`: equal numbers of each size. `random`: each
            size is drawn with equal probability, from a fixed seed, so that all messages have the
            same sizes. `skew`: of 10 buffers, 6 are large, 3 medium and 1 small.
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
    """Cut a message into buffers of the given sizes in bytes.

    Args:
        message: The message; its length is the sum of the sizes.
        sizes: Number of bytes of each buffer, in order.
    """
    buffers = []
    start = 0
    for size in sizes:
        buffers.append(message[start : start + size])
        start += size
    return buffers


def codec() -> tuple[Callable[[Sequence[bytes]], bytes], Callable[[bytes], Sequence[bytes]]]:
    """Return two functions: one encodes buffers with protobuf, the other decodes them.

    The message has one field, `repeated bytes buffers = 1`.

    Raises:
        UnavailableError: If the interpreter under test lacks protobuf.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise UnavailableError(
            "model.serialized=true needs the package protobuf in the interpreter under test; "
            f"install it there: {error}"
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
