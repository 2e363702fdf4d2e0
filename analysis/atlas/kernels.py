"""What kernels of published tables compute and move, as columns of `Operation`: numbers in, or
arrays (n,) of them.

A column per field of `paradnn.families.operations.Operation`. `width` is the bytes of an element.
Each operand is read once and each result written once; the sources of the formulas are named where
they are not plain counting.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from analysis.lazy import np

#: Field of an operation -> a number, or (n,) of them.
Columns = Mapping[str, Any]
#: The fields that are numbers, in the order of the shipped table.
COLUMNS = ("m", "n", "k", "flops", "bytes", "batch", "calls", "images", "window", "stride")

#: Draws of the loads of experts.
_LOADS = 16
#: Bytes that a collective puts on the wire of each device, per byte of its message, over n devices:
#: rings, as Thakur, Rabenseifner and Gropp 2005 (Optimization of collective communication
#: operations in MPICH) count them.
_ON_THE_WIRE = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0}


def product(
    m: Any, n: Any, k: Any, width: float, batch: Any = 1, weight_width: float | None = None
) -> Columns:
    """m x k by k x n, `batch` of them beside each other; the second operand may have a width of its
    own.
    """
    own = width if weight_width is None else weight_width
    moved_bytes = batch * (width * (m * k + m * n) + own * k * n)
    return {
        "m": m,
        "n": n,
        "k": k,
        "batch": batch,
        "flops": 2.0 * batch * m * n * k,
        "bytes": 1.0 * moved_bytes,
    }


def convolution(
    images: Any, channels: Any, filters: Any, kernel: Any, size: Any, stride: Any, padding: Any
) -> Columns:
    """A square convolution forward in float32, unrolled as
    `paradnn.families.operations.convolution` does.
    """
    places = ((size + 2 * padding - kernel) // stride + 1) ** 2
    m = images * places
    k = channels * kernel**2
    moved_bytes = 4.0 * (images * channels * size**2 + k * filters + m * filters)
    shape = {"images": images, "window": kernel**2, "stride": stride**2}
    return {
        "m": m,
        "n": filters,
        "k": k,
        "flops": 2.0 * m * filters * k,
        "bytes": moved_bytes,
        **shape,
    }


def moved(elements: Any, width: float) -> Columns:
    """An operation element by element that moves three tensors, as an addition does."""
    return {"m": elements, "n": 1, "k": 1, "flops": 1.0 * elements, "bytes": 3.0 * width * elements}


def attention(
    batch: Any,
    tokens: Any,
    heads: Any,
    key_heads: Any,
    size: Any,
    window: Any = 0,
    causal: bool = True,
) -> Columns:
    """Attention of all tokens of a prompt among each other in one kernel, 16-bit; causal halves are
    not computed (Dao 2023, FlashAttention-2, section 3.1). A `window` of 0 looks back over all.
    """
    seen = np.where(np.asarray(window) > 0, np.minimum(window, tokens), tokens)
    if causal:
        pairs = seen * (seen + 1) / 2 + (tokens - seen) * seen
    else:
        pairs = 1.0 * tokens * seen
    shape = {"m": tokens, "n": seen, "k": size, "batch": batch * heads, "images": heads / key_heads}
    moved_bytes = 4.0 * batch * tokens * (heads + key_heads) * size
    return {**shape, "flops": 4.0 * batch * heads * pairs * size, "bytes": moved_bytes}


def decode(
    batch: Any, length: Any, heads: Any, key_heads: Any, size: Any, window: Any = 0, width: Any = 2
) -> Columns:
    """Attention of one new token to a cache of `length` with elements of `width` bytes."""
    seen = np.where(np.asarray(window) > 0, np.minimum(window, length), length)
    shape = {
        "m": heads / key_heads,
        "n": seen,
        "k": size,
        "batch": batch * key_heads,
        "stride": length,
    }
    moved_bytes = 1.0 * batch * size * (2 * width * seen * key_heads + 4 * heads)
    return {**shape, "flops": 4.0 * batch * heads * seen * size, "bytes": moved_bytes}


def experts(
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
    """The gated feed-forward layers of a mixture of `count` experts of which each token takes
    `chosen`, on the fullest of `parallel` devices that share experts, of `tensor` that share each;
    `width` of a weight, loads as `_loads` has them. Experts that any token takes are read.
    """
    taken, touched = np.vectorize(_loads, otypes=[float, float])(
        tokens, count, chosen, parallel, skew
    )
    inner = inner / tensor
    moved_bytes = width * touched * 3 * inner * hidden + 4.0 * (
        taken * (hidden + inner) + tokens * hidden
    )
    shape = {"batch": touched, "images": tokens}
    return {
        "m": taken,
        "n": inner,
        "k": hidden,
        **shape,
        "flops": 6.0 * taken * inner * hidden,
        "bytes": moved_bytes,
    }


@functools.cache
def _loads(tokens: int, count: int, chosen: int, parallel: int, skew: float) -> tuple[float, float]:
    """Tokens of the fullest of `parallel` devices, and its experts that have any, on average over a
    few draws.

    `skew` 0: all experts have as many. Else tokens of an expert are drawn from a power law with
    that exponent, from 1 to four fifths of all tokens (0.01 to 2 where experts outnumber choices),
    and no expert has more than all tokens.
    """
    choices = tokens * chosen
    own = count // parallel
    if not skew:
        return max(1.0, choices / parallel), max(1.0, min(own, choices / parallel))
    low, high = (1.0, max(0.8 * tokens, 1.01)) if choices > count else (0.01, 2.0)
    uniform = np.random.default_rng(0).random((_LOADS, count))
    power = 1 - skew
    drawn = ((high**power - low**power) * uniform + low**power) ** (1 / power)
    loads = np.minimum(drawn / drawn.sum(axis=1, keepdims=True) * choices, tokens)
    loads *= choices / loads.sum(axis=1, keepdims=True)
    devices = loads[:, : own * parallel].reshape(_LOADS, parallel, own)
    fullest = devices[np.arange(_LOADS), devices.sum(axis=2).argmax(axis=1)]
    return float(fullest.sum(axis=1).mean()), max(
        1.0, float(np.minimum(fullest, 1).sum(axis=1).mean())
    )


def collective(name: Any, devices: Any, message: Any) -> Columns:
    """A collective of a `message` in bytes over so many devices."""
    factor = np.vectorize(lambda word: _ON_THE_WIRE.get(word, 1.0))(name) * (devices - 1) / devices
    work = {"flops": np.ones_like(1.0 * message), "bytes": np.maximum(1.0, factor * message)}
    return {"m": devices, "n": 1, "k": 1, **work}
