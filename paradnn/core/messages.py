"""What driver and worker say to each other: frozen dataclasses, built on one side and validated on
the other.

One JSON object a line (`paradnn.core.channel`). The driver writes requests to the worker's standard
input:

    {"protocol": 15, "id": 7, "point": {...}, "stderr": "/path/of/a/file"}

and reads events, each with a key `event`, from its standard output:

    ready, or refused where the framework cannot be imported; then for each request
    started, phase and news as often as there are any, result, exited; or refused

Fields are keys, all of them in every message; NaN and infinities are strings; standard error
belongs to no protocol.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from paradnn.core.layers import Costs

AnyMessage = TypeVar("AnyMessage", bound="WorkloadMessage")


class WorkloadMessage:
    """Base of the messages that only one kind of work sends from worker to driver.

    A subclass is a frozen dataclass. It is sent in the `work` field of an `Answer`, or as `News`
    while the point is still being measured.

    Attributes:
        wire_name: The name of the message type in the JSON, under the key `of`.
    """

    wire_name: ClassVar[str]


@dataclass(frozen=True)
class PipelinePart:
    """A part of an input pipeline's work without the step: examples, elapsed and processor seconds."""

    examples: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class InputMeasurement:
    """What input cost (docs/how-to/input.md): seconds waited within each block, pairs of step times, one a
    round, and parts of the pipeline's work alone.
    """

    waits: list[float]
    free_step_seconds: list[float]
    fed_step_seconds: list[float]
    alone: list[PipelinePart]
    threads: int

    def __post_init__(self) -> None:
        pairs = [*self.free_step_seconds, *self.fed_step_seconds]
        if (
            len(self.free_step_seconds) != len(self.fed_step_seconds)
            or not pairs
            or min(pairs) <= 0
        ):
            raise ValueError("there are no pairs of step times")
        if not self.alone or any(part.examples < 1 or part.seconds <= 0 for part in self.alone):
            raise ValueError("there is no part of the pipeline alone that took time")


#: Driver and worker refuse each other where it differs: raise it with every change of a message.
PROTOCOL_VERSION = 16


@dataclass(frozen=True)
class Trial:
    """A trial of the calibration: how many steps, and how long they took."""

    steps: int
    seconds: float


@dataclass(frozen=True)
class References:
    """Seconds of a call of each reference kernel (`paradnn.worker.reference`) when so many blocks
    had ended; before the model was there where that is -1.
    """

    blocks: int
    seconds: dict[str, float]

    def __post_init__(self) -> None:
        if not all(1e-12 <= seconds < 1e9 for seconds in self.seconds.values()):
            raise ValueError("a reference kernel took no time")


@dataclass(frozen=True)
class Timing:
    """Raw times of a point: seconds of each block of `steps_per_block` steps, of the warm-up and
    after it. `discarded` came after `blocks` and were disturbed more; `repeated` are the seconds of
    all attempts but that which counts, `beside` those of the `references` between the blocks, with
    the untimed step behind each.
    """

    steps_per_block: int
    calibration: list[Trial]
    warmup: list[float]
    blocks: list[float]
    steady: bool
    steady_reason: str
    final_loss: float | None
    discarded: list[float] = field(default_factory=list)
    repeated: float = 0.0
    references: list[References] = field(default_factory=list)
    beside: float = 0.0

    def __post_init__(self) -> None:
        if (
            self.steps_per_block < 1
            or not self.blocks
            or not all(1e-9 <= block < 1e9 for block in self.blocks)
        ):
            raise ValueError("there is no block of steps that took time")

    @property
    def step_times(self) -> list[float]:
        """Seconds of a step in each measured block."""
        return [seconds / self.steps_per_block for seconds in self.blocks]


@dataclass(frozen=True)
class Contention:
    """What took cores from the measured blocks (`paradnn.worker.meters`), as shares of the capacity
    of the point's `cores`, `throttled_fraction` of the time; None where the system does not tell.
    `reason` says what is too much; `stops`: how often the process was stopped and went on.
    """

    cores: int
    own_cpu_fraction: float | None
    foreign_cpu_fraction: float | None
    steal_fraction: float | None
    involuntary_switches_per_second: float | None
    throttled_fraction: float | None
    reason: str | None
    stops: int = 0

    @property
    def taken(self) -> float:
        """What others took, to be compared with another attempt of the same point; a stop counts as
        all of it.
        """
        shares = self.foreign_cpu_fraction, self.steal_fraction, self.throttled_fraction
        return sum(share or 0.0 for share in shares) + bool(self.stops)


@dataclass(frozen=True)
class Conversion:
    """An engine's artefact, under the names of its metrics: seconds until it was made and loaded,
    its size, and the largest difference of its outputs from those of the model, as a share of the
    largest of those.
    """

    conversion_seconds: float
    artefact_bytes: float
    conversion_error: float


@dataclass(frozen=True)
class Compilation:
    """The steps until one compiled nothing: seconds of each, how many programs each compiled, a
    note on them, what disturbed them, and of an engine the conversion in the first.
    """

    seconds: list[float]
    programs: list[int]
    note: str | None
    contention: Contention | None = None
    conversion: Conversion | None = None

    def __post_init__(self) -> None:
        if not self.seconds or len(self.seconds) != len(self.programs):
            raise ValueError("there is no first step with its seconds and its programs")


@dataclass(frozen=True)
class Measurement:
    """What the timed steps gave; losses are None in inference. `product_types` maps the type of
    operands to its share of the FLOPs of products in the program that runs; `counted`: costs that
    the driver does not know.
    """

    parameters: int
    compilation: Compilation
    product_types: dict[str, float]
    first_loss: float | None
    timing: Timing
    energy_joules: float | None
    energy_source: str
    contention: Contention | None = None
    counted: Costs | None = None


@dataclass(frozen=True)
class OperationTable:
    """Rows of values under named columns."""

    columns: list[str]
    data: list[list[Any]]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.data):
            raise ValueError(f"a row does not have the {len(self.columns)} columns")

    def rows(self) -> list[dict[str, Any]]:
        """Each row as a mapping by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.data]


@dataclass(frozen=True)
class Profile:
    """Where the time of a step goes (`paradnn.worker.profile`); seconds and FLOPs are those of one
    step, `slowdown` is traced step time / measured step time. `trace` maps the path where
    TensorBoard looks for it to the trace's file in base64; `command_buffers` are parts of the
    program that a GPU runs as one graph, whose operations the trace does not tell apart.
    """

    operations: OperationTable
    operation_types: OperationTable
    step_seconds: float
    unexplained_share: float
    product_flops: float
    product_types: dict[str, float]
    steps: int
    slowdown: float
    trace: dict[str, str] = field(default_factory=dict)
    command_buffers: int = 0


@dataclass(frozen=True)
class NoProfile:
    """Why a measured point has no profile; `limited`: under another limit of time or memory it may
    have one.
    """

    unavailable: str
    limited: bool = False


@dataclass(frozen=True)
class ProductRate:
    """FLOP/s of square matrix products: median over blocks, with the quartiles, and what disturbed
    them.
    """

    precision: str
    size: int
    compile: str
    flops_per_second: float
    low: float
    high: float
    blocks: int
    steady: bool = True
    disturbed: str | None = None


@dataclass(frozen=True)
class ArrayRate:
    """B/s of the sum of two arrays of `array_bytes` each, in place: as `ProductRate`."""

    array_bytes: int
    bytes_per_second: float
    low: float
    high: float
    blocks: int
    steady: bool = True
    disturbed: str | None = None


@dataclass(frozen=True)
class PeakRates:
    """What the machine does at most (`paradnn.worker.peak_rates`), and seconds of a call of each
    reference kernel.
    """

    matmul: list[ProductRate]
    bandwidth: list[ArrayRate]
    references: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """How a request ended within the child, and what was measured before that: seconds of each
    phase and of single steps (`latencies`), bytes of memory, what the point's kind of work measures
    beside its steps (`work`), and what disturbed phases other than the measured blocks
    (`contention`).
    """

    outcome: str
    reason: str | None
    phases: dict[str, float]
    peak_memory_bytes: int | None = None
    step_memory_bytes: int | None = None
    peak_device_memory_bytes: int | None = None
    measurement: Measurement | None = None
    latencies: list[float] | None = None
    work: WorkloadMessage | None = None
    contention: dict[str, Contention] = field(default_factory=dict)
    input: InputMeasurement | None = None
    profile: Profile | NoProfile | None = None
    peak_rates: PeakRates | None = None

    def __post_init__(self) -> None:
        if self.outcome == "ok" and not (self.measurement or self.peak_rates or self.work):
            raise ValueError("the outcome is ok, but nothing was measured")


def messages_of_kind(answers: Iterable[Answer], kind: type[AnyMessage]) -> list[AnyMessage]:
    """Return the workload messages of one type in the answers of several processes."""
    return [answer.work for answer in answers if isinstance(answer.work, kind)]


@dataclass(frozen=True)
class Request:
    """Measure `point` (its key `task` may ask for ceilings instead); the child's standard error
    goes to `stderr`.
    """

    protocol: int
    id: int
    point: dict[str, Any]
    stderr: str | None


@dataclass(frozen=True)
class Ready:
    """The framework is imported."""

    protocol: int


@dataclass(frozen=True)
class Refused:
    """The framework cannot be imported, and the worker exits; or a request cannot be served, and no
    child is forked.
    """

    reason: str


@dataclass(frozen=True)
class Started:
    """A child was forked for request `id`."""

    id: int
    pid: int


@dataclass(frozen=True)
class PhaseBegun:
    """The child enters a phase; `answer`, where what was measured is complete, counts if it dies
    there.
    """

    phase: str
    answer: Answer | None


@dataclass(frozen=True)
class PointAnswered:
    """The child's answer to request `id`."""

    id: int
    answer: Answer


@dataclass(frozen=True)
class Exited:
    """The child of request `id` has exited, with a code or by a signal."""

    id: int
    exit_code: int | None
    signal: int | None
    max_resident_bytes: int


@dataclass(frozen=True)
class News:
    """A piece of what the point's kind of work measures is known, before the child's answer."""

    part: WorkloadMessage


Event = Ready | Refused | Started | PhaseBegun | News | PointAnswered | Exited

#: Events by the name that they have on the pipe.
EVENTS: dict[str, type[Event]] = {"ready": Ready, "refused": Refused, "started": Started}
EVENTS |= {"phase": PhaseBegun, "news": News, "result": PointAnswered, "exited": Exited}
