"""Messages between driver and worker: frozen dataclasses, validated on arrival.

A message is one JSON object on one line (`paradnn.core.channel`). The driver writes requests to the
standard input of the worker:

    {"protocol": 17, "id": 7, "point": {...}, "stderr": "/path/of/a/file"}

The worker writes events, each with a key `event`, to its standard output: `ready`, or `refused` if
the framework cannot be imported. Then it writes for each request either `refused`, or

    started, any number of phase and news, result, exited

Every message contains all of its fields. NaN and infinities are encoded as strings. Standard error
is not part of the protocol.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from paradnn.core.layers import Costs

#: Driver and worker reject each other if their versions differ. Raise the version with every change
#: of a message.
PROTOCOL_VERSION = 17

AnyMessage = TypeVar("AnyMessage", bound="WorkloadMessage")

# Plausible durations in seconds: values outside of these bounds are measurement errors.
_MIN_KERNEL_SECONDS = 1e-12
_MIN_BLOCK_SECONDS = 1e-9
_MAX_SECONDS = 1e9
# Largest plausible power in watts.
_MAX_WATTS = 1e6


class WorkloadMessage:
    """Base class of the messages that only one kind of work sends from worker to driver.

    A subclass is a frozen dataclass. A message is sent in the `work` field of an `Answer`, or in
    `News` while the point is still being measured.

    Attributes:
        wire_name: The name of the message type in the JSON, under the key `of`.
    """

    wire_name: ClassVar[str]


@dataclass(frozen=True)
class PipelinePart:
    """Measurement of an input pipeline for a number of examples, without the step.

    Attributes:
        examples: Number of examples.
        seconds: Elapsed time.
        cpu_seconds: Processor time of the process.
    """

    examples: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class InputMeasurement:
    """The cost of the input pipeline (docs/how-to/input.md).

    Attributes:
        waits: Seconds that each timed block waited for input.
        free_step_seconds: Step time of each round with a batch that stays on the device.
        fed_step_seconds: Step time of each round with batches from the pipeline.
        alone: Measurements of the pipeline without the step.
        threads: Threads of the pipeline.

    Raises:
        ValueError: If step times are not paired or not positive, or a part took no time.
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
        blocks: Number of blocks that had ended before this run; -1 before the model was built.
        seconds: Seconds per call by kernel.

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
        steady_reason: The reason for the verdict `steady`.
        final_loss: The loss after the last block; None in inference.
        discarded: Seconds of each block of later attempts, which were disturbed more.
        repeated: Total seconds of the blocks of all attempts except the one that counts.
        references: Runs of the reference kernels between the blocks.
        reference_seconds: Total seconds of these runs and of the untimed steps after each.

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
        """Mean step time of each measured block, in seconds."""
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
        reason: Which of these values are too high; None if the blocks count as undisturbed.
        stops: How often the process was stopped (SIGSTOP) and continued.
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

        If the process was stopped, 1 is added, which corresponds to the whole capacity.
        """
        shares = (self.foreign_cpu_fraction, self.steal_fraction, self.throttled_fraction)
        total = sum(share for share in shares if share is not None)
        if self.stops:
            total += 1.0
        return total


@dataclass(frozen=True)
class Conversion:
    """Facts about the artifact of an engine. The fields are also the names of their metrics.

    Attributes:
        conversion_seconds: Seconds to convert the model and load the artifact.
        artefact_bytes: Size of the artifact.
        conversion_error: Largest difference between outputs of the artifact and of the model,
            relative to the largest output of the model.
    """

    conversion_seconds: float
    artefact_bytes: float
    conversion_error: float


@dataclass(frozen=True)
class Compilation:
    """The first steps of a point: those that compile, and one that compiles nothing.

    Attributes:
        seconds: Seconds of each step.
        programs: Number of programs that each step compiled.
        note: How the framework interpreted `compile`, and other remarks; None if there are none.
        contention: Contention during these steps; None if the system does not report it.
        conversion: The conversion of the model for an engine, which is part of the first step.

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
        product_types: For each element type, the share of the FLOPs of products with operands of
            this type, in the compiled program.
        first_loss: The loss of the first step; None in inference.
        timing: The timed blocks.
        energy_joules: Energy of the blocks; None if it is unknown.
        energy_source: The energy counter, or why it is unavailable.
        contention: Contention during the blocks; None if the system does not report it.
        counted: Costs of a model whose layers are unknown; None for other models.
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
        ValueError: If a row does not have one value per column.
    """

    columns: list[str]
    data: list[list[Any]]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.data):
            raise ValueError(f"a row does not have the {len(self.columns)} columns")

    def rows(self) -> list[dict[str, Any]]:
        """Return each row as a mapping from column to value."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.data]


@dataclass(frozen=True)
class Profile:
    """Time of a step by operation (`paradnn.worker.profile`); seconds and FLOPs are per step.

    Attributes:
        operations: One row per operation.
        operation_types: One row per type of operation.
        step_seconds: Step time under the profiler.
        unexplained_share: Share of the step time in which no known operation ran.
        product_flops: FLOPs of matrix products and convolutions.
        product_types: Shares of these FLOPs by element type of the operands.
        steps: Number of profiled steps.
        slowdown: Step time under the profiler relative to the measured step time.
        trace: Files of the trace in base64, by the relative path where TensorBoard expects them.
        command_buffers: Number of program parts that a GPU runs as one graph. The trace does not
            distinguish the operations of such a part.
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
    """Replaces the profile of a measured point that has none.

    Attributes:
        unavailable: The reason.
        limited: Whether a higher limit of time or memory could allow a profile.
    """

    unavailable: str
    limited: bool = False


@dataclass(frozen=True)
class ProductRate:
    """Rate of products of square matrices, in FLOP/s.

    Attributes:
        precision: Element type of the operands.
        size: Rows and columns of the matrices.
        compile: The compile mode.
        flops_per_second: Median over blocks.
        low: Lower quartile over blocks.
        high: Upper quartile over blocks.
        blocks: Number of blocks.
        steady: Whether the blocks show no change that matters.
        disturbed: What disturbed the blocks; None if they were undisturbed.
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
    """Rate of the in-place sum of two arrays, in bytes/s.

    `array_bytes` is the size of each array. The other fields are like those of ProductRate.
    """

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
        source: The energy counter, or why it is unavailable.
        disturbed: What else ran at the time; None if the measurement was undisturbed.

    Raises:
        ValueError: If the power is not plausible.
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
        references: Seconds per call of each reference kernel.
        idle: Idle power; None if it was not measured.
    """

    matmul: list[ProductRate]
    bandwidth: list[ArrayRate]
    references: dict[str, float] = field(default_factory=dict)
    idle: IdlePower | None = None


@dataclass(frozen=True)
class Answer:
    """Outcome of a request, with all measurements up to that point.

    Measurements are None, or empty, if they were not made.

    Attributes:
        outcome: One of `paradnn.config.outcome.OUTCOMES`.
        reason: The reason for the outcome, one line; None if the outcome needs no reason.
        phases: Seconds by phase.
        peak_memory_bytes: Peak memory of the point's processes.
        step_memory_bytes: Growth of anonymous memory during the steps after compilation.
        peak_device_memory_bytes: Peak device memory, as the framework reports it.
        measurement: Results of the timed steps.
        latencies: Seconds of single synchronized steps.
        work: Results that only the point's kind of work measures.
        contention: Contention during phases other than the measured blocks, by phase.
        input: The cost of the input pipeline.
        profile: The time of a step by operation.
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
        point: The point as plain values. With task=ceilings, a request for the peak rates instead.
        stderr: File for the output of the child; None if the child uses the worker's output.
    """

    protocol: int
    id: int
    point: dict[str, Any]
    stderr: str | None


@dataclass(frozen=True)
class Ready:
    """The worker has imported the framework, and accepts requests."""

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
        answer: The answer that counts if the child dies in this phase; None if the answer is not
            complete before the phase.
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
    """The child of request `id` has exited, with an exit code or by a signal.

    `max_resident_bytes` is the largest resident memory of the child.
    """

    id: int
    exit_code: int | None
    signal: int | None
    max_resident_bytes: int


@dataclass(frozen=True)
class News:
    """A message of the point's kind of work, sent before the child's answer."""

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
