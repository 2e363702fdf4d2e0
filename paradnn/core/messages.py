"""Messages between driver and worker: frozen dataclasses, validated on arrival.

A message is one JSON object on one line (`paradnn.core.channel`). The driver writes requests to the
standard input of the worker:

    {"protocol": 17, "id": 7, "point": {...}, "stderr": "/path/of/a/file"}

The worker writes events to its standard output. The key `event` names the type of each event. The
first event is `ready`, or `refused` if the framework cannot be imported. For each request, the
worker then writes either `refused`, or the sequence

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

# Bounds of plausible durations in seconds. Values outside of these bounds are measurement errors.
_MIN_KERNEL_SECONDS = 1e-12
_MIN_BLOCK_SECONDS = 1e-9
_MAX_SECONDS = 1e9
# Largest plausible power in watts.
_MAX_WATTS = 1e6


class WorkloadMessage:
    """Base class of messages from worker to driver that only one kind of work sends.

    A kind of work is, for example, a training step or serving. A subclass is a frozen dataclass. A
    message is sent in the `work` field of an `Answer`, or in `News` before the measurement has
    ended.

    Attributes:
        wire_name: The name of the message type, which is the value of the key `of` in the JSON.
    """

    wire_name: ClassVar[str]


@dataclass(frozen=True)
class PipelinePart:
    """One measurement of an input pipeline that runs alone, without steps.

    Attributes:
        examples: Number of examples that the pipeline produced.
        seconds: Elapsed time in seconds.
        cpu_seconds: Processor time of the process in seconds.
    """

    examples: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class InputMeasurement:
    """The cost of the input pipeline, which reads and prepares batches (docs/how-to/input.md).

    Attributes:
        waits: Seconds that the steps of each timed block waited for input.
        free_step_seconds: Step times in seconds with a batch that stays on the device, one per
            round.
        fed_step_seconds: Step times in seconds with batches from the pipeline, one per round.
        alone: Measurements of the pipeline without steps.
        threads: Number of threads of the pipeline.

    Raises:
        ValueError: If step times are missing, not paired or not positive, or if `alone` is empty or
            has a part without examples or time.
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
            raise ValueError(
                "step times are missing or not positive, or there are not equally many step times "
                "with input as without"
            )
        if not self.alone or any(part.examples < 1 or part.seconds <= 0 for part in self.alone):
            raise ValueError(
                "measurements of the pipeline alone are missing, or lack examples or a positive time"
            )


@dataclass(frozen=True)
class Trial:
    """A trial block, from whose duration the number of steps per timed block is determined.

    Attributes:
        steps: Number of steps of the block.
        seconds: Elapsed time.
    """

    steps: int
    seconds: float


@dataclass(frozen=True)
class References:
    """One run of each reference kernel, which measures the current speed of the machine.

    `paradnn.worker.reference` defines the kernels.

    Attributes:
        blocks: Number of blocks that had ended before this run; -1 if the model was not built yet.
        seconds: Name of the kernel -> seconds per call.

    Raises:
        ValueError: If a kernel took no time.
    """

    blocks: int
    seconds: dict[str, float]

    def __post_init__(self) -> None:
        durations = self.seconds.values()
        if not all(_MIN_KERNEL_SECONDS <= seconds < _MAX_SECONDS for seconds in durations):
            raise ValueError(
                f"the time of a reference kernel is implausible (seconds: {self.seconds})"
            )


@dataclass(frozen=True)
class Timing:
    """The raw times of one configuration in one process, in seconds.

    A block is a number of steps between two synchronizations of host and device.

    Attributes:
        steps_per_block: Steps between two synchronizations.
        calibration: Trial blocks, from whose times `steps_per_block` was determined.
        warmup: Seconds of each block of the warm-up.
        blocks: Seconds of each measured block.
        steady: Whether the measured blocks show no relevant change over time.
        steady_reason: Why the blocks count as steady or not, as text.
        final_loss: The loss after the last block; None in inference.
        discarded: Seconds of each block of discarded attempts. Such an attempt followed the attempt
            in `blocks`, and was disturbed more.
        repeated: Total seconds of the blocks of all attempts except the attempt in `blocks`.
        references: Runs of the reference kernels: before the model was built, and between the
            blocks.
        reference_seconds: Total seconds of the runs of the reference kernels, and of the untimed
            step after each run.

    Raises:
        ValueError: If there are no blocks, or a block took no plausible time.
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
            raise ValueError("blocks are missing, or the time of a block is implausible")

    @property
    def step_times(self) -> list[float]:
        """Mean step time of each measured block, in seconds."""
        return [seconds / self.steps_per_block for seconds in self.blocks]


@dataclass(frozen=True)
class Contention:
    """Use of the processor cores during the measured blocks, by the point and by others.

    The point is the measured configuration with its processes.

    Fractions are relative to the capacity of the cores (`cores` x elapsed time), except
    `throttled_fraction`, which is relative to the elapsed time. A value is None if the system does
    not report it. `paradnn.worker.contention` measures the values.

    Attributes:
        cores: Number of cores that the point may use.
        own_cpu_fraction: Fraction that the point used.
        foreign_cpu_fraction: Fraction that other processes used.
        steal_fraction: Fraction that the hypervisor took.
        involuntary_switches_per_second: Preemptions of the point's threads per second.
        throttled_fraction: Fraction of the time in which a CPU quota stopped the point.
        reason: Which of these values are too high, as text; None if the blocks count as
            undisturbed.
        stops: Number of times that the process was stopped (SIGSTOP) and continued.
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
        """Sum of foreign, steal and throttled fractions: how much the blocks were disturbed.

        Unknown fractions count as 0. If the process was stopped, 1 is added. Repeated attempts to
        measure the blocks are compared by this sum.
        """
        shares = (self.foreign_cpu_fraction, self.steal_fraction, self.throttled_fraction)
        total = sum(share for share in shares if share is not None)
        if self.stops:
            total += 1.0
        return total


@dataclass(frozen=True)
class Conversion:
    """The conversion of a model to the file of an inference engine (the artifact).

    The fields have the names of metrics.

    Attributes:
        conversion_seconds: Seconds to convert the model and to load the artifact.
        artefact_bytes: Size of the artifact in bytes.
        conversion_error: Largest difference between outputs of the artifact and of the model,
            relative to the largest output of the model.
    """

    conversion_seconds: float
    artefact_bytes: float
    conversion_error: float


@dataclass(frozen=True)
class Compilation:
    """The first steps of a measurement, up to and including the first that compiled nothing.

    Attributes:
        seconds: Seconds of each step.
        programs: Number of programs that each step compiled.
        note: How the framework interpreted `compile`, and other remarks; None without remarks.
        contention: Use of the cores during the first steps; None if the system does not report it.
        conversion: The conversion of the model for an inference engine, which is part of the first
            step; None if a framework runs the model.

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
            raise ValueError(
                "the first steps are missing, or their numbers of times and programs differ"
            )


@dataclass(frozen=True)
class Measurement:
    """Measurements of the timed steps of a process.

    Attributes:
        parameters: Number of trainable parameters of the built model.
        compilation: Times and compiled programs of the first steps, in which the framework compiles
            the model.
        product_types: Element type -> share of the program's product FLOPs whose operands have this
            type.
        first_loss: The loss of the first step; None in inference.
        timing: The timed blocks.
        energy_joules: Energy of the blocks in J; None if unknown.
        energy_source: The energy counter, or why it is unavailable.
        contention: Use of the cores during the blocks; None if the system does not report it.
        counted: Costs that the worker counted, for a model whose layers the driver does not know;
            None for other models.
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
    """A table of a profile's operations.

    Attributes:
        columns: Names of the columns.
        data: Rows, each with one value per column.

    Raises:
        ValueError: If a row does not have one value per column.
    """

    columns: list[str]
    data: list[list[Any]]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.data):
            raise ValueError(f"a row does not have {len(self.columns)} values, one per column")

    def rows(self) -> list[dict[str, Any]]:
        """Return each row as a mapping from column to value."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.data]


@dataclass(frozen=True)
class Profile:
    """Time of a step by operation (`paradnn.worker.profile`). Seconds and FLOPs are per step.

    Attributes:
        operations: One row per operation.
        operation_types: One row per type of operation; the last row is the time without operation.
        step_seconds: Step time under the profiler, in seconds.
        unexplained_share: Share of the step time in which no known operation ran, from 0 to 1.
        product_flops: FLOPs of matrix products and convolutions.
        product_types: Element type of the operands -> share of `product_flops`.
        steps: Number of profiled steps.
        slowdown: Step time under the profiler, divided by the step time without the profiler.
        trace: Relative path at which TensorBoard expects a file -> content of the file in base64.
        command_buffers: Number of parts of the program that a GPU runs as a single graph. The trace
            does not distinguish the operations of such a part.
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
    """States why a measurement has no profile.

    Attributes:
        unavailable: The reason.
        limited: Whether a higher limit of time or memory could make a profile possible.
    """

    unavailable: str
    limited: bool = False


@dataclass(frozen=True)
class ProductRate:
    """Measured rate of products of square matrices, in FLOP/s.

    Attributes:
        precision: Element type of the operands.
        size: Number of rows, and of columns, of each matrix.
        compile: The compile mode.
        flops_per_second: Median rate over blocks.
        low: Lower quartile of the rate over blocks.
        high: Upper quartile of the rate over blocks.
        blocks: Number of blocks.
        steady: Whether the blocks show no relevant change over time.
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
    """Measured memory rate of the in-place sum of two arrays, in bytes/s.

    Attributes:
        array_bytes: Size of each array.
        bytes_per_second: Median rate over blocks.
        low: Lower quartile of the rate over blocks.
        high: Upper quartile of the rate over blocks.
        blocks: Number of blocks.
        steady: Whether the blocks show no relevant change over time.
        disturbed: What disturbed the blocks; None if they were undisturbed.
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
    """Power of the package or board while a process with the framework loaded is idle.

    Attributes:
        watts: The power in W; None if unknown.
        source: Name of the energy counter, or why none is available.
        disturbed: What else ran during the measurement; None if it was undisturbed.

    Raises:
        ValueError: If the power is not plausible.
    """

    watts: float | None
    source: str
    disturbed: str | None = None

    def __post_init__(self) -> None:
        if self.watts is not None and not 0 < self.watts < _MAX_WATTS:
            raise ValueError(f"an idle power of {self.watts} W is not plausible")


@dataclass(frozen=True)
class PeakRates:
    """The peak rates of the machine (`paradnn.worker.peak_rates`), and its idle power.

    Attributes:
        matmul: Rates of matrix products.
        bandwidth: Rates of array sums.
        references: Reference kernel -> seconds per call.
        idle: Idle power; None if it was not measured.
    """

    matmul: list[ProductRate]
    bandwidth: list[ArrayRate]
    references: dict[str, float] = field(default_factory=dict)
    idle: IdlePower | None = None


@dataclass(frozen=True)
class Answer:
    """Outcome of a request to measure a configuration, with all measurements that were made.

    Fields of measurements that were not made are None or empty.

    Attributes:
        outcome: One of `paradnn.config.outcome.OUTCOMES`.
        reason: The reason for the outcome, on one line; None if the outcome needs no reason.
        phases: Phase -> its duration in seconds.
        peak_memory_bytes: Peak memory of the measuring processes, in bytes.
        step_memory_bytes: Growth of anonymous memory during the steps after compilation, in bytes.
        peak_device_memory_bytes: Peak device memory in bytes, as the framework reports it.
        measurement: Results of the timed steps.
        latencies: Latencies of single synchronized steps in seconds.
        work: Results that only the point's kind of work measures.
        contention: Phase -> use of the cores during the phase. The measured blocks are excluded,
            because `measurement` contains their contention.
        input: The cost of the input pipeline.
        profile: The time of a step by operation, or why it is unavailable.
        peak_rates: The peak rates of the machine, for task=ceilings.

    Raises:
        ValueError: If the outcome is "ok", but nothing was measured.
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
    """Select the results of one kind of work, such as serving, from the answers of processes.

    Args:
        answers: The answers.
        kind: Class of the message that this kind of work sends.

    Returns:
        The messages of this class, in the order of the answers.
    """
    return [answer.work for answer in answers if isinstance(answer.work, kind)]


@dataclass(frozen=True)
class Request:
    """A request to measure a point, one configuration of model, workload and settings.

    Attributes:
        protocol: The protocol version of the driver.
        id: Number of the request.
        point: The point as plain values. With task=ceilings, the options of a measurement of peak
            rates instead.
        stderr: File for the output of the child process; None to use the output of the worker.
    """

    protocol: int
    id: int
    point: dict[str, Any]
    stderr: str | None


@dataclass(frozen=True)
class Ready:
    """Event: the worker has imported the framework, and accepts requests."""

    protocol: int


@dataclass(frozen=True)
class Refused:
    """Event: the worker cannot import the framework, or cannot serve a request.

    If the framework cannot be imported, the worker exits. For a refused request, no child process
    is forked.
    """

    reason: str


@dataclass(frozen=True)
class Started:
    """Event: the worker has forked a child process (`pid`) that measures request `id`."""

    id: int
    pid: int


@dataclass(frozen=True)
class PhaseBegun:
    """Event: the measuring child process begins a phase, such as compilation.

    Attributes:
        phase: The name of the phase.
        answer: The answer that is used if the child dies in this phase; None if there is no usable
            answer yet.
    """

    phase: str
    answer: Answer | None


@dataclass(frozen=True)
class PointAnswered:
    """Event: the child process answers request `id`."""

    id: int
    answer: Answer


@dataclass(frozen=True)
class Exited:
    """Event: the child process of a request has ended.

    Attributes:
        id: Number of the request.
        exit_code: The exit code; None if a signal ended the process.
        signal: Number of the signal that ended the process; None if it exited.
        max_resident_bytes: Peak resident memory of the process in bytes.
    """

    id: int
    exit_code: int | None
    signal: int | None
    max_resident_bytes: int


@dataclass(frozen=True)
class News:
    """Event: an interim result that precedes the answer, such as a finished epoch."""

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
