"""TensorFlow over several devices: one compiled step under a tf.distribute strategy, gradients all-reduced.

Devices of one process meet under MirroredStrategy, processes under MultiWorkerMirroredStrategy with ring collectives
over gRPC. Each replica has its shard of the batch in place, its own batch statistics (tf.distribute's way), and the
same weights after every update: Keras' optimizers sum the gradients over replicas, of losses divided by their number.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from paradnn.families.workload import Workload
from paradnn.worker.addresses import host_and_port
from paradnn.worker.device_layout import DeviceLayout
from paradnn.worker.frameworks import Framework, Step, Unavailable
from paradnn.worker.frameworks.tensorflow import CompiledStep, TensorFlow, inference_step, wait_for
from paradnn.worker.optimizers import make_optimizer

__all__ = ["DistributedTensorFlow", "make"]

_XLA_NOTE = "each replica's forward and backward pass is one XLA program; all-reduce and update run outside of it"


class DistributedTensorFlow(TensorFlow):
    """See `paradnn.worker.frameworks.Framework`."""

    def __init__(self, layout: DeviceLayout) -> None:
        super().__init__()
        self._layout = layout
        self._strategy: Any = None
        self._opened: tuple[str, ...] = ()

    def open_device(self, platform: Mapping[str, Any]) -> None:
        kind, index = platform["name"].upper(), int(platform["index"])
        if kind == "CPU":
            self._open_cores(index)
        elif kind == "GPU":
            self._open_gpus(index)
        else:
            raise Unavailable("several TPU cores need tf.distribute's TPUStrategy, which is not wired here")
        self._opened = tuple(f"{kind}:{number}" for number in range(self._layout.local_devices))
        self._device = self._opened[0]
        if self._layout.transport == "grpc":
            self._strategy = self._join()
        else:
            self._strategy = tf.distribute.MirroredStrategy(list(self._opened))

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        scope: contextlib.AbstractContextManager[Any] = self._strategy.scope()
        return scope

    def make_step(
        self, workload: Workload, batch: tuple[Sequence[Any], Sequence[Any]], point: Mapping[str, Any]
    ) -> Step:
        self._compiled = False  # a trace holds the all-reduce whatever is compiled
        inputs, targets = ([self._place(array, point["batch_size"]) for array in arrays] for arrays in batch)
        arguments: tuple[Any, ...] = (*inputs, *targets)
        jit = point["compile"] == "xla"
        if point["mode"] == "train":
            with self.scope():
                optimizer = make_optimizer(point["optimizer"], point["precision"])
                optimizer.build(workload.model.trainable_variables)
            replica = _replica_step(workload, optimizer, self._layout.devices, jit)
        else:
            replica, arguments = inference_step(workload, point["compile"] != "eager"), tuple(inputs)
            replica = _for_each_replica(replica) if jit else replica
        strategy = self._strategy

        def step(*shards: Any) -> Any:
            return strategy.run(replica, args=shards)

        function = step if point["compile"] == "eager" else tf.function(step)
        return _DistributedStep(function, arguments, contextlib.nullcontext, point, strategy)

    def peak_device_memory(self) -> int | None:
        if self._device.startswith("CPU"):
            return None
        return sum(int(tf.config.experimental.get_memory_info(name)["peak"]) for name in self._opened)

    def _open_cores(self, index: int) -> None:
        """Logical devices of the one CPU, each with a pool of its own of as many threads as it has cores."""
        if index:
            raise Unavailable(f"TensorFlow {tf.__version__} sees 1 CPU device(s), not number {index}")
        layout, local = self._layout, self._layout.local_devices
        layout.bind()
        # Devices of a process share one pool unless TensorFlow is configured otherwise.
        os.environ["TF_OVERRIDE_GLOBAL_THREADPOOL"] = "1"
        # A proxy of the environment is not for these hosts.
        hosts = dict.fromkeys(host_and_port(address)[0] for address in layout.addresses)
        os.environ["no_grpc_proxy"] = ",".join(hosts)  # noqa: SIM112 - gRPC reads it in lower case
        tf.config.threading.set_intra_op_parallelism_threads(layout.threads)
        tf.config.threading.set_inter_op_parallelism_threads(local * layout.threads)
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(local)]
        tf.config.set_logical_device_configuration(cpu, logical)

    def _open_gpus(self, index: int) -> None:
        there, wanted = tf.config.list_physical_devices("GPU"), self._layout.devices
        if index + wanted > len(there):
            raise Unavailable(
                f"TensorFlow {tf.__version__} sees {len(there)} GPU device(s), not {wanted} from number {index} on"
            )
        chosen = there[index : index + wanted]
        tf.config.set_visible_devices(chosen, "GPU")
        for device in chosen:
            tf.config.experimental.set_memory_growth(device, True)

    def _join(self) -> Any:
        """The strategy over all processes; returns when all of them are there."""
        cluster = tf.train.ClusterSpec({"worker": list(self._layout.addresses)})
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            cluster, task_type="worker", task_id=self._layout.rank, rpc_layer="grpc"
        )
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)

    def _place(self, array: Any, batch_size: int) -> Any:
        """Each local replica's examples of `array` (batch_size, ...), on its device."""

        def shard(context: Any) -> tf.Tensor:
            local = context.replica_id_in_sync_group - self._layout.rank * self._layout.local_devices
            with tf.device(self._opened[local]):
                return tf.identity(tf.constant(array[self._layout.shard(local, batch_size)]))

        return self._strategy.experimental_distribute_values_from_function(shard)


class _DistributedStep(CompiledStep):
    """A step whose output each replica has one of."""

    def __init__(
        self, function: Any, arguments: tuple[Any, ...], placed: Any, point: Mapping[str, Any], strategy: Any
    ) -> None:
        super().__init__(function, arguments, placed, point)
        self._strategy = strategy

    def run(self, steps: int) -> float | None:
        for _ in range(steps):
            output = self.function(*self.arguments)
        # Every device is waited for; the mean of the local shards' losses.
        shards = self._strategy.experimental_local_results(tf.nest.flatten(output)[0])
        values = [wait_for(shard) for shard in shards]
        return sum(map(float, values)) / len(values) if self._training else None

    def product_flops(self) -> dict[str, float]:
        # Replicas are called from the graph in a way that hides their shapes, and a step takes all processes.
        return {}

    def compile_note(self) -> str | None:
        notes = [_XLA_NOTE if self._by_xla else None, super().compile_note()]
        return "; ".join(filter(None, notes)) or None


def _replica_step(workload: Workload, optimizer: keras.optimizers.Optimizer, devices: int, jit: bool) -> Any:
    """One replica's forward pass, gradients and update. With `jit` the first two are one XLA program."""
    model, loss_of = workload.model, workload.loss
    variables, count = model.trainable_variables, len(workload.inputs)

    def gradients_of(*batch: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        inputs, targets = list(batch[:count]), list(batch[count:])
        with tf.GradientTape() as tape:
            outputs = model(inputs[0] if len(inputs) == 1 else inputs, training=True)
            loss = loss_of(targets, outputs)
            scaled = optimizer.scale_loss(loss / devices)
        gradients = tape.gradient(scaled, variables)
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    compute = _for_each_replica(gradients_of) if jit else gradients_of

    def train_step(*batch: tf.Tensor) -> tf.Tensor:
        loss, gradients = compute(*batch)
        optimizer.apply(gradients, variables)
        return loss

    return train_step


def _for_each_replica(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled by XLA, a program for each replica: one that is shared would read one replica's weights."""
    programs: dict[int, Any] = {}

    def compute(*arguments: Any) -> Any:
        replica = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
        if replica not in programs:
            programs[replica] = tf.function(function, jit_compile=True)
        return programs[replica](*arguments)

    return compute


def make(layout: DeviceLayout) -> Framework:
    """The framework over the devices of `layout`, for `paradnn.worker.frameworks.distributed`."""
    return DistributedTensorFlow(layout)
