"""Reads PyTorch's trace (Kineto's Chrome format): which operations ran when, and what they cost.

On a CPU an operation is the time it took, less what it called; a product or a convolution counts with all that is
within it, since its own time is only the call. On a GPU the kernels are what took time: each belongs to the operation
that launched it, and several kernels of one call are one execution.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paradnn.worker.profile.aten import aten_cost, categorise, elements, label
from paradnn.worker.profile.device import kernel_category
from paradnn.worker.profile.shapes import Cost
from paradnn.worker.profile.timeline import Event
from paradnn.worker.profile.trace import WINDOW, Trace

__all__ = ["FILE", "read_kineto"]

#: The trace's name; the suffix is what TensorBoard's plug-in for PyTorch looks for.
FILE = "paradnn.pt.trace.json.gz"

_PRODUCTS = ("matmul", "convolution")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
#: What the compiler names a stretch of its own code, where the code's parts have no events.
_REGION = "## Call CompiledFxGraph"

Raw = Mapping[str, Any]


def read_kineto(folder: Path, on_device: bool = False) -> Trace:
    """The trace in `folder`; ValueError where there is none or it lacks the annotated steps.

    `on_device`: the steps ran on a GPU, whose kernels must be there.
    """
    file = folder / FILE
    if not file.exists():
        raise ValueError(f"the profiler wrote no trace into {folder}")
    with gzip.open(file, "rt") as handle:
        events = [event for event in json.load(handle)["traceEvents"] if event.get("ph") == "X"]
    # Microseconds since some beginning: subtract it before anything else, a float has no digits to lose.
    window = next(
        (event for event in events if event["name"] == WINDOW and event.get("cat") == "user_annotation"), None
    )
    if window is None:
        raise ValueError(f"the trace has no event {WINDOW}")
    origin = float(window["ts"])
    trace = Trace(float(window["dur"]) * 1e-6, file=file)
    owners, calls, callers = _calls(events)
    device = [event for event in events if event.get("cat") in _DEVICE]
    if on_device and not device:
        raise ValueError("the profiler saw no kernel of the device (is CUPTI there, and permitted?)")
    if device:
        _read_device(device, owners, trace, origin)
        return trace
    for call in calls:
        kind, name, cost = _operation(call, id(call) in callers)
        trace.stated[name, kind] = cost
        start = (call["ts"] - origin) * 1e-6
        trace.kernels.append(Event(str(call["tid"]), name, kind, start, start + call["dur"] * 1e-6))
    return trace


def _calls(events: Iterable[Raw]) -> tuple[dict[int, Raw], list[Raw], set[int]]:
    """The operation that each call counts for, by its number; the operations themselves; those whose work others do."""
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
            product = next((outer for outer in within if categorise(outer["name"]) in _PRODUCTS), None)
            if product is None:
                operations.append(event)
                if categorise(event["name"]) != "control":
                    # Scalars and buffers are prepared by calls too; a call that hands its whole input on does no more.
                    size = elements(event.get("args", {}))
                    callers.update(id(outer) for outer in within if 2 * size >= elements(outer.get("args", {})))
            if (number := event.get("args", {}).get("External id")) is not None:
                owners[number] = product or event
            within.append(event)
    return owners, operations, callers


def _operation(call: Raw, calls_others: bool = False) -> tuple[str, str, Cost]:
    """Type, name and cost of a call; none where those that it calls have the cost."""
    kind = call["name"].split(": ")[0]
    if kind.startswith(_REGION):
        return "compiled region", "compiled region", Cost("compiled region", "elementwise")
    if calls_others or categorise(kind) == "control":
        return kind, kind, Cost(kind, "control", 0.0, 0.0)
    arguments = call.get("args", {})
    return kind, label(kind, arguments), aten_cost(kind, arguments)


def _read_device(events: Iterable[Raw], owners: Mapping[int, Raw], trace: Trace, origin: float) -> None:
    """Kernels of a GPU by the operation that launched them; without one they stand under their own name."""
    begun: set[int] = set()
    for event in sorted(events, key=lambda event: event["ts"]):
        arguments = event.get("args", {})
        owner = owners.get(arguments.get("External id", -1))
        continues = False
        if owner is not None:
            kind, name, cost = _operation(owner)
            continues = id(owner) in begun
            begun.add(id(owner))
        else:
            kind = name = event["name"].split("(")[0].removeprefix("void ")
            category = categorise(kind)
            cost = Cost(kind, kernel_category(event["name"]) if category == "control" else category)
        trace.stated[name, kind] = cost
        start = (event["ts"] - origin) * 1e-6
        lane = f"stream {arguments.get('stream', event['tid'])}"
        trace.kernels.append(Event(lane, name, kind, start, start + event["dur"] * 1e-6, continues))
