"""PyTorch's operations, as the kernels ask for them (`paradnn.families.parts`)."""
# ruff: noqa: D103

import operator
from collections.abc import Sequence
from typing import Any

import torch

from paradnn.families.kernels import Conv2d

sigmoid = torch.sigmoid
tanh = torch.tanh
relu = torch.relu
sparse_matmul = operator.matmul
sign = torch.sign
reshape = torch.reshape
concatenate = torch.cat


def cast(values: Any, dtype: str) -> Any:
    return values.to(getattr(torch, dtype))


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    return torch.mm(a.t() if transpose_a else a, b.t() if transpose_b else b)


def images(values: Any, layout: str) -> Any:
    # Its shapes have the channels first; channels last is an order in memory.
    return values.permute(0, 3, 1, 2) if layout == "NHWC" else values


def filters(values: Any, layout: str) -> Any:
    if layout == "NHWC":
        order = torch.channels_last
    else:
        order = torch.contiguous_format
    return values.permute(3, 2, 0, 1).contiguous(memory_format=order)


def convolution_forward(images: Any, filters: Any, kernel: Conv2d) -> Any:
    return torch.nn.functional.conv2d(images, filters, None, kernel.stride, kernel.padding)


def convolution_backward_input(gradient: Any, filters: Any, kernel: Conv2d) -> Any:
    shape = (gradient.shape[0], kernel.channels, kernel.height, kernel.width)
    return _backward(gradient, _nothing(gradient, shape), filters, kernel, 0)


def convolution_backward_weights(images: Any, gradient: Any, kernel: Conv2d) -> Any:
    height, width, channels, count = kernel.filter_shape
    return _backward(
        gradient, images, _nothing(gradient, (count, channels, height, width)), kernel, 1
    )


def _backward(gradient: Any, images: Any, filters: Any, kernel: Conv2d, which: int) -> Any:
    wanted = [which == 0, which == 1, False]
    options = ([*kernel.stride], [*kernel.padding], [1, 1], False, [0, 0], 1, wanted)
    return torch.ops.aten.convolution_backward(gradient, images, filters, None, *options)[which]


def _nothing(like: Any, shape: Sequence[int]) -> Any:
    """A tensor of which the shape alone is read; it has one element of memory."""
    return torch.empty((1,) * len(shape), dtype=like.dtype, device=like.device).expand(*shape)


def scan(
    step: Any, state: tuple[Any, ...], sequences: tuple[Any, ...], reverse: bool = False
) -> Any:
    found: list[tuple[Any, ...]] = []
    places = range(sequences[0].shape[0])
    for index in reversed(places) if reverse else places:
        state, outputs = step(state, tuple(each[index] for each in sequences))
        found.append(outputs)
    if reverse:
        found.reverse()
    return state, tuple(torch.stack(outputs) for outputs in zip(*found, strict=True))


def sparse(counts: Any, columns: Any, values: Any, shape: tuple[int, int]) -> Any:
    begins = torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    return torch.sparse_csr_tensor(begins, columns, values, shape)
