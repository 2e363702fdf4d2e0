"""Reads PyTorch's trace (Kineto's Chrome format): which operations ran when, and what they cost.

On a CPU an operation is the time it took, less what it called; a product or a convolution counts
with all that is within it, since its own time is only the call. On a GPU the kernels are what took
time: each belongs to the operation that launched it, and several kernels of one call are one
execution. What a call costs follows from the shapes and arguments that are recorded with it.
"""

import gzip
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paradnn.worker.profile.categories import PRODUCTS, categorise
from paradnn.worker.profile.shapes import (
    Cost,
    Shape,
    attention_flops,
    plain_cost,
    product_flops,
    total_bytes,
)
from paradnn.worker.profile.trace import WINDOW, Event, Trace

#: The trace's name; the suffix is what TensorBoard's plug-in for PyTorch looks for.
FILE = "paradnn.pt.trace.json.gz"

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
#: What the compiler names a stretch of its own code, where the code's parts have no events.
_REGION = "## Call CompiledFxGraph"

Raw = Mapping[str, Any]


def read_kineto(folder: Path, on_device: bool = False) -> Trace:
    """The trace in `folder`; ValueError where there is none, or it lacks the annotated steps, or
    the kernels of the GPU on which they ran (`on_device`).
    """
    file = folder / FILE
    if not file.exists():
        raise ValueError(f"the profiler wrote no trace into {folder}")
    with gzip.open(file, "rt") as handle:
        events = [event for event in json.load(handle)["traceEvents"] if event.get("ph") == "X"]
    # Microseconds since some beginning: subtract it before anything else, a float has no digits to
    # lose.
    windows = [
        event
        for event in events
        if event["name"] == WINDOW and event.get("cat") == "user_annotation"
    ]
    if not windows:
        raise ValueError(f"the trace has no event {WINDOW}")
    window = windows[0]
    origin = float(window["ts"])
    trace = Trace(float(window["dur"]) * 1e-6, file=file)
    owners, calls, callers = _calls(events)
    device = [event for event in events if event.get("cat") in _DEVICE]
    if on_device and not device:
        raise ValueError(
            "the profiler saw no kernel of the device (is CUPTI there, and permitted?)"
        )
    ran = ((str(call["tid"]), call, _operation(call, id(call) in callers), False) for call in calls)
    for lane, event, (kind, name, cost), continues in _kernels(device, owners) if device else ran:
        trace.stated[name, kind] = cost
        start = (event["ts"] - origin) * 1e-6
        trace.events.append(Event(lane, name, kind, start, start + event["dur"] * 1e-6, continues))
    return trace


def _calls(events: Iterable[Raw]) -> tuple[dict[int, Raw], list[Raw], set[int]]:
    """The operation that each call counts for, by its number; the operations themselves; those
    whose work others do.
    """
    lanes: dict[Any, list[Raw]] = {}
    for event in events:
        if event.get("cat") == "cpu_op" or event["name"].startswith(_REGION):
            lanes.setdefault(event["tid"], []).append(event)
    owners: dict[int, Raw] = {}
    operations: list[Raw] = []
    callers: set[int] = set()
    for lane in lanes.values():
        within: list[Raw] = []
        for event in sorted(lane, key=lambda event: (event["ts"], -event["dur"])):
            while within and event["ts"] >= within[-1]["ts"] + within[-1]["dur"]:
                within.pop()
            product = next(
                (outer for outer in within if categorise("torch", outer["name"]) in PRODUCTS), None
            )
            if product is None:
                operations.append(event)
                if categorise("torch", event["name"]) != "control":
                    # Scalars and buffers are prepared by calls too; a call that hands its whole
                    # input on does no more.
                    size = elements(event.get("args", {}))
                    callers.update(
                        id(outer) for outer in within if 2 * size >= elements(outer.get("args", {}))
                    )
            number = event.get("args", {}).get("External id")
            if number is not None:
                owners[number] = product or event
            within.append(event)
    return owners, operations, callers


def _operation(call: Raw, calls_others: bool = False) -> tuple[str, str, Cost]:
    """Type, name and cost of a call; none where those that it calls have the cost."""
    kind = call["name"].split(": ")[0]
    if kind.startswith(_REGION):
        return "compiled region", "compiled region", Cost("compiled region", "elementwise")
    if calls_others or categorise("torch", kind) == "control":
        return kind, kind, Cost(kind, "control", 0.0, 0.0)
    arguments = call.get("args", {})
    return kind, label(kind, arguments), aten_cost(kind, arguments)


def _kernels(
    events: Iterable[Raw], owners: Mapping[int, Raw]
) -> Iterator[tuple[str, Raw, tuple[str, str, Cost], bool]]:
    """Kernels of a GPU, each with its stream, the operation that launched it (without one its own
    name stands for it), and whether it continues what that began.
    """
    begun: set[int] = set()
    for event in sorted(events, key=lambda event: event["ts"]):
        arguments = event.get("args", {})
        lane = f"stream {arguments.get('stream', event['tid'])}"
        owner = owners.get(arguments.get("External id", -1))
        if owner:
            yield lane, event, _operation(owner), id(owner) in begun
            begun.add(id(owner))
        else:
            kind = event["name"].split("(")[0].removeprefix("void ")
            category = categorise("torch", kind)
            if category == "control":
                category = categorise("kernel", event["name"].lower())
            else:
                category = category
            yield lane, event, (kind, kind, Cost(kind, category)), False


_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "bool": "bool",
}
_DTYPES |= {"int": "int32", "long int": "int64", "long": "int64", "short": "int16"}
_DTYPES |= {"unsigned char": "uint8", "signed char": "int8"}

#: A loop that torch.compile fused; its name says what is in it, and nothing of its shapes.
_FUSED = re.compile(r"(?:graph_\d+_)?(cpp_fused|triton_[a-z]+_fused)\w*")


def elements(call: Raw) -> int:
    """How many elements the largest argument has."""
    return max(
        (sum(shape.elements for shape in shapes if shape.dimensions) for shapes in _tensors(call)),
        default=0,
    )


def label(kind: str, call: Raw) -> str:
    """The operation with the shapes of its tensors: what has other shapes is another row of the
    table.
    """
    if _FUSED.match(kind):
        return kind
    given = _tensors(call)
    shapes = [
        "x".join(map(str, shapes[0].dimensions))
        for shapes in given
        if len(shapes) == 1 and shapes[0].dimensions
    ]
    listed = [f"{len(shapes)} tensors" for shapes in given if len(shapes) > 1]
    return f"{kind}({', '.join([*shapes, *listed])})"


def aten_cost(kind: str, call: Raw) -> Cost:
    """The cost of one call; `call` holds what the profiler recorded: Input Dims, Input type,
    Concrete Inputs.
    """
    category = categorise("torch", kind)
    fused = _FUSED.match(kind)
    if fused:
        return Cost(f"{fused[1]}, compiled loop", category)
    inputs = _tensors(call)
    known = [shape for shapes in inputs for shape in shapes]
    if category in PRODUCTS:
        return _product(kind, category, call, inputs)
    if category == "control" or not known:
        return plain_cost(kind, category, [], [])
    # In place or not, the output is written once; that of a _foreach operation is as long as its
    # first list.
    lists = [shapes for shapes in inputs if len(shapes) > 1]
    widest = max(known, key=lambda shape: shape.bytes // max(1, shape.elements))
    # An elementwise operation's inputs are spread to the same dimensions.
    backwards = itertools.zip_longest(*(shape.dimensions[::-1] for shape in known), fillvalue=1)
    spread = Shape(widest.dtype, tuple(map(max, backwards))[::-1])
    if category in ("data movement", "reduction"):
        written = []
    else:
        written = [spread]
    return plain_cost(kind, category, known, lists[0] if lists and written else written)


def _product(kind: str, category: str, call: Raw, inputs: Sequence[Sequence[Shape]]) -> Cost:
    flops: float | None = None
    moved: float | None = None
    if "attention" in kind:
        return _attention(kind, inputs)
    factors = inputs[1:3] if "add" in kind else inputs[:2]  # what a product is added to comes first
    if len(factors) < 2 or not all(factors):
        return Cost(kind, category)
    (left, *_), (right, *_) = factors
    if category == "convolution":
        flops = _convolution(kind, call, inputs)
    elif "linear" in kind:
        flops = product_flops(left.dimensions, right.elements // left.dimensions[-1])
    elif "rnn" not in kind:
        # A vector on the right leaves no dimension of its own.
        output = Shape(left.dtype, (*left.dimensions[:-1], *right.dimensions[1:][-1:]))
        flops = product_flops(output.dimensions, left.dimensions[-1])
        moved = float(total_bytes([left, right, output]))
    return Cost(kind, category, flops, moved, flops or 0.0, left.dtype)


def _attention(kind: str, inputs: Sequence[Sequence[Shape]]) -> Cost:
    """Reads query, key, value (backward: gradient, output and sums too); writes the output, or
    three gradients.
    """
    backward = "backward" in kind
    operands = inputs[backward : backward + 3]
    if len(operands) < 3 or not all(operands):
        return Cost(kind, "matmul")
    shapes = [shape for shape, *_ in operands]
    tokens = shapes[1].dimensions[2 if "scaled_dot_product" in kind else 1]
    flops = attention_flops(shapes[0], tokens, backward=backward)
    moved = total_bytes(
        [shape for given in inputs for shape in given] + (shapes if backward else shapes[:1])
    )
    return Cost(kind, "matmul", flops, float(moved), flops, shapes[0].dtype)


def _convolution(kind: str, call: Raw, inputs: Sequence[Sequence[Shape]]) -> float | None:
    """FLOPs; of the backward pass as often as gradients are asked.

    aten::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding,
    groups); convolution_backward(grad_output, input, weight, bias_sizes, ..., output_mask).
    """
    if kind == "aten::convolution_backward":
        output = inputs[0][0].dimensions
        weight = inputs[2][0].dimensions
        times = sum(_list(call, -1)[:2] or (1, 1))
        return times * product_flops(output, *weight[1:])
    image = inputs[0][0].dimensions
    weight = inputs[1][0].dimensions
    places = (3, 4, 5) if kind.startswith("aten::") else (4, 3, 5)
    settings = [_list(call, place) for place in places]
    spatial = len(weight) - 2
    if not all(len(values) in (1, spatial) for values in settings):
        return None
    # One value stands for all axes.
    by_axis = zip(
        image[2:],
        weight[2:],
        *(values * (spatial // len(values)) for values in settings),
        strict=True,
    )
    sizes = [
        (size + 2 * pad - hole * (kernel - 1) - 1) // step + 1
        for size, kernel, step, pad, hole in by_axis
    ]
    return product_flops((image[0], weight[0], *sizes), *weight[1:])


def _tensors(call: Raw) -> list[list[Shape]]:
    """The tensors of each argument; an argument that is no tensor has none."""
    tensors = []
    for dims, kind in zip(call.get("Input Dims", ()), call.get("Input type", ()), strict=False):
        if kind == "TensorList" or (dims and isinstance(dims[0], (list, tuple))):
            # The profiler does not record the type of a list; those are the optimizer's, which
            # keeps float32.
            tensors.append([Shape("float32", tuple(entry)) for entry in dims])
        else:
            tensors.append(
                [Shape(_DTYPES.get(kind, kind), tuple(dims))] if dims or kind in _DTYPES else []
            )
    return tensors


def _list(call: Raw, place: int) -> list[int]:
    """A list argument as the profiler writes it: "[1, 1]" or "[True, True, False]"."""
    values = call.get("Concrete Inputs", ())
    text = values[place] if -len(values) <= place < len(values) else ""
    return list(json.loads(text.lower())) if text.startswith("[") else []
