"""What TensorFlow's operations cost, from the graph that was traced.

A trace names a kernel by its node ("scope/name:Type"), without shapes; the graph knows the shapes
of every node. The optimizer fuses nodes under the name of the last one, rewrites some into others,
and inlines functions under a prefix (".../body/_12/name"); all three are undone here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from paradnn.worker.profile.categories import PRODUCTS, categorise
from paradnn.worker.profile.shapes import Cost, Shape, plain_cost, product_flops, total_bytes

_REWRITTEN = re.compile(r"ArithmeticOptimizer/[A-Za-z]+_(?:(?:Leaf|Internal)_\d+_)?")
_PREFIX = re.compile(r".*/_\d+/(.+)")
#: What an inlined call puts before the names within, after its own name; and the attribute that
#: names the function.
_BRANCH = re.compile(r"(body|cond|then|else|branch(\d+))/_\d+/")
_FUNCTIONS = {"body": "body", "cond": "cond", "then": "then_branch", "else": "else_branch"}


@dataclass(frozen=True)
class _Node:
    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[Shape | None, ...]
    attributes: Any


_Scope = Mapping[str, _Node]


class GraphCosts:
    """Costs of the kernels of one traced function. `graph` is a GraphDef written with shapes."""

    def __init__(self, graph: Any) -> None:
        self._main = _scope(graph.node, {})
        self._functions = {
            each.signature.name: _scope(each.node_def, _arguments(each))
            for each in graph.library.function
        }
        self._scopes = [self._main, *self._functions.values()]

    def cost(self, name: str, kind: str) -> Cost:
        """The cost of a kernel, by its name and type as a trace has them."""
        # oneDNN's kernels do what the graph's operation does, some of them with the bias's part
        # fused in.
        bare = re.sub(r"^_(Mkl(Native)?)?(Fused)?|WithBias$", "", kind)
        category = categorise("tensorflow", bare)
        scope, node = self._find(name, bare)
        if node is not None and node.kind != bare and category in PRODUCTS:
            node = _fused_from(scope, node, bare)
        if node is None:
            return Cost(kind, category)
        return _cost(kind, bare, scope, node)

    def products(self) -> list[Cost]:
        """Costs of all products in the graph; the body of a loop counts once."""
        return [
            _cost(node.kind, node.kind, scope, node)
            for scope in self._scopes
            for node in scope.values()
            if categorise("tensorflow", node.kind) in PRODUCTS
        ]

    def _find(self, name: str, kind: str) -> tuple[_Scope, _Node | None]:
        """The node of a kernel, by its path through the calls that were inlined; where the path is
        broken, one of that name in any function, of the same type if there is one.
        """
        # The optimizer's sums stand in the scope of the sum they were made from.
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
        """The node at `path` from a scope on: "call/name" or "loop/body/_12/name" leads into a
        function.
        """
        if path in scope:
            return scope, scope[path]
        for end in (index for index, letter in enumerate(path) if letter == "/"):
            caller = scope.get(path[:end])
            if caller is None:
                continue
            rest = path[end + 1 :]
            branch = _BRANCH.match(rest)
            inner = self._functions.get(_called(caller, branch))
            if inner is not None and (
                match := self._follow(inner, rest[branch.end() :] if branch else rest)
            ):
                return match
        return None


def _fused_from(scope: _Scope, node: _Node, kind: str) -> _Node | None:
    """The product that a chain of elementwise operations ending in `node` began with."""
    nearest = {node.name: node}
    for _ in range(8):
        product = next((each for each in nearest.values() if each.kind == kind), None)
        if product:
            return product
        names = [reference.split(":")[0] for each in nearest.values() for reference in each.inputs]
        nearest = {name: scope[name] for name in names if name in scope}
    return None


def _called(caller: _Node, branch: re.Match[str] | None) -> str:
    """The name of the function that a node calls, or that a loop or a condition has as this branch;
    "" if none.
    """
    attributes = caller.attributes
    if branch is not None and branch[2] is not None:
        if "branches" in attributes:
            branches = attributes["branches"].list.func
        else:
            branches = ()
        if int(branch[2]) < len(branches):
            return str(branches[int(branch[2])].name)
        return ""
    key = _FUNCTIONS[branch[1]] if branch else "f"
    return str(attributes[key].func.name) if key in attributes else ""


def _cost(kind: str, bare: str, scope: _Scope, node: _Node) -> Cost:
    category = categorise("tensorflow", bare)
    inputs = [
        _shape(scope, reference) for reference in node.inputs if not reference.startswith("^")
    ]
    outputs = [shape for shape in node.outputs if shape is not None]
    # An update writes the variable that its first input, a handle, stands for.
    if bare.startswith(("AssignSub", "AssignAdd")) and inputs[-1] is not None:
        return Cost(kind, category, inputs[-1].elements, 3 * inputs[-1].bytes)
    if category not in PRODUCTS:
        return plain_cost(kind, category, inputs, outputs)
    flops = (_matmul if category == "matmul" else _convolution)(bare, node, inputs, outputs)
    known = [shape for shape in inputs if shape is not None]
    if len(known) == len(inputs) and outputs:
        moved = total_bytes([*known, *outputs])
    else:
        moved = None
    # Sizes of a gradient, which are inputs too, are vectors.
    operands = tuple(shape.elements for shape in (*known, *outputs) if len(shape.dimensions) > 1)
    return Cost(
        kind, category, flops, moved, flops or 0.0, _dtype(node.attributes, ("T",)), operands
    )


def _matmul(
    kind: str, node: _Node, inputs: Sequence[Shape | None], outputs: Sequence[Shape]
) -> float | None:
    if kind == "Einsum":
        return _einsum(node, inputs)
    if not outputs or len(inputs) < 2:
        return None
    if kind.startswith("Batch"):
        flags = ("adj_x", "adj_y")
    else:
        flags = ("transpose_a", "transpose_b")
    for shape, flag, place in zip(inputs, flags, (-1, -2), strict=False):
        if shape is not None:
            contracted = shape.dimensions[-3 - place if node.attributes[flag].b else place]
            return product_flops(outputs[0].dimensions, contracted)
    return None


def _einsum(node: _Node, inputs: Sequence[Shape | None]) -> float | None:
    """2 x the product of the lengths of all letters; None where a term is not plain, 0 where
    nothing is multiplied.
    """
    letters: dict[str, int] = {}
    terms = node.attributes["equation"].s.decode().split("->")[0].split(",")
    if len(terms) == 1:
        return 0.0
    for term, shape in zip(terms, inputs, strict=False):
        if shape is None or "." in term or len(term) != len(shape.dimensions):
            return None
        letters.update(zip(term, shape.dimensions, strict=True))
    return product_flops(list(letters.values()))


def _convolution(
    kind: str, node: _Node, inputs: Sequence[Shape | None], outputs: Sequence[Shape]
) -> float | None:
    """Forward and both gradients multiply the same pairs: those of the forward output with the
    filter.
    """
    if len(inputs) < 2 or not outputs:
        return None
    kernel = outputs[0] if "BackpropFilter" in kind else inputs[1]
    image = inputs[2] if "Backprop" in kind else outputs[0]
    if not kernel or not image:
        return None
    window = kernel.dimensions[:-2]
    channels = kernel.dimensions[-2]
    # A depthwise filter's output channel sees one input channel.
    return product_flops(image.dimensions, *window, 1 if kind.startswith("Depthwise") else channels)


def _scope(nodes: Any, arguments: _Scope) -> dict[str, _Node]:
    keys = ("dtype", "DstT", "output_type", "out_type", "T", "Tparams", "element_dtype")
    own = {
        node.name: _Node(
            node.name,
            node.op,
            tuple(node.input),
            _outputs(node.attr, _dtype(node.attr, keys)),
            node.attr,
        )
        for node in nodes
    }
    return {**arguments, **own}


def _arguments(function: Any) -> dict[str, _Node]:
    """A function's parameters, whose shapes stand in its argument attributes where they are known."""
    parameters = {}
    for index, argument in enumerate(function.signature.input_arg):
        if index in function.arg_attr:
            attributes = function.arg_attr[index].attr
        else:
            attributes = {}
        if argument.type:
            dtype = tf.as_dtype(argument.type).name
        else:
            dtype = "unknown"
        parameters[argument.name] = _Node(
            argument.name, "_Arg", (), _outputs(attributes, dtype), {}
        )
    return parameters


def _dtype(attributes: Any, keys: Sequence[str]) -> str:
    """The element type that the first of these attributes says."""
    numbers = (attributes[key].type for key in keys if key in attributes)
    return next((tf.as_dtype(number).name for number in numbers if number), "unknown")


def _outputs(attributes: Any, dtype: str) -> tuple[Shape | None, ...]:
    """The shapes of a node's outputs, None where one is not known entirely."""
    if "_output_shapes" in attributes:
        shapes = attributes["_output_shapes"].list.shape
    else:
        shapes = ()
    dimensions = [
        None if shape.unknown_rank else tuple(each.size for each in shape.dim) for shape in shapes
    ]
    return tuple(
        None if sizes is None or min(sizes, default=0) < 0 else Shape(dtype, sizes)
        for sizes in dimensions
    )


def _shape(scope: _Scope, reference: str) -> Shape | None:
    """The shape of "name", "name:1" (in a graph) or "name:output:1" (in a function)."""
    name, *rest = reference.split(":")
    outputs = scope[name].outputs if name in scope else ()
    # Of a list's last element and what is left of it, the element comes second.
    if rest[:1] == ["tensor"]:
        index = 1
    elif rest:
        index = int(rest[-1])
    else:
        index = 0
    return outputs[index] if index < len(outputs) else None
