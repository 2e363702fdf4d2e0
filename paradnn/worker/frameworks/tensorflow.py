"""TensorFlow: one compiled step, called in a plain loop, synchronised once a block.

Keras' own `fit` reads the loss back at every step and so waits for the device each time; the loop
here does not.
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
from paradnn.families.built import BuiltModel
from paradnn.worker.affinity import DeviceLayout, bind
from paradnn.worker.frameworks import Batch, Framework, Step
from paradnn.worker.optimizers import make_optimizer
from paradnn.worker.peak_rates import REPEATS
from paradnn.worker.profile.categories import categorise
from paradnn.worker.profile.hlo import HloCosts
from paradnn.worker.profile.shapes import Cost
from paradnn.worker.profile.tf_graph import GraphCosts
from paradnn.worker.profile.trace import WINDOW, Trace, read_trace


class TensorFlow(Framework):
    """See `paradnn.worker.frameworks.Framework`."""

    name = "tensorflow"
    compile_modes: tuple[str, ...] = ("graph", "xla")

    def __init__(self) -> None:
        self._opened: list[str] = []
        self._compiled = False

    def open_device(self, platform: Mapping[str, Any]) -> None:
        kind = _kind_of(platform)
        index = int(platform["index"])
        if platform["threads"]:
            tf.config.threading.set_intra_op_parallelism_threads(int(platform["threads"]))
        devices = tf.config.list_physical_devices(kind)
        if index >= len(devices):
            raise UnavailableError(
                f"TensorFlow {tf.__version__} sees {len(devices)} {kind} device(s), not number {index}"
            )
        if kind == "GPU":
            _show_gpus(devices[index : index + 1])
        self._opened = [f"{kind}:0"]

    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        self._compiled = point["compile"] == "xla"
        inputs, targets = (
            [tf.identity(tf.constant(array)) for array in arrays] for arrays in batch
        )
        inputs = workload.prepare(inputs)
        variables: list[Any] = []
        arguments: tuple[Any, ...] = (*inputs, *targets)
        compiled = point["compile"] != "eager"
        if point["mode"] == "train":
            optimizer = make_optimizer(point, workload.model.trainable_variables)
            function = _training_step(workload, optimizer, dense=point["compile"] == "xla")
            variables = [*workload.model.variables, *optimizer.variables]
        else:
            # A CPU's tensors can be looked at where they are; the number would cost 10 us in a
            # graph.
            number = compiled and not (point["compile"] == "graph" and self._on_cpu)
            function = inference_step(workload, number)
            arguments = tuple(inputs)
        forward = inference_step(workload, compiled)
        if compiled:
            function, forward = (
                tf.function(each, jit_compile=point["compile"] == "xla" or None)
                for each in (function, forward)
            )
        return TensorFlowStep(function, arguments, point, variables, forward)

    def make_kernel(
        self, name: str, size: int, precision: str, compile: str
    ) -> Callable[[int], None]:
        if name == "matmul":
            arguments = [tf.cast(tf.random.normal([size, size]), precision) for _ in range(2)]

            def kernel(*operands: tf.Tensor) -> Any:
                product = tf.matmul(*operands)
                # A number of it, and all, so that no less is computed.
                return product[0, 0], product
        else:
            total = tf.Variable(tf.zeros([size], precision))
            arguments = [tf.ones([size], precision)]

            def kernel(*operands: tf.Tensor) -> Any:
                for _ in range(REPEATS):  # in place: two arrays are read and one is written
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
        if not self._compiled:
            _forget_what_is_cheap()
        with _profiler(folder):
            # A function, since the annotation begins when it is made.
            yield lambda: tf.profiler.experimental.Trace(WINDOW)

    def read_trace(self, folder: Path) -> Trace:
        trace = super().read_trace(folder)
        if self._compiled and not trace.ran:
            raise UnavailableError(
                f"TensorFlow {tf.__version__} traces nothing within a program that XLA compiled"
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
        inner = isinstance(
            error, (tf.errors.OpError, RuntimeError)
        ) and "RESOURCE_EXHAUSTED" in str(error)
        if not inner and not isinstance(error, tf.errors.ResourceExhaustedError):
            return None
        return "oom_host" if self._on_cpu else "oom_device"


class TensorFlowStep(Step):
    """A function over a batch that stays on the device, of flat arguments: nested ones take longer
    to pass.
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
        return float(value) if self._training else None

    def feed(self, steps: int, take: Callable[[], tuple[Any, ...]]) -> float | None:
        function = self.function
        for _ in range(steps):
            output = function(
                *map(tf.constant, itertools.chain.from_iterable(take()))
            )  # arrays: 50 us more
        value = wait_for(output)
        return float(value) if self._training else None

    def values(self) -> list[Any]:
        return [variable.numpy().copy() for variable in self._variables]

    def outputs(self, inputs: Sequence[Any]) -> Any:
        return self._forward(*inputs)[-1].numpy()

    def compilations(self) -> int:
        # XLA compiles a function once each time it is traced, since no shape is left open.
        count = getattr(self.function, "experimental_get_tracing_count", None)
        return count() if count else 0

    def compile_note(self) -> str | None:
        traced = self.compilations()
        if traced > 1:
            return f"tf.function was traced {traced} times"
        return None

    def kernel_cost(self, name: str, kind: str) -> Cost:
        if self._compile == "graph":
            return self._costs.cost(name, kind)
        return Cost(kind, categorise("tensorflow", kind))

    def products(self) -> Sequence[Cost]:
        if self._compile == "graph":
            return self._costs.products()
        # TensorFlow hands XLA's program out in a trace alone; asked for it, it would compile again.
        return _traced_products(self) if self._compile == "xla" else ()

    @functools.cached_property
    def _costs(self) -> GraphCosts:
        graph = self.function.get_concrete_function(*self.arguments).graph
        return GraphCosts(graph.as_graph_def(add_shapes=True))


def _kind_of(platform: Mapping[str, Any]) -> str:
    """What TensorFlow calls the platform's devices."""
    if platform["name"] == "tpu":
        raise UnavailableError("framework=tensorflow runs on no TPU here: set framework=jax")
    return str(platform["name"]).upper()


def _show_gpus(devices: Sequence[Any]) -> None:
    """Everything goes where it is visible; without growth all memory is taken at once, and no peak
    can be measured.
    """
    tf.config.set_visible_devices(devices, "GPU")
    for device in devices:
        tf.config.experimental.set_memory_growth(device, True)


def _forget_what_is_cheap() -> None:
    """The next call of any function prepares it again, as for the first time: TensorFlow's profiler
    leaves out operations that take less than some microseconds by the average of their last 80 runs
    or so. An option of the optimiser is part of what a prepared function is known by; this one says
    what holds anyhow, or nothing.
    """
    stated = tf.config.optimizer.get_experimental_options().get("debug_stripper")
    tf.config.optimizer.set_experimental_options(
        {"debug_stripper": None if stated is False else False}
    )


@contextlib.contextmanager
def _profiler(folder: Path) -> Iterator[None]:
    """TensorFlow's profiler, without Python events: they would be most of the trace and most of the
    slowdown.
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
    """Those of the compiled programs that one step runs."""
    with tempfile.TemporaryDirectory(prefix="trace-", dir=".") as name:
        with _profiler(Path(name)), tf.profiler.experimental.Trace(WINDOW):
            step.run(1)
        try:
            trace = read_trace(Path(name))
        except UnavailableError:  # without protobuf
            return ()
    # The trace holds every program of this process.
    ran = trace.ran
    return HloCosts([module for module in trace.modules if module.name in ran]).products()


def wait_for(output: Any) -> Any:
    """The first tensor of `output` as a NumPy value: reading it waits for all that its device's
    stream has queued. What is compiled returns a number first, unless it runs on a CPU, whose
    tensors are looked at in place: to take one out of a tensor here takes longer than many a step.
    """
    first = output[0] if isinstance(output, tuple) else output
    try:
        return np.asarray(memoryview(first))
    except (ValueError, TypeError):  # a type that buffers do not know
        return first.numpy()


def _training_step(
    workload: BuiltModel, optimizer: keras.optimizers.Optimizer, dense: bool, devices: int = 1
) -> Any:
    """Forward, gradients and update on one of `devices`. `dense`: an embedding's gradient as a
    whole matrix, not as slices, which Keras' optimizers add up by an operation that XLA cannot
    compile.
    """
    model = workload.model
    loss_of = workload.loss
    variables = model.trainable_variables
    count = len(workload.inputs)

    def train_step(*batch: tf.Tensor) -> tf.Tensor:
        inputs = list(batch[:count])
        targets = list(batch[count:])
        with tf.GradientTape() as tape:
            outputs = model(inputs[0] if len(inputs) == 1 else inputs, training=True)
            loss = loss_of(targets, outputs)
            scaled = optimizer.scale_loss(loss if devices == 1 else loss / devices)
        gradients = tape.gradient(scaled, variables)
        optimizer.apply(
            [tf.convert_to_tensor(each) for each in gradients] if dense else gradients, variables
        )
        return loss

    return train_step


def inference_step(workload: BuiltModel, number: bool) -> Any:
    """The forward pass as a function of the inputs; `number`: it returns one before all outputs."""
    model = workload.model

    def step(*inputs: tf.Tensor) -> Any:
        # All of them: what is not returned is not computed.
        outputs = tf.nest.flatten(
            model(inputs[0] if len(inputs) == 1 else list(inputs), training=False)
        )
        if number:
            return (outputs[0][(0,) * outputs[0].shape.rank], *outputs)
        return tuple(outputs)

    return step


FRAMEWORK = TensorFlow


# Over several devices: one compiled step under tf.distribute's MirroredStrategy, gradients
# all-reduced. Each replica has its shard of the batch in place, its own batch statistics
# (tf.distribute's way), and the same weights after every update: Keras' optimizers sum the
# gradients over replicas, of losses divided by their number.


class DistributedTensorFlow(TensorFlow):
    """See `paradnn.worker.frameworks.Framework`."""

    def __init__(self, layout: DeviceLayout) -> None:
        super().__init__()
        self._layout = layout
        self._strategy: Any = None

    def open_device(self, platform: Mapping[str, Any]) -> None:
        kind = _kind_of(platform)
        index = int(platform["index"])
        layout = self._layout
        there = tf.config.list_physical_devices(kind)
        wanted = layout.devices
        if index + (wanted if kind == "GPU" else 1) > len(there):
            if kind == "GPU":
                asked = f"{wanted} from number {index} on"
            else:
                asked = f"number {index}"
            raise UnavailableError(
                f"TensorFlow {tf.__version__} sees {len(there)} {kind} device(s), not {asked}"
            )
        if kind == "GPU":
            _show_gpus(there[index : index + wanted])
        else:  # logical devices of the one CPU, each with a pool of its own of as many threads as it has cores
            bind(layout.cores)
            # Devices of a process share one pool unless TensorFlow is configured otherwise.
            os.environ["TF_OVERRIDE_GLOBAL_THREADPOOL"] = "1"
            tf.config.threading.set_intra_op_parallelism_threads(layout.threads)
            tf.config.threading.set_inter_op_parallelism_threads(wanted * layout.threads)
            tf.config.set_logical_device_configuration(
                there[0], [tf.config.LogicalDeviceConfiguration()] * wanted
            )
        self._opened = [f"{kind}:{number}" for number in range(wanted)]
        self._strategy = tf.distribute.MirroredStrategy(self._opened)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        scope: contextlib.AbstractContextManager[Any] = self._strategy.scope()
        return scope

    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        if point["compile"] == "xla":
            raise UnavailableError(
                "TensorFlow has no compile=xla over several devices: set compile=graph or framework=jax"
            )
        inputs, targets = ([self._place(array) for array in arrays] for arrays in batch)
        arguments: tuple[Any, ...] = (*inputs, *targets)
        if point["mode"] == "train":
            with self.scope():
                optimizer = make_optimizer(point, workload.model.trainable_variables)
            replica = _training_step(workload, optimizer, True, self._layout.devices)
        else:
            replica = inference_step(workload, point["compile"] != "eager")
            arguments = tuple(inputs)
        strategy = self._strategy

        def step(*shards: Any) -> Any:
            return strategy.run(replica, args=shards)

        function = step if point["compile"] == "eager" else tf.function(step)
        spread = _DistributedStep(function, arguments, point)
        spread.strategy = strategy
        return spread

    def _place(self, array: Any) -> Any:
        """Each replica's examples of `array` (batch_size, ...), on its device."""
        shards = np.split(array, self._layout.devices)

        def shard(context: Any) -> tf.Tensor:
            number = context.replica_id_in_sync_group
            with tf.device(self._opened[number]):
                return tf.identity(tf.constant(shards[number]))

        return self._strategy.experimental_distribute_values_from_function(shard)


class _DistributedStep(TensorFlowStep):
    """A step whose output each replica has one of."""

    strategy: Any

    def run(self, steps: int) -> float | None:
        for _ in range(steps):
            output = self.function(*self.arguments)
        # Every device is waited for; the mean of the shards' losses.
        shards = self.strategy.experimental_local_results(tf.nest.flatten(output)[0])
        values = [wait_for(shard) for shard in shards]
        if self._training:
            return sum(map(float, values)) / len(values)
        return None

    def products(self) -> Sequence[Cost]:
        # Replicas are called from the graph in a way that hides their shapes.
        return ()


DISTRIBUTED = DistributedTensorFlow
