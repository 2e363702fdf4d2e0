"""Checks of the inputs that a user's model declares, common to all model formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paradnn.core.errors import UnavailableError
from paradnn.families.built import ArraySpec

#: Kinds of NumPy types that a batch can contain: booleans, signed and unsigned integers, and real
#: numbers.
_NUMERIC_KINDS = "biuf"


def array_spec(shape: tuple[int, ...], dtype: Any, high: int, label: str) -> ArraySpec:
    """Return the specification of the array that is drawn for an input of a model.

    Floating-point types become float32, and other numeric types become int32.

    Args:
        shape: Shape of the input without the batch axis.
        dtype: The element type, by its name in NumPy or Keras.
        high: Integers are drawn from [0, high).
        label: Name of the input in messages.

    Raises:
        UnavailableError: If the element type is not numeric.
    """
    if str(dtype) == "bfloat16":
        return ArraySpec(shape, "float32")
    try:
        kind: str | None = np.dtype(str(dtype)).kind
    except TypeError:
        kind = None
    if kind is None or kind not in _NUMERIC_KINDS:
        raise UnavailableError(
            f"{label} has the type {dtype}, but ParaDnn draws only real numbers and integers: "
            "change the input to a floating-point or integer type"
        )
    if kind == "f":
        return ArraySpec(shape, "float32")
    return ArraySpec(shape, "int32", high)


def common_batch(first_axes: dict[str, int]) -> int | None:
    """Return the batch size that the inputs of a model fix; None if no input fixes it.

    Args:
        first_axes: For each input whose first axis has a fixed size: label, such as
            "input 'x' of net", -> size of the axis.

    Raises:
        UnavailableError: If the sizes differ, so that not all of the axes are the batch, or if a
            size is less than 1.
    """
    if not first_axes:
        return None
    labels = list(first_axes)
    expected = first_axes[labels[0]]
    if expected < 1:
        raise UnavailableError(
            f"{labels[0]} has size {expected} in its first axis: make this axis a batch of one or more examples"
        )
    for label, size in first_axes.items():
        if size != expected:
            raise UnavailableError(
                f"{label} has size {size} in its first axis, {labels[0]} has size {expected}: "
                "the first axis of every input must be the batch"
            )
    return expected


def filled_shape(
    sizes: Sequence[int | str | None],
    input_shape: tuple[int, ...],
    label: str,
    *,
    is_only: bool,
) -> tuple[int, ...]:
    """Return the shape of an input without the batch axis, with all open sizes filled in.

    Args:
        sizes: Sizes of all axes of the input; a name or None for a size that the file leaves open.
        input_shape: `model.input_shape`, which fills the open sizes of all axes but the batch axis;
            () if the key is not set.
        label: Name of the input in messages.
        is_only: Whether the model has no other input. Otherwise, `input_shape` is ignored.

    Raises:
        UnavailableError: If the input is a scalar, a size stays open, or `input_shape` contradicts
            a fixed size.
    """
    if not sizes:
        raise UnavailableError(
            f"{label} is a scalar, without a batch axis: make it a constant of the model"
        )
    sizes_text = f"[{', '.join(str(size or '?') for size in sizes)}]"
    if input_shape and is_only:
        fits = len(input_shape) == len(sizes) - 1 and all(
            requested == size or not isinstance(size, int)
            for size, requested in zip(sizes[1:], input_shape, strict=True)
        )
        if not fits:
            raise UnavailableError(
                f"{label} has the shape {sizes_text}, which model.input_shape={list(input_shape)} "
                "does not match: set model.input_shape to this shape without its first axis"
            )
        return input_shape
    shape = tuple(size for size in sizes[1:] if isinstance(size, int))
    if len(shape) == len(sizes) - 1:
        return shape
    if is_only:
        remedy = "set model.input_shape, without the batch"
    else:
        remedy = "fix the open sizes in the file, since the model has several inputs"
    raise UnavailableError(f"{label} has the shape {sizes_text}: {remedy}")
