"""Sizes, FLOP and bytes of the kernels in published tables.

Each function takes numbers, or arrays (n,) of numbers for n kernels. It returns a mapping from
fields of `paradnn.families.operations.Operation` to values of the same shape. `width` is the number
of bytes of an element. Each operand counts as read once, and each result as written once. Formulas
beyond plain counting state their source.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from analysis.lazy import np

#: Values of an operation's fields by name: numbers, or arrays (n,).
Columns = Mapping[str, Any]

#: The numeric fields, in the order of the shipped table.
COLUMNS = ("m", "n", "k", "flops", "bytes", "batch", "calls", "images", "window", "stride")

#: Random draws over which expert loads are averaged.
_LOAD_DRAWS = 16

#: Bytes that each of n devices sends in a collective, per byte of the message, without the factor
#: (n - 1) / n. Source: ring algorithms (Thakur, Rabenseifner and Gropp 2005, Optimization of
#: collective communication operations in MPICH).
_WIRE_BYTES_PER_BYTE = {
    "all_reduce": 2.0,
    "all_gather": 1.0,
    "reduce_scatter": 1.0,
    "alltoall": 1.0,
}


def product(
    m: Any, n: Any, k: Any, width: float, batch: Any = 1, weight_width: float | None = None
) -> Columns:
    """Return the sizes, FLOP and bytes of matrix products m x k by k x n.

    Args:
        m: Rows of the first operand.
        n: Columns of the second operand.
        k: Length of the sums.
        width: Bytes of an element.
        batch: Number of independent products.
        weight_width: Bytes of an element of the second operand; None for `width`.

    Returns:
        Mapping from fields of `Operation` to their values. All sizes may be arrays (n,), for n
        kernels.
    """
    if weight_width is None:
        weight_width = width
    moved_bytes = batch * (width * (m * k + m * n) + weight_width * k * n)
    return {
        "m": m,
        "n": n,
        "k": k,
        "batch": batch,
        "flops": 2.0 * batch * m * n * k,
        "bytes": 1.0 * moved_bytes,
    }


def convolution(
    *,
    images: Any,
    channels: Any,
    filters: Any,
    kernel: Any,
    size: Any,
    stride: Any,
    padding: Any,
) -> Columns:
    """Return the sizes, FLOP and bytes of a forward convolution of square float32 images.

    It is described as the product of unrolled images by filters, as in
    `paradnn.families.operations.convolution`.

    Args:
        images: Number of images.
        channels: Number of input channels.
        filters: Number of output channels.
        kernel: Side of a square filter, in pixels.
        size: Side of an image, in pixels.
        stride: Pixels between two outputs.
        padding: Zeros added on each side, in pixels.

    Returns:
        Mapping from fields of `Operation` to their values. All sizes may be arrays (n,), for n
        kernels.
    """
    positions = ((size + 2 * padding - kernel) // stride + 1) ** 2
    m = images * positions
    k = channels * kernel**2
    return {
        "m": m,
        "n": filters,
        "k": k,
        "flops": 2.0 * m * filters * k,
        "bytes": 4.0 * (images * channels * size**2 + k * filters + m * filters),
        "images": images,
        "window": kernel**2,
        "stride": stride**2,
    }


def elementwise(elements: Any, width: float) -> Columns:
    """Return the sizes, FLOP and bytes of an operation that reads two tensors and writes one.

    Args:
        elements: Number of elements of each tensor, or an array (n,) for n kernels.
        width: Bytes of an element.

    Returns:
        Mapping from fields of `Operation` to their values.
    """
    return {"m": elements, "n": 1, "k": 1, "flops": 1.0 * elements, "bytes": 3.0 * width * elements}


def attention(
    batch: Any,
    tokens: Any,
    heads: Any,
    key_heads: Any,
    size: Any,
    window: Any = 0,
    *,
    causal: bool = True,
) -> Columns:
    """Return the sizes, FLOP and bytes of the attention among all tokens of a prompt.

    The attention is one 16-bit kernel. A causal kernel skips the masked half (Dao 2023,
    FlashAttention-2, section 3.1).

    Args:
        batch: Number of prompts.
        tokens: Number of tokens of a prompt.
        heads: Number of query heads.
        key_heads: Number of key and value heads.
        size: Width of a head.
        window: Number of tokens that each token looks back over; 0 for all.
        causal: Whether tokens see only earlier tokens.

    Returns:
        Mapping from fields of `Operation` to their values. All sizes may be arrays (n,), for n
        kernels.
    """
    seen = np.where(np.asarray(window) > 0, np.minimum(window, tokens), tokens)
    if causal:
        pairs = seen * (seen + 1) / 2 + (tokens - seen) * seen
    else:
        pairs = 1.0 * tokens * seen
    return {
        "m": tokens,
        "n": seen,
        "k": size,
        "batch": batch * heads,
        "images": heads / key_heads,
        "flops": 4.0 * batch * heads * pairs * size,
        "bytes": 4.0 * batch * tokens * (heads + key_heads) * size,
    }


def decode(
    batch: Any, length: Any, heads: Any, key_heads: Any, size: Any, window: Any = 0, width: Any = 2
) -> Columns:
    """Return the sizes, FLOP and bytes of the attention of one new token to a cache.

    Args:
        batch: Number of requests.
        length: Number of tokens in the cache.
        heads: Number of query heads.
        key_heads: Number of heads in the cache.
        size: Width of a head.
        window: Number of tokens that the new token looks back over; 0 for all.
        width: Bytes of an element of the cache.

    Returns:
        Mapping from fields of `Operation` to their values. All sizes may be arrays (n,), for n
        kernels.
    """
    seen = np.where(np.asarray(window) > 0, np.minimum(window, length), length)
    return {
        "m": heads / key_heads,
        "n": seen,
        "k": size,
        "batch": batch * key_heads,
        "stride": length,
        "flops": 4.0 * batch * heads * seen * size,
        "bytes": 1.0 * batch * size * (2 * width * seen * key_heads + 4 * heads),
    }


def experts(  # noqa: PLR0913 - one keyword per size
    *,
    tokens: Any,
    hidden: Any,
    inner: Any,
    chosen: Any,
    count: Any,
    tensor: Any,
    parallel: Any,
    width: float,
    skew: Any = 0.0,
) -> Columns:
    """Return the sizes, FLOP and bytes of a layer of experts, on the device with the most tokens.

    An expert is a gated feed-forward layer. Only the weights of experts that at least one token
    chooses are read.

    Args:
        tokens: Number of tokens of a step.
        hidden: Width of the model.
        inner: Inner width of an expert.
        chosen: Number of experts that each token chooses.
        count: Number of experts of a layer.
        tensor: Number of devices that share each expert.
        parallel: Number of devices among which the experts are divided.
        width: Bytes of a weight.
        skew: Exponent of the power law of loads, as `_fullest_device` describes; 0 for equal loads.

    Returns:
        Mapping from fields of `Operation` to their values. All sizes may be arrays (n,), for n
        kernels.
    """
    taken, touched = np.vectorize(_fullest_device, otypes=[float, float])(
        tokens, count, chosen, parallel, skew
    )
    inner = inner / tensor
    weight_bytes = width * touched * 3 * inner * hidden
    activation_bytes = 4.0 * (taken * (hidden + inner) + tokens * hidden)
    return {
        "m": taken,
        "n": inner,
        "k": hidden,
        "batch": touched,
        "images": tokens,
        "flops": 6.0 * taken * inner * hidden,
        "bytes": weight_bytes + activation_bytes,
    }


@functools.cache
def _fullest_device(
    tokens: int, count: int, chosen: int, parallel: int, skew: float
) -> tuple[float, float]:
    """Return the load of the device with the most tokens, averaged over a few draws.

    With a `skew` of 0, all experts have equal loads. Otherwise, the loads of the experts are drawn
    from a power law with that exponent, and scaled to a sum of `tokens` x `chosen`. The draws are
    between 1 and four fifths of all tokens. If `tokens` x `chosen` is at most `count`, they are
    between 0.01 and 2. No expert has more than all tokens.

    Args:
        tokens: Number of tokens of a step.
        count: Number of experts of a layer.
        chosen: Number of experts that each token chooses.
        parallel: Number of devices among which the experts are divided.
        skew: Exponent of the power law of loads.

    Returns:
        The number of tokens of that device, and the number of its experts that have at least one
        token.
    """
    choices = tokens * chosen
    device_experts = count // parallel
    if not skew:
        device_tokens = choices / parallel
        return max(1.0, device_tokens), max(1.0, min(device_experts, device_tokens))
    if choices > count:
        low = 1.0
        high = max(0.8 * tokens, 1.01)
    else:
        low = 0.01
        high = 2.0
    uniform = np.random.default_rng(0).random((_LOAD_DRAWS, count))
    power = 1 - skew
    drawn = ((high**power - low**power) * uniform + low**power) ** (1 / power)
    loads = np.minimum(drawn / drawn.sum(axis=1, keepdims=True) * choices, tokens)
    loads *= choices / loads.sum(axis=1, keepdims=True)
    by_device = loads[:, : device_experts * parallel].reshape(_LOAD_DRAWS, parallel, device_experts)
    fullest = by_device[np.arange(_LOAD_DRAWS), by_device.sum(axis=2).argmax(axis=1)]
    mean_tokens = float(fullest.sum(axis=1).mean())
    mean_experts = float(np.minimum(fullest, 1).sum(axis=1).mean())
    return mean_tokens, max(1.0, mean_experts)


def collective(name: Any, devices: Any, message: Any) -> Columns:
    """Return the sizes and bytes of a collective (such as an all-reduce) over several devices.

    Args:
        name: The collective: "all_reduce", "all_gather", "reduce_scatter" or "alltoall". For any
            other name, 1 byte is sent per byte of the message, times (n - 1) / n for n devices.
        devices: Number of devices.
        message: Bytes of the message.

    Returns:
        Mapping from fields of `Operation` to their values. `bytes` are those that each device
        sends. All arguments may be arrays (n,), for n kernels.
    """
    per_byte = np.vectorize(lambda word: _WIRE_BYTES_PER_BYTE.get(word, 1.0))(name)
    wire_bytes = per_byte * (devices - 1) / devices * message
    return {
        "m": devices,
        "n": 1,
        "k": 1,
        "flops": np.ones_like(1.0 * message),
        "bytes": np.maximum(1.0, wire_bytes),
    }
