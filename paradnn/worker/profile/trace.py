"""Reads a trace: which operations ran when, and the compiled programs that the profiler put beside
them.
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
from paradnn.worker.profile.categories import PRODUCTS, categorise
from paradnn.worker.profile.shapes import Cost

# Threads run side by side, and an event may contain others. The self time of an operation is how
# long it ran, less what ran within it on the same thread; its share is the wall time it explains:
# every instant of the step is divided equally among the operations that run in it. Shares and the
# remainder, in which none runs, sum to one.


@dataclass(frozen=True)
class Event:
    """An operation that ran on a lane (a thread or a device's stream) from `start` to `end`;
    seconds. `continues`: it belongs to the execution that the event before it began, and is none of
    its own.
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


def attribute(
    events: Iterable[Event], start: float, end: float
) -> tuple[dict[tuple[str, str], Usage], float]:
    """Usage of every (name, kind), and the seconds of [start, end] in which nothing ran."""
    usage: defaultdict[tuple[str, str], Usage] = defaultdict(Usage)
    lanes: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.end > start and event.start < end:
            lanes[event.lane].append(event)
            # One that began before, and reaches in by its thread's delay, was no execution of these
            # steps.
            usage[event.name, event.kind].count += event.start >= start and not event.continues
    edges = []
    for members in lanes.values():
        for event, begins, ends in _innermost(members):
            low = max(begins, start)
            high = min(ends, end)
            key = (event.name, event.kind)
            if high > low:
                usage[key].self_seconds += high - low
                edges += [(low, 1, key), (high, -1, key)]
    running: Counter[tuple[str, str]] = Counter()
    active = 0
    idle = 0.0
    now = start
    for time, change, key in [*sorted(edges), (end, 0, ("", ""))]:
        if time > now:
            for name, times in running.items():
                usage[name].wall_seconds += (time - now) * times / active
            idle += 0.0 if active else time - now
            now = time
        active += change
        running[key] += change
        if not running[key]:
            del running[key]
    return dict(usage), idle


def _innermost(events: Iterable[Event]) -> Iterator[tuple[Event, float, float]]:
    """The stretches of a lane in which an event is the innermost one."""
    stack: list[Event] = []
    since = 0.0
    last = Event("", "", "", math.inf, math.inf)
    for event in [*sorted(events, key=lambda event: (event.start, -event.end)), last]:
        while stack and stack[-1].end <= event.start:
            inner = stack.pop()
            if inner.end > since:
                yield inner, since, inner.end
                since = inner.end
        if stack and event.start > since:
            yield stack[-1], since, event.start
        since = max(since, event.start)
        stack.append(event)


#: How the kind of a compiled program's event begins; the module's name follows.
COMPILED = "hlo:"
#: The annotation around the profiled steps.
WINDOW = "paradnn_steps"


@dataclass
class Trace:
    """The profiled steps: how many `seconds` they took, what ran (0 is their beginning), and the
    HLO modules. Events whose kind begins with `COMPILED` are instructions of compiled programs,
    others the framework's own operations; `stated` are costs that the profiler itself states for
    some; `file` is the trace itself.
    """

    seconds: float
    events: list[Event] = field(default_factory=list)
    modules: list[Any] = field(default_factory=list)
    stated: dict[tuple[str, str], Cost] = field(default_factory=dict)
    file: Path | None = None
    _programs: Counter[str] = field(default_factory=Counter)

    @property
    def ran(self) -> set[str]:
        """The modules whose instructions are among the events."""
        return {
            event.kind.removeprefix(COMPILED)
            for event in self.events
            if event.kind.startswith(COMPILED)
        }

    def named(self, module: str, program: int | None) -> str:
        """What a module is called in the whole trace: by its program's number too where names are
        not enough. JAX without jit compiles a program for each operation and shape, and calls every
        product "jit_dot_general".
        """
        if program is None or self._programs[module] < 2:
            return module
        return f"{module}({program})"

    def add_modules(self, programs: Sequence[tuple[int | None, Any]]) -> None:
        """The compiled programs, with their numbers; the same one may stand there more than once."""
        self._programs = Counter(
            name for name, _ in {(module.name, program) for program, module in programs}
        )
        for program, module in programs:
            module.name = self.named(module.name, program)
            self.modules.append(module)


def read_trace(folder: Path) -> Trace:
    """The newest trace under `folder`; ValueError where there is none or it lacks the annotated
    steps, Unavailable without the package protobuf, which the worker needs for nothing else.
    """
    try:
        from paradnn.worker.profile.protos import HloProto, XSpace
    except ModuleNotFoundError as error:
        needs = f"reading the trace needs the package protobuf: {sys.executable} -m pip install protobuf"
        raise UnavailableError(needs) from error
    files = sorted(folder.glob("**/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise ValueError(f"the profiler wrote no trace into {folder}")
    space = XSpace.FromString(files[-1].read_bytes())
    origin, duration = _window(space)
    trace = Trace(duration * 1e-12, file=files[-1])
    trace.add_modules(list(_programs(space, HloProto)))
    # Where a device has a plane of its own the host's events are only launches.
    devices = [
        plane
        for plane in space.planes
        if plane.name.startswith(("/device:GPU", "/device:TPU")) and plane.lines
    ]
    for plane in devices or [plane for plane in space.planes if plane.name.startswith("/host:CPU")]:
        (read_device if devices else _read_host)(plane, trace, origin)
    return trace


def _window(space: Any) -> tuple[int, int]:
    """Start and duration of the annotated steps, in picoseconds."""
    for plane in space.planes:
        wanted = {key for key, entry in plane.event_metadata.items() if entry.name == WINDOW}
        for line in plane.lines if wanted else ():
            for event in line.events:
                if event.metadata_id in wanted:
                    return line.timestamp_ns * 1000 + event.offset_ps, event.duration_ps
    raise ValueError(f"the trace has no event {WINDOW}")


def _span(line: Any, event: Any, origin: int) -> tuple[float, float]:
    """Begin and end in seconds since `origin`. Whole picoseconds since 1970 do not fit a float:
    subtract first.
    """
    start = (line.timestamp_ns * 1000 + event.offset_ps - origin) * 1e-12
    return start, start + event.duration_ps * 1e-12


def _values(stats: Any, names: Mapping[int, str]) -> dict[str, Any]:
    """Statistics by name: bytes, a text (a reference is one too), or a number."""
    values = {}
    for stat in stats:
        number = stat.int64_value or stat.uint64_value or stat.double_value
        if stat.ref_value:
            text = names.get(stat.ref_value, "")
        else:
            text = stat.str_value
        values[names.get(stat.metadata_id, "")] = stat.bytes_value or text or number
    return values


def _programs(space: Any, message: Any) -> Iterator[tuple[int | None, Any]]:
    """The compiled programs and their numbers; `message` is the class HloProto."""
    for plane in space.planes:
        names = {
            key: entry.name.lower().replace("_", " ") for key, entry in plane.stat_metadata.items()
        }
        for metadata in plane.event_metadata.values():
            values = _values(metadata.stats, names)
            if "hlo proto" in values:
                yield values.get("program id"), message.FromString(values["hlo proto"]).hlo_module


# The host: TensorFlow's kernels are named "scope/name:Type"; the runtime's own
# ("Executor::Process") are none.
_KERNEL = re.compile(r"([^:#]+):([A-Za-z_]\w*)")
_EAGER = "EagerLocalExecute: "
# A function's call and the loops within it contain the operations that are wanted.
_CONTAINER = re.compile(
    r"(__inference|__forward|__backward)_|(Stateful)?PartitionedCall$|(Stateless)?(While|If|Case)$"
)


def _read_host(plane: Any, trace: Trace, origin: int) -> None:
    stats = {key: entry.name for key, entry in plane.stat_metadata.items()}
    # Most events of a graph are the runtime's own, hundreds of thousands: the fewest are looked at
    # closely.
    kernels = {key: _kernel(entry.name) for key, entry in plane.event_metadata.items()}
    endings = {key for key, entry in plane.event_metadata.items() if entry.name.startswith("end: ")}
    wanted = {
        key
        for key, name in stats.items()
        if name in ("hlo_op", "hlo_module", "program_id", "_p", "_c")
    }
    programs = "hlo_op" in stats.values()
    ends: dict[int, float] = {}
    instructions: list[tuple[str, dict[str, Any], float, float]] = []
    for number, line in enumerate(plane.lines):
        lane = f"{line.name}#{number}"
        for event in line.events:
            kernel = kernels.get(event.metadata_id)
            if kernel is None and not programs:
                continue
            start, end = _span(line, event, origin)
            stated = event.stats if programs else ()
            values = _values((stat for stat in stated if stat.metadata_id in wanted), stats)
            if "hlo_op" in values:
                instructions.append((lane, values, start, end))
            elif event.metadata_id in endings and "_c" in values:
                ends[values["_c"]] = start
            elif kernel:
                trace.events.append(Event(lane, *kernel, start, end))
    for index, (lane, values, start, end) in enumerate(instructions):
        # An instruction that ends on another thread has an event of its own there, and runs on
        # until then.
        finish = max(end, ends.get(values.get("_p", -1), end))
        kind = COMPILED + trace.named(values.get("hlo_module", ""), values.get("program_id"))
        trace.events.append(
            Event(
                f"{lane}/{index}" if finish > end else lane, values["hlo_op"], kind, start, finish
            )
        )


def _kernel(name: str) -> tuple[str, str] | None:
    """Name and type of the kernel that an event's name says."""
    if name.startswith(_EAGER):
        kind = name.removeprefix(_EAGER)
        return None if _CONTAINER.match(kind) else (kind, kind)
    match = _KERNEL.fullmatch(name)
    if match is None or _CONTAINER.match(match[2]):
        return None
    return (match[1], match[2])


# The plane of a GPU or a TPU: on a GPU a kernel names the operation that launched it (`annotation`,
# or `hlo_op` for a compiled program) or stands under its own name, on a TPU metadata carry the
# compiler's own count of FLOPs and bytes.

#: A GPU's plane has a line "XLA Ops" too, which repeats what its streams ran.
_COMPUTE_LINES = {"GPU": "Stream", "TPU": "XLA Ops"}
_ANNOTATIONS = ("tf_op", "annotation")


def read_device(plane: Any, trace: Trace, origin: int) -> None:
    """Add to a trace the kernels of a device, its instructions of compiled programs, and the costs
    that are stated.
    """
    names = {key: entry.name for key, entry in plane.stat_metadata.items()}
    wanted = _COMPUTE_LINES["GPU" if plane.name.startswith("/device:GPU") else "TPU"]
    for number, line in enumerate(plane.lines):
        if not line.name.startswith(wanted):
            continue
        previous = ("", "")
        launched = set[str]()
        lane = f"{plane.name}/{line.name}#{number}"
        for event in sorted(line.events, key=lambda event: event.offset_ps):
            metadata = plane.event_metadata[event.metadata_id]
            values = _values(metadata.stats, names) | _values(event.stats, names)
            name, kind = _operation(metadata, values, trace)
            # An operation may launch several kernels, one after the other; the same kernel again is
            # its next execution.
            continues = (name, kind) == previous and metadata.name not in launched
            if continues:
                launched = launched | {metadata.name}
            else:
                launched = {metadata.name}
            previous = name, kind
            trace.events.append(Event(lane, name, kind, *_span(line, event, origin), continues))
            cost = _stated(metadata.name, values)
            if cost is not None:
                trace.stated[name, kind] = cost


def _operation(metadata: Any, values: Mapping[str, Any], trace: Trace) -> tuple[str, str]:
    """Name and type of what a kernel belongs to."""
    if "hlo_op" in values:
        # Of nested ones ("while.2::fusion.3") the innermost.
        module = trace.named(str(values.get("hlo_module", "")), values.get("program_id"))
        return str(values["hlo_op"]).rpartition("::")[2], f"{COMPILED}{module}"
    for key in _ANNOTATIONS:
        match = _KERNEL.match(str(values.get(key, "")))
        if match:
            return match[1], match[2]
    # A TPU's metadata is named by the whole instruction: "%fusion.3 = f32[...] ...".
    name = metadata.name.removeprefix("%").split(" = ")[0]
    return name, str(values.get("hlo_category") or name)


def _stated(name: str, values: Mapping[str, Any]) -> Cost | None:
    """The cost that the profiler states, or what a kernel without an operation plainly is."""
    category = categorise("kernel", f"{values.get('hlo_category', '')} {name}".lower())
    kind = str(values.get("hlo_category") or name.split("(")[0])
    if "bytes_accessed" in values:
        flops = float(values.get("model_flops") or values.get("flops") or 0)
        products = flops if category in PRODUCTS else 0.0
        return Cost(kind, category, flops, float(values["bytes_accessed"]), products)
    named = any(key in values for key in ("hlo_op", *_ANNOTATIONS))
    return None if named else Cost(kind, category)
