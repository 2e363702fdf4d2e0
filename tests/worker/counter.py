"""TensorFlow's FLOP counter (tfprof) as an oracle.

FLOPs that it omits or only estimates are computed from shapes.
"""

import warnings
from math import prod
from typing import Any

import tensorflow as tf

__all__ = ["counted_flops", "product_flops"]

FORWARD = {"MatMul", "BatchMatMulV2", "Conv2D", "DepthwiseConv2dNative"}
PRODUCTS = {*FORWARD, "Conv2DBackpropInput", "Conv2DBackpropFilter"}


def counted_flops(graph: Any, forward: bool = False) -> int:
    """Return the FLOPs of the matrix products and convolutions of a traced graph.

    If `forward`, count only the forward pass.
    """
    options = tf.compat.v1.profiler.ProfileOptionBuilder(
        tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operations = needed_operations(graph)
        kinds = {node.name: node.type for node in operations}
        profile = tf.compat.v1.profiler.profile(graph, options=options.with_empty_output().build())
    total = sum(map(einsum_flops, operations))
    stack = list(profile.children)
    while stack:
        node = stack.pop()
        stack += node.children
        if kinds.get(node.name) in (FORWARD if forward else PRODUCTS) and not (
            forward and "gradient" in node.name
        ):
            total += node.float_ops
    return total


def einsum_flops(operation: Any) -> int:
    """Return an einsum's FLOPs: two per combination of its indices; 0 for other operations."""
    if operation.type != "Einsum":
        return 0
    terms = operation.get_attr("equation").decode().split("->")[0].split(",")
    sizes = {
        letter: size
        for term, tensor in zip(terms, operation.inputs, strict=True)
        for letter, size in zip(term, tensor.shape.as_list(), strict=True)
    }
    return 2 * prod(sizes.values())


def product_flops(graph: Any) -> int:
    """Return the FLOPs of the matrix products and convolutions in a graph's backward pass.

    A gradient of a convolution has the same number of multiplications as the forward pass.
    """
    total = 0
    for operation in needed_operations(graph):
        shapes = [tensor.shape.as_list() for tensor in operation.inputs]
        if operation.type == "MatMul" and "gradient" in operation.name:
            side = shapes[0][-2 if operation.get_attr("transpose_a") else -1]
            total += 2 * prod(operation.outputs[0].shape.as_list()) * side
        elif "Backprop" in operation.type and "onv2" in operation.type:
            if "Input" in operation.type:
                kernel = shapes[1]
            else:
                kernel = operation.outputs[0].shape.as_list()
            channels = 1 if operation.type.startswith("Depthwise") else kernel[2]
            total += 2 * prod(shapes[2]) * kernel[0] * kernel[1] * channels
    return total


def needed_operations(graph: Any) -> set[Any]:
    """Return the operations on which an output of the graph depends.

    A traced graph also contains unused gradients, which never run.
    """
    operations: set[Any] = set()
    stack = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    while stack:
        operation = stack.pop()
        if operation not in operations:
            operations.add(operation)
            stack += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return operations
