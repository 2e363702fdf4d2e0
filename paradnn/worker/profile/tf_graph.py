"""FLOPs and bytes of TensorFlow's operations, from the graph of a traced function.

A trace names a kernel by its node ("scope/name:Type"), without shapes. The traced graph contains
the shapes of every node, but the graph optimizer changes names:

- A fusion has the name of its last node.
- A rewritten node gets a prefix.
- A node of an inlined function has the path of the call before its name (".../body/_12/name").

This module maps each name in a trace back to a node of the traced graph.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from paradnn.worker.profile.categories import PRODUCTS, categorize
from paradnn.worker.profile.shapes import Cost, Shape, plain_cost, product_flops, total_bytes

#: Prefix that the graph optimizer adds to the name of a node that it rewrites.
_REWRITTEN = re.compile(r"ArithmeticOptimizer/[A-Za-z]+_(?:(?:Leaf|Internal)_\d+_)?")
#: A name within an inlined function: the path of the call, then the name in the function.
_PREFIX = re.compile(r".*/_\d+/(.+)")
#: The part of a path that names a function of a loop or condition. It follows the node's name.
_BRANCH = re.compile(r"(body|cond|then|else|branch(\d+))/_\d+/")
#: The attribute of a node that names the function of a branch, by the branch's name in a path.
_BRANCH_ATTRIBUTES = {
    "body": "body",
    "cond": "cond",
    "then": "then_branch",
    "else": "else_branch",
}
#: Parts of a kernel's type that name oneDNN or a fusion. Without these parts, the kernel's type is
#: the operation's type.
_KERNEL_AFFIXES = re.compile(r"^_(Mkl(Native)?)?(Fused)?|WithBias$")
#: Longest chain of elementwise operations that the optimizer fuses into a product.
_LONGEST_CHAIN = 8


@dataclass(frozen=True)
class _Node:
    """A node of a graph.

    Attributes:
        name: Name in its graph or function.
        kind: Type of the operation.
        inputs: References to outputs of other nodes, such as "name:1".
        outputs: Shapes of the outputs; None for an output with an unknown dimension.
        attributes: Attributes by name, as protocol buffers.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[Shape | None, ...]
    attributes: Any


#: The nodes of a graph or of a function by name.
_Scope = Mapping[str, _Node]


class GraphCosts:
    """FLOPs and bytes of the operations of one `tf.function`.

    Args:
        graph: The graph of the traced function, a GraphDef with the shapes of all outputs
            (`as_graph_def(add_shapes=True)`).
    """

    def __init__(self, graph: Any) -> None:
        self._main = _scope(graph.node, {})
        self._functions = {
            function.signature.name: _scope(function.node_def, _parameters(function))
            for function in graph.library.function
        }
        self._scopes = [self._main, *self._functions.values()]

    def cost(self, name: str, kind: str) -> Cost:
        """Return FLOPs and bytes of one execution of an operation in a profiler's trace.

        Args:
            name: The name of the operation in the trace: the name of its node in the optimized
                graph.
            kind: The type of the operation in the trace, such as "_FusedMatMul".

        Returns:
            The cost. If no node of the graph matches, it has only a type and a category.
        """
        operation = _KERNEL_AFFIXES.sub("", kind)
        category = categorize("tensorflow", operation)
        scope, node = self._find(name, operation)
        if node is not None and node.kind != operation and category in PRODUCTS:
            node = _fused_product(scope, node, operation)
        if node is None:
            return Cost(kind, category)
        return _cost(kind, operation, scope, node)

    def products(self) -> list[Cost]:
        """Return FLOPs and sizes of each matrix product and convolution in the graph.

        The body of a loop counts once.
        """
        return [
            _cost(node.kind, node.kind, scope, node)
            for scope in self._scopes
            for node in scope.values()
            if categorize("tensorflow", node.kind) in PRODUCTS
        ]

    def _find(self, name: str, kind: str) -> tuple[_Scope, _Node | None]:
        """Return the node of an operation, and the graph or function that contains the node.

        The name is the path through the inlined calls. If the path does not lead to a node, this
        method searches all functions for the end of the name. It prefers a node of the given type.

        Args:
            name: The name of the operation in a trace.
            kind: The type of the operation.

        Returns:
            First the nodes of the graph or function by name, then the node. If nothing matches, an
            empty mapping and None.
        """
        # Without the optimizer's prefix, the name of a rewritten node is its original name.
        names = [_REWRITTEN.sub("", name)]
        exact = self._follow(self._main, names[0])
        if exact:
            return exact
        while match := _PREFIX.fullmatch(names[-1]):
            names.append(match[1])
        candidates = [
            (scope, scope[entry]) for entry in names for scope in self._scopes if entry in scope
        ]
        return min(candidates, key=lambda pair: pair[1].kind != kind, default=({}, None))

    def _follow(self, scope: _Scope, path: str) -> tuple[_Scope, _Node] | None:
        """Return the node at the end of a path through calls of functions.

        Args:
            scope: The nodes of the graph or function in which the path begins, by name.
            path: The path, such as "name", "call/name" or "loop/body/_12/name".

        Returns:
            First the nodes of the graph or function that contains the node, by name, then the node.
            None if the path leads to no node.
        """
        if path in scope:
            return scope, scope[path]
        for separator in re.finditer("/", path):
            caller = scope.get(path[: separator.start()])
            if caller is None:
                continue
            rest = path[separator.end() :]
            branch = _BRANCH.match(rest)
            inner = self._functions.get(_called_function(caller, branch))
            if inner is None:
                continue
            if branch:
                rest = rest[branch.end() :]
            node = self._follow(inner, rest)
            if node:
                return node
        return None


def _fused_product(scope: _Scope, node: _Node, kind: str) -> _Node | None:
    """Return the product at the start of the chain of fused operations that ends with `node`.

    Returns None if the chain has no such product.

    Args:
        scope: The nodes among which to search, by name.
        node: The last, elementwise operation of the chain.
        kind: The operation type of the product.
    """
    nearest = {node.name: node}
    for _ in range(_LONGEST_CHAIN):
        for candidate in nearest.values():
            if candidate.kind == kind:
                return candidate
        names = [
            reference.split(":")[0]
            for candidate in nearest.values()
            for reference in candidate.inputs
        ]
        nearest = {name: scope[name] for name in names if name in scope}
    return None


def _called_function(caller: _Node, branch: re.Match[str] | None) -> str:
    """Return the name of the function that a node calls; "" if it calls none.

    Args:
        caller: The node, such as a call, a loop or a condition.
        branch: Match of `_BRANCH` that names one of several functions, such as the body of a loop.
            None for the only function of a call.
    """
    attributes = caller.attributes
    if branch is not None and branch[2] is not None:
        branches = attributes["branches"].list.func if "branches" in attributes else ()
        index = int(branch[2])
        return str(branches[index].name) if index < len(branches) else ""
    key = _BRANCH_ATTRIBUTES[branch[1]] if branch else "f"
    return str(attributes[key].func.name) if key in attributes else ""


def _cost(kind: str, operation: str, scope: _Scope, node: _Node) -> Cost:
    """Return FLOPs and bytes of one execution of a node.

    Args:
        kind: The type of the operation in the trace, which may be a fused type.
        operation: The type of the operation that determines the cost, without fusion.
        scope: The nodes of the graph or function that contains `node`, by name.
        node: The node whose shapes determine the cost.
    """
    category = categorize("tensorflow", operation)
    inputs = [
        _shape(scope, reference) for reference in node.inputs if not reference.startswith("^")
    ]
    outputs = [shape for shape in node.outputs if shape is not None]
    # The first input of an update is the variable's handle, which has no shape. The update reads
    # the variable and the last input, and writes the variable.
    if operation.startswith(("AssignSub", "AssignAdd")) and inputs[-1] is not None:
        return Cost(kind, category, flops=inputs[-1].elements, bytes=3 * inputs[-1].bytes)
    if operation.startswith("SparseSegment"):
        return _segment_cost(kind, category, inputs, outputs)
    if category not in PRODUCTS:
        return plain_cost(kind, category, inputs, outputs)
    if category == "convolution":
        flops = _convolution_flops(operation, inputs, outputs)
    else:
        flops = _matmul_flops(operation, node, inputs, outputs)
    known = [shape for shape in inputs if shape is not None]
    moved = None
    if len(known) == len(inputs) and outputs:
        moved = total_bytes([*known, *outputs])
    # Omit vectors: gradients of convolutions have a shape as an input, which is a vector.
    operands = [shape.elements for shape in (*known, *outputs) if len(shape.dimensions) > 1]
    return Cost(
        kind,
        category,
        flops=flops,
        bytes=moved,
        product_flops=flops or 0.0,
        dtype=_dtype(node.attributes, ("T",)),
        operands=tuple(operands),
    )


def _segment_cost(
    kind: str, category: str, inputs: Sequence[Shape | None], outputs: Sequence[Shape]
) -> Cost:
    """Return FLOPs and bytes of summing rows of a table, as in an embedding of several tokens.

    For each index, SparseSegmentSum(table, indices, segments) reads one row and performs one FLOP
    per element of the row.

    Args:
        kind: The type of the operation in the trace.
        category: The category of the operation.
        inputs: Shapes of the inputs; None for an unknown shape.
        outputs: Shapes of the outputs; empty if they are unknown.
    """
    if len(inputs) < 2 or inputs[0] is None or inputs[1] is None:
        return Cost(kind, category)
    table = inputs[0]
    indices = inputs[1]
    row = Shape(table.dtype, table.dimensions[1:])
    moved = None
    if outputs:
        moved = float(row.bytes * indices.elements + total_bytes([indices, *outputs]))
    return Cost(kind, category, flops=float(indices.elements * row.elements), bytes=moved)


def _matmul_flops(
    operation: str, node: _Node, inputs: Sequence[Shape | None], outputs: Sequence[Shape]
) -> float | None:
    """Return the FLOPs of a matrix product; None if the shapes do not determine them.

    Args:
        operation: The type of the operation, such as "MatMul".
        node: The node, whose attributes say which operand is transposed.
        inputs: Shapes of the inputs; None for an unknown shape.
        outputs: Shapes of the outputs; empty if they are unknown.
    """
    if operation == "Einsum":
        return _einsum_flops(node, inputs)
    if not outputs or len(inputs) < 2:
        return None
    if operation == "SparseTensorDenseMatMul":
        # The inputs are indices, values and shape of the sparse matrix, then the dense matrix.
        values = inputs[1]
        if values is None:
            return None
        return product_flops(values.dimensions, outputs[0].dimensions[-1])
    if operation.startswith("Batch"):
        flags = ("adj_x", "adj_y")
    else:
        flags = ("transpose_a", "transpose_b")
    # The contracted dimension is the last of the left operand, or the last but one of the right.
    for shape, flag, axis in zip(inputs, flags, (-1, -2), strict=False):
        if shape is None:
            continue
        is_transposed = node.attributes[flag].b
        if is_transposed:
            axis = -3 - axis
        return product_flops(outputs[0].dimensions, shape.dimensions[axis])
    return None


def _einsum_flops(node: _Node, inputs: Sequence[Shape | None]) -> float | None:
    """Return the FLOPs of an Einsum: 2 x the product of the lengths of all multiplied labels.

    If a label occurs in only one operand and not in the output, it is summed before the
    multiplication and does not count. The dimensions of an ellipsis are broadcast.

    Args:
        node: The node, whose attributes contain the equation.
        inputs: Shapes of the operands; None for an unknown shape.

    Returns:
        The FLOPs; 0 if the Einsum has one operand, None if a shape is unknown.
    """
    equation = node.attributes["equation"].s.decode().replace(" ", "")
    terms, _, output = equation.partition("->")
    operands = terms.split(",")
    if len(operands) == 1:
        return 0.0
    lengths: dict[str, int] = {}
    for operand, shape in zip(operands, inputs, strict=False):
        if shape is None:
            return None
        labels = _einsum_labels(operand, len(shape.dimensions))
        if labels is None:
            return None
        for label, length in zip(labels, shape.dimensions, strict=True):
            lengths[label] = max(length, lengths.get(label, 1))
    multiplied = [
        length
        for label, length in lengths.items()
        if label[0] == "." or label in output or all(label in operand for operand in operands)
    ]
    return product_flops(multiplied)


def _einsum_labels(operand: str, rank: int) -> list[str] | None:
    """Return the label of each dimension of an operand; None if their numbers do not match.

    The dimensions of an ellipsis have the labels ".1", ".2", ..., counted from the last dimension.

    Args:
        operand: The labels of one operand of an Einsum, such as "...ij".
        rank: Number of dimensions of the operand.
    """
    before, ellipsis, after = operand.partition("...")
    broadcast = rank - len(before) - len(after)
    if broadcast < 0 or (broadcast and not ellipsis):
        return None
    return [*before, *(f".{position}" for position in range(broadcast, 0, -1)), *after]


def _convolution_flops(
    operation: str, inputs: Sequence[Shape | None], outputs: Sequence[Shape]
) -> float | None:
    """Return the FLOPs of a convolution or of one of its gradients.

    The gradients of the input and of the filter have the same number of multiplications as the
    forward pass: for each element of the forward output, one per filter position and input channel.
    TensorFlow computes a transposed convolution as the gradient of the input.

    Args:
        operation: The type of the operation, such as "Conv2DBackpropInput".
        inputs: Shapes of the inputs; None for an unknown shape.
        outputs: Shapes of the outputs; empty if they are unknown.

    Returns:
        The FLOPs; None if a shape is unknown.
    """
    if len(inputs) < 2 or not outputs:
        return None
    kernel = outputs[0] if "BackpropFilter" in operation else inputs[1]
    forward_output = inputs[2] if "Backprop" in operation else outputs[0]
    if not kernel or not forward_output:
        return None
    window = math.prod(kernel.dimensions[:-2])
    # The filter has the input channels of one group. A depthwise convolution sums over one channel.
    channels = 1 if operation.startswith("Depthwise") else kernel.dimensions[-2]
    return product_flops(forward_output.dimensions, window, channels)


def _scope(nodes: Any, parameters: _Scope) -> dict[str, _Node]:
    """Return the nodes of a graph or function by name.

    Args:
        nodes: The nodes, as protocol buffers of the type NodeDef.
        parameters: Nodes of the function's parameters, which are added; empty for a graph.
    """
    keys = ("dtype", "DstT", "output_type", "out_type", "T", "Tparams", "element_dtype")
    scope = dict(parameters)
    for node in nodes:
        scope[node.name] = _Node(
            name=node.name,
            kind=node.op,
            inputs=tuple(node.input),
            outputs=_outputs(node.attr, _dtype(node.attr, keys)),
            attributes=node.attr,
        )
    return scope


def _parameters(function: Any) -> dict[str, _Node]:
    """Return the parameters of a function (FunctionDef) as nodes by name, with their shapes."""
    parameters = {}
    for index, argument in enumerate(function.signature.input_arg):
        attributes: Any = {}
        if index in function.arg_attr:
            attributes = function.arg_attr[index].attr
        dtype = tf.as_dtype(argument.type).name if argument.type else "unknown"
        parameters[argument.name] = _Node(
            name=argument.name,
            kind="_Arg",
            inputs=(),
            outputs=_outputs(attributes, dtype),
            attributes={},
        )
    return parameters


def _dtype(attributes: Any, keys: Sequence[str]) -> str:
    """Return the element type in the first of several attributes of a node that state a type.

    Args:
        attributes: The attributes of the node by name.
        keys: Names of attributes, in order of precedence.

    Returns:
        Name of the type, such as "float32"; "unknown" if no attribute states a type.
    """
    for key in keys:
        if key in attributes and attributes[key].type:
            return str(tf.as_dtype(attributes[key].type).name)
    return "unknown"


def _outputs(attributes: Any, dtype: str) -> tuple[Shape | None, ...]:
    """Return the shapes of a node's outputs; None for an output with an unknown dimension.

    Args:
        attributes: The attributes of the node by name.
        dtype: Element type of the outputs.
    """
    if "_output_shapes" not in attributes:
        return ()
    outputs: list[Shape | None] = []
    for shape in attributes["_output_shapes"].list.shape:
        sizes = tuple(dimension.size for dimension in shape.dim)
        is_known = not shape.unknown_rank and min(sizes, default=0) >= 0
        outputs.append(Shape(dtype, sizes) if is_known else None)
    return tuple(outputs)


def _shape(scope: _Scope, reference: str) -> Shape | None:
    """Return the shape of a node's output; None if it is unknown.

    Args:
        scope: The nodes of the graph or function by name.
        reference: Names the output: "name" or "name:1" in a graph, "name:output:1" in a function.
    """
    name, *rest = reference.split(":")
    outputs = scope[name].outputs if name in scope else ()
    index = 0
    if rest[:1] == ["tensor"]:
        # Only TensorListPopBack has an output "tensor". It is the second output, after the list.
        index = 1
    elif rest:
        index = int(rest[-1])
    return outputs[index] if index < len(outputs) else None
