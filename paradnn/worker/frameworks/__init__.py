"""One interface for all frameworks on which Keras runs.

Each module of this package implements `Framework` under the name FRAMEWORK. A `Framework` finds
devices, places batches, compiles a training or inference step, synchronizes the device and
classifies errors. The rest of the worker does not depend on the framework.
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

if TYPE_CHECKING:  # `load` imports Keras, and reports a failure
    from paradnn.families.built import BuiltModel
    from paradnn.worker.affinity import DeviceLayout

#: Packages that Keras imports if they are installed, for features that no point uses. They need
#: 150 MB, and a third of the processor time of a worker's start.
_UNUSED_PACKAGES = ("IPython", "matplotlib", "pandas", "sklearn")
#: The input arrays and the target arrays of a batch.
Batch = tuple[Sequence[Any], Sequence[Any]]


class Step:
    """A training step or forward pass of a model, with its batch on the device.

    The first run compiles the step. The methods of this base class report no compilations and no
    kernel costs.

    Attributes:
        parameters_per_device: Largest number of trainable parameters on one device; None if every
            device has all parameters.
    """

    parameters_per_device: int | None = None

    def run(self, steps: int) -> float | None:
        """Run steps, wait for the device, and return the last loss; None in inference.

        Args:
            steps: The number of steps.
        """
        raise NotImplementedError

    def compilations(self) -> int:
        """Return the number of compilations in this process so far, including failed ones."""
        return 0

    def compile_note(self) -> str | None:
        """Return a remark on how the framework compiled the step; None without a remark."""
        return None

    def conversion(self) -> Conversion | None:
        """Return time, size and error of the conversion of the model for an inference engine.

        Returns None for other frameworks, which run the model without a conversion.
        """
        return None

    def products(self) -> Sequence[Cost]:
        """Return FLOPs and sizes of each matrix product and convolution in the compiled program.

        The result is empty if the framework does not expose the program.
        """
        return ()

    def kernel_cost(self, name: str, kind: str) -> Cost:
        """Return FLOPs and bytes of a kernel whose cost the profiler's trace does not state.

        Args:
            name: The kernel's name in the trace.
            kind: The kernel's type in the trace.
        """
        return Cost(kind, "other")

    def calibrate(self, examples: Any) -> None:
        """Use other examples than the step's batch to calibrate a quantized model.

        Call this method before the first run. Steps without a quantized model ignore the call.

        Args:
            examples: Inputs of the model as one NumPy array (examples, ...).
        """

    # The members below are for work that trains or evaluates a model (task=learn), and for the
    # input pipeline. Steps that support neither do not override them.

    _variables: Sequence[Any] = ()

    @property
    def block_run(self) -> Any:
        """Function or object that runs the steps of a timed block.

        `paradnn.worker.measure.measure_steps` gets it as the argument `run`.
        """
        return self.run

    def feed(self, steps: int, take: Callable[[], tuple[Any, ...]]) -> float | None:
        """Run steps, each on a new batch, and return the last loss; None in inference.

        Args:
            steps: The number of steps.
            take: Function that returns the next batch: (inputs, targets), or (inputs,) in
                inference. Inputs and targets are sequences of arrays.
        """
        raise NotImplementedError

    def values(self) -> list[Any]:
        """Return copies of the model's variables, then of the optimizer's, as NumPy arrays."""
        raise NotImplementedError

    def model_variables(self, model: Any) -> list[Any]:
        """Return the Keras variables of the step's model, in the order of `values()`.

        Args:
            model: The Keras model of the step.
        """
        return list(model.variables)

    def assign(self, values: Sequence[Any]) -> None:
        """Assign values to all variables of the model and the optimizer.

        Args:
            values: One array per variable, in the order of `values()`.
        """
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)

    def outputs(self, inputs: Sequence[Any]) -> Any:
        """Return the outputs of the model in inference as a NumPy array (batch, ...).

        The forward pass is compiled in the same mode as the step.

        Args:
            inputs: The input arrays, with the shapes of the step's batch.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Member:
    """One of several processes that share each training step.

    Attributes:
        rank: Number of the process, from 0.
        local_rank: Number of the process among the processes of its host, from 0.
        addresses: Address (host:port) of every process, in order of rank.
        layout: The devices of this process, with their threads and cores.
    """

    rank: int
    local_rank: int
    addresses: Sequence[str]
    layout: DeviceLayout

    def share(self, array: Any) -> Any:
        """Return the part of an array of a batch that this process computes.

        Args:
            array: Inputs or targets of the whole batch (batch_size, ...). All processes get equal
                parts, in order of rank.
        """
        size = len(array) // len(self.addresses)
        return array[self.rank * size : (self.rank + 1) * size]


class Framework(ABC):
    """Base class of the frameworks. A framework accesses no device before `open_device`.

    Attributes:
        name: The value of `framework` in a configuration, such as "jax".
    """

    name: str
    #: Values of `compile` that compile a matrix product to different programs. Peak rates are
    #: measured for each of them.
    compile_modes: tuple[str, ...]

    @abstractmethod
    def open_device(self, platform: Mapping[str, Any]) -> None:
        """Open the requested device for this process.

        Args:
            platform: The `platform` settings of a configuration. `name` is "cpu", "gpu" or "tpu".
                `index` is the number of the device. `threads` is the number of threads per
                operation; None for all cores.

        Raises:
            UnavailableError: If the host has no such device.
        """

    def processes_per_host(self, devices: int, hosts: int) -> int:
        """Return the number of processes that data-parallel training needs on each host.

        Args:
            devices: Devices of each host.
            hosts: Number of hosts.
        """
        return 1

    def alone(self) -> Framework:
        """Return a framework for steps that this process runs without communication.

        Other steps are shared by several processes, of which this is one. The returned
        framework uses the devices that this framework has opened.
        """
        raise NotImplementedError

    def scope(self) -> AbstractContextManager[Any]:
        """Return a context in which a model is built with its variables on every device."""
        return contextlib.nullcontext()

    @abstractmethod
    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        """Return the training step or forward pass of a model, with its batch on the device.

        The step is usually compiled when it first runs.

        Args:
            workload: The model and its loss.
            batch: The inputs and targets as NumPy arrays.
            point: The configuration to measure. `mode` is "train" or "inference", `compile` the
                compile mode, `optimizer` the optimizer of a training step.
        """

    def make_kernel(
        self, name: str, size: int, precision: str, compile: str
    ) -> Callable[[int], None]:
        """Return a function that runs a kernel the given number of times and waits for the device.

        Args:
            name: "matmul" for a product of two square matrices, "add" for repeated in-place sums of
                two arrays.
            size: Number of rows of a matrix, or of elements of an array.
            precision: Element type, such as "float32".
            compile: The compile mode: "eager", "graph" or "xla".
        """
        raise NotImplementedError

    @abstractmethod
    def trace(
        self, folder: Path
    ) -> AbstractContextManager[Callable[[], AbstractContextManager[Any]]]:
        """Return a context in which the framework's profiler runs.

        Entering the context gives a function. That function returns a second context, which marks
        the steps that run in it as the profiled steps of the trace.

        Args:
            folder: The folder into which the profiler writes.

        Raises:
            UnavailableError: If the profiler cannot start.
        """

    def read_trace(self, folder: Path) -> Trace:
        """Read the profiler's trace.

        Args:
            folder: The folder that was passed to `trace`.

        Raises:
            ValueError: If the trace cannot be read.
        """
        return read_trace(folder)

    def peak_device_memory(self) -> int | None:
        """Return the peak memory of the device in bytes; None if the framework reports none."""
        return None

    def out_of_memory(self, error: BaseException) -> str | None:
        """Return the kind of memory that was exhausted when an exception was raised.

        Returns:
            "oom_host" or "oom_device"; None if the exception has a different cause.
        """
        return None


def load(name: str) -> Framework:
    """Import a framework, and Keras with the backend of the framework.

    Args:
        name: The value of `framework` in a configuration, such as "jax".
    """
    backend = FRAMEWORKS[name].backend
    os.environ["KERAS_BACKEND"] = backend
    if backend != "tensorflow":
        # Hide TensorFlow. Otherwise Keras would import it in every child, to set random seeds.
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
    """Return the framework for steps that this process runs on several devices.

    The devices are not opened yet.

    Args:
        framework: The framework for one device.
        layout: The devices, with their threads and cores.
        parallel: What is divided among the devices: "data" for the batch, "model" for the weights.

    Raises:
        UnavailableError: If the framework cannot divide the batch or the weights.
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
            f"framework={framework.name} has no parallel={parallel}, because Keras divides weights "
            "among devices only with JAX: set framework=jax or parallel=data"
        )
    return typing.cast("Framework", module.MODEL_PARALLEL(layout))


def grouped(framework: Framework, member: Member) -> Framework:
    """Return the framework for one of several processes that share the steps of training.

    The devices are not opened yet.

    Args:
        framework: The framework for one device.
        member: Rank, addresses and devices of this process.

    Raises:
        UnavailableError: If the framework cannot train over several processes.
    """
    module = importlib.import_module(f"paradnn.worker.frameworks.{framework.name}")
    if not hasattr(module, "GROUPED"):
        raise UnavailableError(
            f"framework={framework.name} cannot train over several processes: "
            "set framework=tensorflow, or hosts=1"
        )
    return typing.cast("Framework", module.GROUPED(member))
