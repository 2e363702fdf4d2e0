"""Messages between driver and worker: frozen dataclasses, validated on arrival.

A message is one JSON object on one line (`paradnn.core.channel`). The driver writes requests to the
standard input of the worker:

    {"protocol": 17, "id": 7, "point": {...}, "stderr": "/path/of/a/file"}

The worker writes events, each with a key `event`, to its standard output: `ready`, or `refused` if
the framework cannot be imported. Then it writes for each request either `refused`, or

    started, any number of phase and news, result, exited

Every message has all of its fields as keys. NaN and infinities are strings. Standard error is not
part of the protocol.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from paradnn.core.layers import Costs

#: Driver and worker reject each other if it differs. Raise it with every change of a message.
PROTOCOL_VERSION = 17

AnyMessage = TypeVar("AnyMessage", bound="WorkloadMessage")

# Durations beyond these bounds, in seconds, are errors of measurement.
_MIN_KERNEL_SECONDS = 1e-12
_MIN_BLOCK_SECONDS = 1e-9
_MAX_SECONDS = 1e9
# Powers beyond this bound, in watts, are errors of measurement.
_MAX_WATTS = 1e6


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
    """A part of the work of an input pipeline that ran without the step.

    Attributes:
        examples: Number of examples.
        seconds: Elapsed seconds.
        cpu_seconds: Processor seconds.
    """

    examples: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class InputMeasurement:
    """The cost of the input pipeline (docs/how-to/input.md).

    Attributes:
        waits: Seconds that each block waited for input.
        free_step_seconds: Step times per round with a batch that stays on the device.
        fed_step_seconds: Step times per round with the pipeline.
        alone: Parts of the pipeline's work without the step.
        threads: Threads of the pipeline.

    Raises:
        ValueError: If step times are not paired, or a part took no time.
    """

    waits: list[float]
    free_step_seconds: list[float]
    fed_step_seconds: list[float]
    alone: list[PipelinePart]
    threads: int

    def __post_init__(self) -> None:
        step_seconds = [*self.free_step_seconds, *self.fed_step_seconds]
        is_paired = len(self.free_step_seconds) == len(self.fed_step_seconds)
        if not is_paired or not step_seconds or min(step_seconds) <= 0:
            raise ValueError("there are no pairs of step times")
        if not self.alone or any(part.examples < 1 or part.seconds <= 0 for part in self.alone):
            raise ValueError("no part of the pipeline took time on its own")


@dataclass(frozen=True)
class Trial:
    """A trial of the calibration: number of steps and elapsed seconds."""

    steps: int
    seconds: float


@dataclass(frozen=True)
class References:
    """One run of each reference kernel (`paradnn.worker.reference`).

    Attributes:
        blocks: Number of blocks that had ended; -1 before the model was built.
        seconds: Seconds of a call by kernel.

    Raises:
        ValueError: If a kernel took no time.
    """

    blocks: int
    seconds: dict[str, float]

    def __post_init__(self) -> None:
        durations = self.seconds.values()
        if not all(_MIN_KERNEL_SECONDS <= seconds < _MAX_SECONDS for seconds in durations):
            raise ValueError("a reference kernel took no time")


@dataclass(frozen=True)
class Timing:
    """The raw times of a point in seconds.

    Attributes:
        steps_per_block: Steps between two synchronizations.
        calibration: Trials that determined `steps_per_block`.
        warmup: Seconds of each block of the warm-up.
        blocks: Seconds of each measured block.
        steady: Whether the measured blocks show no change that matters.
        steady_reason: What the verdict is based on.
        final_loss: The loss after the last block; None in inference.
        discarded: Blocks of attempts after `blocks`, which were disturbed more.
        repeated: Seconds of all attempts except the one that counts.
        references: Reference kernels that ran between the blocks.
        reference_seconds: Seconds of `references`, with the untimed steps that follow each.

    Raises:
        ValueError: If there is no block that took time.
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
    reference_seconds: float = 0.0

    def __post_init__(self) -> None:
        took_time = all(_MIN_BLOCK_SECONDS <= block < _MAX_SECONDS for block in self.blocks)
        if self.steps_per_block < 1 or not self.blocks or not took_time:
            raise ValueError("there is no block of steps that took time")

    @property
    def step_times(self) -> list[float]:
        """Seconds of a step in each measured block."""
        return [seconds / self.steps_per_block for seconds in self.blocks]


@dataclass(frozen=True)
class Contention:
    """Processor time that others took from the measured blocks (`paradnn.worker.contention`).

    Shares are relative to the capacity of the cores, except `throttled_fraction`, which is relative
    to the elapsed time. A value is None if the system does not provide it.

    Attributes:
        cores: Cores that the point may use.
        own_cpu_fraction: Share that the point used.
        foreign_cpu_fraction: Share that other processes used.
        steal_fraction: Share that the hypervisor took.
        involuntary_switches_per_second: How often a thread of the point lost its core.
        throttled_fraction: Share of the time in which a quota stopped the point.
        reason: Which of these is too high; None if none is.
        stops: How often the process was stopped and continued.
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
        """The total share that others took, for comparison with another attempt.

        A stop counts as one, which is all of the capacity.
        """
        shares = (self.foreign_cpu_fraction, self.steal_fraction, self.throttled_fraction)
        total = sum(share for share in shares if share is not None)
        if self.stops:
            total += 1.0
        return total


@dataclass(frozen=True)
class Conversion:
    """The artifact of an engine; the fields have the names of their metrics.

    Attributes:
        conversion_seconds: Seconds to convert and load it.
        artefact_bytes: Its size.
        conversion_error: Largest difference of its outputs from those of the model, relative to the
            largest output of the model.
    """

    conversion_seconds: float
    artefact_bytes: float
    conversion_error: float


@dataclass(frozen=True)
class Compilation:
    """The first steps, up to one that compiled nothing.

    Attributes:
        seconds: Seconds of each step.
        programs: Programs that each step compiled.
        note: A remark of the framework; None without one.
        contention: What disturbed the steps.
        conversion: The conversion for an engine, which is part of the first step.

    Raises:
        ValueError: If the lists are empty or differ in length.
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
    """Measurements of the timed steps of a process.

    Attributes:
        parameters: Trainable parameters of the model that was built.
        compilation: The first steps.
        product_types: Shares of the FLOPs of products, by type of their operands, in the program
            that runs.
        first_loss: The loss of the first step; None in inference.
        timing: The timed blocks.
        energy_joules: Energy of the blocks; None if it is unknown.
        energy_source: The counter, or why it is unavailable.
        contention: What disturbed the blocks.
        counted: Costs that only the worker can count.
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
    """A table of operations: rows of values under named columns.

    Raises:
        ValueError: If a row has another number of values.
    """

    columns: list[str]
    data: list[list[Any]]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.data):
            raise ValueError(f"a row does not have the {len(self.columns)} columns")

    def rows(self) -> list[dict[str, Any]]:
        """Return each row as a mapping by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.data]


@dataclass(frozen=True)
class Profile:
    """Time of a step by operation (`paradnn.worker.profile`); seconds and FLOPs are per step.

    Attributes:
        operations: One row per operation.
        operation_types: One row per type of operation.
        step_seconds: Step time under the profiler.
        unexplained_share: Share of the step in which no known operation ran.
        product_flops: FLOPs of matrix products and convolutions.
        product_types: Shares of these FLOPs by type of the operands.
        steps: Number of profiled steps.
        slowdown: Step time under the profiler relative to the measured step time.
        trace: Files of the trace in base64, by the path where TensorBoard looks for them.
        command_buffers: Parts of the program that a GPU runs as one graph, whose operations the
            trace does not distinguish.
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
    """A measured point has no profile.

    Attributes:
        unavailable: The reason.
        limited: Whether another limit of time or memory could allow a profile.
    """

    unavailable: str
    limited: bool = False


@dataclass(frozen=True)
class ProductRate:
    """FLOP/s of products of square matrices.

    Attributes:
        precision: Type of the operands.
        size: Rows and columns of the matrices.
        compile: The compile mode.
        flops_per_second: Median over blocks.
        low: Lower quartile over blocks.
        high: Upper quartile over blocks.
        blocks: Number of blocks.
        steady: Whether the blocks show no change that matters.
        disturbed: What disturbed the blocks; None if nothing did.
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
    """B/s of the in-place sum of two arrays of `array_bytes` each; otherwise like ProductRate."""

    array_bytes: int
    bytes_per_second: float
    low: float
    high: float
    blocks: int
    steady: bool = True
    disturbed: str | None = None


@dataclass(frozen=True)
class IdlePower:
    """Power of the package or board while the framework is loaded and nothing runs.

    Attributes:
        watts: The power; None if it is unknown.
        source: The counter, or why it is unavailable.
        disturbed: What else ran at the time; None if nothing did.

    Raises:
        ValueError: If the power is not a positive number.
    """

    watts: float | None
    source: str
    disturbed: str | None = None

    def __post_init__(self) -> None:
        if self.watts is not None and not 0 < self.watts < _MAX_WATTS:
            raise ValueError(f"idle power of {self.watts} W")


@dataclass(frozen=True)
class PeakRates:
    """The peak rates of the machine (`paradnn.worker.peak_rates`), and its idle power.

    Attributes:
        matmul: Rates of matrix products.
        bandwidth: Rates of array sums.
        references: Seconds of a call of each reference kernel.
        idle: Power while nothing runs.
    """

    matmul: list[ProductRate]
    bandwidth: list[ArrayRate]
    references: dict[str, float] = field(default_factory=dict)
    idle: IdlePower | None = None


@dataclass(frozen=True)
class Answer:
    """Outcome of a request in the child, with the measurements until then.

    Attributes:
        outcome: One of `paradnn.config.outcome.OUTCOMES`.
        reason: One line; None if the outcome needs none.
        phases: Seconds by phase.
        peak_memory_bytes: Peak memory of the point's processes.
        step_memory_bytes: Growth of anonymous memory during the steps after compilation.
        peak_device_memory_bytes: Peak device memory, as the framework reports it.
        measurement: What the timed steps gave.
        latencies: Seconds of single steps.
        work: What only the point's kind of work measures.
        contention: What disturbed phases other than the measured blocks, by phase.
        input: The cost of the input pipeline.
        profile: Where the time of a step goes.
        peak_rates: The peak rates of the machine, for task=ceilings.

    Raises:
        ValueError: If the outcome is ok, but nothing was measured.
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
    """A request to measure a point.

    Attributes:
        protocol: The protocol version of the driver.
        id: Number of the request.
        point: The point as plain values; its key `task` may ask for peak rates instead.
        stderr: File for the standard error of the child; None for that of the worker.
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
    """The framework cannot be imported and the worker exits, or a request cannot be served.

    No child is forked for a refused request.
    """

    reason: str


@dataclass(frozen=True)
class Started:
    """A child was forked for request `id`."""

    id: int
    pid: int


@dataclass(frozen=True)
class PhaseBegun:
    """The child enters a phase.

    Attributes:
        phase: The name of the phase.
        answer: The complete answer so far, which counts if the child dies in this phase; None if it
            is not complete.
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
    """A message of the point's kind of work that precedes the child's answer."""

    part: WorkloadMessage


Event = Ready | Refused | Started | PhaseBegun | News | PointAnswered | Exited

#: Event types by their name in the JSON.
EVENTS: dict[str, type[Event]] = {
    "ready": Ready,
    "refused": Refused,
    "started": Started,
    "phase": PhaseBegun,
    "news": News,
    "result": PointAnswered,
    "exited": Exited,
}
