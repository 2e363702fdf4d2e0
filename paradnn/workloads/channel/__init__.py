"""Messages between processes (`model=channel`), measured alone; docs/how-to/communication.md says what a
step is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.config.rules import PointRules
from paradnn.core.errors import ConfigError, require_value
from paradnn.core.results import ResultDescription, ResultText
from paradnn.core.schema import option
from paradnn.core.workload import Workload
from paradnn.families import Family
from paradnn.families.kernels import ALONE, Messages
from paradnn.session.run_records import RunRecords
from paradnn.worker.workload import WorkerSide
from paradnn.workloads.channel.metrics import METRICS

if TYPE_CHECKING:
    from paradnn.config.point import Point
    from paradnn.session.measured import Measured
    from paradnn.worker.point import PointRun

#: Patterns in which all processes take part alike.
COLLECTIVES = ("all_reduce", "broadcast")
_POINT_TO_POINT = ("latency", "bandwidth")
#: What each transport is measured in.
_PATTERNS = {
    "tcp": _POINT_TO_POINT,
    "grpc": _POINT_TO_POINT,
    "gloo": (*_POINT_TO_POINT, *COLLECTIVES),
    "nccl": (*_POINT_TO_POINT, *COLLECTIVES),
    "tensorflow": ("all_reduce",),
}
#: Transports that a framework brings.
_FRAMEWORKS = {"gloo": "torch", "nccl": "torch", "tensorflow": "tensorflow"}
#: Where a pattern is not one of those named, the key says nothing, and stands at its default.
_USED_BY = {"window": ("bandwidth",), "processes": COLLECTIVES}


@dataclass(frozen=True)
class Communication(Messages):
    """Messages of `bytes` by a transport, in a pattern, between processes of this host or of
    several.
    """

    instead_of_batch: ClassVar[str] = "model.bytes"

    name: str = option("channel", "the kind of workload", choices=("channel",))
    transport: str = option(
        "tcp", "what carries the messages; gloo and nccl are PyTorch's", choices=tuple(_PATTERNS)
    )
    pattern: str = option(
        "latency",
        "a message there and back, a window of them one way, or a collective",
        choices=_PATTERNS["gloo"],
    )
    bytes: int = option(
        1024, "of a message; of a framework's a multiple of 4: it sends float32", low=1, high=2**40
    )
    window: int = option(
        64, "messages that are answered together (pattern=bandwidth)", low=1, high=65536
    )
    processes: int = option(2, "that take part in a collective", low=2, high=4096)
    port: int = option(
        0, "first port that this host's processes listen on; 0: any that is free", low=0, high=65535
    )

    def __post_init__(self) -> None:
        if self.pattern not in (known := _PATTERNS[self.transport]):
            reason = f"model.transport={self.transport} has no such pattern"
            raise ConfigError(
                "model.pattern", self.pattern, reason, f"choose one of {', '.join(known)}"
            )
        if self.transport in _FRAMEWORKS and self.bytes % 4:
            reason = f"model.transport={self.transport} sends one tensor of float32"
            raise ConfigError("model.bytes", self.bytes, reason, "choose a multiple of 4")
        for key, patterns in _USED_BY.items():
            if self.pattern not in patterns:
                object.__setattr__(self, key, type(self).__dataclass_fields__[key].default)
        # TensorFlow's processes all listen, others meet at one port.
        listening = self.processes if self.transport == "tensorflow" else 1
        if self.port + listening - 1 > 65535:
            raise ConfigError(
                "model.port", self.port, f"leaves no {listening} ports", "choose a lower one"
            )

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        """A message is held once by each who sends or receives it; how often it is copied is the
        transport's affair.
        """
        return 0, self.bytes

    def canonical_point(self, point: Any) -> Any:
        point = super().canonical_point(point)
        require_value(
            "precision",
            point.precision,
            required="float32",
            reason="model=channel sends bytes, and float32 where a framework does",
        )
        wanted = _FRAMEWORKS.get(self.transport, point.framework.name)
        if point.framework.name not in (wanted, "tensorflow"):
            reason = f"model.transport={self.transport} is of framework={wanted}"
            raise ConfigError("framework", point.framework.name, reason, "leave it out")
        return replace(point, framework=replace(point.framework, name=wanted))

    @property
    def process_count(self) -> int:
        return self.processes if self.pattern in COLLECTIVES else 2

    @property
    def size(self) -> str:
        many = {"bandwidth": f" w{self.window}", "latency": ""}.get(
            self.pattern, f" x{self.processes}"
        )
        return f"{self.transport} {self.pattern}{many} {self.bytes} B"


def bus_factor(pattern: str, processes: int) -> float:
    """Bytes that each process' link carries for a byte of a collective: an all-reduce moves 2 (n -
    1) / n of its bytes in and out of every process, a broadcast all of them (NVIDIA nccl-tests,
    doc/PERFORMANCE.md).
    """
    if pattern == "all_reduce":
        return 2 * (processes - 1) / processes
    return 1.0


@dataclass(frozen=True)
class Channel(Workload, PointRules, WorkerSide, RunRecords, ResultDescription):
    """Steps that are messages; what they are is the model's options."""

    name = "channel"
    key = "model"
    order = 50
    unit = "exchange"
    conflict_reason = "trains nothing"
    declared_metrics = METRICS
    headlines: ClassVar[Mapping[str, str]] = {"transfer_us": "us a message"}

    def open_devices(self, run: PointRun) -> None:
        """No device is needed."""

    def measure(self, run: PointRun) -> None:
        from paradnn.worker.measure import compile_steps
        from paradnn.workloads.channel.processes import Processes

        model = run.request["model"]
        with contextlib.ExitStack() as ending:
            with run.phases("build"):
                step = ending.enter_context(Processes(run.request)).step()
            with run.phases("compile"):
                compilation, _ = compile_steps(step)
            run.memory.compiled()
            run.note_measured(run.time(step.run, step), None, compilation, {})
            if model["pattern"] == "latency" and model["transport"] not in _FRAMEWORKS:
                run.note_latencies(step.run)
            run.note_own_memory()

    def remote_process_server(self) -> Callable[..., None]:
        from paradnn.workloads.channel.processes import serve_elsewhere

        return serve_elsewhere

    def distributable_processes(self, point: Point) -> tuple[str, int]:
        return "model=channel", _model(point).process_count

    def name_parts(self, point: Point) -> list[str]:
        return [self.mode]

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        return transfer_metrics(_model(measured.point), known)

    def describe(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        if "transfer_us" not in metrics:
            return None
        interval = ""
        if "transfer_low_us" in metrics:
            interval = (
                f" (95% CI {metrics['transfer_low_us']:,.2f} .. {metrics['transfer_high_us']:,.2f})"
            )
        if "bus_bytes_per_second" in metrics:
            bus = f", bus {metrics['bus_bytes_per_second'] / 1e6:,.1f} MB/s"
        else:
            bus = ""
        rate = f"{metrics['sent_bytes_per_second'] / 1e6:,.1f} MB/s{bus}"
        clauses = (
            f"{metrics['transfer_us']:,.2f} us each{interval}",
            f"{rate}, {metrics['messages_per_second']:,.0f} a second",
        )
        return ResultText("messages", clauses, replaces_steps=True)


def _model(point: Point) -> Communication:
    assert isinstance(point.model, Communication)
    return point.model


def transfer_metrics(model: Communication, known: Mapping[str, float]) -> dict[str, float]:
    """What messages of `model` come to, from `step_time_ms` and its interval."""
    found: dict[str, float] = {}
    # Messages of a step, one after the other; a collective counts as one.
    messages = {"latency": 2, "bandwidth": model.window}.get(model.pattern, 1)
    for end, other in (("", ""), ("_low", "_high"), ("_high", "_low")):
        seconds, longest = (known.get(f"step_time{side}_ms") for side in (end, other))
        if seconds is None or longest is None:
            continue
        found[f"transfer{end}_us"] = 1e3 * seconds / messages
        if model.pattern == "latency":
            found[f"round_trip{end}_us"] = 1e3 * seconds
        rate = 1e3 * messages / longest  # a rate is low where the time is high
        found[f"messages_per_second{end}"] = rate
        found[f"sent_bytes_per_second{end}"] = rate * model.bytes
        if model.pattern in COLLECTIVES:
            found[f"bus_bytes_per_second{end}"] = (
                rate * model.bytes * bus_factor(model.pattern, model.processes)
            )
    return found


CHANNEL = Channel()
FAMILY = Family(
    "channel",
    Communication,
    "vectors",
    ("bytes", "transport", "pattern"),
    "model.transport=tcp,grpc model.bytes=64,4096,262144",
    order=20,
    summary="Messages between processes: latency, bandwidth, collectives.",
    defaults=ALONE,
)
