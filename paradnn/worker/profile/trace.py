"""Read a profiler's trace in XSpace format: operations with their times, and compiled programs.

TensorFlow and JAX write traces in this format. A trace has planes, one for the host and one for
each device. A plane has lines, such as threads and streams, and a line has events.
"""

import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paradnn.core.errors import UnavailableError
from paradnn.worker.profile.categories import PRODUCTS, categorize
from paradnn.worker.profile.shapes import Cost

#: Name and type of an operation.
OperationKey = tuple[str, str]


@dataclass(frozen=True)
class Event:
    """A period in which an operation ran on a track: a thread, or a stream of a device.

    Attributes:
        track: Name of the track.
        name: Name of the operation.
        kind: Type of the operation.
        start: Start time, in seconds since the beginning of the profiled steps.
        end: End time, in seconds since the beginning of the profiled steps.
        continues: Whether the event belongs to the same execution as the previous event.
    """

    track: str
    name: str
    kind: str
    start: float
    end: float
    continues: bool = False


@dataclass
class Usage:
    """Number of executions and time of one operation in a period of a trace (see `attribute`).

    Attributes:
        count: Number of executions that began in the period.
        self_seconds: Self time in seconds: the duration without nested operations.
        wall_seconds: Wall time in seconds. If several operations run at an instant, it is divided
            equally among them.
    """

    count: int = 0
    self_seconds: float = 0.0
    wall_seconds: float = 0.0


def attribute(
    events: Iterable[Event], start: float, end: float
) -> tuple[dict[OperationKey, Usage], float]:
    """Divide the time of a period, the window [start, end], among the operations that ran.

    A track is a thread, or a stream of a device. Tracks run in parallel, and an event may contain
    other events of its track. The self time of an operation is its duration without the operations
    within it on the same track. To determine its wall time, each instant is divided equally among
    the operations that run at that instant. Wall times and the idle time sum to the length of the
    window.

    Args:
        events: The events of all tracks.
        start: Start of the window, in seconds.
        end: End of the window, in seconds.

    Returns:
        The usage of each operation by its name and kind, and the seconds in which no operation ran.
    """
    usage: defaultdict[OperationKey, Usage] = defaultdict(Usage)
    tracks: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.end > start and event.start < end:
            tracks[event.track].append(event)
            used = usage[event.name, event.kind]
            # An event that began before the window is not an execution of the profiled steps.
            if event.start >= start and not event.continues:
                used.count += 1
    edges: list[tuple[float, int, OperationKey]] = []
    for members in tracks.values():
        for event, begins, ends in _innermost(members):
            low = max(begins, start)
            high = min(ends, end)
            key = (event.name, event.kind)
            if high > low:
                usage[key].self_seconds += high - low
                edges.append((low, 1, key))
                edges.append((high, -1, key))
    idle = _divide_wall_time(edges, usage, start, end)
    return dict(usage), idle


def _divide_wall_time(
    edges: Sequence[tuple[float, int, OperationKey]],
    usage: Mapping[OperationKey, Usage],
    start: float,
    end: float,
) -> float:
    """Add each operation's wall time to `usage`; return the seconds in which no operation ran.

    Args:
        edges: Beginnings and ends of executions: time, change of the number of running executions
            (1 or -1), and operation.
        usage: The usage of every operation, which is changed.
        start: Start of the window, in seconds.
        end: End of the window, in seconds.
    """
    running: Counter[OperationKey] = Counter()
    active = 0
    idle = 0.0
    now = start
    for time, change, key in [*sorted(edges), (end, 0, ("", ""))]:
        if time > now:
            for name, times in running.items():
                usage[name].wall_seconds += (time - now) * times / active
            if not active:
                idle += time - now
            now = time
        active += change
        running[key] += change
        if not running[key]:
            del running[key]
    return idle


def _innermost(events: Iterable[Event]) -> Iterator[tuple[Event, float, float]]:
    """Yield (event, start, end) for each period in which an event is the innermost of its track."""
    stack: list[Event] = []
    since = 0.0
    sentinel = Event("", "", "", math.inf, math.inf)
    for event in [*sorted(events, key=lambda entry: (entry.start, -entry.end)), sentinel]:
        while stack and stack[-1].end <= event.start:
            inner = stack.pop()
            if inner.end > since:
                yield inner, since, inner.end
                since = inner.end
        if stack and event.start > since:
            yield stack[-1], since, event.start
        since = max(since, event.start)
        stack.append(event)


#: Prefix of the kind of an event from a compiled program. The name of the module follows.
COMPILED = "hlo:"
#: The annotation around the profiled steps.
WINDOW = "paradnn_steps"


@dataclass
class Trace:
    """The operations of the profiled steps, as a profiler recorded them.

    Attributes:
        seconds: Duration of all steps together.
        events: The operations that ran; time 0 is the beginning of the steps. Events whose kind
            begins with `COMPILED` are instructions of compiled programs, others are the framework's
            operations.
        modules: The compiled programs, as protocol buffers of the type HloModuleProto.
        stated_costs: Costs of one execution that the trace itself states, by name and kind of the
            operation.
        file: The trace file; None if the profiler wrote no file.
    """

    seconds: float
    events: list[Event] = field(default_factory=list)
    modules: list[Any] = field(default_factory=list)
    stated_costs: dict[OperationKey, Cost] = field(default_factory=dict)
    file: Path | None = None
    #: Number of programs by module name.
    _programs: Counter[str] = field(default_factory=Counter)

    @property
    def ran(self) -> set[str]:
        """Names of the modules that ran: their instructions are among the events."""
        return {
            event.kind.removeprefix(COMPILED)
            for event in self.events
            if event.kind.startswith(COMPILED)
        }

    def module_name(self, module: str, program: int | None) -> str:
        """Return a name for a module that is unique in the trace.

        If several programs share the module's name, the number of the program is added. Without
        jit, JAX compiles a program for each operation and shape, and names every product
        "jit_dot_general".

        Args:
            module: The name of the compiled program (HLO module).
            program: The number of the program in the trace; None if it is unknown.
        """
        if program is None or self._programs[module] < 2:
            return module
        return f"{module}({program})"

    def add_modules(self, programs: Sequence[tuple[int | None, Any]]) -> None:
        """Add compiled programs, and give their modules unique names.

        Args:
            programs: Pairs of a program's number, None if unknown, and its module, an
                HloModuleProto. A program may occur more than once.
        """
        names = {(module.name, program) for program, module in programs}
        self._programs = Counter(name for name, _ in names)
        for program, module in programs:
            module.name = self.module_name(module.name, program)
            self.modules.append(module)


def read_trace(folder: Path) -> Trace:
    """Read the newest trace in XSpace format under a folder.

    Args:
        folder: The folder into which the profiler of TensorFlow or JAX wrote.

    Raises:
        ValueError: If no trace exists, or it lacks the annotated steps.
        UnavailableError: If the package protobuf is missing. Only profiles need it.
    """
    try:
        from paradnn.worker.profile.protos import HloProto, XSpace
    except ModuleNotFoundError as error:
        raise UnavailableError(
            "reading the trace needs the package protobuf: "
            f"{sys.executable} -m pip install protobuf"
        ) from error
    files = sorted(folder.glob("**/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise ValueError(f"the profiler wrote no trace into {folder}")
    space = XSpace.FromString(files[-1].read_bytes())
    origin, duration = _window(space)
    trace = Trace(duration * 1e-12, file=files[-1])
    trace.add_modules(list(_programs(space, HloProto)))
    devices = [
        plane
        for plane in space.planes
        if plane.name.startswith(("/device:GPU", "/device:TPU")) and plane.lines
    ]
    for plane in devices:
        read_device(plane, trace, origin)
    # If the trace has a device, the operations of the host only launch kernels.
    if not devices:
        for plane in space.planes:
            if plane.name.startswith("/host:CPU"):
                _read_host(plane, trace, origin)
    return trace


def _window(space: Any) -> tuple[int, int]:
    """Return start and duration of the profiled steps, in picoseconds.

    Args:
        space: The trace, an XSpace. An annotation with the name `WINDOW` encloses the steps.

    Raises:
        ValueError: If the trace lacks the annotation.
    """
    for plane in space.planes:
        wanted = {key for key, entry in plane.event_metadata.items() if entry.name == WINDOW}
        if not wanted:
            continue
        for line in plane.lines:
            for event in line.events:
                if event.metadata_id in wanted:
                    return line.timestamp_ns * 1000 + event.offset_ps, event.duration_ps
    raise ValueError(f"the trace has no event {WINDOW}")


def _span(line: Any, event: Any, origin: int) -> tuple[float, float]:
    """Return start and end of an event, in seconds since `origin`.

    Picoseconds since 1970 exceed the precision of a float, so the origin is subtracted first.

    Args:
        line: The line of the trace that contains the event.
        event: The event.
        origin: Start of the profiled steps, in picoseconds.
    """
    start = (line.timestamp_ns * 1000 + event.offset_ps - origin) * 1e-12
    return start, start + event.duration_ps * 1e-12


def _values(stats: Any, names: Mapping[int, str]) -> dict[str, Any]:
    """Return the values of the statistics of an event by name.

    A value is bytes, text or a number. A statistic may refer to its text by an id in `names`.

    Args:
        stats: The statistics, as protocol buffers.
        names: The names of statistics, and texts, by id.
    """
    values = {}
    for stat in stats:
        number = stat.int64_value or stat.uint64_value or stat.double_value
        text = names.get(stat.ref_value, "") if stat.ref_value else stat.str_value
        values[names.get(stat.metadata_id, "")] = stat.bytes_value or text or number
    return values


def _programs(space: Any, message_class: Any) -> Iterator[tuple[int | None, Any]]:
    """Yield (program number, module) for each compiled program of a trace.

    Args:
        space: The trace, an XSpace.
        message_class: The class HloProto, which parses a program.
    """
    for plane in space.planes:
        names = {
            key: entry.name.lower().replace("_", " ") for key, entry in plane.stat_metadata.items()
        }
        for metadata in plane.event_metadata.values():
            values = _values(metadata.stats, names)
            if "hlo proto" in values:
                module = message_class.FromString(values["hlo proto"]).hlo_module
                yield values.get("program id"), module


# Reading the plane of the host.

#: TensorFlow names its kernels "scope/name:Type". The runtime's own events ("Executor::Process")
#: do not match.
_KERNEL = re.compile(r"([^:#]+):([A-Za-z_]\w*)")
#: Prefix of the event of an operation that TensorFlow runs eagerly.
_EAGER = "EagerLocalExecute: "
#: Calls of functions and loops, which contain the operations.
_CONTAINER = re.compile(
    r"(__inference|__forward|__backward)_|(Stateful)?PartitionedCall$|(Stateless)?(While|If|Case)$"
)
#: Statistics of instructions of compiled programs. `_p` of an instruction equals `_c` of the event
#: at its end, which may be on another thread.
_HLO_STATS = ("hlo_op", "hlo_module", "program_id", "_p", "_c")


@dataclass(frozen=True)
class _Instruction:
    """An execution of an instruction of a compiled program on the host.

    Attributes:
        track: Name of the thread.
        values: Statistics of the instruction by name (`_HLO_STATS`).
        start: Start time, in seconds since the beginning of the profiled steps.
        end: End time of the event, in seconds. The instruction may end later on another thread.
    """

    track: str
    values: Mapping[str, Any]
    start: float
    end: float


def _read_host(plane: Any, trace: Trace, origin: int) -> None:
    """Add to a trace the kernels and the instructions of compiled programs on the host.

    Args:
        plane: The plane of the host.
        trace: The trace, which is changed.
        origin: Start of the profiled steps, in picoseconds.
    """
    names = {key: entry.name for key, entry in plane.stat_metadata.items()}
    # Most events belong to the runtime. Skipping them by their metadata is fast.
    kernels = {key: _kernel(entry.name) for key, entry in plane.event_metadata.items()}
    endings = {key for key, entry in plane.event_metadata.items() if entry.name.startswith("end: ")}
    wanted = {key for key, name in names.items() if name in _HLO_STATS}
    has_programs = "hlo_op" in names.values()
    ends: dict[int, float] = {}
    instructions: list[_Instruction] = []
    for number, line in enumerate(plane.lines):
        track = f"{line.name}#{number}"
        for event in line.events:
            kernel = kernels.get(event.metadata_id)
            if kernel is None and not has_programs:
                continue
            start, end = _span(line, event, origin)
            values: dict[str, Any] = {}
            if has_programs:
                stats = (stat for stat in event.stats if stat.metadata_id in wanted)
                values = _values(stats, names)
            if "hlo_op" in values:
                instructions.append(_Instruction(track, values, start, end))
            elif event.metadata_id in endings and "_c" in values:
                ends[values["_c"]] = start
            elif kernel:
                trace.events.append(Event(track, *kernel, start, end))
    _add_instructions(instructions, ends, trace)


def _add_instructions(
    instructions: Sequence[_Instruction], ends: Mapping[int, float], trace: Trace
) -> None:
    """Add executions of instructions of compiled programs to a trace.

    An instruction may end on another thread, where an event marks its end. Such an instruction gets
    a separate track, since its thread starts other instructions before it ends.

    Args:
        instructions: The executions.
        ends: Times of the events that mark the ends of instructions, in seconds. A key is the value
            of the statistic `_p` of an instruction.
        trace: The trace, which is changed.
    """
    for index, instruction in enumerate(instructions):
        values = instruction.values
        end = max(instruction.end, ends.get(values.get("_p", -1), instruction.end))
        module = trace.module_name(values.get("hlo_module", ""), values.get("program_id"))
        track = instruction.track
        if end > instruction.end:
            track = f"{track}/{index}"
        trace.events.append(
            Event(track, values["hlo_op"], COMPILED + module, instruction.start, end)
        )


def _kernel(name: str) -> OperationKey | None:
    """Return name and type of the kernel from an event's name; None if the event is no kernel."""
    if name.startswith(_EAGER):
        kind = name.removeprefix(_EAGER)
        return None if _CONTAINER.match(kind) else (kind, kind)
    match = _KERNEL.fullmatch(name)
    if match is None or _CONTAINER.match(match[2]):
        return None
    return match[1], match[2]


# Reading the plane of a GPU or a TPU. On a GPU, the statistics of a kernel may name the operation
# that launched it: `hlo_op` for a compiled program, else one of `_ANNOTATIONS`. On a TPU, the
# metadata contain the compiler's counts of FLOPs and bytes.

#: Prefix of the lines whose events are used. On a GPU the line "XLA Ops" only repeats the streams.
_COMPUTE_LINES = {"GPU": "Stream", "TPU": "XLA Ops"}
#: Statistics with the name and type of the operation that launched a kernel.
_ANNOTATIONS = ("tf_op", "annotation")


def read_device(plane: Any, trace: Trace, origin: int) -> None:
    """Add the events of a device to a trace, and the FLOPs and bytes that the profiler states.

    Args:
        plane: The part of an XSpace trace (XPlane) with the events of a GPU or a TPU.
        trace: The trace, which is changed.
        origin: Start of the profiled steps, in picoseconds.
    """
    names = {key: entry.name for key, entry in plane.stat_metadata.items()}
    device = "GPU" if plane.name.startswith("/device:GPU") else "TPU"
    for number, line in enumerate(plane.lines):
        if not line.name.startswith(_COMPUTE_LINES[device]):
            continue
        previous = ("", "")
        launched: set[str] = set()
        track = f"{plane.name}/{line.name}#{number}"
        for event in sorted(line.events, key=lambda entry: entry.offset_ps):
            metadata = plane.event_metadata[event.metadata_id]
            values = _values(metadata.stats, names) | _values(event.stats, names)
            key = _operation(metadata, values, trace)
            # Consecutive different kernels of one operation belong to one execution. If a kernel
            # repeats, the next execution has begun.
            continues = key == previous and metadata.name not in launched
            if not continues:
                launched = set()
            launched.add(metadata.name)
            previous = key
            start, end = _span(line, event, origin)
            trace.events.append(Event(track, *key, start, end, continues))
            cost = _stated_cost(metadata.name, values)
            if cost is not None:
                trace.stated_costs[key] = cost


def _operation(metadata: Any, values: Mapping[str, Any], trace: Trace) -> OperationKey:
    """Return name and type of the operation that a kernel belongs to.

    Args:
        metadata: The metadata of the kernel's event, with the name of the kernel.
        values: The statistics of the event by name.
        trace: The trace, which makes the names of compiled programs unique.
    """
    if "hlo_op" in values:
        # Use the innermost of nested instructions ("while.2::fusion.3").
        name = str(values["hlo_op"]).rpartition("::")[2]
        module = trace.module_name(str(values.get("hlo_module", "")), values.get("program_id"))
        return name, f"{COMPILED}{module}"
    for key in _ANNOTATIONS:
        match = _KERNEL.match(str(values.get(key, "")))
        if match:
            return match[1], match[2]
    # The name of a TPU's metadata is the whole instruction: "%fusion.3 = f32[...] ...".
    name = metadata.name.removeprefix("%").split(" = ")[0]
    return name, str(values.get("hlo_category") or name)


def _stated_cost(name: str, values: Mapping[str, Any]) -> Cost | None:
    """Return the FLOPs and bytes that the trace states for a kernel.

    Args:
        name: The name of the kernel.
        values: The statistics of the kernel's event by name.

    Returns:
        The cost. If the trace states no cost but names the kernel's operation, None: the cost
        follows from the operation. If it states neither, a cost with only a type and a category.
    """
    category = categorize("kernel", f"{values.get('hlo_category', '')} {name}".lower())
    kind = str(values.get("hlo_category") or name.split("(")[0])
    if "bytes_accessed" in values:
        flops = float(values.get("model_flops") or values.get("flops") or 0)
        return Cost(
            kind,
            category,
            flops=flops,
            bytes=float(values["bytes_accessed"]),
            product_flops=flops if category in PRODUCTS else 0.0,
        )
    has_operation = any(key in values for key in ("hlo_op", *_ANNOTATIONS))
    return None if has_operation else Cost(kind, category)
