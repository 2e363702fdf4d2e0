"""The frameworks below Keras behind one interface.

Each module implements `Framework` under the name FRAMEWORK: how to find devices, place batches,
compile a training or inference step, synchronize the device and classify errors. The rest of the
worker does not depend on the framework.
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
from dataclasses import dataclass
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

#: Packages that Keras imports if they are installed, for parts that no point uses. They take 150 MB
#: and a third of the processor time of a worker's start.
_UNUSED_PACKAGES = ("IPython", "matplotlib", "pandas", "sklearn")
#: Inputs and targets.
Batch = tuple[Sequence[Any], Sequence[Any]]


class Step:
    """A compiled step with its batch in place.

    The defaults are those of a step that compiles nothing and hides its kernels.

    Attributes:
        parameters_per_device: Most trainable parameters that one device holds; None if each device
            holds all of them.
    """

    parameters_per_device: int | None = None

    def run(self, steps: int) -> float | None:
        """Run `steps` steps and wait for the device. Returns the last loss; in inference None."""
        raise NotImplementedError

    def compilations(self) -> int:
        """The number of compilations in this process so far, with failed attempts."""
        return 0

    def compile_note(self) -> str | None:
        """Return how the framework interpreted `compile`, unless the word says so; else None."""
        return None

    def conversion(self) -> Conversion | None:
        """The conversion for an engine; None in other frameworks."""
        return None

    def products(self) -> Sequence[Cost]:
        """Costs of the products in the program that runs; empty if the program is hidden."""
        return ()

    def kernel_cost(self, name: str, kind: str) -> Cost:
        """Cost of a kernel by its name and type in a trace that does not state it."""
        return Cost(kind, "other")

    def calibrate(self, examples: Any) -> None:
        """Calibrate a quantized model on `examples` in place of the step's batch.

        Call it before the first run.
        """

    # The following are for frameworks whose steps can learn.

    _variables: Sequence[Any] = ()

    @property
    def block_run(self) -> Any:
        """Runs timed blocks (`paradnn.worker.measure.measure_steps`)."""
        return self.run

    def feed(self, steps: int, take: Callable[[], tuple[Any, ...]]) -> float | None:
        """Run steps on the batches that `take` returns. Returns the last loss; in inference None.

        A batch is (inputs, targets), in inference (inputs,).
        """
        raise NotImplementedError

    def values(self) -> list[Any]:
        """NumPy copies of all variables: those of the model, then those of the optimizer."""
        raise NotImplementedError

    def model_variables(self, model: Any) -> list[Any]:
        """The variables of the step's model, in the order of `values()`."""
        return list(model.variables)

    def assign(self, values: Sequence[Any]) -> None:
        """Assign values in the order of `values()`."""
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)

    def outputs(self, inputs: Sequence[Any]) -> Any:
        """The model's outputs for `inputs` as a NumPy array, compiled like the step."""
        raise NotImplementedError


@dataclass(frozen=True)
class Member:
    """The place of a process among those that share the steps of a point.

    Attributes:
        rank: Number of the process, from 0.
        local_rank: Its number among those on its host.
        addresses: Address (host:port) of every process, by rank.
        layout: The devices of this process.
    """

    rank: int
    local_rank: int
    addresses: Sequence[str]
    layout: DeviceLayout

    def share(self, array: Any) -> Any:
        """Return this process's equal share of a batch (batch_size, ...)."""
        size = len(array) // len(self.addresses)
        return array[self.rank * size : (self.rank + 1) * size]


class Framework(ABC):
    """A framework. It touches no device before `open_device`."""

    name: str
    #: Values of `compile` that make a matrix product a different program. Peak rates are measured
    #: for each.
    compile_modes: tuple[str, ...]

    @abstractmethod
    def open_device(self, platform: Mapping[str, Any]) -> None:
        """Claim the device for this process. Raises UnavailableError if there is no such device."""

    def processes_per_host(self, devices: int, hosts: int) -> int:
        """The number of processes of each host over which training is distributed.

        Args:
            devices: Devices of each host.
            hosts: Number of hosts.
        """
        return 1

    def alone(self) -> Framework:
        """The framework for steps of this process of several, without the others.

        It uses the devices that this framework has opened.
        """
        raise NotImplementedError

    def scope(self) -> AbstractContextManager[Any]:
        """Context in which models are built, so that every device has their variables."""
        return contextlib.nullcontext()

    @abstractmethod
    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        """Make the step of `point` with its batch on the device. Nothing is compiled yet."""

    def make_kernel(
        self, name: str, size: int, precision: str, compile: str
    ) -> Callable[[int], None]:
        """A function that runs a kernel a given number of times and waits for the device.

        `paradnn.worker.peak_rates` has the names.
        """
        raise NotImplementedError

    @abstractmethod
    def trace(
        self, folder: Path
    ) -> AbstractContextManager[Callable[[], AbstractContextManager[Any]]]:
        """Profile into `folder`. Raises UnavailableError if the profiler cannot start.

        The context yields a function. Its context marks the steps that the profile covers.
        """

    def read_trace(self, folder: Path) -> Trace:
        """Read what `trace` wrote into `folder`. Raises ValueError if it cannot be read."""
        return read_trace(folder)

    def peak_device_memory(self) -> int | None:
        """Peak bytes on the device, or None if the framework does not report them."""
        return None

    def out_of_memory(self, error: BaseException) -> str | None:
        """`oom_host` or `oom_device` if the exception means exhausted memory, else None."""
        return None


def load(name: str) -> Framework:
    """Import the framework `name` with Keras on top of it."""
    backend = FRAMEWORKS[name].backend
    os.environ["KERAS_BACKEND"] = backend
    if backend != "tensorflow":
        # Keras also seeds TensorFlow if it is installed, which would import it in every child.
        sys.modules["tensorflow"] = None  # type: ignore[assignment]
    hidden = [package for package in _UNUSED_PACKAGES if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        module = importlib.import_module(f"paradnn.worker.frameworks.{name}")
    finally:
        for package in hidden:
            del sys.modules[package]
    return typing.cast("Framework", module.FRAMEWORK())


def distributed(framework: Framework, layout: DeviceLayout, parallel: str = "data") -> Framework:
    """The framework for steps over the devices of `layout`, which are not opened yet.

    Args:
        framework: The framework for one device.
        layout: The devices.
        parallel: What they share: the batch (data) or the weights (model).

    Raises:
        UnavailableError: If the framework has no such steps.
    """
    if not FRAMEWORKS[framework.name].parallel and parallel == "data":
        raise UnavailableError(
            f"framework={framework.name} does not divide this work over {layout.devices} devices: "
            "set framework=tensorflow or framework=jax, or devices=1"
        )
    module = importlib.import_module(f"paradnn.worker.frameworks.{framework.name}")
    if parallel == "data":
        return typing.cast("Framework", module.DISTRIBUTED(layout))
    if not hasattr(module, "MODEL_PARALLEL"):
        raise UnavailableError(
            f"parallel={parallel} needs JAX, the only framework in which Keras divides weights "
            f"among devices, not framework={framework.name}: set framework=jax or parallel=data"
        )
    return typing.cast("Framework", module.MODEL_PARALLEL(layout))


def grouped(framework: Framework, member: Member) -> Framework:
    """The framework for one of several processes that share the steps of training.

    The devices are not opened yet.

    Raises UnavailableError if the framework has no such processes.
    """
    module = importlib.import_module(f"paradnn.worker.frameworks.{framework.name}")
    if not hasattr(module, "GROUPED"):
        raise UnavailableError(
            f"framework={framework.name} does not train over several processes here: "
            "set framework=tensorflow, or hosts=1"
        )
    return typing.cast("Framework", module.GROUPED(member))
