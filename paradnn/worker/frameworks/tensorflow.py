"""TensorFlow: one compiled step in a plain loop, synchronized once per block.

Unlike Keras' `fit`, the loop does not read the loss after every step, because each read would wait
for the device.
"""

import contextlib
import functools
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from paradnn.core.errors import UnavailableError
from paradnn.core.words import counted
from paradnn.families.built import BuiltModel
from paradnn.worker.affinity import DeviceLayout, pin_to_cores
from paradnn.worker.frameworks import Batch, Framework, Member, Step
from paradnn.worker.frameworks.tf_cluster import connect
from paradnn.worker.optimizers import make_optimizer
from paradnn.worker.peak_rates import REPEATS
from paradnn.worker.profile.categories import categorize
from paradnn.worker.profile.hlo import HloCosts
from paradnn.worker.profile.shapes import Cost
from paradnn.worker.profile.tf_graph import GraphCosts
from paradnn.worker.profile.trace import WINDOW, Trace, read_trace


class TensorFlow(Framework):
    """TensorFlow on one device."""

    name = "tensorflow"
    compile_modes: tuple[str, ...] = ("graph", "xla")

    def __init__(self) -> None:
        self._opened: list[str] = []
        self._is_xla = False

    def open_device(self, platform: Mapping[str, Any]) -> None:
        kind = _kind_of(platform)
        index = int(platform["index"])
        if platform["threads"]:
            tf.config.threading.set_intra_op_parallelism_threads(int(platform["threads"]))
        devices = tf.config.list_physical_devices(kind)
        if index >= len(devices):
            raise UnavailableError(
                f"TensorFlow {tf.__version__} sees {counted(len(devices), f'{kind} device')}, "
                f"so there is no platform.index={index}: "
                "choose another platform.index or platform"
            )
        if kind == "GPU":
            _show_gpus(devices[index : index + 1])
        self._opened = [f"{kind}:0"]

    def processes_per_host(self, devices: int, hosts: int) -> int:
        # MultiWorkerMirroredStrategy has one CPU device per process.
        if hosts == 1:
            return 1
        return devices

    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        is_xla = point["compile"] == "xla"
        is_compiled = point["compile"] != "eager"
        self._is_xla = is_xla
        inputs = workload.prepare([tf.identity(tf.constant(array)) for array in batch[0]])
        targets = [tf.identity(tf.constant(array)) for array in batch[1]]
        variables: list[Any] = []
        if point["mode"] == "train":
            optimizer = make_optimizer(point, workload.model.trainable_variables)
            function = _training_step(workload, optimizer, dense=is_xla)
            arguments = (*inputs, *targets)
            variables = [*workload.model.variables, *optimizer.variables]
        else:
            # On a CPU `wait_for` reads the whole output in place, without a copy. An additional
            # scalar output would cost 10 us per call of a graph.
            returns_number = is_compiled and not (point["compile"] == "graph" and self._on_cpu)
            function = inference_step(workload, number=returns_number)
            arguments = tuple(inputs)
        forward = inference_step(workload, number=is_compiled)
        if is_compiled:
            jit_compile = True if is_xla else None
            function = tf.function(function, jit_compile=jit_compile)
            forward = tf.function(forward, jit_compile=jit_compile)
        return TensorFlowStep(function, arguments, point, variables, forward)

    def make_kernel(
        self, name: str, size: int, precision: str, compile: str
    ) -> Callable[[int], None]:
        if name == "matmul":
            arguments = [tf.cast(tf.random.normal([size, size]), precision) for _ in range(2)]

            def kernel(*operands: tf.Tensor) -> Any:
                product = tf.matmul(*operands)
                # `wait_for` reads the scalar. Because the product is returned as well, TensorFlow
                # computes all of it.
                return product[0, 0], product
        else:
            total = tf.Variable(tf.zeros([size], precision))
            arguments = [tf.ones([size], precision)]

            def kernel(*operands: tf.Tensor) -> Any:
                # The sum overwrites `total`: an addition reads two arrays and writes one.
                for _ in range(REPEATS):
                    total.assign_add(*operands)
                return total[:1]

        function = tf.function(kernel, jit_compile=compile == "xla" or None)

        def run(times: int) -> None:
            for _ in range(times):
                output = function(*arguments)
            wait_for(output)

        return run

    @contextlib.contextmanager
    def trace(self, folder: Path) -> Iterator[Callable[[], contextlib.AbstractContextManager[Any]]]:
        if not self._is_xla:
            _reset_operation_times()
        with _profiler(folder):
            # Yield a function, since an annotation begins when it is created.
            yield lambda: tf.profiler.experimental.Trace(WINDOW)

    def read_trace(self, folder: Path) -> Trace:
        trace = super().read_trace(folder)
        if self._is_xla and not trace.ran:
            raise UnavailableError(
                f"TensorFlow {tf.__version__} cannot trace the operations of a program that XLA "
                "compiled: set compile=graph to profile them"
            )
        return trace

    @property
    def _on_cpu(self) -> bool:
        return not self._opened or self._opened[0].startswith("CPU")

    def peak_device_memory(self) -> int | None:
        if self._on_cpu:
            return None
        return sum(
            int(tf.config.experimental.get_memory_info(name)["peak"]) for name in self._opened
        )

    def out_of_memory(self, error: BaseException) -> str | None:
        # XLA on a GPU reports exhausted memory as an internal error.
        is_runtime_error = isinstance(error, (tf.errors.OpError, RuntimeError))
        is_exhausted = is_runtime_error and "RESOURCE_EXHAUSTED" in str(error)
        if not is_exhausted and not isinstance(error, tf.errors.ResourceExhaustedError):
            return None
        if self._on_cpu:
            return "oom_host"
        return "oom_device"


class TensorFlowStep(Step):
    """A step that calls a function on a batch that stays on the device.

    Args:
        function: The timed function of the arrays of the batch. In training, it returns the loss.
        arguments: The arrays of the batch, as a flat tuple, because passing nested arguments takes
            longer.
        point: The configuration to measure, with the keys `mode` and `compile`.
        variables: Variables of the model, then of the optimizer; empty in inference.
        forward: The forward pass as a function of the input arrays; None if the method `outputs` is
            not needed.
    """

    def __init__(
        self,
        function: Any,
        arguments: tuple[Any, ...],
        point: Mapping[str, Any],
        variables: Sequence[Any] = (),
        forward: Any = None,
    ) -> None:
        self.function = function
        self._variables = variables
        self._forward = forward
        self.arguments = arguments
        self._training = point["mode"] == "train"
        self._compile = point["compile"]

    def run(self, steps: int) -> float | None:
        function = self.function
        arguments = self.arguments
        for _ in range(steps):
            output = function(*arguments)
        value = wait_for(output)
        if self._training:
            return float(value)
        return None

    def feed(self, steps: int, take: Callable[[], tuple[Any, ...]]) -> float | None:
        function = self.function
        for _ in range(steps):
            # Passing arrays instead of tensors would take 50 us longer.
            output = function(*map(tf.constant, itertools.chain.from_iterable(take())))
        value = wait_for(output)
        if self._training:
            return float(value)
        return None

    def values(self) -> list[Any]:
        return [variable.numpy().copy() for variable in self._variables]

    def outputs(self, inputs: Sequence[Any]) -> Any:
        return self._forward(*inputs)[-1].numpy()

    def compilations(self) -> int:
        # XLA compiles a function once per trace, since all shapes are fixed.
        count = getattr(self.function, "experimental_get_tracing_count", None)
        if count is None:
            return 0
        return int(count())

    def compile_note(self) -> str | None:
        traced = self.compilations()
        if traced > 1:
            return f"tf.function was traced {traced} times"
        return None

    def kernel_cost(self, name: str, kind: str) -> Cost:
        if self._compile == "graph":
            return self._costs.cost(name, kind)
        return Cost(kind, categorize("tensorflow", kind))

    def products(self) -> Sequence[Cost]:
        if self._compile == "graph":
            return self._costs.products()
        if self._compile == "xla":
            # Only a trace has XLA's program. Requesting it directly would compile it again.
            return _traced_products(self)
        return ()

    @functools.cached_property
    def _costs(self) -> GraphCosts:
        graph = self.function.get_concrete_function(*self.arguments).graph
        return GraphCosts(graph.as_graph_def(add_shapes=True))


def _kind_of(platform: Mapping[str, Any]) -> str:
    """Return TensorFlow's name for the kind of device, "CPU" or "GPU".

    Args:
        platform: The `platform` settings of a configuration.

    Raises:
        UnavailableError: If the kind is "tpu".
    """
    if platform["name"] == "tpu":
        raise UnavailableError("ParaDnn runs TensorFlow only on CPUs and GPUs: set framework=jax")
    return str(platform["name"]).upper()


def _show_gpus(devices: Sequence[Any]) -> None:
    """Make only these GPUs visible, and let TensorFlow allocate their memory as needed.

    Without memory growth, TensorFlow allocates all memory at once, and no peak can be measured.
    """
    tf.config.set_visible_devices(devices, "GPU")
    for device in devices:
        tf.config.experimental.set_memory_growth(device, True)


def _reset_operation_times() -> None:
    """Make TensorFlow prepare every function again at its next call.

    TensorFlow's profiler omits operations whose mean over about 80 recent runs is below a few
    microseconds. Preparing a function resets these means. The options of the graph optimizer are
    part of the cache key of a prepared function. Toggling `debug_stripper` between unset and false
    changes this key and nothing else.
    """
    current = tf.config.optimizer.get_experimental_options().get("debug_stripper")
    value = None if current is False else False
    tf.config.optimizer.set_experimental_options({"debug_stripper": value})


@contextlib.contextmanager
def _profiler(folder: Path) -> Iterator[None]:
    """Return a context in which TensorFlow's profiler runs, without Python events.

    Python events would be most of the trace and cause most of the slowdown.

    Args:
        folder: The folder into which the profiler writes.

    Raises:
        UnavailableError: If the profiler cannot start.
    """
    levels = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    try:
        tf.profiler.experimental.start(str(folder), levels)
    except tf.errors.OpError as error:
        raise UnavailableError(f"TensorFlow's profiler: {error.message}") from error
    try:
        yield
    finally:
        tf.profiler.experimental.stop()


def _traced_products(step: TensorFlowStep) -> Sequence[Cost]:
    """Run one step, and return the costs of the products in the XLA programs that it ran.

    The result is empty if protobuf is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="trace-", dir=".") as name:
        with _profiler(Path(name)), tf.profiler.experimental.Trace(WINDOW):
            step.run(1)
        try:
            trace = read_trace(Path(name))
        except UnavailableError:  # protobuf is not installed
            return ()
    # The trace contains every program of this process, including programs that this step did not
    # run.
    ran = trace.ran
    return HloCosts([module for module in trace.modules if module.name in ran]).products()


def wait_for(output: Any) -> Any:
    """Wait for the device, and return the first tensor of a function's output as a NumPy value.

    Reading a tensor waits for all work in the stream of its device. To keep the copy small, the
    first output of a compiled function is a scalar. On a CPU this is unnecessary, because tensors
    are read in place. Indexing the tensor here instead would take longer than many steps.

    Args:
        output: A tensor, or a tuple that begins with a tensor.
    """
    first = output[0] if isinstance(output, tuple) else output
    try:
        return np.asarray(memoryview(first))
    except (ValueError, TypeError):  # an element type that the buffer protocol lacks
        return first.numpy()


def _training_step(
    workload: BuiltModel,
    optimizer: keras.optimizers.Optimizer,
    *,
    dense: bool,
    devices: int = 1,
) -> Any:
    """Return a training step as a function that updates the variables and returns the loss.

    The arguments of the returned function are the input tensors, then the target tensors.

    Args:
        workload: The model and its loss.
        optimizer: The Keras optimizer, which applies the gradients.
        dense: Whether to convert the gradients of embeddings to whole matrices. Otherwise they are
            slices, which Keras' optimizers add with an operation that XLA cannot compile.
        devices: Number of devices that run the function, each on its shard of the batch.
    """
    model = workload.model
    variables = model.trainable_variables
    count = len(workload.inputs)

    def train_step(*batch: tf.Tensor) -> tf.Tensor:
        inputs = list(batch[:count])
        targets = list(batch[count:])
        with tf.GradientTape() as tape:
            outputs = model(inputs[0] if len(inputs) == 1 else inputs, training=True)
            loss = workload.loss(targets, outputs)
            share = loss if devices == 1 else loss / devices
            scaled = optimizer.scale_loss(share)
        gradients = tape.gradient(scaled, variables)
        if dense:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        optimizer.apply(gradients, variables)
        return loss

    return train_step


def inference_step(workload: BuiltModel, *, number: bool) -> Any:
    """Return the forward pass as a function of the input tensors.

    The returned function returns a tuple of all outputs.

    Args:
        workload: The model.
        number: Whether the tuple begins with an additional scalar, one element of the first output.
            Reading the scalar waits for the device without copying a whole output.
    """
    model = workload.model

    def step(*inputs: tf.Tensor) -> Any:
        argument = inputs[0] if len(inputs) == 1 else list(inputs)
        # Return all outputs: TensorFlow omits computations whose results are not returned.
        outputs = tf.nest.flatten(model(argument, training=False))
        if number:
            return (outputs[0][(0,) * outputs[0].shape.rank], *outputs)
        return tuple(outputs)

    return step


FRAMEWORK = TensorFlow


# With several devices in one process, a MirroredStrategy of tf.distribute runs one compiled step,
# with a replica on each device. Each replica has its shard of the batch on its device. It computes
# batch statistics over that shard, as usual in tf.distribute. The loss of a replica is divided by
# the number of replicas, and Keras' optimizers sum the gradients over the replicas. All replicas
# therefore have the same weights after every update.


class DistributedTensorFlow(TensorFlow):
    """TensorFlow on several devices of one process, under a MirroredStrategy.

    Args:
        layout: The devices, with their threads and cores.
    """

    def __init__(self, layout: DeviceLayout) -> None:
        super().__init__()
        self._layout = layout
        self._strategy: Any = None

    def open_device(self, platform: Mapping[str, Any]) -> None:
        kind = _kind_of(platform)
        index = int(platform["index"])
        layout = self._layout
        devices = tf.config.list_physical_devices(kind)
        count = layout.devices
        if kind == "GPU":
            if index + count > len(devices):
                raise UnavailableError(
                    f"TensorFlow {tf.__version__} sees {counted(len(devices), f'{kind} device')}, "
                    f"too few for devices={count} with platform.index={index}: "
                    "lower devices or platform.index, or choose another platform"
                )
            _show_gpus(devices[index : index + count])
        else:
            if index >= len(devices):
                raise UnavailableError(
                    f"TensorFlow {tf.__version__} sees {counted(len(devices), f'{kind} device')}, "
                    f"so there is no platform.index={index}: "
                    "choose another platform.index or platform"
                )
            # Divide the only CPU into logical devices, each with a separate thread pool.
            pin_to_cores(layout.cores)
            # Without this variable, the devices of a process would share one thread pool.
            os.environ["TF_OVERRIDE_GLOBAL_THREADPOOL"] = "1"
            tf.config.threading.set_intra_op_parallelism_threads(layout.threads)
            tf.config.threading.set_inter_op_parallelism_threads(count * layout.threads)
            tf.config.set_logical_device_configuration(
                devices[0], [tf.config.LogicalDeviceConfiguration()] * count
            )
        self._opened = [f"{kind}:{number}" for number in range(count)]
        self._strategy = tf.distribute.MirroredStrategy(self._opened)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        scope: contextlib.AbstractContextManager[Any] = self._strategy.scope()
        return scope

    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        if point["compile"] == "xla":
            raise UnavailableError(
                "TensorFlow has no compile=xla over several devices: "
                "set compile=graph or framework=jax"
            )
        inputs = [self._place(array) for array in batch[0]]
        targets = [self._place(array) for array in batch[1]]
        if point["mode"] == "train":
            with self.scope():
                optimizer = make_optimizer(point, workload.model.trainable_variables)
            replica = _training_step(workload, optimizer, dense=True, devices=self._layout.devices)
            arguments = (*inputs, *targets)
        else:
            replica = inference_step(workload, number=point["compile"] != "eager")
            arguments = tuple(inputs)
        return _distributed_step(self._strategy, replica, arguments, point)

    def _place(self, array: Any) -> Any:
        """Divide an array of a batch among the devices, and return the distributed array.

        Args:
            array: Inputs or targets of the whole batch (batch_size, ...).
        """
        shards = np.split(array, self._layout.devices)

        def shard(context: Any) -> tf.Tensor:
            number = context.replica_id_in_sync_group
            with tf.device(self._opened[number]):
                return tf.identity(tf.constant(shards[number]))

        return self._strategy.experimental_distribute_values_from_function(shard)


class _DistributedStep(TensorFlowStep):
    """A step of several replicas of the model, each on its own device and shard of the batch.

    Attributes:
        strategy: The distribution strategy of tf.distribute under which the replicas run.
    """

    strategy: Any

    def run(self, steps: int) -> float | None:
        for _ in range(steps):
            output = self.function(*self.arguments)
        # Wait for every device. The loss is the mean over the shards.
        shards = self.strategy.experimental_local_results(tf.nest.flatten(output)[0])
        values = [wait_for(shard) for shard in shards]
        if self._training:
            return sum(map(float, values)) / len(values)
        return None

    def products(self) -> Sequence[Cost]:
        # The graph calls the replicas in a way that hides the shapes of their operations.
        return ()


DISTRIBUTED = DistributedTensorFlow


def _distributed_step(
    strategy: Any, replica: Callable[..., Any], arguments: tuple[Any, ...], point: Mapping[str, Any]
) -> _DistributedStep:
    """Return a step that runs `replica` on each device of the strategy.

    Args:
        strategy: Distribution strategy of tf.distribute.
        replica: Function that each device runs on its shard of the batch.
        arguments: Arrays of the batch, divided among the devices.
        point: The configuration to measure, with the keys `mode` and `compile`.
    """

    def step(*shares: Any) -> Any:
        return strategy.run(replica, args=shares)

    function = step if point["compile"] == "eager" else tf.function(step)
    distributed_step = _DistributedStep(function, arguments, point)
    distributed_step.strategy = strategy
    return distributed_step


# With several hosts there is one process per device, under a MultiWorkerMirroredStrategy. Each
# process compiles the step of one replica. The optimizer sums the gradients over all processes.


class GroupedTensorFlow(TensorFlow):
    """TensorFlow with one process per device, under a MultiWorkerMirroredStrategy.

    Args:
        member: Rank, addresses and device of this process.
    """

    def __init__(self, member: Member) -> None:
        super().__init__()
        self._member = member
        self._strategy: Any = None

    def open_device(self, platform: Mapping[str, Any]) -> None:
        layout = self._member.layout
        own = {
            **platform,
            "index": int(platform["index"]),
            "threads": layout.threads if platform["name"] == "cpu" else platform["threads"],
        }
        if platform["name"] == "cpu":
            pin_to_cores(layout.cores)
            tf.config.threading.set_inter_op_parallelism_threads(layout.threads)
        else:
            own["index"] += self._member.local_rank
        super().open_device(own)
        self._strategy = connect(self._member.rank, self._member.addresses)

    def alone(self) -> Framework:
        framework = TensorFlow()
        framework._opened = self._opened
        return framework

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        scope: contextlib.AbstractContextManager[Any] = self._strategy.scope()
        return scope

    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        if point["compile"] == "xla":
            raise UnavailableError(
                "TensorFlow has no compile=xla over several hosts: "
                "set compile=graph or framework=jax"
            )
        arguments = tuple(
            self._place(self._member.share(array)) for arrays in batch for array in arrays
        )
        with self.scope():
            optimizer = make_optimizer(point, workload.model.trainable_variables)
        count = len(self._member.addresses)
        replica = _training_step(workload, optimizer, dense=True, devices=count)
        return _distributed_step(self._strategy, replica, arguments, point)

    def _place(self, array: Any) -> Any:
        """Place an array on the device of this process, and return it as a distributed array.

        Args:
            array: This process's share of the inputs or targets of a batch.
        """
        return self._strategy.experimental_distribute_values_from_function(
            lambda _: tf.identity(tf.constant(array))
        )


GROUPED = GroupedTensorFlow
