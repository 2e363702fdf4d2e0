"""Read PyTorch's trace (Kineto's Chrome format): operations with times and costs.

On a CPU, an operation takes its own time, without the operations that it calls. A product or a
convolution includes its callees, since its own time is only the call. On a GPU, the kernels take
the time: each belongs to the operation that launched it, and several kernels of one call are one
execution. The cost of a call follows from the shapes and arguments in the trace.
"""

import gzip
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paradnn.worker.profile.categories import PRODUCTS, categorize
from paradnn.worker.profile.shapes import (
    Cost,
    Shape,
    attention_flops,
    plain_cost,
    product_flops,
    total_bytes,
)
from paradnn.worker.profile.trace import WINDOW, Event, Trace

#: Name of the trace. TensorBoard's plug-in for PyTorch looks for this suffix.
FILE = "paradnn.pt.trace.json.gz"

_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
#: Name of a region of compiled code whose parts have no events.
_REGION = "## Call CompiledFxGraph"

RawEvent = Mapping[str, Any]


class _Operation(NamedTuple):
    """Type, name and cost of the operation that an event belongs to."""

    kind: str
    name: str
    cost: Cost


def read_kineto(folder: Path, *, on_device: bool = False) -> Trace:
    """Return the trace in `folder`.

    Args:
        folder: The folder into which the profiler wrote.
        on_device: The steps ran on a GPU, so the trace must have kernels.

    Raises:
        ValueError: If no trace exists, or it lacks the annotated steps or the kernels.
    """
    file = folder / FILE
    if not file.exists():
        raise ValueError(f"the profiler wrote no trace into {folder}")
    with gzip.open(file, "rt") as handle:
        events = [event for event in json.load(handle)["traceEvents"] if event.get("ph") == "X"]
    window = _window(events)
    # Subtract the origin first: microseconds since the boot use up the digits of a float.
    origin = float(window["ts"])
    trace = Trace(float(window["dur"]) * 1e-6, file=file)
    calls = _Calls(events)
    kernels = [event for event in events if event.get("cat") in _DEVICE_CATEGORIES]
    if on_device and not kernels:
        raise ValueError(
            "the profiler saw no kernel of the device; check that CUPTI is installed and permitted"
        )
    executions = _kernels(kernels, calls.owners) if kernels else _host_executions(calls)
    for lane, event, operation, is_continued in executions:
        trace.stated[operation.name, operation.kind] = operation.cost
        start = (event["ts"] - origin) * 1e-6
        end = start + event["dur"] * 1e-6
        trace.events.append(
            Event(lane, operation.name, operation.kind, start, end, continues=is_continued)
        )
    return trace


def _window(events: Iterable[RawEvent]) -> RawEvent:
    """Return the event around the profiled steps."""
    for event in events:
        if event["name"] == WINDOW and event.get("cat") == "user_annotation":
            return event
    raise ValueError(f"the trace has no event {WINDOW}")


class _Calls:
    """The calls of operations in a trace.

    Attributes:
        owners: The call that each external number counts for: its product, or itself.
        operations: The calls that are not part of a product.
        callers: Identities of the calls whose work other calls do.
    """

    def __init__(self, events: Iterable[RawEvent]) -> None:
        self.owners: dict[int, RawEvent] = {}
        self.operations: list[RawEvent] = []
        self.callers: set[int] = set()
        lanes: dict[Any, list[RawEvent]] = {}
        for event in events:
            if event.get("cat") == "cpu_op" or event["name"].startswith(_REGION):
                lanes.setdefault(event["tid"], []).append(event)
        for lane in lanes.values():
            self._add_lane(lane)

    def _add_lane(self, lane: Iterable[RawEvent]) -> None:
        enclosing: list[RawEvent] = []
        for event in sorted(lane, key=lambda entry: (entry["ts"], -entry["dur"])):
            while enclosing and event["ts"] >= enclosing[-1]["ts"] + enclosing[-1]["dur"]:
                enclosing.pop()
            product = next((outer for outer in enclosing if _is_product(outer)), None)
            if product is None:
                self.operations.append(event)
                if categorize("torch", event["name"]) != "control":
                    self._add_callers(event, enclosing)
            number = _arguments(event).get("External id")
            if number is not None:
                self.owners[number] = product or event
            enclosing.append(event)

    def _add_callers(self, event: RawEvent, enclosing: Iterable[RawEvent]) -> None:
        """Mark the calls that only hand their input on to `event`.

        Calls also prepare scalars and buffers: a call that hands on less than half of its input
        does the work itself.
        """
        size = _largest_argument(_arguments(event))
        for outer in enclosing:
            if 2 * size >= _largest_argument(_arguments(outer)):
                self.callers.add(id(outer))


def _is_product(event: RawEvent) -> bool:
    return categorize("torch", event["name"]) in PRODUCTS


def _arguments(event: RawEvent) -> Mapping[str, Any]:
    arguments: Mapping[str, Any] = event.get("args", {})
    return arguments


def _host_executions(calls: _Calls) -> Iterator[tuple[str, RawEvent, _Operation, bool]]:
    """Yield thread, event and operation of each call on the host; none continues another."""
    for call in calls.operations:
        operation = _operation(call, is_caller=id(call) in calls.callers)
        yield str(call["tid"]), call, operation, False


def _kernels(
    kernels: Iterable[RawEvent], owners: Mapping[int, RawEvent]
) -> Iterator[tuple[str, RawEvent, _Operation, bool]]:
    """Yield stream, event and operation of each kernel, and whether it continues an execution.

    A kernel without a known call is an operation with its own name.
    """
    begun: set[int] = set()
    for event in sorted(kernels, key=lambda entry: entry["ts"]):
        arguments = _arguments(event)
        lane = f"stream {arguments.get('stream', event['tid'])}"
        owner = owners.get(arguments.get("External id", -1))
        if owner is None:
            yield lane, event, _kernel_operation(event["name"]), False
        else:
            yield lane, event, _operation(owner), id(owner) in begun
            begun.add(id(owner))


def _kernel_operation(name: str) -> _Operation:
    kind = name.split("(")[0].removeprefix("void ")
    category = categorize("torch", kind)
    if category == "control":
        category = categorize("kernel", name.lower())
    return _Operation(kind, kind, Cost(kind, category))


def _operation(call: RawEvent, *, is_caller: bool = False) -> _Operation:
    """Return the operation of a call; a caller costs nothing, since its callees have the cost."""
    kind = call["name"].split(": ")[0]
    if kind.startswith(_REGION):
        name = "compiled region"
        return _Operation(name, name, Cost(name, "elementwise"))
    if is_caller or categorize("torch", kind) == "control":
        return _Operation(kind, kind, Cost(kind, "control", flops=0.0, bytes=0.0))
    arguments = _arguments(call)
    return _Operation(kind, _label(kind, arguments), aten_cost(kind, arguments))


_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "bool": "bool",
    "int": "int32",
    "long int": "int64",
    "long": "int64",
    "short": "int16",
    "unsigned char": "uint8",
    "signed char": "int8",
}

#: A loop that torch.compile fused. Its name lists its operations, but not its shapes.
_FUSED = re.compile(r"(?:graph_\d+_)?(cpp_fused|triton_[a-z]+_fused)\w*")


def _largest_argument(arguments: Mapping[str, Any]) -> int:
    """Return the number of elements of the largest argument."""
    sizes = [
        sum(shape.elements for shape in shapes if shape.dimensions)
        for shapes in _tensors(arguments)
    ]
    return max(sizes, default=0)


def _label(kind: str, arguments: Mapping[str, Any]) -> str:
    """Return the operation with its shapes: other shapes are another row of the table."""
    if _FUSED.match(kind):
        return kind
    tensors = _tensors(arguments)
    shapes = [
        "x".join(map(str, entry[0].dimensions))
        for entry in tensors
        if len(entry) == 1 and entry[0].dimensions
    ]
    lists = [f"{len(entry)} tensors" for entry in tensors if len(entry) > 1]
    return f"{kind}({', '.join([*shapes, *lists])})"


def aten_cost(kind: str, arguments: Mapping[str, Any]) -> Cost:
    """Return the cost of one call.

    Args:
        kind: The operation, such as aten::mm.
        arguments: The recorded arguments: Input Dims, Input type, Concrete Inputs.
    """
    category = categorize("torch", kind)
    fused = _FUSED.match(kind)
    if fused:
        return Cost(f"{fused[1]}, compiled loop", category)
    inputs = _tensors(arguments)
    if category in PRODUCTS:
        return _product_cost(kind, category, arguments, inputs)
    if "embedding_bag" in kind:
        return _embedding_bag_cost(kind, category, inputs)
    tensors = [shape for shapes in inputs for shape in shapes]
    if category == "control" or not tensors:
        return plain_cost(kind, category, [], [])
    if category in ("data movement", "reduction"):
        return plain_cost(kind, category, tensors, [])
    # The output of a _foreach operation is as long as its first list, whether in place or not.
    lists = [shapes for shapes in inputs if len(shapes) > 1]
    outputs = lists[0] if lists else [_broadcast(tensors)]
    return plain_cost(kind, category, tensors, outputs)


def _broadcast(tensors: Sequence[Shape]) -> Shape:
    """Return the output of an elementwise operation: dimensions broadcast, of the widest type."""
    widest = max(tensors, key=lambda shape: shape.bytes // max(1, shape.elements))
    backwards = itertools.zip_longest(*(shape.dimensions[::-1] for shape in tensors), fillvalue=1)
    dimensions = tuple(max(sizes) for sizes in backwards)
    return Shape(widest.dtype, dimensions[::-1])


def _embedding_bag_cost(kind: str, category: str, inputs: Sequence[Sequence[Shape]]) -> Cost:
    """Return the cost of summing rows of a table: one FLOP per element of each row.

    aten::_embedding_bag(table, indices, offsets, ...);
    _embedding_bag_dense_backward(gradient, indices, bag of each index, ...).
    """
    if len(inputs) < 3 or not all(inputs[:3]):
        return Cost(kind, category)
    table, indices, bags = (shapes[0] for shapes in inputs[:3])
    row = Shape(table.dtype, table.dimensions[-1:])
    row_bytes = row.bytes * (indices.elements + bags.elements)
    return Cost(
        kind,
        category,
        flops=float(indices.elements * row.elements),
        bytes=float(row_bytes + indices.bytes + bags.bytes),
    )


def _product_cost(
    kind: str, category: str, arguments: Mapping[str, Any], inputs: Sequence[Sequence[Shape]]
) -> Cost:
    if "attention" in kind:
        return _attention_cost(kind, inputs)
    if "rnn" in kind:
        return _recurrent_cost(kind, inputs)
    # aten::addmm and similar operations take the addend first.
    operands = inputs[1:3] if "add" in kind else inputs[:2]
    if len(operands) < 2 or not all(operands):
        return Cost(kind, category)
    left = operands[0][0]
    right = operands[1][0]
    moved: float | None = None
    if category == "convolution":
        flops = _convolution_flops(kind, arguments, inputs)
    elif "linear" in kind:
        flops = product_flops(left.dimensions, right.elements // left.dimensions[-1])
    else:
        # A vector on the right has no dimension in the output.
        output = Shape(left.dtype, (*left.dimensions[:-1], *right.dimensions[1:][-1:]))
        flops = product_flops(output.dimensions, left.dimensions[-1])
        moved = float(total_bytes([left, right, output]))
    return Cost(
        kind, category, flops=flops, bytes=moved, product_flops=flops or 0.0, dtype=left.dtype
    )


def _attention_cost(kind: str, inputs: Sequence[Sequence[Shape]]) -> Cost:
    """Return the cost of a fused attention.

    The forward pass reads query, key and value and writes the output. The backward pass reads the
    gradient, the output and the sums too, and writes three gradients. Operations named
    scaled_dot_product have (batch, heads, tokens, width), others (batch, tokens, heads, width).
    """
    backward = "backward" in kind
    operands = inputs[1:4] if backward else inputs[:3]
    if len(operands) < 3 or not all(operands):
        return Cost(kind, "matmul")
    query, key, value = (shapes[0] for shapes in operands)
    token_axis = 2 if "scaled_dot_product" in kind else 1
    flops = attention_flops(
        query,
        key.dimensions[token_axis],
        value_width=value.dimensions[-1],
        backward=backward,
    )
    output = Shape(query.dtype, (*query.dimensions[:-1], value.dimensions[-1]))
    written = [query, key, value] if backward else [output]
    read = [shape for shapes in inputs for shape in shapes]
    return Cost(
        kind,
        "matmul",
        flops=flops,
        bytes=float(total_bytes([*read, *written])),
        product_flops=flops,
        dtype=query.dtype,
    )


def _recurrent_cost(kind: str, inputs: Sequence[Sequence[Shape]]) -> Cost:
    """Return the cost of a fused recurrence: each step multiplies every weight matrix once.

    aten::_cudnn_rnn and aten::miopen_rnn(input, list of weights, ...);
    aten::mkldnn_rnn_layer(input, input weights, recurrent weights, biases, ...).
    The backward pass has two products for each of the forward pass.
    """
    if len(inputs) < 3 or not inputs[0]:
        return Cost(kind, "matmul")
    examples = inputs[0][0]
    weights = [*inputs[1], *inputs[2]] if "mkldnn" in kind else inputs[1]
    matrices = [weight for weight in weights if len(weight.dimensions) == 2]
    steps = examples.elements // max(1, examples.dimensions[-1])
    flops = product_flops((steps,), sum(matrix.elements for matrix in matrices))
    if "backward" in kind:
        flops *= 2
    return Cost(kind, "matmul", flops=flops, product_flops=flops, dtype=examples.dtype)


def _convolution_flops(
    kind: str, arguments: Mapping[str, Any], inputs: Sequence[Sequence[Shape]]
) -> float | None:
    """Return the FLOPs of a convolution or of the gradients that its backward pass computes.

    aten::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding,
    groups); convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation,
    transposed, output_padding, groups, output_mask). Weights have (output channels, input channels
    of a group, *kernel), those of a transposed convolution (input channels, output channels of a
    group, *kernel).
    """
    if kind == "aten::convolution_backward":
        gradient, image, weight = (shapes[0] for shapes in inputs[:3])
        is_transposed = _flag(arguments, 7)
        computed = sum(_list(arguments, -1)[:2] or (1, 1))
        spread = image if is_transposed else gradient
        return computed * product_flops(spread.dimensions, *weight.dimensions[1:])
    image = inputs[0][0]
    weight = inputs[1][0]
    if "transpose" in kind or (kind.startswith("aten::") and _flag(arguments, 6)):
        # Every input element is multiplied with the weights of its channel.
        return product_flops(image.dimensions, weight.elements // image.dimensions[1])
    sizes = _output_sizes(kind, arguments, image, weight)
    if sizes is None:
        return None
    output = (image.dimensions[0], weight.dimensions[0], *sizes)
    return product_flops(output, *weight.dimensions[1:])


def _output_sizes(
    kind: str, arguments: Mapping[str, Any], image: Shape, weight: Shape
) -> list[int] | None:
    """Return the spatial sizes of a convolution's output; None if its settings are unknown."""
    spatial = len(weight.dimensions) - 2
    # mkldnn::_convolution_pointwise takes the padding before the stride.
    positions = (3, 4, 5) if kind.startswith("aten::") else (4, 3, 5)
    settings = [_list(arguments, position) for position in positions]
    if not all(len(values) in (1, spatial) for values in settings):
        return None
    # One value applies to all axes.
    strides, paddings, dilations = (values * (spatial // len(values)) for values in settings)
    sizes = []
    for axis in range(spatial):
        reach = dilations[axis] * (weight.dimensions[2 + axis] - 1)
        padded = image.dimensions[2 + axis] + 2 * paddings[axis]
        sizes.append((padded - reach - 1) // strides[axis] + 1)
    return sizes


def _tensors(arguments: Mapping[str, Any]) -> list[list[Shape]]:
    """Return the tensors of each argument; an argument that is not a tensor has none."""
    tensors = []
    dimensions = arguments.get("Input Dims", ())
    kinds = arguments.get("Input type", ())
    for dims, kind in zip(dimensions, kinds, strict=False):
        is_list = kind == "TensorList" or (dims and isinstance(dims[0], (list, tuple)))
        if is_list:
            # The trace does not record the type of a list. Most lists are the optimizer's, which
            # keeps float32.
            tensors.append([Shape("float32", tuple(entry)) for entry in dims])
        elif dims or kind in _DTYPES:
            tensors.append([Shape(_DTYPES.get(kind, kind), tuple(dims))])
        else:
            tensors.append([])
    return tensors


def _concrete(arguments: Mapping[str, Any], position: int) -> str:
    """Return an argument as the profiler writes it, "" if it is absent."""
    values = arguments.get("Concrete Inputs", ())
    if -len(values) <= position < len(values):
        return str(values[position])
    return ""


def _list(arguments: Mapping[str, Any], position: int) -> list[int]:
    """Return a list argument, written as "[1, 1]" or "[True, True, False]"."""
    text = _concrete(arguments, position)
    if not text.startswith("["):
        return []
    values: list[int] = json.loads(text.lower())
    return values


def _flag(arguments: Mapping[str, Any], position: int) -> bool:
    """Return a boolean argument, written as "True", "False" or a number."""
    return _concrete(arguments, position).lower() in ("true", "1")
