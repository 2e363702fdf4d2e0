"""Reads a trace: which operations ran when, and the compiled programs that the profiler put beside them."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paradnn.worker.errors import Unavailable
from paradnn.worker.profile.shapes import Cost

# From events on several threads to time that adds up.
#
# Operations overlap: threads run side by side, and an event may contain others. Two quantities follow. The self time of
# an operation is how long it ran, less what ran within it on the same thread; summed over operations it may exceed the
# step. Its share is the wall time it explains: every instant of the step is divided equally among the operations that
# run in it, and what is left over belongs to none. Shares and the remainder sum to one by construction.


@dataclass(frozen=True)
class Event:
    """An operation that ran on a lane (a thread or a device's stream) from `start` to `end`; seconds.

    `continues`: it belongs to the execution that the event before it began, and is none of its own.
    """

    lane: str
    name: str
    kind: str
    start: float
    end: float
    continues: bool = False


@dataclass
class Usage:
    """One operation within the window: executions, self time and explained wall time; seconds."""

    count: int = 0
    self_seconds: float = 0.0
    wall_seconds: float = 0.0


#: When it is, whether an operation begins then, and which.
_Edge = tuple[float, bool, tuple[str, str]]


def attribute(events: Iterable[Event], start: float, end: float) -> tuple[dict[tuple[str, str], Usage], float]:
    """Usage of every (name, kind), and the seconds of [start, end] in which nothing ran."""
    usage: defaultdict[tuple[str, str], Usage] = defaultdict(Usage)
    lanes: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.end > start and event.start < end:
            lanes[event.lane].append(event)
            # One that began before, and reaches in by its thread's delay, was no execution of these steps.
            usage[event.name, event.kind].count += event.start >= start and not event.continues
    edges = []
    for members in lanes.values():
        for key, begins, ends in _innermost(members):
            low, high = max(begins, start), min(ends, end)
            if high > low:
                usage[key].self_seconds += high - low
                edges += [(low, True, key), (high, False, key)]
    return dict(usage), _divide(sorted(edges), usage, start, end)


def _innermost(events: Sequence[Event]) -> list[tuple[tuple[str, str], float, float]]:
    """The stretches of a lane in which an event is the innermost one."""
    stretches: list[tuple[tuple[str, str], float, float]] = []
    stack: list[Event] = []
    since = 0.0

    def close(until: float) -> None:
        nonlocal since
        while stack and stack[-1].end <= until:
            event = stack.pop()
            if event.end > since:
                stretches.append(((event.name, event.kind), since, event.end))
                since = event.end

    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        close(event.start)
        if stack and event.start > since:
            stretches.append(((stack[-1].name, stack[-1].kind), since, event.start))
        since = max(since, event.start)
        stack.append(event)
    close(float("inf"))
    return stretches


def _divide(edges: Sequence[_Edge], usage: dict[tuple[str, str], Usage], start: float, end: float) -> float:
    """Divide every instant among the running operations; the seconds that none explains."""
    running: defaultdict[tuple[str, str], int] = defaultdict(int)
    active, idle, now = 0, 0.0, start
    for time, opens, key in edges:
        passed = time - now
        if passed > 0:
            if active:
                for name, times in running.items():
                    usage[name].wall_seconds += passed * times / active
            else:
                idle += passed
            now = time
        active += 1 if opens else -1
        running[key] += 1 if opens else -1
        if not running[key]:
            del running[key]
    return idle + max(0.0, end - now)


# Reads the plane of a GPU or a TPU: kernels of its streams, and the statistics that the profiler states for them.
#
# What xprof shows in its tables comes from the same two places: on a GPU a kernel names the operation that launched it
# (`annotation`, or `hlo_op` for a compiled program), on a TPU an operation's metadata carries the compiler's own count
# of its FLOPs and bytes. A kernel that names no operation stays in the table under its own name, its cost unknown.

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
