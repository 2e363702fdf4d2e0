"""One request, in a forked child: a point is built, compiled, warmed up, measured and profiled;
ceilings are measured.

Every way this can end within Python is an outcome with a one-line reason; what ends the process
itself is classified by the driver, which watches from outside.
"""

import contextlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paradnn.core.layers import Costs, Layer, sum_costs
from paradnn.core.messages import Answer, Compilation, Contention, Measurement, References, Timing
from paradnn.families import make_model, optimizer_slots
from paradnn.families.built import BuiltModel
from paradnn.worker.affinity import bind_cores, layout_of
from paradnn.worker.fork_server import Phases, Report
from paradnn.worker.frameworks import Framework, Step, distributed
from paradnn.worker.measure import AttemptRecorder, Protocol, Run, measure_steps, single_latencies
from paradnn.worker.meters import EnergyMeter, MemoryMeter, TurnsMonitor, open_meter
from paradnn.worker.profile.run import profile_steps
from paradnn.worker.profile.shapes import shares
from paradnn.worker.turns import Turn

#: Enters a phase by its name.
Phase = Callable[[str], contextlib.AbstractContextManager[None]]
#: Timed blocks, joules and where they come from, and what disturbed the blocks.
Timed = tuple[Timing, tuple[float | None, str], Contention | None]


class PointRun:
    """A request while it is served: what was measured so far is in the answer, whatever comes next.
    The point's kind of work says what is done; here is what all of them use. `request` is the point
    as plain values, `report` is called with the name of each phase as it begins: of the profile
    with the answer so far, so that no limit that it exceeds costs what was measured before.
    """

    def __init__(self, request: Mapping[str, Any], framework: Framework, report: Report) -> None:
        self.request = request
        self.framework = framework
        self.phases = Phases(report)
        self.memory = MemoryMeter()
        self.reference: Any = None
        self.answered = Answer("crash", None, self.phases.seconds)
        self.turn = Turn(request["turns"]) if "turns" in request else None

    def note(self, **known: Any) -> None:
        """These fields of the answer are known now."""
        self.answered = replace(self.answered, **known)

    def open_devices(self) -> None:
        with self.phases("build"):
            platform = bind_cores(self.request["platform"])
            devices = self.devices
            if devices > 1:
                self.framework = distributed(
                    self.framework, layout_of(devices, self.request["platform"])
                )
            self.framework.open_device(platform)
            if devices == 1 and not self.turn and self.request.get("measure", {}).get("reference"):
                from paradnn.worker.reference import Reference  # which takes Keras

                protocol = Protocol.of(self.request["measure"])
                self.reference = Reference(
                    platform["name"], protocol.block_seconds, protocol.reference_share
                )
                if platform["name"] == "cpu":
                    self.memory.beside = self.reference.nbytes
                else:
                    self.memory.beside = 0

    @property
    def devices(self) -> int:
        return int(self.request.get("devices", 1))

    @property
    def seconds_left(self) -> float:
        """Until the driver ends the process."""
        return float(self.request["measure"]["timeout"] - sum(self.phases.seconds.values()))

    def time(self, run: Run, step: Step, phase: Phase | None = None) -> Timed:
        """The timed blocks, joules and where they come from, and what disturbed the blocks."""
        watch = AttemptRecorder(self.meter(), step.compilations)
        protocol = Protocol.of(self.request["measure"])
        own = self.reference
        turns_monitor = TurnsMonitor()
        timing = measure_steps(
            run,
            protocol,
            phase or self.phases,
            watch=watch,
            reference=own,
            turn=self.turn,
            turns_monitor=turns_monitor,
        )
        if self.turn:
            no_energy = (None, "unavailable: two points took turns")
            return timing, no_energy, turns_monitor.contention()
        joules, source = watch.energy
        if own:
            timing = replace(
                timing,
                references=[*(References(-1, each) for each in own.before), *timing.references],
            )
            # What was spent between the blocks took its share of the time.
            blocks = sum(timing.blocks)
            joules = joules and joules * blocks / (blocks + timing.beside)
        return watch.judged(timing), (joules, source), watch.contention

    def note_measured(
        self,
        timed: Timed,
        workload: BuiltModel | None,
        compilation: Compilation,
        products: Mapping[str, float],
        loss: Any = None,
    ) -> None:
        """What timed steps of a model gave (None: they have none); `loss` is the very first,
        `products` are FLOPs.
        """
        timing, energy, contention = timed
        if workload:
            parameters = _elements(workload.model.trainable_variables)
        else:
            parameters = 0
        if workload:
            counted = counted_costs(workload, self.request, sum(products.values()))
        else:
            counted = None
        measured = Measurement(
            parameters, compilation, shares(products), loss, timing, *energy, contention, counted
        )
        self.note(measurement=measured)

    def note_latencies(self, run: Run) -> None:
        """Seconds of single steps, and what disturbed them; not where two points take turns to
        compare their blocks.
        """
        if self.turn:
            return
        with self.phases("latency"):
            seconds, disturbed = single_latencies(run, self.request["measure"]["max_seconds"])
        self.note_contention("latency", disturbed)
        self.note(latencies=seconds)

    def look_closer(self, step: Step) -> None:
        """What the point took of memory, then where the time of its steps goes, if so asked for."""
        # Before the profiler, whose buffers are none of the model's memory.
        if self.answered.peak_memory_bytes is None:
            self.note_memory()
        settings = self.request["measure"]
        if settings["profile"] or settings["keep_trace"]:
            with self.phases("profile", replace(self.answered, outcome="ok")):
                keeps = settings["keep_trace"]
                self.note(
                    profile=profile_steps(
                        self.framework, step, self.step_seconds(), keeps, self.seconds_left
                    )
                )

    def note_contention(self, phase: str, seen: Contention | None) -> None:
        """What disturbed a phase beside the measured blocks."""
        if seen:
            self.note(contention={**self.answered.contention, phase: seen})

    def note_memory(self) -> None:
        """The peaks so far are those of the point."""
        self.note_own_memory()
        peak = self.framework.peak_device_memory()
        if peak and self.reference and not self.memory.beside:
            peak -= self.reference.nbytes
        self.note(peak_device_memory_bytes=peak)

    def note_own_memory(self) -> None:
        """Those of the host alone."""
        peak, steps = self.memory.taken()
        self.note(peak_memory_bytes=peak, step_memory_bytes=steps)

    def meter(self) -> EnergyMeter:
        """What counts the energy of the point's device."""
        platform = self.request["platform"]
        if self.devices > 1 and platform["name"] != "cpu":
            return EnergyMeter(
                "unavailable: the counter is that of one board, the point has several"
            )
        return open_meter(platform["name"], int(platform["index"]))

    def step_seconds(self) -> float:
        assert self.answered.measurement
        timing = self.answered.measurement.timing
        return statistics.median(timing.blocks) / timing.steps_per_block


def _elements(arrays: Sequence[Any]) -> int:
    return sum(math.prod(array.shape) for array in arrays)


def counted_costs(workload: BuiltModel, point: Mapping[str, Any], flops: float) -> Costs | None:
    """The costs of a step whose model no arithmetic knows, with the FLOPs that the framework
    counts; None of others. Bytes are those of one layer with all parameters: what passes between
    layers is left out.
    """
    model = make_model(point["model"])
    if not model.is_counted:
        return None
    fixed = _elements(workload.model.non_trainable_variables)
    read, targets = (
        sum(math.prod(spec.shape) for spec in specs)
        for specs in (workload.inputs, workload.targets)
    )
    trained = _elements(workload.model.trainable_variables)
    whole = Layer("whole", parameters=trained, fixed_parameters=fixed, read=read, targets=targets)
    optimizer = point["optimizer"]
    slots = optimizer_slots(optimizer["name"], optimizer["momentum"])
    each = point["batch_size"] // point["devices"]
    costs = sum_costs(
        [replace(whole, is_first=True)], each, point["precision"], point["mode"], slots=slots
    )
    return replace(costs.times(point["devices"]), flops_per_step=round(flops))
