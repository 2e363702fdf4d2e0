"""What TensorFlow's operations cost, from the graph that was traced.

A trace names a kernel by its node ("scope/name:Type"), without shapes; the graph knows the shapes of every node. The
optimizer fuses nodes under the name of the last one, rewrites some into others, and inlines functions under a prefix
(".../body/_12/name"); all three are undone here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paradnn.worker.profile.shapes import (
    BYTES,
    Cost,
    Shape,
    convolution_flops,
    matmul_flops,
    reduce_flops,
    total_bytes,
    words,
)

#: TensorFlow's numbers of element types.
_DTYPES = {1: "float32", 2: "float64", 3: "int32", 4: "uint8", 6: "int8", 9: "int64", 10: "bool"}
_DTYPES |= {14: "bfloat16", 19: "float16", 22: "uint32", 23: "uint64"}

_MATMUL = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "XlaDotV2"}
_CONVOLUTION = words(
    "Conv2D Conv2DBackpropInput Conv2DBackpropFilter DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput "
    "DepthwiseConv2dNativeBackpropFilter Conv3D Conv3DBackpropInputV2 Conv3DBackpropFilterV2"
)
_REDUCTION = words(
    "Sum Mean Max Min Prod Any All ArgMax ArgMin BiasAddGrad L2Loss MaxPool AvgPool MaxPoolGrad AvgPoolGrad "
    "UnsortedSegmentSum SegmentSum Softmax LogSoftmax SparseSoftmaxCrossEntropyWithLogits "
    "SoftmaxCrossEntropyWithLogits"
)
#: What comes out is true or false, whatever went in.
_BOOLEAN = words(
    "Less Greater Equal LessEqual GreaterEqual NotEqual ApproximateEqual LogicalAnd LogicalOr LogicalNot "
    "IsFinite IsNan IsInf Any All"
)
#: They hand a buffer on, and move nothing.
_FREE = words(
    "Reshape Identity IdentityN ReadVariableOp AssignVariableOp Squeeze ExpandDims Shape VariableShape "
    "StopGradient Const NoOp VarHandleOp PreventGradient"
)
_MOVEMENT = re.compile(
    r"(TensorList|ScopedAllocator|Gather|Scatter|Resource(Gather|Scatter)|Strided|Concat|Split|Pack$|Unpack$|Slice$|"
    r"Pad|MirrorPad|Tile$|"
    r"Transpose|Fill$|ZerosLike$|OnesLike$|BroadcastTo$|Copy|Reverse|Snapshot$|Range$|Unique|Where$|ReverseV2$)"
)
_CONTROL = re.compile(
    r"(Enter|Exit|Merge|Switch|NextIteration|LoopCond|While|If|Case|_Recv|_Send|_Arg|_Retval|Less|"
    r"LogicalAnd|_HostRecv|_HostSend)$"
)
#: Between devices; an event of it lasts until the others have come, too.
_COLLECTIVE = re.compile(r"(Collective|Nccl|XlaAllReduce)")
#: Outputs by name, of operations that have several: a reference within a function names them.
_OUTPUTS = {
    "TensorListPopBack": ("output_handle", "tensor"),
    "SparseSoftmaxCrossEntropyWithLogits": ("loss", "backprop"),
    "SoftmaxCrossEntropyWithLogits": ("loss", "backprop"),
    "Unique": ("y", "idx"),
    "TopKV2": ("values", "indices"),
    "FusedBatchNormV3": ("y", "batch_mean", "batch_variance"),
    "FusedBatchNormGradV3": ("x_backprop", "scale_backprop", "offset_backprop"),
}
_REWRITTEN = re.compile(r"ArithmeticOptimizer/[A-Za-z]+_(?:(?:Leaf|Internal)_\d+_)?")
_PREFIX = re.compile(r".*/_\d+/(.+)")
#: What an inlined call puts before the names within, after its own name; and the attribute that names the function.
_BRANCH = re.compile(r"(body|cond|then|else|branch(\d+))/_\d+/")
_FUNCTIONS = {"body": "body", "cond": "cond", "then": "then_branch", "else": "else_branch"}


@dataclass(frozen=True)
class _Node:
    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[Shape | None, ...]
    attributes: Any


class GraphCosts:
    """Costs of the kernels of one traced function. `graph` is a GraphDef written with shapes."""

    def __init__(self, graph: Any) -> None:
        self._main = _scope(graph.node, {})
        self._functions = {
            function.signature.name: _scope(function.node_def, _arguments(function))
            for function in graph.library.function
        }

    def cost(self, name: str, kind: str) -> Cost:
        """The cost of a kernel, by its name and type as a trace has them."""
        # oneDNN's kernels do what the graph's operation does, some of them with the bias's part fused in.
        bare = re.sub(r"^_(Mkl(Native)?)?(Fused)?|WithBias$", "", kind)
        category = categorise(bare)
        scope, node = self._find(name, bare)
        if node is None:
            return Cost(kind, category)
        last: _Node = node
        if node.kind != bare and category in _PRODUCTS:
            node = self._fused_from(scope, node, bare)
            if node is None:
                return Cost(kind, category)
        inputs = [_shape(scope, reference) for reference in node.inputs if not reference.startswith("^")]
        outputs = [shape for shape in last.outputs if shape is not None]
        return _cost(kind, bare, category, node, inputs, outputs)

    def product_flops(self) -> dict[str, float]:
        """FLOPs of all products in the graph by the type that they multiply; the body of a loop counts once."""
        total: defaultdict[str, float] = defaultdict(float)
        for scope in (self._main, *self._functions.values()):
            for node in scope.values():
                if (category := categorise(node.kind)) in _PRODUCTS:
                    inputs = [_shape(scope, reference) for reference in node.inputs if not reference.startswith("^")]
                    outputs = [shape for shape in node.outputs if shape is not None]
                    cost = _cost(node.kind, node.kind, category, node, inputs, outputs)
                    total[cost.dtype or "unknown"] += cost.product_flops
        return {dtype: flops for dtype, flops in total.items() if flops}

    def _find(self, name: str, kind: str) -> tuple[Mapping[str, _Node], _Node | None]:
        """The node of a kernel, by its path through the calls that were inlined.

        Where the path is broken, a node of that name in any function, one of the same type if there is one.
        """
        # The optimizer's sums stand in the scope of the sum they were made from.
        names = [_REWRITTEN.sub("", name)]
        if exact := self._follow(self._main, names[0]):
            return exact
        while match := _PREFIX.fullmatch(names[-1]):
            names.append(match[1])
        scopes = [self._main, *self._functions.values()]
        candidates = [(scope, scope[entry]) for entry in names for scope in scopes if entry in scope]
        same = [pair for pair in candidates if pair[1].kind == kind]
        best = same or candidates
        return best[0] if best else ({}, None)

    def _follow(self, scope: Mapping[str, _Node], path: str) -> tuple[Mapping[str, _Node], _Node] | None:
        """The node at `path` from a scope on: "call/name" or "loop/body/_12/name" leads into a function."""
        if path in scope:
            return scope, scope[path]
        for end in (index for index, letter in enumerate(path) if letter == "/"):
            caller, rest = scope.get(path[:end]), path[end + 1 :]
            if caller is None:
                continue
            branch = _BRANCH.match(rest)
            inner = self._functions.get(_called(caller, branch))
            if inner is not None and (match := self._follow(inner, rest[branch.end() :] if branch else rest)):
                return match
        return None

    def _fused_from(self, scope: Mapping[str, _Node], node: _Node, kind: str) -> _Node | None:
        """The product that a chain of elementwise operations ending in `node` began with."""
        nearest = {node.name: node}
        for _ in range(8):
            if product := next((each for each in nearest.values() if each.kind == kind), None):
                return product
            references = [reference for each in nearest.values() for reference in each.inputs]
            producers = [scope.get(_producer(reference)) for reference in references]
            nearest = {producer.name: producer for producer in producers if producer is not None}
        return None


def _called(caller: _Node, branch: re.Match[str] | None) -> str:
    """The name of the function that a node calls, or that a loop or a condition has as this branch; "" if none."""
    if branch is None:
        key = "f"
    elif branch[2] is not None:
        branches = caller.attributes["branches"].list.func if "branches" in caller.attributes else ()
        return str(branches[int(branch[2])].name) if int(branch[2]) < len(branches) else ""
    else:
        key = _FUNCTIONS[branch[1]]
    return str(caller.attributes[key].func.name) if key in caller.attributes else ""


def categorise(kind: str) -> str:
    """Our category of a TensorFlow operation type."""
    if kind in _MATMUL:
        return "matmul"
    if kind in _CONVOLUTION:
        return "convolution"
    if kind in _REDUCTION:
        return "reduction"
    if kind in _FREE or _CONTROL.match(kind):
        return "control"
    if _COLLECTIVE.match(kind):
        return "communication"
    return "data movement" if _MOVEMENT.match(kind) else "elementwise"


def _cost(
    kind: str, bare: str, category: str, node: _Node, inputs: Sequence[Shape | None], outputs: Sequence[Shape]
) -> Cost:
    if category == "control":
        return Cost(kind, category, 0.0, 0.0)
    known = [shape for shape in inputs if shape is not None]
    complete = len(known) == len(inputs) and bool(outputs)
    # An update writes the variable that its first input, a handle, stands for.
    if bare.startswith(("AssignSub", "AssignAdd")) and known:
        return Cost(kind, category, known[-1].elements, 3 * known[-1].bytes)
    moved = float(total_bytes(known) + total_bytes(outputs)) if complete else None
    if category == "data movement":
        # A gather or a slice reads what it writes, not all of its input.
        written = float(2 * total_bytes(outputs)) if outputs else None
        return Cost(kind, category, 0.0, written)
    if category in ("matmul", "convolution"):
        flops = _PRODUCTS[category](bare, node, inputs, outputs)
        dtype = next((shape.dtype for shape in inputs if shape and shape.dtype in BYTES), None)
        dtype = _DTYPES.get(node.attributes["T"].type, dtype) if "T" in node.attributes else dtype
        return Cost(kind, category, flops, moved, flops or 0.0, dtype)
    if category == "reduction":
        elements = max((shape.elements for shape in known), default=None)
        return Cost(kind, category, None if elements is None else reduce_flops(elements), moved)
    return Cost(kind, category, float(sum(shape.elements for shape in outputs)) if outputs else None, moved)


def _matmul(kind: str, node: _Node, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> float | None:
    if kind == "Einsum":
        return _einsum(node, inputs)
    if not outputs or len(inputs) < 2:
        return None
    first, second = inputs[:2]
    batched = kind.startswith("Batch")
    flags = ("adj_x", "adj_y") if batched else ("transpose_a", "transpose_b")
    if first is not None:
        contracted = first.dimensions[-2 if node.attributes[flags[0]].b else -1]
    elif second is not None:
        contracted = second.dimensions[-1 if node.attributes[flags[1]].b else -2]
    else:
        return None
    return matmul_flops(outputs[0].dimensions, contracted)


def _einsum(node: _Node, inputs: Sequence[Shape | None]) -> float | None:
    """2 x the product of the lengths of all letters; None where a term is not plain, 0 where nothing is multiplied."""
    letters: dict[str, int] = {}
    terms = node.attributes["equation"].s.decode().split("->")[0].split(",")
    if len(terms) == 1:
        return 0.0
    for term, shape in zip(terms, inputs, strict=False):
        if shape is None or "." in term or len(term) != len(shape.dimensions):
            return None
        letters.update(zip(term, shape.dimensions, strict=True))
    return matmul_flops(list(letters.values()), 1)


def _convolution(kind: str, node: _Node, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> float | None:
    """Forward and both gradients multiply the same pairs: those of the forward output with the filter."""
    if len(inputs) < 2 or not outputs:
        return None
    third = inputs[2] if len(inputs) > 2 else None
    kind = kind.removesuffix("V2")
    if kind.endswith("BackpropInput"):
        kernel, image = inputs[1], third
    elif kind.endswith("BackpropFilter"):
        kernel, image = outputs[0], third
    else:
        kernel, image = inputs[1], outputs[0]
    if kernel is None or image is None or len(kernel.dimensions) < 3:
        return None
    *window, channels, _ = kernel.dimensions
    # A depthwise filter's output channel sees one input channel.
    return convolution_flops(image.dimensions, window, 1 if kind.startswith("Depthwise") else channels)


_PRODUCTS: dict[str, Callable[[str, _Node, Sequence[Shape | None], Sequence[Shape]], float | None]] = {
    "matmul": _matmul,
    "convolution": _convolution,
}


def _scope(nodes: Any, arguments: Mapping[str, _Node]) -> dict[str, _Node]:
    nodes_by_name = dict(arguments)
    for node in nodes:
        shapes = node.attr["_output_shapes"].list.shape if "_output_shapes" in node.attr else ()
        dtype = _output_type(node)
        outputs = tuple(_read(shape, dtype) for shape in shapes)
        nodes_by_name[node.name] = _Node(node.name, node.op, tuple(node.input), outputs, node.attr)
    return nodes_by_name


def _arguments(function: Any) -> dict[str, _Node]:
    """A function's parameters, whose shapes stand in its argument attributes where they are known."""
    parameters = {}
    for index, argument in enumerate(function.signature.input_arg):
        attributes = function.arg_attr[index].attr if index in function.arg_attr else {}
        shapes = attributes["_output_shapes"].list.shape if "_output_shapes" in attributes else ()
        outputs = tuple(_read(shape, _DTYPES.get(argument.type, "unknown")) for shape in shapes)
        parameters[argument.name] = _Node(argument.name, "_Arg", (), outputs, {})
    return parameters


def _output_type(node: Any) -> str:
    if node.op in _BOOLEAN:
        return "bool"
    for key in ("dtype", "DstT", "output_type", "out_type", "T", "Tparams", "element_dtype"):
        if key in node.attr and node.attr[key].type:
            return _DTYPES.get(node.attr[key].type, "unknown")
    return "unknown"


def _read(shape: Any, dtype: str) -> Shape | None:
    """A shape that is known entirely."""
    if shape.unknown_rank or any(dimension.size < 0 for dimension in shape.dim):
        return None
    return Shape(dtype, tuple(dimension.size for dimension in shape.dim))


def _producer(reference: str) -> str:
    return reference.removeprefix("^").split(":")[0]


def _shape(scope: Mapping[str, _Node], reference: str) -> Shape | None:
    """The shape of "name", "name:1" (in a graph) or "name:output:1" (in a function)."""
    name, *rest = reference.split(":")
    node = scope.get(name)
    if node is None:
        return None
    index = int(rest[-1]) if rest else 0
    if len(rest) == 2 and rest[0] in _OUTPUTS.get(node.kind, ()):
        index = _OUTPUTS[node.kind].index(rest[0])
    return node.outputs[index] if index < len(node.outputs) else None
