"""Read the trace of PyTorch's profiler: operations with times, FLOPs and bytes.

The trace is a JSON file in Chrome's trace format, which PyTorch's library Kineto writes.

On a CPU, the time of an operation excludes the operations that it calls. Matrix products and
convolutions are the exception: their time includes their callees, which do the work. On a GPU, the
time of an operation is the time of its kernels. A kernel belongs to the operation that launched it,
and all kernels of one call count as one execution. The cost of a call follows from the shapes and
arguments in the trace.
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
#: Prefix of the name of a compiled region, inside which not all work has events.
_REGION = "## Call CompiledFxGraph"

#: An event in the format of the trace's JSON.
RawEvent = Mapping[str, Any]


class _Operation(NamedTuple):
    """Operation to which an event of the trace belongs.

    Attributes:
        kind: Type of the operation, such as "aten::mm".
        name: Name of the operation in the profile's table of operations. It includes the input
            shapes.
        cost: Cost of one call.
    """

    kind: str
    name: str
    cost: Cost


def read_kineto(folder: Path, *, on_device: bool = False) -> Trace:
    """Read the trace that PyTorch's profiler wrote.

    Args:
        folder: The folder with the file `FILE`.
        on_device: Whether the steps ran on a GPU. If so, the trace must contain kernels.

    Raises:
        ValueError: If no trace exists, or it lacks the annotated steps or the kernels.
    """
    file = folder / FILE
    if not file.exists():
        raise ValueError(f"the profiler wrote no trace into {folder}")
    with gzip.open(file, "rt") as handle:
        events = [event for event in json.load(handle)["traceEvents"] if event.get("ph") == "X"]
    window = _window(events)
    # Subtract the origin before converting to seconds. Times are microseconds since the boot, which
    # would lose digits in a float.
    origin = float(window["ts"])
    trace = Trace(float(window["dur"]) * 1e-6, file=file)
    calls = _Calls(events)
    kernels = [event for event in events if event.get("cat") in _DEVICE_CATEGORIES]
    if on_device and not kernels:
        raise ValueError(
            "the profiler recorded no kernels of the device; "
            "check that CUPTI is installed and permitted"
        )
    executions = _kernels(kernels, calls.owners) if kernels else _host_executions(calls)
    for track, event, operation, is_continued in executions:
        trace.stated_costs[operation.name, operation.kind] = operation.cost
        start = (event["ts"] - origin) * 1e-6
        end = start + event["dur"] * 1e-6
        trace.events.append(
            Event(track, operation.name, operation.kind, start, end, continues=is_continued)
        )
    return trace


def _window(events: Iterable[RawEvent]) -> RawEvent:
    """Return the event that encloses the profiled steps, an annotation with the name `WINDOW`.

    Raises:
        ValueError: If the trace has no such event.
    """
    for event in events:
        if event["name"] == WINDOW and event.get("cat") == "user_annotation":
            return event
    raise ValueError(f"the trace has no event {WINDOW}")


class _Calls:
    """The calls of PyTorch operations on the host in a trace.

    Args:
        events: All events of the trace.

    Attributes:
        owners: The call to which a kernel belongs, by the kernel's "External id" in the trace. If a
            matrix product or convolution encloses the call with that id, the owner is the enclosing
            call.
        operations: The calls that no matrix product or convolution encloses.
        callers: The Python `id` of each call that delegates its work to nested calls.
    """

    def __init__(self, events: Iterable[RawEvent]) -> None:
        self.owners: dict[int, RawEvent] = {}
        self.operations: list[RawEvent] = []
        self.callers: set[int] = set()
        tracks: dict[Any, list[RawEvent]] = {}
        for event in events:
            if event.get("cat") == "cpu_op" or event["name"].startswith(_REGION):
                tracks.setdefault(event["tid"], []).append(event)
        for track in tracks.values():
            self._add_track(track)

    def _add_track(self, track: Iterable[RawEvent]) -> None:
        enclosing: list[RawEvent] = []
        for event in sorted(track, key=lambda entry: (entry["ts"], -entry["dur"])):
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
        """Add to `callers` the enclosing calls that only pass their input on to `event`.

        Nested calls may also prepare scalars or buffers. The number of elements of the largest
        input distinguishes them: for `event`, it must be at least half that of the enclosing call.

        Args:
            event: A nested call.
            enclosing: The calls on the same thread that enclose it, from the outermost.
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
    """Yield (thread, event, operation, False) for each call on the host.

    The last value is always False: no call continues the execution of another.
    """
    for call in calls.operations:
        operation = _operation(call, is_caller=id(call) in calls.callers)
        yield str(call["tid"]), call, operation, False


def _kernels(
    kernels: Iterable[RawEvent], owners: Mapping[int, RawEvent]
) -> Iterator[tuple[str, RawEvent, _Operation, bool]]:
    """Yield (stream, event, operation, whether it continues an execution) for each kernel.

    A kernel whose call is not in the trace counts as an operation with the kernel's name.

    Args:
        kernels: Events of kernels on the device.
        owners: The call to which a kernel belongs, by the kernel's "External id" in the trace (see
            `_Calls.owners`).
    """
    begun: set[int] = set()
    for event in sorted(kernels, key=lambda entry: entry["ts"]):
        arguments = _arguments(event)
        track = f"stream {arguments.get('stream', event['tid'])}"
        owner = owners.get(arguments.get("External id", -1))
        if owner is None:
            yield track, event, _kernel_operation(event["name"]), False
        else:
            yield track, event, _operation(owner), id(owner) in begun
            begun.add(id(owner))


def _kernel_operation(name: str) -> _Operation:
    kind = name.split("(")[0].removeprefix("void ")
    category = categorize("torch", kind)
    if category == "control":
        category = categorize("kernel", name.lower())
    return _Operation(kind, kind, Cost(kind, category))


def _operation(call: RawEvent, *, is_caller: bool = False) -> _Operation:
    """Return the operation of a call.

    Args:
        call: The event of the call.
        is_caller: Whether nested calls do the work of this call. If so, its cost is zero.
    """
    kind = call["name"].split(": ")[0]
    if kind.startswith(_REGION):
        name = "compiled region"
        return _Operation(name, name, Cost(name, "elementwise"))
    if is_caller or categorize("torch", kind) == "control":
        return _Operation(kind, kind, Cost(kind, "control", flops=0.0, bytes=0.0))
    arguments = _arguments(call)
    return _Operation(kind, _label(kind, arguments), aten_cost(kind, arguments))


#: NumPy's names of element types, by the names that Kineto uses.
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

#: Name of a loop that torch.compile fused: it lists the operations, but not the shapes.
_FUSED = re.compile(r"(?:graph_\d+_)?(cpp_fused|triton_[a-z]+_fused)\w*")


def _largest_argument(arguments: Mapping[str, Any]) -> int:
    """Return the number of elements of the largest tensor, or list of tensors, of a call.

    Args:
        arguments: The `args` of the event.
    """
    sizes = [
        sum(shape.elements for shape in shapes if shape.dimensions)
        for shapes in _tensors(arguments)
    ]
    return max(sizes, default=0)


def _label(kind: str, arguments: Mapping[str, Any]) -> str:
    """Return an operation's name in the profile's table of operations.

    The name includes the input shapes, except for a loop that torch.compile fused.

    Args:
        kind: The type of the operation, such as "aten::mm".
        arguments: The `args` of the event.
    """
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
    """Return FLOPs and bytes of one call of a PyTorch operation.

    Args:
        kind: The type of the operation, such as "aten::mm".
        arguments: The `args` of the call's event in the trace. "Input Dims", "Input type" and
            "Concrete Inputs" have one entry per argument of the operation.
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
    # The outputs of a _foreach operation have the shapes of its first list.
    lists = [shapes for shapes in inputs if len(shapes) > 1]
    outputs = lists[0] if lists else [_broadcast(tensors)]
    return plain_cost(kind, category, tensors, outputs)


def _broadcast(tensors: Sequence[Shape]) -> Shape:
    """Return the output shape of an elementwise operation: broadcast, with the widest type."""
    widest = max(tensors, key=lambda shape: shape.bytes // max(1, shape.elements))
    backwards = itertools.zip_longest(*(shape.dimensions[::-1] for shape in tensors), fillvalue=1)
    dimensions = tuple(max(sizes) for sizes in backwards)
    return Shape(widest.dtype, dimensions[::-1])


def _embedding_bag_cost(kind: str, category: str, inputs: Sequence[Sequence[Shape]]) -> Cost:
    """Return FLOPs and bytes of summing rows of a table: one FLOP per element of each row.

    The operations and their arguments are aten::_embedding_bag(table, indices, offsets, ...) and
    aten::_embedding_bag_dense_backward(gradient, indices, bag of each index, ...).

    Args:
        kind: The type of the operation.
        category: The category of the operation.
        inputs: Shapes of each argument; empty for an argument that is not a tensor.
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
    # The first argument of aten::addmm and similar operations is the addend.
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
        # If the right operand is a vector, the output has one dimension less.
        output = Shape(left.dtype, (*left.dimensions[:-1], *right.dimensions[1:][-1:]))
        flops = product_flops(output.dimensions, left.dimensions[-1])
        moved = float(total_bytes([left, right, output]))
    return Cost(
        kind, category, flops=flops, bytes=moved, product_flops=flops or 0.0, dtype=left.dtype
    )


def _attention_cost(kind: str, inputs: Sequence[Sequence[Shape]]) -> Cost:
    """Return FLOPs and bytes of a fused attention.

    The forward pass reads query, key and value and writes the output. The backward pass also reads
    the gradient, the output and the log-sum-exp of the scores, and writes three gradients. Tensors
    of operations named scaled_dot_product are (batch, heads, tokens, width), others are
    (batch, tokens, heads, width).

    Args:
        kind: The type of the operation.
        inputs: Shapes of each argument; empty for an argument that is not a tensor.
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
    """Return the FLOPs of fused recurrent layers: each time step uses every weight matrix once.

    The operations and their arguments are aten::_cudnn_rnn and aten::miopen_rnn(input, list of
    weights, ...), and aten::mkldnn_rnn_layer(input, input weights, recurrent weights, biases, ...).
    The backward pass has two products for each product of the forward pass.

    Args:
        kind: The type of the operation.
        inputs: Shapes of each argument; empty for an argument that is not a tensor.
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

    The arguments of aten::convolution are (input, weight, bias, stride, padding, dilation,
    transposed, output_padding, groups). The arguments of aten::convolution_backward are
    (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
    groups, output_mask). A weight has the dimensions (output channels, input channels of a group,
    *kernel), or (input channels, output channels of a group, *kernel) if transposed.

    Args:
        kind: The type of the operation, such as "aten::convolution".
        arguments: The `args` of the call's event in the trace.
        inputs: Shapes of each argument; empty for an argument that is not a tensor.

    Returns:
        The FLOPs; None if the sizes of the output are unknown.
    """
    if kind == "aten::convolution_backward":
        gradient, image, weight = (shapes[0] for shapes in inputs[:3])
        is_transposed = _parse_bool(arguments, 7)
        # The mask selects which of the gradients of input and weight are computed.
        gradient_count = sum(_parse_list(arguments, -1)[:2] or (1, 1))
        forward_output = image if is_transposed else gradient
        return gradient_count * product_flops(forward_output.dimensions, *weight.dimensions[1:])
    image = inputs[0][0]
    weight = inputs[1][0]
    if "transpose" in kind or (kind.startswith("aten::") and _parse_bool(arguments, 6)):
        # Every input element is multiplied with all weights of its channel.
        return product_flops(image.dimensions, weight.elements // image.dimensions[1])
    sizes = _output_sizes(kind, arguments, image, weight)
    if sizes is None:
        return None
    output = (image.dimensions[0], weight.dimensions[0], *sizes)
    return product_flops(output, *weight.dimensions[1:])


def _output_sizes(
    kind: str, arguments: Mapping[str, Any], image: Shape, weight: Shape
) -> list[int] | None:
    """Return the spatial sizes of a convolution's output, such as height and width.

    The result is None if stride, padding or dilation is unknown.

    Args:
        kind: The type of the operation, such as "aten::convolution".
        arguments: The `args` of the call's event in the trace.
        image: Shape of the input (examples, channels, *sizes).
        weight: Shape of the weight (channels, channels of a group, *kernel).
    """
    spatial = len(weight.dimensions) - 2
    # In mkldnn::_convolution_pointwise, the padding precedes the stride.
    positions = (3, 4, 5) if kind.startswith("aten::") else (4, 3, 5)
    settings = [_parse_list(arguments, position) for position in positions]
    if not all(len(values) in (1, spatial) for values in settings):
        return None
    # One value applies to all axes.
    strides, paddings, dilations = (values * (spatial // len(values)) for values in settings)
    sizes = []
    for axis in range(spatial):
        kernel_span = dilations[axis] * (weight.dimensions[2 + axis] - 1) + 1
        padded = image.dimensions[2 + axis] + 2 * paddings[axis]
        sizes.append((padded - kernel_span) // strides[axis] + 1)
    return sizes


def _tensors(arguments: Mapping[str, Any]) -> list[list[Shape]]:
    """Return one list of shapes per argument of a call; it is empty for other types than tensors.

    Args:
        arguments: The `args` of the call's event.
    """
    tensors = []
    dimensions = arguments.get("Input Dims", ())
    kinds = arguments.get("Input type", ())
    for dims, kind in zip(dimensions, kinds, strict=False):
        is_list = kind == "TensorList" or (dims and isinstance(dims[0], (list, tuple)))
        if is_list:
            # The trace does not record the element type of a list of tensors. Most lists are the
            # optimizer's, whose tensors are float32.
            tensors.append([Shape("float32", tuple(entry)) for entry in dims])
        elif dims or kind in _DTYPES:
            tensors.append([Shape(_DTYPES.get(kind, kind), tuple(dims))])
        else:
            tensors.append([])
    return tensors


def _argument_text(arguments: Mapping[str, Any], position: int) -> str:
    """Return the text that the profiler wrote for an argument of a call; "" without such a text.

    Args:
        arguments: The `args` of the call's event.
        position: The index of the argument; negative to count from the last.
    """
    values = arguments.get("Concrete Inputs", ())
    if -len(values) <= position < len(values):
        return str(values[position])
    return ""


def _parse_list(arguments: Mapping[str, Any], position: int) -> list[int]:
    """Parse a list argument, written as "[1, 1]" or "[True, True, False]"; [] if it is no list.

    The arguments are those of `_argument_text`.
    """
    text = _argument_text(arguments, position)
    if not text.startswith("["):
        return []
    values: list[int] = json.loads(text.lower())
    return values


def _parse_bool(arguments: Mapping[str, Any], position: int) -> bool:
    """Parse a boolean argument, written as "True", "False" or a number.

    The arguments are those of `_argument_text`.
    """
    return _argument_text(arguments, position).lower() in ("true", "1")
