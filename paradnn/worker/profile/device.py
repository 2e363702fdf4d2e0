"""Reads the plane of a GPU or a TPU: kernels of its streams, and the statistics that the profiler states for them.

What xprof shows in its tables comes from the same two places: on a GPU a kernel names the operation that launched it
(`annotation`, or `hlo_op` for a compiled program), on a TPU an operation's metadata carries the compiler's own count
of its FLOPs and bytes. A kernel that names no operation stays in the table under its own name, its cost unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from paradnn.worker.profile.shapes import Cost
from paradnn.worker.profile.timeline import Event

__all__ = ["is_device", "kernel_category", "read_device"]

#: A GPU's plane has a line "XLA Ops" too, which repeats what its streams ran.
_COMPUTE_LINES = {"GPU": "Stream", "TPU": "XLA Ops"}
_ANNOTATIONS = ("tf_op", "annotation")
_OPERATION = re.compile(r"([^:#]+):([A-Za-z_]\w*)")
_CATEGORIES = (
    (("convolution", "conv"), "convolution"),
    (("dot", "matmul", "gemm"), "matmul"),
    (("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective", "nccl"), "communication"),
    (("reduce",), "reduction"),
    (
        ("copy", "memcpy", "memset", "transpose", "data formatting", "infeed", "outfeed", "gather", "scatter"),
        "data movement",
    ),
    (("fusion", "elementwise"), "elementwise"),
)


def is_device(plane: Any) -> bool:
    """Whether a plane is a device's own, with something in it."""
    return plane.name.startswith(("/device:GPU", "/device:TPU")) and len(plane.lines) > 0


def read_device(
    plane: Any, seconds_of: Callable[[Any, Any], float], compiled: str, named: Callable[[str, int | None], str]
) -> tuple[list[Event], list[Event], dict[tuple[str, str], Cost]]:
    """Kernels, instructions of compiled programs (their kind begins with `compiled`), and the costs that are stated.

    `seconds_of(line, event)` is an event's start on the trace's clock; `named(module, program)` is what a compiled
    program is called in the whole trace.
    """
    names = {key: entry.name for key, entry in plane.stat_metadata.items()}
    kernels: list[Event] = []
    instructions: list[Event] = []
    stated: dict[tuple[str, str], Cost] = {}
    wanted = _COMPUTE_LINES["GPU" if plane.name.startswith("/device:GPU") else "TPU"]
    for number, line in enumerate(plane.lines):
        if not line.name.startswith(wanted):
            continue
        previous, launched = ("", ""), set[str]()
        for event in sorted(line.events, key=lambda event: event.offset_ps):
            metadata = plane.event_metadata[event.metadata_id]
            values = _values(metadata.stats, names) | _values(event.stats, names)
            start = seconds_of(line, event)
            end = start + event.duration_ps * 1e-12
            lane = f"{plane.name}/{line.name}#{number}"
            name, kind = _operation(metadata, values, compiled, named)
            # An operation may launch several kernels, one after the other; the same kernel again is its next execution.
            continues = (name, kind) == previous and metadata.name not in launched
            launched = launched | {metadata.name} if continues else {metadata.name}
            previous = name, kind
            events = instructions if kind.startswith(compiled) else kernels
            events.append(Event(lane, name, kind, start, end, continues))
            if (cost := _stated(metadata.name, values)) is not None:
                stated[name, kind] = cost
    return kernels, instructions, stated


def _operation(
    metadata: Any, values: Mapping[str, Any], compiled: str, named: Callable[[str, int | None], str]
) -> tuple[str, str]:
    """Name and type of what a kernel belongs to."""
    if "hlo_op" in values:
        # Of nested ones ("while.2::fusion.3") the innermost.
        program = int(values["program_id"]) if "program_id" in values else None
        module = named(str(values.get("hlo_module", "")), program)
        return str(values["hlo_op"]).rpartition("::")[2], f"{compiled}{module}"
    for key in _ANNOTATIONS:
        if match := _OPERATION.match(str(values.get(key, ""))):
            return match[1], match[2]
    # A TPU's metadata is named by the whole instruction: "%fusion.3 = f32[...] ...".
    name = metadata.name.removeprefix("%").split(" = ")[0]
    return name, str(values.get("hlo_category") or name)


def _stated(name: str, values: Mapping[str, Any]) -> Cost | None:
    """The cost that the profiler states, or what a kernel without an operation plainly is."""
    category = kernel_category(f"{values.get('hlo_category', '')} {name}")
    kind = str(values.get("hlo_category") or name.split("(")[0])
    if "bytes_accessed" in values:
        flops = float(values.get("model_flops") or values.get("flops") or 0)
        products = flops if category in ("matmul", "convolution") else 0.0
        return Cost(kind, category, flops, float(values["bytes_accessed"]), products)
    if any(key in values for key in ("hlo_op", *_ANNOTATIONS)):
        return None
    return Cost(kind, category)


def kernel_category(name: str) -> str:
    """Our category of a kernel, by what its name plainly says."""
    return next((group for keys, group in _CATEGORIES if any(key in name.lower() for key in keys)), "other")


def _values(stats: Any, names: Mapping[int, str]) -> dict[str, Any]:
    values = {}
    for stat in stats:
        number = stat.int64_value or stat.uint64_value or stat.double_value
        text = names.get(stat.ref_value, "") if stat.ref_value else stat.str_value
        values[names.get(stat.metadata_id, "")] = text or number
    return values
