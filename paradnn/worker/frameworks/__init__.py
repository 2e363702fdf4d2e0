"""What differs between the frameworks below Keras, behind one interface.

Each module implements `Framework` under the name FRAMEWORK: how devices are found, batches placed,
a training or inference step compiled, the device synchronised and errors classified. Everything
else in the worker is written once.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradnn.core.errors import UnavailableError
from paradnn.core.messages import Conversion
from paradnn.core.versions import FRAMEWORKS
from paradnn.worker.profile.shapes import Cost
from paradnn.worker.profile.trace import Trace, read_trace

if TYPE_CHECKING:  # importing Keras belongs to `load`, where a failure is reported
    from paradnn.families.built import BuiltModel
    from paradnn.worker.affinity import DeviceLayout

#: What Keras imports where it is installed, for parts that no point uses: a third of the processor
#: time of a worker's start, and 150 MB.
_NEEDLESS = ("IPython", "matplotlib", "pandas", "sklearn")
#: Inputs and targets.
Batch = tuple[Sequence[Any], Sequence[Any]]


class Step:
    """A compiled step with its batch in place; here is what a step says that compiles nothing and
    hides its kernels.
    """

    def run(self, steps: int) -> float | None:
        """Run `steps` steps, wait until the device is done; the last loss, or None in inference."""
        raise NotImplementedError

    def compilations(self) -> int:
        """How often something was compiled so far in this process; an attempt that failed took its
        time too.
        """
        return 0

    def compile_note(self) -> str | None:
        """What the framework has made of `compile` by now, where that is not plain from the word."""
        return None

    def conversion(self) -> Conversion | None:
        """What was converted for an engine; None elsewhere."""
        return None

    def products(self) -> Sequence[Cost]:
        """Costs of the products in the program that runs; none where that is hidden."""
        return ()

    def kernel_cost(self, name: str, kind: str) -> Cost:
        """What a kernel costs, by its name and type in a trace, where the trace does not tell."""
        return Cost(kind, "other")

    def calibrate(self, examples: Any) -> None:
        """Let what is quantised be calibrated on `examples`, not on the step's own batch; before it
        first runs.
        """

    # Of frameworks whose steps can learn:

    _variables: Sequence[Any] = ()

    def feed(self, steps: int, take: Callable[[], tuple[Any, ...]]) -> float | None:
        """As `run`, each step on arguments of its own: (inputs, targets), in inference (inputs,)."""
        raise NotImplementedError

    def values(self) -> list[Any]:
        """Copies of all variables as NumPy arrays: the model's, then the optimizer's."""
        raise NotImplementedError

    def assign(self, values: Sequence[Any]) -> None:
        """Let the variables have `values`, as `values()` gave them."""
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)

    def outputs(self, inputs: Sequence[Any]) -> Any:
        """What the model says of `inputs`, as a NumPy array; compiled as the step is."""
        raise NotImplementedError


class Framework(ABC):
    """One framework; nothing of it touches a device before `open_device`."""

    name: str
    #: The values of `compile` under which a matrix product is another program: each has ceilings of
    #: its own.
    compile_modes: tuple[str, ...]

    @abstractmethod
    def open_device(self, platform: Mapping[str, Any]) -> None:
        """Claim the device in this process. Raises UnavailableError."""

    def scope(self) -> AbstractContextManager[Any]:
        """Where models are built, so that their variables stand on every device."""
        return contextlib.nullcontext()

    @abstractmethod
    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        """The step of `point`, its batch on the device; nothing is compiled yet."""

    def make_kernel(
        self, name: str, size: int, precision: str, compile: str
    ) -> Callable[[int], None]:
        """A function that runs a kernel so many times and waits; see `paradnn.worker.peak_rates`
        for the names.
        """
        raise NotImplementedError

    @abstractmethod
    def trace(
        self, folder: Path
    ) -> AbstractContextManager[Callable[[], AbstractContextManager[Any]]]:
        """Profile into `folder`; what the function gives marks the steps that count. Raises
        UnavailableError.
        """

    def read_trace(self, folder: Path) -> Trace:
        """What `trace` wrote into `folder`; ValueError where it cannot be read."""
        return read_trace(folder)

    def peak_device_memory(self) -> int | None:
        """Peak bytes on the device, where the framework reports them."""
        return None

    def out_of_memory(self, error: BaseException) -> str | None:
        """`oom_host` or `oom_device` where an exception stands for it."""
        return None


def load(name: str) -> Framework:
    """Import the framework `name` with Keras on top of it."""
    os.environ["KERAS_BACKEND"] = backend = FRAMEWORKS[name].backend
    if backend != "tensorflow":
        # Keras seeds TensorFlow too wherever it is installed, which would import it in every child.
        sys.modules["tensorflow"] = None  # type: ignore[assignment]
    hidden = [name for name in _NEEDLESS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        module = importlib.import_module(f"paradnn.worker.frameworks.{name}")
    finally:
        for name in hidden:
            del sys.modules[name]
    return typing.cast("Framework", module.FRAMEWORK())


def distributed(framework: Framework, layout: DeviceLayout) -> Framework:
    """`framework` over the devices of `layout`, none of them opened yet. Raises UnavailableError."""
    if not FRAMEWORKS[framework.name].parallel:
        runs = f"framework={framework.name} runs on one device, not on {layout.devices}"
        raise UnavailableError(f"{runs}: data parallel steps are TensorFlow's and JAX's")
    module = importlib.import_module(f"paradnn.worker.frameworks.{framework.name}")
    return typing.cast("Framework", module.DISTRIBUTED(layout))
