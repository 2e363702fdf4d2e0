"""A step: training a batch, or a forward pass of one, again and again (docs/method.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.core.workload import Unavailable, Workload

if TYPE_CHECKING:
    from paradnn.worker.point import PointRun

#: Given the built model and its step, compiles what is needed; what is done with a step's run once that was timed.
Beside = Callable[[Any, Any], Callable[[Any], None]]


@dataclass(frozen=True)
class SingleStep(Workload):
    """Steps in blocks; of a forward pass also the latency of single ones."""

    name, key, place = "step", "mode", 0
    rates: ClassVar[Mapping[str, str]] = {"examples_per_second": "examples/s"}
    by_turns: ClassVar[bool] = True

    mode: str = "train"

    @property
    def unit(self) -> str:
        return "training step" if self.mode == "train" else "forward pass"

    @property
    def names(self) -> tuple[str, ...]:
        return ("train", "inference")

    def of(self, config: Mapping[str, Any]) -> SingleStep:
        return SingleStep(config.get("mode", self.mode))

    def measure(self, run: PointRun) -> None:
        measure_step(run, None if self.mode == "train" else lambda _, __: run.note_latencies)


def measure_step(
    run: PointRun, beside: Beside | None, ready: Callable[[Any, Any], None] = lambda workload, step: None
) -> None:
    """Build, make `ready` (model and step), compile, warm up and measure a step of the point's model, then what is
    measured `beside`."""
    from paradnn.worker.measure import compile_steps
    from paradnn.worker.step import prepare_step, product_flops

    point, phases = run.request, run.phases
    with phases("build"):
        workload, step = prepare_step(point, run.framework)
        ready(workload, step)
    fed, source = None, point["data"]["name"] if "data" in point else "synthetic"
    if source != "synthetic" and "learning_set" not in point:  # a set to judge by is no input of the timed step
        with phases("input"):
            if run.framework.name != "tensorflow":
                reads = (
                    f"data={source} is read by TensorFlow's tf.data, which is not loaded beside {run.framework.name}"
                )
                raise Unavailable(f"{reads}: use framework=tensorflow, or data=synthetic")
            from paradnn.worker.input.feed import FedStep, Feed

            fed = FedStep(step, Feed(point, workload))
    with phases("compile"):
        compilation, first_loss = compile_steps(step)
        products = product_flops(step)
        then = beside(workload, step) if beside else None
    run.memory.compiled()
    timed = run.time(fed.run if fed else step.run, step)
    run.note_measured(timed, workload, compilation, products, first_loss)
    if then:
        then(fed.run if fed else step.run)
    if fed:
        with phases("balance"):
            run.note(input=fed.measure(timed[0]))
    run.look_closer(step)


STEP = SingleStep()
