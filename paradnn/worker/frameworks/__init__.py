"""What differs between the frameworks below Keras, behind one protocol.

Each module implements `Framework`: how devices are found, batches placed, a training or inference step compiled, the
device synchronised and errors classified. Everything else in the worker is written once.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paradnn.worker.errors import Unavailable
from paradnn.worker.profile.shapes import Cost
from paradnn.worker.profile.trace import Trace
from paradnn.worker.versions import FRAMEWORKS

if TYPE_CHECKING:  # importing Keras belongs to `load`, where a failure is reported
    from paradnn.families.built import BuiltModel
    from paradnn.worker.device_layout import DeviceLayout

__all__ = ["FRAMEWORKS", "FeedableStep", "Framework", "LearningStep", "Step", "Unavailable", "distributed", "load"]

#: What Keras imports where it is installed, for parts that no point uses: a third of the processor time of a worker's
#: start, and 150 MB.
_NEEDLESS = ("IPython", "matplotlib", "pandas", "sklearn")


class Step(Protocol):
    """A compiled step with its batch in place."""

    def run(self, steps: int) -> float | None:
        """Run `steps` steps, wait until the device is done; the last loss, or None in inference."""

    def compilations(self) -> int:
        """How often something was compiled so far in this process; an attempt that failed took its time too."""

    def compile_note(self) -> str | None:
        """What the framework has made of `compile` by now, where that is not plain from the word."""

    def product_flops(self) -> dict[str, float]:
        """FLOPs of the products in the program that runs, by the type of their operands; empty where that is hidden."""

    def kernel_cost(self, name: str, kind: str) -> Cost:
        """What one of the framework's own kernels costs, by its name and type in a trace."""


class FeedableStep(Step, Protocol):
    """A step that can also take its batches from a pipeline (`paradnn.worker.input`)."""

    def feed(self, steps: int, take: Callable[[], tuple[Any, ...]]) -> float | None:
        """As `run`, each step on arguments of its own: (inputs, targets), in inference (inputs,)."""


class LearningStep(FeedableStep, Protocol):
    """A training step that also takes NumPy arrays, and shows what it has learnt (`paradnn.worker.learning`)."""

    def values(self) -> list[Any]:
        """Copies of all variables as NumPy arrays: the model's, then the optimizer's."""

    def assign(self, values: Sequence[Any]) -> None:
        """Let the variables have `values`, as `values()` gave them."""

    def outputs(self, inputs: Sequence[Any]) -> Any:
        """What the model says of `inputs`, as a NumPy array; compiled as the step is."""


class Framework(Protocol):
    """One framework; nothing of it touches a device before `open_device`."""

    name: str
    #: The values of `compile` under which a matrix product is another program: each has ceilings of its own.
    compile_modes: tuple[str, ...]

    def open_device(self, platform: Mapping[str, Any]) -> None:
        """Claim the device in this process. Raises Unavailable."""

    def scope(self) -> AbstractContextManager[Any]:
        """Where models are built, so that their variables stand on every device."""

    def make_step(
        self, workload: BuiltModel, batch: tuple[Sequence[Any], Sequence[Any]], point: Mapping[str, Any]
    ) -> Step:
        """The step of `point`, its batch (inputs, targets) on the device; nothing is compiled yet."""

    def make_kernel(self, name: str, size: int, precision: str, compile: str) -> Callable[[int], None]:
        """A function that runs a kernel so many times and waits; see `paradnn.worker.peak_rates` for the names."""

    def trace(self, folder: Path) -> AbstractContextManager[Callable[[], AbstractContextManager[Any]]]:
        """Profile into `folder`; what the function gives marks the steps that count. Raises Unavailable."""

    def read_trace(self, folder: Path) -> Trace:
        """What `trace` wrote into `folder`; ValueError where it cannot be read."""

    def peak_device_memory(self) -> int | None:
        """Peak bytes on the device, where the framework reports them."""

    def classify(self, error: BaseException, phase: str) -> str | None:
        """The outcome an exception stands for, or None where it stands for none."""


def load(name: str) -> Framework:
    """Import the framework `name` with Keras on top of it."""
    os.environ["KERAS_BACKEND"] = FRAMEWORKS[name].backend
    if FRAMEWORKS[name].backend != "tensorflow":
        # Keras seeds TensorFlow too wherever it is installed, which would import it in every child.
        sys.modules["tensorflow"] = None  # type: ignore[assignment]
    with _without(_NEEDLESS):
        module = importlib.import_module(f"paradnn.worker.frameworks.{name}")
    make: Callable[[], Framework] = module.make
    return make()


@contextlib.contextmanager
def _without(names: Sequence[str]) -> Iterator[None]:
    """As if these packages were not installed, but for those that are imported already."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def distributed(framework: Framework, layout: DeviceLayout) -> Framework:
    """`framework` over the devices of `layout`, none of them opened yet. Raises Unavailable."""
    if not FRAMEWORKS[framework.name].parallel:
        raise Unavailable(
            f"framework={framework.name} runs on one device, not on {layout.devices}: data parallel steps are "
            "TensorFlow's and JAX's"
        )
    module = importlib.import_module(f"paradnn.worker.frameworks.{framework.name}")
    make: Callable[[DeviceLayout], Framework] = module.make_distributed
    return make(layout)
