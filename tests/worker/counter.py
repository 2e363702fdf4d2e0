"""TensorFlow's own FLOP counter (tfprof), as an oracle; for Einsum, which it does not count, the loop's own length."""

from __future__ import annotations

import warnings
from math import prod
from typing import Any

import tensorflow as tf

__all__ = ["counted_flops"]

PRODUCTS = {"MatMul", "BatchMatMulV2", "Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"}


def counted_flops(graph: Any) -> int:
    """FLOPs of the matrix products and convolutions of a traced graph."""
    options = tf.compat.v1.profiler.ProfileOptionBuilder(tf.compat.v1.profiler.ProfileOptionBuilder.float_operation())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operations = needed(graph)
        kinds = {node.name: node.type for node in operations}
        profile = tf.compat.v1.profiler.profile(graph, options=options.with_empty_output().build())
    total, stack = sum(map(einsum_flops, operations)), list(profile.children)
    while stack:
        node = stack.pop()
        stack += node.children
        if kinds.get(node.name) in PRODUCTS:
            total += node.float_ops
    return total


def einsum_flops(operation: Any) -> int:
    """Two for each turn of the loops over all the letters; none for other operations."""
    if operation.type != "Einsum":
        return 0
    terms = operation.get_attr("equation").decode().split("->")[0].split(",")
    sizes = {letter: size for term, tensor in zip(terms, operation.inputs, strict=True)
             for letter, size in zip(term, tensor.shape.as_list(), strict=True)}  # fmt: skip
    return 2 * prod(sizes.values())


def needed(graph: Any) -> set[Any]:
    """The operations that lead to an output: a gradient that nobody asked for is built but never run."""
    found: set[Any] = set()
    stack = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    while stack:
        operation = stack.pop()
        if operation not in found:
            found.add(operation)
            stack += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return found
