"""The operations of kernels in PyTorch; `paradnn.families.parts` documents them."""
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
    # In PyTorch, the channel axis always comes first. NHWC is only an order in memory.
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
    return _backward(gradient, _shape_only(gradient, shape), filters, kernel, 0)


def convolution_backward_weights(images: Any, gradient: Any, kernel: Conv2d) -> Any:
    height, width, channels, count = kernel.filter_shape
    shape = (count, channels, height, width)
    return _backward(gradient, images, _shape_only(gradient, shape), kernel, 1)


def _backward(gradient: Any, images: Any, filters: Any, kernel: Conv2d, position: int) -> Any:
    """Return one gradient of a convolution.

    Args:
        gradient: Gradient of the output.
        images: Input of the convolution.
        filters: Weights of the convolution.
        kernel: The convolution, which defines stride and padding.
        position: 0 for the gradient of the images, 1 for the gradient of the filters.
    """
    gradients = torch.ops.aten.convolution_backward(
        gradient,
        images,
        filters,
        bias_sizes=None,
        stride=list(kernel.stride),
        padding=list(kernel.padding),
        dilation=[1, 1],
        transposed=False,
        output_padding=[0, 0],
        groups=1,
        output_mask=[position == 0, position == 1, False],
    )
    return gradients[position]


def _shape_only(like: Any, shape: Sequence[int]) -> Any:
    """Return a tensor for its shape alone: all elements share one memory location.

    Args:
        like: Tensor with the same type and device.
        shape: Shape of the result.
    """
    return torch.empty((1,) * len(shape), dtype=like.dtype, device=like.device).expand(*shape)


def scan(
    step: Any, state: tuple[Any, ...], sequences: tuple[Any, ...], reverse: bool = False
) -> Any:
    steps = list(range(sequences[0].shape[0]))
    if reverse:
        steps.reverse()
    outputs_by_step: list[tuple[Any, ...]] = []
    for index in steps:
        state, outputs = step(state, tuple(sequence[index] for sequence in sequences))
        outputs_by_step.append(outputs)
    if reverse:
        outputs_by_step.reverse()
    return state, tuple(torch.stack(series) for series in zip(*outputs_by_step, strict=True))


def sparse(counts: Any, columns: Any, values: Any, shape: tuple[int, int]) -> Any:
    begins = torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    return torch.sparse_csr_tensor(begins, columns, values, shape)


csr = sparse
csr_matmul = sparse_matmul
