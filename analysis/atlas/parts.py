"""Parts of a step: groups of operations, each with the published timings that predict it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from analysis.atlas import TimingGroup, make_operation
from analysis.atlas.kernels import attention, decode, product
from paradnn.core.layers import COMPUTE_BYTES
from paradnn.families import Model
from paradnn.families.operations import RepeatedOperation, elementwise_operation

#: A function that returns the timings of a kind of kernel on the device, or None.
FindGroup = Callable[[str], TimingGroup | None]

#: The backward pass of fused attention has five products, its forward pass two (Dao 2023,
#: FlashAttention-2, section 3.1).
_BACKWARD_ATTENTION_FACTOR = 2.5
#: Minimum bytes of an elementwise operation: three tensors of one float32.
_MIN_ELEMENTWISE_BYTES = 12.0


@dataclass(frozen=True)
class StepPart:
    """Operations of a step that one group of timings predicts.

    Attributes:
        name: Name of the part, such as "attention". Parts of the same name share one error.
        group: Timings of these operations, or of substitutes for them.
        operations: The operations, described as kernels of the kind that was timed.
        substitution: How the operations are predicted from substitutes, as text; empty if such
            operations were timed.
        is_overlapped: Whether the part may run at the same time as the backward pass.
    """

    name: str
    group: TimingGroup
    operations: Sequence[RepeatedOperation]
    substitution: str = ""
    is_overlapped: bool = False


def step_parts(
    find_group: FindGroup,
    model: Model,
    operations: Sequence[RepeatedOperation],
    other_bytes: float,
    batch: int,
    head_shares: int = 1,
) -> list[StepPart]:
    """Assign every operation of a step to the group of timings that predicts it.

    Args:
        find_group: Function that returns the timings of a kind of kernel on the device, or None. It
            must return timings for "gemm".
        model: The model whose step is divided.
        operations: Products and convolutions of the step.
        other_bytes: Bytes that the step moves in addition to the traffic of the operations.
        batch: Batch size.
        head_shares: Number of devices among which the heads of each attention are divided.

    Returns:
        The parts that have operations.
    """
    gemm = find_group("gemm")
    assert gemm is not None, "the caller checks this"
    products = [entry for entry in operations if entry.operation.kind == "gemm"]
    convolutions = [entry for entry in operations if entry.operation.kind == "conv2d"]
    single = [entry for entry in products if entry.operation.batch == 1]
    batched = [entry for entry in products if entry.operation.batch > 1]
    parts = [
        StepPart("products", gemm, as_products(single, gemm)),
        *_convolution_parts(find_group("conv2d"), gemm, convolutions),
        *_attention_parts(find_group, gemm, model, batched, batch, head_shares),
        *_traffic_parts(
            find_group("elementwise"),
            gemm,
            other_bytes,
            count=max(1, len(operations)),
            is_kernel=model.is_kernel,
        ),
    ]
    return [part for part in parts if part.operations]


def _convolution_parts(
    conv: TimingGroup | None, gemm: TimingGroup, convolutions: Sequence[RepeatedOperation]
) -> Iterator[StepPart]:
    if conv is None:
        substitution = "are predicted as products, since no convolution was timed on this device"
        yield StepPart("convolutions", gemm, as_products(convolutions, gemm), substitution)
        return
    timed_variants = set(conv.timings["variant"])
    timed = [entry for entry in convolutions if entry.operation.variant in timed_variants]
    others = [entry for entry in convolutions if entry.operation.variant not in timed_variants]
    yield StepPart("convolutions", conv, timed)
    substitution = "are predicted as forward convolutions"
    yield StepPart("backward convolutions", conv, others, substitution)


def _traffic_parts(
    elementwise: TimingGroup | None,
    gemm: TimingGroup,
    other_bytes: float,
    *,
    count: int,
    is_kernel: bool,
) -> Iterator[StepPart]:
    """Yield the part for the memory traffic that is not traffic of products.

    Args:
        elementwise: Timings of elementwise kernels; None if the device has none.
        gemm: Timings of products, which are used if `elementwise` is None.
        other_bytes: Bytes of this traffic.
        count: Number of equal operations among which the traffic is divided.
        is_kernel: Whether the step is a single operation.
    """
    name = "other traffic"
    if elementwise is not None and (other_bytes or not is_kernel):
        moved_bytes = max(_MIN_ELEMENTWISE_BYTES, other_bytes / count)
        operation = elementwise_operation(moved_bytes, elementwise.precision)
        substitution = "is the minimum for any step, predicted as elementwise operations"
        yield StepPart(name, elementwise, [RepeatedOperation("", operation, count)], substitution)
    elif elementwise is None and other_bytes:
        # A 16-bit product with a single row mostly reads its matrix.
        side = max(1.0, math.sqrt(other_bytes / count / 2))
        operation = make_operation("gemm", product(1, side, side, 2))
        substitution = "is predicted to move as fast as the operands of a product"
        yield StepPart(name, gemm, [RepeatedOperation("", operation, count)], substitution)


def as_products(
    entries: Iterable[RepeatedOperation], group: TimingGroup
) -> list[RepeatedOperation]:
    """Return operations as matrix products of a variant that was timed.

    An operation that consists of several consecutive products becomes one product with a repeat
    count. Products of a timed variant are returned unchanged.

    Args:
        entries: The operations, such as convolutions, with their repeat counts.
        group: Timings of products. A variant is, for example, a layout of the operands.
    """
    timed_variants = set(group.timings["variant"])
    # Most published tables have a single variant, without a name.
    variant = "nn" if "nn" in timed_variants else max(timed_variants, default="")
    described = []
    for entry in entries:
        operation = entry.operation
        if operation.kind == "gemm" and operation.variant in timed_variants:
            described.append(entry)
            continue
        m, n, k, calls = operation.product
        saved_bytes = 0.0
        if operation.batch == 1:
            # Weights narrower than 16 bits reduce the traffic.
            narrower = COMPUTE_BYTES["bfloat16"] - weight_bytes(group.precision)
            saved_bytes = max(0.0, narrower) * n * k
        columns = {
            "m": m,
            "n": n,
            "k": k,
            "batch": operation.batch,
            "flops": operation.flops / calls,
            "bytes": operation.bytes / calls - saved_bytes,
        }
        single = make_operation("gemm", columns, variant)
        described.append(replace(entry, operation=single, count=entry.count * calls))
    return described


def weight_bytes(precision: str) -> float:
    """Return the bytes of a weight at a precision, such as 0.5 for a 4-bit precision.

    A precision narrower than 16 bits applies only to weights, not to activations.

    Args:
        precision: Name of the precision, such as "bfloat16" or "fp8".
    """
    if precision in COMPUTE_BYTES:
        return COMPUTE_BYTES[precision]
    if "4" in precision:
        return 0.5
    return 1.0


def _attention_parts(
    find_group: FindGroup,
    gemm: TimingGroup,
    model: Model,
    products: Sequence[RepeatedOperation],
    batch: int,
    head_shares: int,
) -> Iterator[StepPart]:
    """Yield the parts for the two products of each attention, for all heads of a device.

    They form one kernel if such a kernel was timed on the device, else they are batched products.

    Args:
        find_group: Function that returns the timings of a kind of kernel on the device, or None.
        gemm: Timings of products.
        model: The model whose step is divided.
        products: Batched products of the step, forward and backward.
        batch: Batch size.
        head_shares: Number of devices among which the heads of each attention are divided.
    """
    forward = [entry for entry in products if entry.layer.endswith("forward")]
    if not forward:
        return
    is_decode = forward[0].operation.m == 1
    group = _attention_group(find_group, model, is_decode=is_decode)
    pairs = zip(forward[::2], forward[1::2], strict=False)
    is_self_attention = all(scores.operation.n == values.operation.k for scores, values in pairs)
    if group is None or not is_self_attention:
        batched = find_group("bmm")
        if batched is None:
            substitution = "is predicted as single products, one after the other"
            yield StepPart("attention", gemm, as_products(products, gemm), substitution)
        else:
            yield StepPart("attention", batched, as_products(products, batched))
        return

    heads = max(1, forward[0].operation.batch // batch)
    if hasattr(model, "heads"):
        heads = model.heads // head_shares
    key_heads = heads
    if hasattr(model, "key_heads"):
        key_heads = model.key_heads // head_shares
    fused = []
    for entry in forward[::2]:
        tokens = entry.operation.m
        keys = entry.operation.n
        size = entry.operation.k
        if is_decode:
            cache_width = weight_bytes(group.precision)
            columns = decode(batch, keys, heads, key_heads, size, width=cache_width)
        else:
            is_causal = group.kind == "attention"
            columns = attention(batch, tokens, heads, key_heads, size, causal=is_causal)
        fused.append(replace(entry, operation=make_operation(group.kind, columns)))
    yield StepPart("attention", group, fused)
    if len(forward) < len(products):
        backward = [
            replace(entry, count=_BACKWARD_ATTENTION_FACTOR * entry.count) for entry in fused
        ]
        substitution = f"is predicted as {_BACKWARD_ATTENTION_FACTOR:g} times the forward pass"
        yield StepPart("attention's backward pass", group, backward, substitution)


def _attention_group(find_group: FindGroup, model: Model, *, is_decode: bool) -> TimingGroup | None:
    if is_decode:
        return find_group("decode")
    if model.generates:  # causal
        return find_group("attention")
    return find_group("encoder_attention") or find_group("attention")
