"""State of a measurement in the worker, and operations that all workloads share."""

import contextlib
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paradnn.core.layers import Costs, Layer, sum_costs
from paradnn.core.messages import Answer, Compilation, Contention, Measurement, References, Timing
from paradnn.families import make_model, optimizer_slots
from paradnn.families.built import BuiltModel
from paradnn.worker.affinity import bind_cores, device_layout
from paradnn.worker.cold_cache import ColdCache
from paradnn.worker.contention import TurnsMonitor
from paradnn.worker.energy import EnergyMeter, open_energy_meter
from paradnn.worker.fork_server import Phases, Report
from paradnn.worker.frameworks import Framework, Step, distributed
from paradnn.worker.measure import (
    AttemptRecorder,
    FillCaches,
    Protocol,
    Run,
    SynchronizedRun,
    measure_steps,
    single_latencies,
)
from paradnn.worker.memory import MemoryMeter
from paradnn.worker.profile.run import profile_steps
from paradnn.worker.profile.shapes import shares
from paradnn.worker.turns import TurnConnection

#: Called with the name of a phase. Returns a context manager that is entered for its duration.
Phase = Callable[[str], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class TimedSteps:
    """Timed blocks of steps, with the observations that were made while they ran.

    Attributes:
        timing: The times of the blocks.
        joules: Energy of the blocks in joules; None if it is unknown.
        energy_source: Name of the energy counter, or why it is unavailable.
        contention: Processor time that was taken from the process during the blocks; None if the
            system does not provide it.
    """

    timing: Timing
    joules: float | None
    energy_source: str
    contention: Contention | None = None


@dataclass(frozen=True)
class ProcessMemory:
    """Memory of one of the processes that share a measurement, in bytes.

    Attributes:
        peak: Peak memory of the process.
        steps: Growth of the process's anonymous memory in the steps after compilation.
    """

    peak: int
    steps: int


class OtherProcesses(ABC):
    """The processes that share each step of a model with the measuring process.

    Attributes:
        count: Number of processes, including the measuring process.
    """

    count: int

    @abstractmethod
    def common_step(self, own: Step) -> Step:
        """Return the step that all processes run together.

        Args:
            own: The part of the step that this process runs.
        """

    @abstractmethod
    def begin_steps(self) -> None:
        """Reset the memory peaks of the other processes before the timed steps."""

    @abstractmethod
    def memory(self) -> Sequence[ProcessMemory]:
        """Return the memory of each other process on this host whose memory is known."""

    @abstractmethod
    def time_alone(self) -> Sequence[float]:
        """Time steps that each process runs without communication.

        Returns:
            The seconds of a step for each process, the measuring process first; empty if a process
            cannot measure its steps.
        """


class PointRun:
    """State of the measurement of one configuration, and operations that all workloads share.

    A workload is a kind of work with a model, such as a training step or an inference scenario. Its
    class, a `WorkerSide`, calls these methods and decides what to measure. Results are stored in
    the answer as soon as they are known, so that they survive a later failure.

    Args:
        request: The configuration to measure, as nested mappings of plain values.
        framework: The framework, already imported.
        report: Called with the name of each phase when it begins. The call for the profile also has
            the answer so far, which the driver uses if the profile exceeds a limit.

    Attributes:
        phases: Enters phases and measures their durations.
        memory: Measures the memory of this process.
        reference: Runs the reference kernels, which track the machine's speed; None if they are not
            requested.
        fill_caches: Fills the caches before each step; None if caches stay warm.
        answered: The answer to the driver so far.
        turn: Waits for the turns of this process if a second measured process alternates with it;
            None if the process runs without interruption.
        others: The other processes that share each step; None for a single process.
    """

    def __init__(self, request: Mapping[str, Any], framework: Framework, report: Report) -> None:
        self.request = request
        self.framework = framework
        self.phases = Phases(report)
        self.memory = MemoryMeter()
        self.reference: Any = None
        self.fill_caches: FillCaches | None = None
        self.answered = Answer("crash", None, self.phases.seconds)
        self.turn = TurnConnection(request["turns"]) if "turns" in request else None
        self.others: OtherProcesses | None = None

    def note(self, **fields: Any) -> None:
        """Set fields of the answer that this process sends to the driver.

        Args:
            **fields: Values by the names of attributes of `Answer`.
        """
        self.answered = replace(self.answered, **fields)

    def open_devices(self) -> None:
        """Bind this process to the requested cores, and open the devices that the steps use.

        Also builds the reference kernels and the cold-cache buffer, if the request enables them.
        """
        with self.phases("build"):
            platform = bind_cores(self.request["platform"])
            devices = self.devices
            if devices > 1:
                layout = device_layout(devices, self.request["platform"])
                parallel = self.request.get("parallel", "data")
                self.framework = distributed(self.framework, layout, parallel)
            self.framework.open_device(platform)
            settings = self.request.get("measure", {})
            if devices == 1 and not self.turn and settings.get("reference"):
                self._build_reference(platform["name"])
            if settings.get("cache") == "cold":
                self._build_cold_cache(platform["name"])

    def _build_reference(self, platform_name: str) -> None:
        from paradnn.worker.reference import Reference  # imports Keras

        protocol = Protocol.from_settings(self.request["measure"])
        self.reference = Reference(platform_name, protocol.block_seconds, protocol.reference_share)
        self.memory.reference_bytes = self.reference.nbytes if platform_name == "cpu" else 0

    def _build_cold_cache(self, platform_name: str) -> None:
        cold_cache = ColdCache(platform_name)
        self.fill_caches = cold_cache
        self.memory.reference_bytes += cold_cache.nbytes if platform_name == "cpu" else 0

    @property
    def devices(self) -> int:
        """Number of devices of this host that share each step."""
        return int(self.request.get("devices", 1))

    @property
    def seconds_left(self) -> float:
        """Seconds until the driver ends the process."""
        return float(self.request["measure"]["timeout"] - sum(self.phases.seconds.values()))

    def begin_steps(self) -> None:
        """Begin to measure the memory of the timed steps, excluding the compilation."""
        if self.others:
            self.others.begin_steps()
        self.memory.begin_steps()

    def time(
        self, run: Run | SynchronizedRun, step: Step, phase: Phase | None = None
    ) -> TimedSteps:
        """Warm up and time blocks of steps.

        Args:
            run: Runs a given number of steps, and waits for the device.
            step: The compiled step. If it compiles again, the timing is marked as not steady.
            phase: Called with the name of a phase. Returns a context manager that is entered for
                the duration of the phase. None for the attribute `phases`.
        """
        recorder = AttemptRecorder(self.energy_meter(), step.compilations)
        turns_monitor = TurnsMonitor()
        timing = measure_steps(
            run,
            Protocol.from_settings(self.request["measure"]),
            phase or self.phases,
            recorder=recorder,
            reference=self.reference,
            turn=self.turn,
            turns_monitor=turns_monitor,
            fill_caches=self.fill_caches,
        )
        if self.turn:
            source = "unavailable: two points took turns"
            return TimedSteps(timing, None, source, turns_monitor.contention())
        joules, source = recorder.energy
        if self.fill_caches:
            joules = None
            source = "unavailable: the counter includes the energy of filling the caches"
        if self.reference:
            first_references = [References(-1, seconds) for seconds in self.reference.before]
            timing = replace(timing, references=[*first_references, *timing.references])
            if joules is not None:
                # Reference kernels used a share of the energy that equals their share of the time.
                block_seconds = sum(timing.blocks)
                joules *= block_seconds / (block_seconds + timing.reference_seconds)
        return TimedSteps(recorder.checked(timing), joules, source, recorder.contention)

    def note_measured(
        self,
        timed: TimedSteps,
        workload: BuiltModel | None,
        compilation: Compilation,
        products: Mapping[str, float],
        loss: Any = None,
    ) -> None:
        """Store the results of the timed steps in the answer to the driver.

        Args:
            timed: The timed blocks.
            workload: The built model; None if the steps run no model.
            compilation: Seconds and compiled programs of the first steps.
            products: FLOPs of the matrix products and convolutions of a step, by the element type
                of their operands.
            loss: The loss of the first step; None in inference.
        """
        parameters = 0
        counted = None
        if workload:
            parameters = _count_elements(workload.model.trainable_variables)
            counted = counted_costs(workload, self.request, sum(products.values()))
        measurement = Measurement(
            parameters=parameters,
            compilation=compilation,
            product_types=shares(products),
            first_loss=loss,
            timing=timed.timing,
            energy_joules=timed.joules,
            energy_source=timed.energy_source,
            contention=timed.contention,
            counted=counted,
        )
        self.note(measurement=measurement)

    def note_latencies(self, run: Run) -> None:
        """Time single steps for the latency, and store the times in the answer to the driver.

        Nothing is timed if this process takes turns with a second measured process.

        Args:
            run: Runs a given number of steps, and waits for the device.
        """
        if self.turn:
            return
        with self.phases("latency"):
            latencies, contention = single_latencies(
                run, self.request["measure"]["max_seconds"], fill_caches=self.fill_caches
            )
        self.note_contention("latency", contention)
        self.note(latencies=latencies)

    def note_memory_and_profile(self, step: Step) -> None:
        """Store the peak memory in the answer to the driver; then profile the step if requested.

        The memory comes first, because the buffers of the profiler do not belong to the model.
        """
        if self.answered.peak_memory_bytes is None:
            self.note_memory()
        settings = self.request["measure"]
        keeps_trace = settings["keep_trace"]
        if settings["profile"] or keeps_trace:
            with self.phases("profile", replace(self.answered, outcome="ok")):
                profile = profile_steps(
                    self.framework,
                    step,
                    self.step_seconds(),
                    keep_trace=keeps_trace,
                    seconds_left=self.seconds_left,
                )
                self.note(profile=profile)

    def note_contention(self, phase: str, contention: Contention | None) -> None:
        """Store the contention during a phase in the answer to the driver.

        The contention during the timed blocks is stored separately.

        Args:
            phase: Name of the phase, such as "latency".
            contention: Processor time that was taken from the process; None if unknown.
        """
        if contention:
            self.note(contention={**self.answered.contention, phase: contention})

    def note_memory(self) -> None:
        """Store the peaks of host and device memory so far in the answer to the driver."""
        self.note_own_memory()
        peak = self.framework.peak_device_memory()
        if peak and self.reference and not self.memory.reference_bytes:
            peak -= self.reference.nbytes
        self.note(peak_device_memory_bytes=peak)

    def note_own_memory(self) -> None:
        """Store the peak host memory so far in the answer to the driver.

        It is the sum over all processes on this host that share the steps.
        """
        peak, steps = self.memory.peak_bytes()
        if self.others and peak is not None and steps is not None:
            for other in self.others.memory():
                peak += other.peak
                steps += other.steps
        self.note(peak_memory_bytes=peak, step_memory_bytes=steps)

    def energy_meter(self) -> EnergyMeter:
        """Return the energy meter of the device that runs the steps."""
        platform = self.request["platform"]
        if self.devices > 1 and platform["name"] != "cpu":
            reason = "unavailable: the counter covers one board, but the point uses several"
            return EnergyMeter(reason)
        return open_energy_meter(platform["name"], int(platform["index"]))

    def step_seconds(self) -> float:
        """Return the median step time of the measured blocks, in seconds."""
        assert self.answered.measurement
        timing = self.answered.measurement.timing
        return statistics.median(timing.blocks) / timing.steps_per_block


def counted_costs(workload: BuiltModel, point: Mapping[str, Any], flops: float) -> Costs | None:
    """Return the FLOPs and bytes of a step of a model whose layers ParaDnn does not know.

    The model counts as one layer with all parameters. The costs therefore exclude the bytes of the
    tensors between layers.

    Args:
        workload: The built model.
        point: The configuration to measure, as nested mappings of plain values.
        flops: FLOPs of the matrix products and convolutions of a step on one device, as the
            framework counts them.

    Returns:
        The costs; None if the layers of the model are known.
    """
    model = make_model(point["model"])
    if not model.is_counted:
        return None
    whole_model = Layer(
        "whole",
        parameters=_count_elements(workload.model.trainable_variables),
        fixed_parameters=_count_elements(workload.model.non_trainable_variables),
        read=_count_elements(workload.inputs),
        targets=_count_elements(workload.targets),
        is_first=True,
    )
    optimizer = point["optimizer"]
    replicas = point["devices"] * point.get("hosts", 1)
    if point.get("parallel") == "model":
        replicas = 1  # the devices together hold one copy of the weights
        flops = 0.0  # unknown, since every device repeats the products with undivided weights
    costs = sum_costs(
        [whole_model],
        point["batch_size"] // replicas,
        point["precision"],
        point["mode"],
        slots=optimizer_slots(optimizer["name"], optimizer["momentum"]),
    )
    return replace(costs.times(replicas), flops_per_step=round(flops * replicas))


def _count_elements(arrays: Sequence[Any]) -> int:
    """Return the total number of elements of arrays or array specifications."""
    return sum(math.prod(array.shape) for array in arrays)
