"""Messages between processes, measured without a model (`model=channel`).

docs/how-to/communication.md explains the use.
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
from paradnn.families.kernels import UNBATCHED_DEFAULTS, Messages
from paradnn.session.run_records import RunRecords
from paradnn.worker.workload import WorkerSide
from paradnn.workloads.channel.metrics import METRICS
from paradnn.workloads.channel.payload import PAYLOADS, buffer_sizes

if TYPE_CHECKING:
    from paradnn.config.point import Point
    from paradnn.session.measured import Measured
    from paradnn.worker.point import PointRun

#: Patterns in which all processes take part.
COLLECTIVES = ("all_reduce", "broadcast")
#: Patterns of two processes.
_POINT_TO_POINT = ("latency", "bandwidth")
PARAMETER_SERVER = "parameter_server"
#: Transport -> the patterns that it supports.
_PATTERNS = {
    "tcp": _POINT_TO_POINT,
    "grpc": (*_POINT_TO_POINT, PARAMETER_SERVER),
    "shared_memory": _POINT_TO_POINT,
    "gloo": (*_POINT_TO_POINT, *COLLECTIVES),
    "nccl": (*_POINT_TO_POINT, *COLLECTIVES),
    "tensorflow": ("all_reduce",),
}
#: Transport -> the framework that it belongs to. Other transports need no framework.
_FRAMEWORKS = {"gloo": "torch", "nccl": "torch", "tensorflow": "tensorflow"}
#: Key -> the patterns that use it. With any other pattern, the key is reset to its default.
_PATTERNS_BY_KEY = {
    "window": ("bandwidth",),
    "processes": COLLECTIVES,
    "servers": (PARAMETER_SERVER,),
    "workers": (PARAMETER_SERVER,),
}


@dataclass(frozen=True)
class Communication(Messages):
    """Options of messages between processes on one host or several hosts."""

    instead_of_batch: ClassVar[str] = "model.bytes"

    name: str = option("channel", "the kind of workload", choices=("channel",))
    transport: str = option(
        "tcp",
        "how messages are sent; gloo and nccl are the backends of torch.distributed",
        choices=tuple(_PATTERNS),
    )
    pattern: str = option(
        "latency",
        "latency: a message and its echo; bandwidth: a window of messages one way; "
        "parameter_server: every worker sends a message to every server, which echoes it; "
        "all_reduce, broadcast: a collective of all processes",
        choices=(*_POINT_TO_POINT, *COLLECTIVES, PARAMETER_SERVER),
    )
    bytes: int = option(
        1024,
        "bytes of a message; a multiple of 4 for gloo, nccl and tensorflow, which send float32",
        low=1,
        high=2**40,
    )
    window: int = option(
        64,
        "messages sent before the sender waits for an acknowledgment (model.pattern=bandwidth)",
        low=1,
        high=65536,
    )
    processes: int = option(2, "processes that take part in a collective", low=2, high=4096)
    servers: int = option(1, "parameter servers (model.pattern=parameter_server)", low=1, high=2048)
    workers: int = option(
        1, "workers; each calls every server (model.pattern=parameter_server)", low=1, high=2048
    )
    payload: str = option(
        "single",
        "buffers of a message (model.transport=grpc). single: one buffer of model.bytes. Other "
        "values: buffers of 10 B, 10 KiB and 1 MiB, whose total replaces model.bytes, in equal "
        "numbers (uniform), at random (random) or mostly 1 MiB (skew)",
        choices=("single", *PAYLOADS),
    )
    buffers: int = option(
        10, "number of buffers in a message, unless model.payload=single", low=3, high=10_000
    )
    serialized: bool = option(
        False, "whether protobuf encodes and decodes every message (model.transport=grpc)"
    )
    port: int = option(
        0,
        "first of the consecutive ports on which the processes of a host listen; 0: any free ports",
        low=0,
        high=65535,
    )

    def __post_init__(self) -> None:
        patterns = _PATTERNS[self.transport]
        if self.pattern not in patterns:
            reason = f"model.transport={self.transport} does not support this pattern"
            remedy = f"choose one of {', '.join(patterns)}"
            raise ConfigError("model.pattern", self.pattern, reason, remedy)
        if self.transport in _FRAMEWORKS and self.bytes % 4:
            reason = f"model.transport={self.transport} sends float32 numbers of 4 bytes each"
            raise ConfigError("model.bytes", self.bytes, reason, "choose a multiple of 4")
        for key in ("payload", "serialized"):
            value = getattr(self, key)
            if value != self._default(key) and self.transport != "grpc":
                reason = f"model.transport={self.transport} sends a single buffer without protobuf"
                raise ConfigError(f"model.{key}", value, reason, "set model.transport=grpc")
        for key, using_patterns in _PATTERNS_BY_KEY.items():
            if self.pattern not in using_patterns:
                object.__setattr__(self, key, self._default(key))
        if self.payload == "single":
            object.__setattr__(self, "buffers", self._default("buffers"))
        else:
            total = sum(buffer_sizes(self.payload, self.buffers))
            object.__setattr__(self, "bytes", total)
        # Depending on transport and pattern, each process needs a port or all processes share one.
        ports = 1
        if self.transport == "tensorflow" or self.pattern == PARAMETER_SERVER:
            ports = self.process_count
        if self.port + ports - 1 > 65535:
            reason = f"leaves fewer than the required {ports} ports up to 65535"
            remedy = f"choose a port of at most {65536 - ports}"
            raise ConfigError("model.port", self.port, reason, remedy)

    @classmethod
    def _default(cls, key: str) -> Any:
        return cls.__dataclass_fields__[key].default

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        """Return 0 FLOPs and the bytes of a message.

        Copies of the message belong to the transport and are not counted.

        Args:
            batch_size: Ignored, because messages have no batch.
            width: Ignored, because the message size is an option in bytes.
        """
        return 0, self.bytes

    def canonical_point(self, point: Any) -> Any:
        point = super().canonical_point(point)
        require_value(
            "precision",
            point.precision,
            required="float32",
            reason="model=channel sends bytes, or float32 tensors with a framework's transport",
        )
        if self.transport == "shared_memory":
            reason = "model.transport=shared_memory connects processes of one host"
            require_value("hosts", point.hosts, required=1, reason=reason)
        wanted = _FRAMEWORKS.get(self.transport, point.framework.name)
        if point.framework.name not in (wanted, "tensorflow"):
            reason = f"model.transport={self.transport} requires framework={wanted}"
            raise ConfigError("framework", point.framework.name, reason, "omit it")
        return replace(point, framework=replace(point.framework, name=wanted))

    @property
    def process_count(self) -> int:
        """Number of processes that exchange messages."""
        if self.pattern == PARAMETER_SERVER:
            return self.workers + self.servers
        if self.pattern in COLLECTIVES:
            return self.processes
        return 2

    @property
    def size(self) -> str:
        if self.pattern == "latency":
            extent = ""
        elif self.pattern == "bandwidth":
            extent = f" w{self.window}"
        elif self.pattern == PARAMETER_SERVER:
            extent = f" {self.servers}x{self.workers}"
        else:
            extent = f" x{self.processes}"
        text = f"{self.transport} {self.pattern}{extent}"
        if self.payload != "single":
            text += f" {self.payload} x{self.buffers}"
        if self.serialized:
            text += " serialized"
        return f"{text} {self.bytes} B"


def bus_factor(pattern: str, processes: int) -> float:
    """Return the bytes that each process's network link carries, per byte of a collective.

    In an all-reduce of B bytes over n processes, every process sends and receives
    2 (n - 1) / n x B bytes; in a broadcast, B bytes (NVIDIA nccl-tests, doc/PERFORMANCE.md).

    Args:
        pattern: One of `COLLECTIVES`.
        processes: Number of processes.
    """
    if pattern == "all_reduce":
        return 2 * (processes - 1) / processes
    return 1.0


@dataclass(frozen=True)
class Channel(Workload, PointRules, WorkerSide, RunRecords, ResultDescription):
    """Time steps that exchange messages between processes (options: `Communication`)."""

    name = "channel"
    key = "model"
    order = 50
    unit = "exchange"
    conflict_reason = "trains nothing"
    declared_metrics = METRICS
    added_defaults: ClassVar[Mapping[str, Any]] = {
        "model.servers": 1,
        "model.workers": 1,
        "model.payload": "single",
        "model.buffers": 10,
        "model.serialized": False,
    }
    headlines: ClassVar[Mapping[str, str]] = {"transfer_us": "us a message"}

    def open_devices(self, run: PointRun) -> None:
        """Do nothing: messages need no device."""

    def measure(self, run: PointRun) -> None:
        from paradnn.worker.measure import compile_steps
        from paradnn.workloads.channel.processes import Processes

        model = run.request["model"]
        with contextlib.ExitStack() as open_processes:
            with run.phases("build"):
                step = open_processes.enter_context(Processes(run.request)).step()
            with run.phases("compile"):
                compilation, _ = compile_steps(step)
            run.memory.begin_steps()
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
        rate = f"{metrics['sent_bytes_per_second'] / 1e6:,.1f} MB/s"
        if "bus_bytes_per_second" in metrics:
            rate += f", bus {metrics['bus_bytes_per_second'] / 1e6:,.1f} MB/s"
        clauses = (
            f"{metrics['transfer_us']:,.2f} us each{interval}",
            f"{rate}, {metrics['messages_per_second']:,.0f} per second",
        )
        return ResultText("messages", clauses, replaces_steps=True)


def _model(point: Point) -> Communication:
    assert isinstance(point.model, Communication)
    return point.model


def transfer_metrics(model: Communication, known: Mapping[str, float]) -> dict[str, float]:
    """Return the time per message and the rates of messages and bytes, by metric name.

    Times are in microseconds, and rates are per second. If the step time has a 95% interval, the
    result also contains the intervals of times and rates. Their ends have `_low` and `_high` in the
    name.

    Args:
        model: Options of the messages: pattern, size in bytes, window and number of processes.
        known: Metrics of the timed steps, by name. Those named `step_time_ms`, `step_time_low_ms`
            and `step_time_high_ms` are used if present.
    """
    metrics: dict[str, float] = {}
    # Number of messages per step. A collective counts as one message.
    messages_by_pattern = {
        "latency": 2,
        "bandwidth": model.window,
        PARAMETER_SERVER: 2 * model.workers * model.servers,
    }
    messages = messages_by_pattern.get(model.pattern, 1)
    # The lower end of a rate is computed from the upper end of the step time, and vice versa.
    for end, opposite in (("", ""), ("_low", "_high"), ("_high", "_low")):
        step_ms = known.get(f"step_time{end}_ms")
        opposite_ms = known.get(f"step_time{opposite}_ms")
        if step_ms is None or opposite_ms is None:
            continue
        metrics[f"transfer{end}_us"] = 1e3 * step_ms / messages
        if model.pattern in ("latency", PARAMETER_SERVER):
            metrics[f"round_trip{end}_us"] = 1e3 * step_ms
        rate = 1e3 * messages / opposite_ms
        metrics[f"messages_per_second{end}"] = rate
        metrics[f"sent_bytes_per_second{end}"] = rate * model.bytes
        if model.pattern in COLLECTIVES:
            factor = bus_factor(model.pattern, model.processes)
            metrics[f"bus_bytes_per_second{end}"] = rate * model.bytes * factor
    return metrics


CHANNEL = Channel()
FAMILY = Family(
    "channel",
    Communication,
    "vectors",
    ("bytes", "transport", "pattern"),
    "model.transport=tcp,grpc model.bytes=64,4096,262144",
    order=20,
    summary="Messages between processes: latency, bandwidth, parameter servers, collectives.",
    defaults=UNBATCHED_DEFAULTS,
)
