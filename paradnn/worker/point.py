"""One request, in a forked child: a point is built, compiled, warmed up, measured and profiled; ceilings are measured.

Every way this can end within Python is an outcome with a one-line reason; what ends the process itself is classified
by the driver, which watches from outside.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from paradnn.families.workload import Workload
from paradnn.worker.affinity import bind_cores
from paradnn.worker.cold_caches import Caches
from paradnn.worker.compiling import compile_steps
from paradnn.worker.contention import ContentionWatch
from paradnn.worker.data import synthetic_batch
from paradnn.worker.device_layout import DeviceLayout, layout_of
from paradnn.worker.endings import ending_of
from paradnn.worker.energy import EnergyMeter, open_meter
from paradnn.worker.fork_server import Report
from paradnn.worker.frameworks import Framework, LearningStep, Step, distributed
from paradnn.worker.generation.steps import prepare_generation
from paradnn.worker.input.opening import open_feed, reads_files
from paradnn.worker.latencies import single_latencies
from paradnn.worker.learning.examples import read_examples
from paradnn.worker.learning.learn import Learner, with_course
from paradnn.worker.learning.messages import Epoch
from paradnn.worker.measure import BlocksWatch, Protocol, Run, epochs_as_blocks, measure_steps
from paradnn.worker.memory import MemoryMeter, Taken
from paradnn.worker.messages import Answer, Contention, Generation, Measurement, NoProfile, Profile, Timing
from paradnn.worker.peak_rates import measure_peak_rates
from paradnn.worker.phases import Phases
from paradnn.worker.precision import has_instructions, product_types
from paradnn.worker.process_group import GroupStep, ProcessGroup
from paradnn.worker.profile.run import profile_steps
from paradnn.worker.ranks import start_ranks
from paradnn.worker.serving.load import NotServed, Service, measure_load
from paradnn.worker.serving.sizes import compile_service
from paradnn.worker.step import choose_types, prepare_step

__all__ = ["PointRun", "answer_request"]


def answer_request(request: Mapping[str, Any], framework: Framework, report: Report) -> Answer:
    """Do what `request` asks for; `report` is called with the name of each phase as it begins.

    The phase `profile` is reported with the answer so far: no limit that it exceeds costs what was measured before.
    """
    return PointRun(request, framework, report).answer()


class PointRun:
    """A request while it is served: what was measured so far is in the answer, whatever comes next."""

    def __init__(self, request: Mapping[str, Any], framework: Framework, report: Report) -> None:
        self._request = request
        self._framework = framework
        self._phases = Phases(report)
        self._layout: DeviceLayout | None = None
        self._group: ProcessGroup | None = None
        self._memory = MemoryMeter()
        self._answer = Answer("crash", None, self._phases.seconds)

    def answer(self) -> Answer:
        try:
            self._open()
            if self._request.get("task") == "ceilings":
                rates = measure_peak_rates(self._request, self._framework, self._phases)
                self._answer = replace(self._answer, peak_rates=rates)
            elif self._request.get("task") == "learn":
                self._learn()
            elif self._request["mode"] == "generate":
                self._generate()
            else:
                self._measure()
            self._answer = replace(self._answer, outcome="ok")
        except Exception as error:
            outcome, reason = ending_of(error, self._framework, self._phases.current)
            # One process that fails takes the others with it: the first to run out of memory says why.
            other = self._group.failure() if self._group and not outcome.startswith("oom") else None
            outcome, reason = (other.outcome, other.reason) if other else (outcome, reason)
            self._answer = replace(self._answer, outcome=outcome, reason=reason)
        if self._answer.peak_memory_bytes is None:
            self._remember_memory(self._memory.taken())
        if self._group:
            self._group.close()
        return self._answer

    def _open(self) -> None:
        """Open the devices, in as many processes as hold them."""
        with self._phases("build"):
            self._layout = layout_of(self._request)
            if self._layout is not None:
                if self._layout.processes > 1:
                    self._group, self._layout = start_ranks(self._request, self._framework, self._layout)
                self._framework = distributed(self._framework, self._layout)
            self._framework.open_device(bind_cores(self._request["platform"]))

    def _measure(self) -> None:
        """Build, compile, warm up and measure the point, then what is measured beside its steps."""
        point, framework, phases, group = self._request, self._framework, self._phases, self._group
        with phases("build"):
            workload, step = prepare_step(point, framework)
            if group:
                step = GroupStep(step, group)
        with phases("input") if reads_files(point) else contextlib.nullcontext():
            fed = open_feed(point, workload, framework, step)
        with phases("compile"):
            compilation, first_loss = compile_steps(step)
            types = product_types(step)
            service = self._service(workload, step)
        self._memory.compiled()
        if group:
            group.compiled()
        run = fed.run if fed else step.run
        timing, energy, contention = self._time(run, step, phases)
        measurement = Measurement(
            _parameters(workload), compilation, types, self._native(), first_loss, timing, *energy, contention
        )
        self._answer = replace(self._answer, measurement=measurement)
        if service:
            with phases("load"):
                self._load(service(_step_seconds(timing)))
        elif point["mode"] == "inference":
            latencies = self._latencies(run)  # which notes what disturbed them
            self._answer = replace(self._answer, latencies=latencies)
        if fed:
            with phases("balance"):
                self._answer = replace(self._answer, input=fed.measure(timing))
        self._look_closer(step, timing)

    def _look_closer(self, step: Step, timing: Timing) -> None:
        """What the point took of memory, then where the time of its steps goes, if so asked for."""
        # Before the profiler, whose buffers are none of the model's memory.
        if self._answer.peak_memory_bytes is None:
            self._note_memory()
        if self._request["measure"]["profile"] or self._request["measure"]["keep_trace"]:
            with self._phases("profile", replace(self._answer, outcome="ok")):
                self._answer = replace(self._answer, profile=self._profile(step, timing))

    def _learn(self) -> None:
        """Build, compile, then train to the target: every epoch is a block of steps, and told as it ends."""
        point, phases = with_course(self._request), self._phases
        with phases("build"):
            workload, step = prepare_step(point, self._framework)
        with phases("input"):
            examples = read_examples(point["learning_set"], workload.inputs[0].shape)
            synthetic = synthetic_batch(workload, point["batch_size"], point["seed"])
            learner = Learner(cast("LearningStep", step), examples, point, synthetic)
        with phases("compile"):
            compilation, _ = compile_steps(learner)
            types = product_types(step)
            learner.restart()
        self._memory.compiled()
        meter = self._meter()
        watch = BlocksWatch(EnergyMeter(meter.source), step)
        with phases("learn"):
            watch.start()
            try:
                learner.learn(meter, self._tell)
            finally:
                watch.stop()
        epochs = self._answer.epochs or []
        timing = watch.judged(epochs_as_blocks(epochs))
        spent = [epoch.joules for epoch in epochs if epoch.joules is not None]
        energy = (sum(spent) if len(spent) == len(epochs) else None), meter.source
        measurement = Measurement(
            _parameters(workload), compilation, types, self._native(), None, timing, *energy, watch.contention
        )
        self._answer = replace(self._answer, measurement=measurement)
        self._note_memory()

    def _generate(self) -> None:
        """Build, compile, then time the phases one after the other: prompts that are read, and a token of each."""
        point, phases = self._request, self._phases
        with phases("build"):
            choose_types(point)
            steps = prepare_generation(point, self._framework)
        with phases("compile"):
            reading, _ = compile_steps(steps.prefill)
            compilation, _ = compile_steps(steps.decode)
            types = product_types(steps.decode)
        self._memory.compiled()
        prefill, _, disturbed = self._time(steps.prefill.run, steps.prefill, lambda _: phases("prefill"))
        self._note_contention("prefill", disturbed)
        self._answer = replace(self._answer, generation=Generation(prefill, reading, steps.decoder.cache_bytes))
        timing, energy, contention = self._time(steps.decode.run, steps.decode, phases)
        measurement = Measurement(
            _parameters(steps.decoder.decode), compilation, types, self._native(), None, timing, *energy, contention
        )
        latencies = self._latencies(steps.decode.run)  # which notes what disturbed them
        self._answer = replace(self._answer, measurement=measurement, latencies=latencies)
        self._look_closer(steps.decode, timing)

    def _tell(self, epochs: list[Epoch]) -> None:
        self._answer = replace(self._answer, epochs=epochs)
        self._phases.report(epochs[-1])

    def _native(self) -> bool | None:
        """Whether the processor has instructions for products in the point's precision; None if not known."""
        point = self._request
        return has_instructions(point["precision"]) if point["platform"]["name"] == "cpu" else None

    def _time(
        self, run: Run, step: Step, phase: Callable[[str], contextlib.AbstractContextManager[None]]
    ) -> tuple[Timing, tuple[float | None, str], Contention | None]:
        """The timed blocks, joules and where they come from, and what disturbed the blocks."""
        watch = BlocksWatch(self._meter(), step)
        timing = measure_steps(run, Protocol.of(self._request["measure"]), phase, watch=watch)
        return watch.judged(timing), watch.energy, watch.contention

    def _service(self, workload: Workload, step: Step) -> Callable[[float], Service] | None:
        """What serves queries, compiled, once the time of a step is known; None where no scenario asks."""
        point, scenario = self._request, self._request.get("scenario", "closed")
        if scenario == "closed":
            return None

        def make(size: int) -> Step:
            return self._framework.make_step(workload, synthetic_batch(workload, size, point["seed"]), point)

        return compile_service(scenario, point[scenario], point["batch_size"], step, make)

    def _load(self, service: Service) -> None:
        """Let the scenario ask; what it gave is in the answer, however it ends."""
        scenario = self._request["scenario"]
        left = self._request["measure"]["timeout"] - sum(self._phases.seconds.values())
        watch = ContentionWatch()
        watch.start()
        try:
            load = measure_load(scenario, self._request[scenario], service, left, self._meter())
        except NotServed as unserved:
            self._answer = replace(self._answer, load=unserved.load)
            raise
        finally:
            watch.stop()
            self._note_contention("load", watch.seen)
        self._answer = replace(self._answer, load=load)

    def _latencies(self, run: Run) -> list[float]:
        """Seconds of single steps, on cold caches if so asked for."""
        cold = None
        if self._request["measure"]["cold_caches"]:
            self._note_memory()  # what empties the caches is none of the model's memory
            cold = Caches()
        with self._phases("latency"):
            longest = self._request["measure"]["max_seconds"]
            seconds, disturbed = single_latencies(run, longest, cold.empty if cold else None)
        self._note_contention("latency", disturbed)
        return seconds

    def _note_contention(self, phase: str, seen: Contention | None) -> None:
        if seen:
            self._answer = replace(self._answer, contention={**self._answer.contention, phase: seen})

    def _note_memory(self) -> None:
        """The peaks so far are those of the point."""
        taken = sum(self._group.memory() if self._group else [], start=self._memory.taken())
        self._remember_memory(taken)
        self._answer = replace(self._answer, peak_device_memory_bytes=self._framework.peak_device_memory())

    def _remember_memory(self, taken: Taken) -> None:
        self._answer = replace(self._answer, peak_memory_bytes=taken.peak, step_memory_bytes=taken.steps)

    def _meter(self) -> EnergyMeter:
        platform = self._request["platform"]
        if self._layout is not None and platform["name"] != "cpu":
            return EnergyMeter("unavailable: the counter is that of one board, the point has several")
        return open_meter(platform["name"], int(platform["index"]))

    def _profile(self, step: Step, timing: Timing) -> Profile | NoProfile:
        settings = self._request["measure"]
        step_seconds = _step_seconds(timing)
        left = settings["timeout"] - sum(self._phases.seconds.values())
        profile = profile_steps(self._framework, step, step_seconds, settings["keep_trace"], left)
        if self._layout is None or isinstance(profile, NoProfile):
            return profile
        return replace(profile, devices=self._layout.local_devices)


def _parameters(workload: Workload) -> int:
    return sum(math.prod(variable.shape) for variable in workload.model.trainable_variables)


def _step_seconds(timing: Timing) -> float:
    return statistics.median(timing.blocks) / timing.steps_per_block
