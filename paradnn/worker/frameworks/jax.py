"""JAX: one jitted step that uses Keras' stateless calls, synchronized once per block.

The state is donated: one compiled program reads weights, moving statistics and the optimizer's
variables, and overwrites them in place. XLA is JAX's only compiler, so `compile=graph` and
`compile=xla` give the same program. `compile=eager` runs each operation separately
(`jax.disable_jit`).
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import jax.numpy as jnp
import keras
import numpy as np

from paradnn.core.errors import UnavailableError
from paradnn.core.words import counted
from paradnn.families.built import BuiltModel
from paradnn.worker.affinity import DeviceLayout, pin_to_cores
from paradnn.worker.frameworks import Batch, Framework, Member, Step
from paradnn.worker.optimizers import make_optimizer
from paradnn.worker.peak_rates import REPEATS
from paradnn.worker.profile.hlo import HloCosts
from paradnn.worker.profile.shapes import Cost
from paradnn.worker.profile.trace import WINDOW

#: The number of programs that this process has compiled.
_compiled = {"programs": 0}


class Jax(Framework):
    """JAX on one device."""

    name = "jax"
    compile_modes: tuple[str, ...] = ("xla",)

    def __init__(self) -> None:
        self._device: Any = None
        self._devices: Sequence[Any] = ()

    def open_device(self, platform: Mapping[str, Any]) -> None:
        kind = platform["name"]
        index = int(platform["index"])
        try:
            devices = jax.devices(kind)
        except RuntimeError as error:
            line = str(error).splitlines()[0]
            raise UnavailableError(f"JAX {jax.__version__} has no {kind} device: {line}") from error
        if index >= len(devices):
            raise UnavailableError(
                f"JAX {jax.__version__} sees {counted(len(devices), f'{kind} device')}, "
                f"so there is no platform.index={index}: "
                "choose another platform.index or platform"
            )
        self._device = devices[index]
        self._devices = [self._device]
        # Keras places its variables on the default device of the process.
        jax.config.update("jax_default_device", self._device)

    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        inputs = workload.prepare([jax.device_put(array, self._device) for array in batch[0]])
        targets = [jax.device_put(array, self._device) for array in batch[1]]
        optimizer = None
        if point["mode"] == "train":
            optimizer = make_optimizer(point, workload.model.trainable_variables)
        return JaxStep(
            workload,
            optimizer,
            inputs,
            targets,
            device=self._device,
            eager=point["compile"] == "eager",
        )

    def make_kernel(
        self, name: str, size: int, precision: str, compile: str
    ) -> Callable[[int], None]:
        if name == "matmul":
            keys = jax.random.split(jax.random.key(0))
            operands = [jax.random.normal(key, (size, size)).astype(precision) for key in keys]
            product = jax.jit(jnp.matmul)

            def run(times: int) -> None:
                for _ in range(times):
                    output = product(*operands)
                output.block_until_ready()

            return run

        def add(total: Any, values: Any) -> Any:
            # The sum overwrites `total`. Without the loop, XLA would fuse consecutive additions.
            return jax.lax.fori_loop(0, REPEATS, lambda _, partial: partial + values, total)

        function = jax.jit(add, donate_argnums=0)
        state = [jnp.zeros(size, precision)]
        values = jnp.ones(size, precision)

        def run_add(times: int) -> None:
            for _ in range(times):
                state[0] = function(state[0], values)
            state[0].block_until_ready()

        return run_add

    @contextlib.contextmanager
    def trace(self, folder: Path) -> Iterator[Callable[[], contextlib.AbstractContextManager[Any]]]:
        # Python events would be most of the trace and cause most of the slowdown.
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        try:
            jax.profiler.start_trace(str(folder), profiler_options=options)
        except RuntimeError as error:
            raise UnavailableError(f"JAX's profiler: {error}") from error
        try:
            yield lambda: jax.profiler.TraceAnnotation(WINDOW)
        finally:
            jax.profiler.stop_trace()

    def peak_device_memory(self) -> int | None:
        # CPUs and some plug-ins have no statistics.
        statistics = [device.memory_stats() or {} for device in self._devices]
        peaks = [entry.get("peak_bytes_in_use") for entry in statistics]
        known_peaks = [int(peak) for peak in peaks if peak is not None]
        if not known_peaks:
            return None
        return sum(known_peaks)

    def out_of_memory(self, error: BaseException) -> str | None:
        if not isinstance(error, RuntimeError) or "RESOURCE_EXHAUSTED" not in str(error):
            return None
        if self._device is None or self._device.platform == "cpu":
            return "oom_host"
        return "oom_device"


class JaxStep(Step):
    """A compiled step and its state: the variables that it passes from call to call.

    The state is committed to `device`. Otherwise the first step would be a separate program, and
    the second step would be compiled again.

    Args:
        workload: The model and its loss.
        optimizer: The Keras optimizer; None for inference.
        inputs: Input arrays of the batch, on the device.
        targets: Target arrays of the batch, on the device.
        device: The device of the state, or its sharding over several devices.
        eager: Whether each operation runs separately (`jax.disable_jit`).
        outputs: Sharding of all values that the compiled step returns; None if XLA may choose it.
    """

    def __init__(
        self,
        workload: BuiltModel,
        optimizer: Any,
        inputs: Sequence[Any],
        targets: Sequence[Any],
        *,
        device: Any,
        eager: bool,
        outputs: Any = None,
    ) -> None:
        self._device = device
        self._eager = eager
        self._forward = _inference_step(workload)
        self._training = optimizer is not None
        self._carrying = workload.carried is not None
        self._variables = [
            workload.model.trainable_variables,
            workload.model.non_trainable_variables,
        ]
        self._constants: tuple[Any, ...] = (inputs,)
        donated: tuple[int, ...] = ()
        if self._carrying:
            self.function = _inference_step(workload, carrying=True)
            donated = (1,)
        elif optimizer is None:
            self.function = self._forward
        else:
            self._variables.append(optimizer.variables)
            self.function = _training_step(workload, optimizer)
            self._constants = (inputs, targets)
            donated = (0, 1, 2)
        if workload.carried is None:
            self._state: Any = self._placed_variables()
        else:
            self._state = workload.carried
            if not self._state:
                self._state += self._placed_variables()
        if not eager:
            self._forward = jax.jit(self._forward)
            shardings = {} if outputs is None else {"out_shardings": outputs}
            self.function = jax.jit(self.function, donate_argnums=donated, **shardings)

    def run(self, steps: int) -> float | None:
        with self._mode():
            if not self._training:
                for _ in range(steps):
                    output = self.advance()
                jax.block_until_ready(output)
                return None
            for _ in range(steps):
                *self._state, loss = self.function(*self._state, *self._constants)
            # The last program returns the loss after its update, so reading it waits for all steps.
            return float(loss)

    def advance(self) -> Any:
        """Run one inference step and return its outputs.

        If the model passes variables, such as a cache, from step to step, the step updates them.
        """
        if not self._carrying:
            return self.function(*self._state, *self._constants)
        output, self._state[1] = self.function(*self._state, *self._constants)
        return output

    def feed(self, steps: int, take: Callable[[], tuple[Any, ...]]) -> float | None:
        with self._mode():
            for _ in range(steps):
                inputs, targets = (jax.device_put(list(arrays), self._device) for arrays in take())
                *self._state, loss = self.function(*self._state, inputs, targets)
            return float(loss)

    def outputs(self, inputs: Sequence[Any]) -> Any:
        with self._mode():
            arrays = jax.device_put(list(inputs), self._device)
            return np.asarray(self._forward(*self._state[:2], arrays))

    def values(self) -> list[Any]:
        # Copies, because the next step overwrites these arrays in place.
        return [np.array(value) for group in self._state for value in group]

    def model_variables(self, model: Any) -> list[Any]:
        return [*model.trainable_variables, *model.non_trainable_variables]

    def assign(self, values: Sequence[Any]) -> None:
        variables = [variable for group in self._variables for variable in group]
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        self._state = self._placed_variables()

    def _mode(self) -> contextlib.AbstractContextManager[Any]:
        if self._eager:
            uncompiled: contextlib.AbstractContextManager[Any] = jax.disable_jit()
            return uncompiled
        return contextlib.nullcontext()

    def _placed_variables(self) -> Any:
        """Return the values of the Keras variables on the device.

        The result has one list each for the weights, the other variables of the model and, in
        training, the variables of the optimizer.
        """
        device = self._device
        return tuple(
            [jax.device_put(variable.value, device) for variable in group]
            for group in self._variables
        )

    def compilations(self) -> int:
        return _compiled["programs"]

    def compile_note(self) -> str | None:
        if self._eager:
            return (
                "jax.disable_jit: each operation is a separate program, compiled when it first runs"
            )
        programs = self.function._cache_size()
        note = "jax.jit: graph and xla are the same program"
        if programs == 1:
            return note
        return f"{note}, compiled {programs} times"

    def products(self) -> Sequence[Cost]:
        if self._eager:
            return ()
        try:
            from paradnn.worker.profile.protos import HloModuleProto
        except ModuleNotFoundError:  # protobuf is not installed
            return ()
        # JAX returns the program that it has already compiled for these arguments.
        program = self.function.lower(*self._state, *self._constants).compile()
        modules = [
            HloModuleProto.FromString(module.as_serialized_hlo_module_proto())
            for module in program.runtime_executable().hlo_modules()
        ]
        return HloCosts(modules).products()


def _training_step(workload: BuiltModel, optimizer: keras.optimizers.Optimizer) -> Any:
    """Return a training step as a function without side effects.

    The arguments of the returned function are weights, other variables of the model, variables of
    the optimizer, inputs and targets. It returns the updated variables, in the order of the
    arguments, and the loss.
    """
    model = workload.model

    def train_step(weights: Any, others: Any, slots: Any, inputs: Any, targets: Any) -> Any:
        def compute(weights: Any) -> Any:
            batch = inputs[0] if len(inputs) == 1 else inputs
            outputs, updated = model.stateless_call(weights, others, batch, training=True)
            loss = workload.loss(targets, outputs)
            # `scale_loss` reads the scale from one of the optimizer's variables.
            with keras.StatelessScope(
                state_mapping=list(zip(optimizer.variables, slots, strict=True))
            ):
                return optimizer.scale_loss(loss), (loss, updated)

        gradients, (loss, updated) = jax.grad(compute, has_aux=True)(weights)
        weights, slots = optimizer.stateless_apply(slots, gradients, weights)
        return weights, updated, slots, loss

    return train_step


def _inference_step(workload: BuiltModel, *, carrying: bool = False) -> Any:
    """Return the forward pass as a function of weights, other variables of the model, and inputs.

    Args:
        workload: The model.
        carrying: Whether the returned function also returns the updated other variables, in
            addition to the outputs.
    """
    model = workload.model

    def inference_step(weights: Any, others: Any, inputs: Any) -> Any:
        batch = inputs[0] if len(inputs) == 1 else inputs
        outputs, carried = model.stateless_call(weights, others, batch, training=False)
        if carrying:
            return outputs, carried
        return outputs

    return inference_step


def _count_compilation(event: str, _duration: float, **_metadata: Any) -> None:
    """Count the programs that XLA compiles.

    `jax.monitoring` calls this listener with the name and the duration of every event.
    """
    if event == "/jax/core/compile/backend_compile_duration":
        _compiled["programs"] += 1


jax.monitoring.register_event_duration_secs_listener(_count_compilation)
FRAMEWORK = Jax


# With several devices in one process, the jitted step is unchanged, but its batch is sharded and
# its state is replicated. XLA's partitioner turns the step into one program for all devices and
# inserts the all-reduces. The result is the same as on one device: batch statistics cover the whole
# batch.

_AXIS = "batch"


class DistributedJax(Jax):
    """JAX with the batch of a step sharded over several devices of one process.

    Args:
        layout: The devices, with their threads and cores.
    """

    def __init__(self, layout: DeviceLayout) -> None:
        super().__init__()
        self._layout = layout
        self._mesh: Any = None

    def open_device(self, platform: Mapping[str, Any]) -> None:
        kind = platform["name"]
        index = int(platform["index"])
        count = self._layout.devices
        if kind == "cpu":
            self._set_cpu_devices(index + count)
        super().open_device(platform)
        devices = jax.devices(kind)
        if index + count > len(devices):
            raise UnavailableError(
                f"JAX {jax.__version__} sees {counted(len(devices), f'{kind} device')}, "
                f"too few for devices={count} with platform.index={index}: "
                "lower devices or platform.index, or choose another platform"
            )
        self._devices = devices[index : index + count]
        self._mesh = jax.sharding.Mesh(np.array(self._devices), (_AXIS,))

    def _set_cpu_devices(self, count: int) -> None:
        """Divide the CPU into `count` devices, and bind this process to the layout's cores."""
        layout = self._layout
        pin_to_cores(layout.cores)
        # NPROC sets the size of the thread pool that all CPU devices share. A device that waits in
        # an all-reduce occupies a thread. Without spare threads, the other devices could not reach
        # the all-reduce, and the step would deadlock.
        os.environ["NPROC"] = str(layout.devices * (layout.threads + 1))
        jax.config.update("jax_num_cpu_devices", count)

    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        sharded = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec(_AXIS))
        replicated = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec())
        inputs, targets = ([self._place(array, sharded) for array in arrays] for arrays in batch)
        optimizer = None
        variables = list(workload.model.variables)
        if point["mode"] == "train":
            optimizer = make_optimizer(point, workload.model.trainable_variables)
            variables += optimizer.variables
        for variable in variables:
            variable.assign(self._replicate(variable.value, replicated))
        return JaxStep(
            workload,
            optimizer,
            inputs,
            targets,
            device=replicated,
            eager=point["compile"] == "eager",
            outputs=sharded if optimizer is None else replicated,
        )

    def _place(self, array: Any, sharding: Any) -> Any:
        """Divide the examples of an array among the devices, and return the distributed array.

        Args:
            array: Inputs or targets of the whole batch (batch_size, ...).
            sharding: Sharding that divides the first axis.
        """
        return jax.device_put(array, sharding)

    def _replicate(self, value: Any, sharding: Any) -> Any:
        """Copy a value to every device, and return the replicated value.

        Args:
            value: An array.
            sharding: Sharding that puts a copy on each device.
        """
        return jax.device_put(value, sharding)


DISTRIBUTED = DistributedJax


# The weights can also be divided among the devices of one process. Each weight is divided along its
# last axis, which corresponds to the outputs of a layer. Every device gets the whole batch, and
# XLA's partitioner inserts the communication between the devices.

_WEIGHTS_AXIS = "weights"


class _DividedWeights(keras.distribution.ModelParallel):  # type: ignore[misc]
    """Divides variables of two or more axes along the last axis.

    Variables with fewer than two axes are copied to every device. So are variables whose last axis
    has a length that is not a multiple of the number of devices.

    Args:
        devices: Names of the devices, as in `keras.distribution.list_devices`.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        mesh = keras.distribution.DeviceMesh((1, len(devices)), [_AXIS, _WEIGHTS_AXIS], devices)
        super().__init__(layout_map=keras.distribution.LayoutMap(mesh), batch_dim_name=_AXIS)

    def get_variable_layout(self, variable: Any) -> Any:
        axes: list[str | None] = [None] * len(variable.shape)
        if len(axes) > 1 and variable.shape[-1] % self.device_mesh.devices.size == 0:
            axes[-1] = _WEIGHTS_AXIS
        return keras.distribution.TensorLayout(axes, self.device_mesh)


class ModelParallelJax(DistributedJax):
    """JAX with the weights of the model sharded over several devices of one process.

    Args:
        layout: The devices, with their threads and cores.
    """

    def __init__(self, layout: DeviceLayout) -> None:
        super().__init__(layout)
        self._distribution: Any = None

    def open_device(self, platform: Mapping[str, Any]) -> None:
        super().open_device(platform)
        names = [f"{device.platform}:{device.id}" for device in self._devices]
        self._distribution = _DividedWeights(names)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        scope: contextlib.AbstractContextManager[Any] = self._distribution.scope()
        return scope

    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        replicated = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec())
        inputs, targets = (jax.device_put(list(arrays), replicated) for arrays in batch)
        optimizer = None
        if point["mode"] == "train":
            with self.scope():
                optimizer = make_optimizer(point, workload.model.trainable_variables)
        return ModelParallelStep(
            workload,
            optimizer,
            inputs,
            targets,
            device=replicated,
            eager=point["compile"] == "eager",
        )


class ModelParallelStep(JaxStep):
    """A step of a model whose weights are divided among several devices.

    Args:
        workload: The model and its loss.
        optimizer: The Keras optimizer; None for inference.
        inputs: Input arrays of the batch, on every device.
        targets: Target arrays of the batch, on every device.
        **placement: The arguments `device` and `eager` of JaxStep. `device` must be the sharding
            that puts a copy on each device.

    Raises:
        UnavailableError: If no weight can be divided.
    """

    def __init__(
        self, workload: BuiltModel, optimizer: Any, inputs: Any, targets: Any, **placement: Any
    ) -> None:
        weights = workload.model.trainable_variables
        counts = [_parameters_per_device(variable) for variable in weights]
        device_count = len(placement["device"].device_set)
        if sum(counts) == sum(variable.value.size for variable in weights):
            raise UnavailableError(
                "no weight can be divided, because no weight's last axis is a multiple of "
                f"devices={device_count}: choose other sizes of the model, or set parallel=data"
            )
        self.parameters_per_device = sum(counts)
        variables = [*weights], [*workload.model.non_trainable_variables]
        outputs = placement["device"]
        if optimizer is not None:
            shardings = [
                [variable.value.sharding for variable in group]
                for group in (*variables, optimizer.variables)
            ]
            outputs = (*shardings, outputs)
        super().__init__(workload, optimizer, inputs, targets, outputs=outputs, **placement)

    def _placed_variables(self) -> Any:
        return tuple([variable.value for variable in group] for group in self._variables)


def _parameters_per_device(variable: Any) -> int:
    value = variable.value
    return math.prod(value.sharding.shard_shape(value.shape))


MODEL_PARALLEL = ModelParallelJax


# With several hosts, each host runs one process, whose devices are a part of the common mesh. All
# processes compile the same program and run it at the same time.

#: Seconds without a heartbeat after which JAX ends the other processes.
_HEARTBEAT_SECONDS = 30


class GroupedJax(DistributedJax):
    """JAX with one process per host. The devices of all processes form one mesh.

    Args:
        member: Rank, addresses and devices of this process.
    """

    def __init__(self, member: Member) -> None:
        super().__init__(member.layout)
        self._member = member

    def open_device(self, platform: Mapping[str, Any]) -> None:
        kind = platform["name"]
        index = int(platform["index"])
        count = self._layout.devices
        addresses = self._member.addresses
        device_ids = None
        if kind == "cpu":
            self._set_cpu_devices(count)
        else:
            device_ids = list(range(index, index + count))
        jax.distributed.initialize(
            coordinator_address=addresses[0],
            coordinator_bind_address=addresses[0],
            num_processes=len(addresses),
            process_id=self._member.rank,
            local_device_ids=device_ids,
            cluster_detection_method="deactivate",
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        )
        try:
            self._devices = jax.local_devices(backend=kind)
        except RuntimeError as error:
            line = str(error).splitlines()[0]
            raise UnavailableError(f"JAX {jax.__version__} has no {kind} device: {line}") from error
        if len(self._devices) < count:
            raise UnavailableError(
                f"JAX {jax.__version__} sees {counted(len(self._devices), f'{kind} device')}, "
                f"too few for devices={count} with platform.index={index}: "
                "lower devices or platform.index, or choose another platform"
            )
        self._device = self._devices[0]
        jax.config.update("jax_default_device", self._device)
        all_devices = sorted(
            jax.devices(kind), key=lambda device: (device.process_index, device.id)
        )
        self._mesh = jax.sharding.Mesh(np.array(all_devices), (_AXIS,))

    def alone(self) -> Framework:
        framework: Jax
        if self._layout.devices == 1:
            framework = Jax()
        else:
            framework = DistributedJax(self._layout)
            framework._mesh = jax.sharding.Mesh(np.array(self._devices), (_AXIS,))
        framework._device = self._device
        framework._devices = self._devices
        return framework

    def _place(self, array: Any, sharding: Any) -> Any:
        share = self._member.share(array)
        return jax.make_array_from_process_local_data(sharding, share, array.shape)

    def _replicate(self, value: Any, sharding: Any) -> Any:
        value = np.asarray(value)
        return jax.make_array_from_process_local_data(sharding, value, value.shape)


GROUPED = GroupedJax
