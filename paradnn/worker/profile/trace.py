"""Reads a trace: which operations ran when, and the compiled programs that the profiler put beside them."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paradnn.worker.errors import Unavailable
from paradnn.worker.profile.device import is_device, read_device
from paradnn.worker.profile.shapes import Cost
from paradnn.worker.profile.timeline import Event

__all__ = ["COMPILED", "WINDOW", "Trace", "read_trace"]

#: How the kind of a compiled program's event begins; the module's name follows.
COMPILED = "hlo:"
#: The annotation around the profiled steps.
WINDOW = "paradnn_steps"

# TensorFlow's kernels are named "scope/name:Type"; the runtime's own functions ("Executor::Process") are not kernels.
_KERNEL = re.compile(r"([^:]+):([A-Za-z_]\w*)")
_EAGER = "EagerLocalExecute: "
# A function's call and the loops within it contain the operations that are wanted.
_CONTAINER = re.compile(r"(__inference|__forward|__backward)_|(Stateful)?PartitionedCall$|(Stateless)?(While|If|Case)$")

#: What a module is called in the whole trace, by its own name and its program's number.
ModuleName = Callable[[str, int | None], str]


@dataclass
class Trace:
    """The profiled steps: how many `seconds` they took, what ran (0 is their beginning), and the HLO modules.

    `compiled` events carry an instruction of a compiled program, `kernels` are a framework's own operations; `stated`
    are costs that the profiler itself states for some of them; `file` is the trace itself.
    """

    seconds: float
    kernels: list[Event] = field(default_factory=list)
    compiled: list[Event] = field(default_factory=list)
    modules: list[Any] = field(default_factory=list)
    stated: dict[tuple[str, str], Cost] = field(default_factory=dict)
    file: Path | None = None


def read_trace(folder: Path) -> Trace:
    """The newest trace under `folder`; ValueError where there is none or it lacks the annotated steps.

    Raises Unavailable without the package protobuf, which the worker needs for nothing else.
    """
    try:
        from paradnn.worker.profile.protos import HloProto, XSpace
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"reading the trace needs the package protobuf: {sys.executable} -m pip install protobuf"
        ) from error
    files = sorted(folder.glob("**/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise ValueError(f"the profiler wrote no trace into {folder}")
    space = XSpace()
    space.ParseFromString(files[-1].read_bytes())
    origin, duration = _window(space)
    trace = Trace(duration * 1e-12, file=files[-1])
    trace.modules, named = _modules(space, HloProto)
    # Where a device has a plane of its own the host's events are only launches.
    devices = [plane for plane in space.planes if is_device(plane)]
    for plane in devices:
        kernels, instructions, stated = read_device(
            plane, lambda line, event: _seconds(line, event, origin), COMPILED, named
        )
        trace.kernels += kernels
        trace.compiled += instructions
        trace.stated |= stated
    for plane in space.planes:
        if not devices and plane.name.startswith("/host:CPU"):
            _read_plane(plane, trace, origin, named)
    return trace


def _window(space: Any) -> tuple[int, int]:
    """Start and duration of the annotated steps, in picoseconds."""
    for plane in space.planes:
        wanted = {key for key, entry in plane.event_metadata.items() if entry.name == WINDOW}
        for line in plane.lines if wanted else ():
            for event in line.events:
                if event.metadata_id in wanted:
                    return _picoseconds(line, event), event.duration_ps
    raise ValueError(f"the trace has no event {WINDOW}")


def _read_plane(plane: Any, trace: Trace, origin: int, named: ModuleName) -> None:
    names = {key: entry.name for key, entry in plane.event_metadata.items()}
    stats = {key: entry.name for key, entry in plane.stat_metadata.items()}
    # Most events of a graph are the runtime's own, hundreds of thousands: the fewest are looked at closely.
    kernels = {key: _kernel(name) for key, name in names.items()}
    programs = "hlo_op" in stats.values()
    wanted = {key for key, name in stats.items() if name in ("hlo_op", "hlo_module", "program_id", "_p", "_c")}
    ends: dict[int, float] = {}
    instructions: list[tuple[str, str, str, float, float, int | None]] = []
    for number, line in enumerate(plane.lines):
        lane = f"{line.name}#{number}"
        for event in line.events:
            kernel = kernels.get(event.metadata_id)
            if kernel is None and not programs:
                continue
            name = names.get(event.metadata_id, "")
            start = _seconds(line, event, origin)
            end = start + event.duration_ps * 1e-12
            stated = event.stats if programs else ()
            values = {stats[stat.metadata_id]: stat for stat in stated if stat.metadata_id in wanted}
            if "hlo_op" in values:
                producer = _number(values["_p"]) if "_p" in values else None
                module = _string(values["hlo_module"], stats) if "hlo_module" in values else ""
                program = _number(values["program_id"]) if "program_id" in values else None
                instructions.append(
                    (lane, _string(values["hlo_op"], stats), named(module, program), start, end, producer)
                )
            elif name.startswith("end: ") and "_c" in values:
                ends[_number(values["_c"])] = start
            elif kernel:
                trace.kernels.append(Event(lane, *kernel, start, end))
    for index, (lane, name, module, start, end, producer) in enumerate(instructions):
        # An instruction that ends on another thread has an event of its own there, and runs on until then.
        finish = ends.get(producer, end) if producer is not None else end
        own = f"{lane}/{index}" if finish > end else lane
        trace.compiled.append(Event(own, name, f"{COMPILED}{module}", start, max(end, finish)))


def _kernel(name: str) -> tuple[str, str] | None:
    if name.startswith(_EAGER):
        kind = name.removeprefix(_EAGER)
        return None if _CONTAINER.match(kind) else (kind, kind)
    match = _KERNEL.fullmatch(name)
    if match is None or _CONTAINER.match(match[2]):
        return None
    return match[1], match[2]


def _modules(space: Any, message: Callable[[], Any]) -> tuple[list[Any], ModuleName]:
    """The compiled programs, and how events should name them: by their numbers too where names are not enough.

    `message` makes the empty HloProto that a program is parsed into.
    JAX without jit compiles a program for each operation and shape, and calls every product "jit_dot_general".
    """
    programs: list[tuple[int | None, Any]] = []
    for plane in space.planes:
        stats = {key: entry.name for key, entry in plane.stat_metadata.items()}
        for metadata in plane.event_metadata.values():
            values = {stats.get(stat.metadata_id, "").lower().replace("_", " "): stat for stat in metadata.stats}
            if "hlo proto" in values:
                proto = message()
                proto.ParseFromString(values["hlo proto"].bytes_value)
                program = _number(values["program id"]) if "program id" in values else None
                programs.append((program, proto.hlo_module))
    # The same program may stand in several planes.
    counts = Counter(name for name, _ in {(module.name, program) for program, module in programs})

    def named(module: str, program: int | None) -> str:
        return module if program is None or counts[module] < 2 else f"{module}({program})"

    modules = [module for _, module in programs]
    for program, module in programs:
        module.name = named(module.name, program)
    return modules, named


def _picoseconds(line: Any, event: Any) -> int:
    return int(line.timestamp_ns) * 1000 + int(event.offset_ps)


def _seconds(line: Any, event: Any, origin: int) -> float:
    """Seconds since `origin`. Whole picoseconds since 1970 do not fit a float: subtract first."""
    return (_picoseconds(line, event) - origin) * 1e-12


def _string(stat: Any, names: dict[int, str]) -> str:
    return names.get(stat.ref_value, "") if stat.ref_value else str(stat.str_value)


def _number(stat: Any) -> int:
    return int(stat.uint64_value or stat.int64_value)
