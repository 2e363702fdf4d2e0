"""JAX over several devices of one process: the same jitted step, its batch sharded and its state on every device.

XLA's partitioner makes one program for all devices out of it and puts in the all-reduces. It keeps the meaning of the
step, so batch statistics are those of the whole batch, as on one device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from paradnn.families.workload import Workload
from paradnn.worker.device_layout import DeviceLayout
from paradnn.worker.frameworks import Framework, Step, Unavailable
from paradnn.worker.frameworks.jax import CompiledStep, Jax
from paradnn.worker.optimizers import make_optimizer

__all__ = ["DistributedJax", "make"]

_AXIS = "batch"


class DistributedJax(Jax):
    """See `paradnn.worker.frameworks.Framework`."""

    def __init__(self, layout: DeviceLayout) -> None:
        super().__init__()
        if layout.transport != "local":
            raise Unavailable(f"transport={layout.transport} is TensorFlow's here; JAX's devices meet in one process")
        self._layout = layout
        self._devices: list[Any] = []
        self._mesh: Any = None

    def open_device(self, platform: Mapping[str, Any]) -> None:
        kind, index, wanted = platform["name"], int(platform["index"]), self._layout.devices
        if kind == "cpu":
            self._layout.bind()
            # One pool serves all devices of the CPU; the variable is what XLA sizes it by. A device that waits for the
            # others in an all-reduce holds a thread: with none to spare the others never get there.
            os.environ["NPROC"] = str(wanted * (self._layout.threads + 1))
            jax.config.update("jax_num_cpu_devices", index + wanted)
        super().open_device(platform)
        there = jax.devices(kind)
        if index + wanted > len(there):
            raise Unavailable(
                f"JAX {jax.__version__} sees {len(there)} {kind} device(s), not {wanted} from number {index} on"
            )
        self._devices = there[index : index + wanted]
        self._mesh = jax.sharding.Mesh(np.array(self._devices), (_AXIS,))

    def make_step(
        self, workload: Workload, batch: tuple[Sequence[Any], Sequence[Any]], point: Mapping[str, Any]
    ) -> Step:
        along = jax.sharding.PartitionSpec
        sharded = jax.sharding.NamedSharding(self._mesh, along(_AXIS))
        everywhere = jax.sharding.NamedSharding(self._mesh, along())
        inputs, targets = ([jax.device_put(array, sharded) for array in arrays] for arrays in batch)
        optimizer, variables = None, list(workload.model.variables)
        if point["mode"] == "train":
            optimizer = make_optimizer(point["optimizer"], point["precision"])
            optimizer.build(workload.model.trainable_variables)
            variables += optimizer.variables
        for variable in variables:
            variable.assign(jax.device_put(variable.value, everywhere))
        outputs = sharded if optimizer is None else everywhere
        eager = point["compile"] == "eager"
        return CompiledStep(workload, optimizer, inputs, targets, everywhere, eager=eager, outputs=outputs)

    def peak_device_memory(self) -> int | None:
        peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in self._devices]
        known = [int(peak) for peak in peaks if peak is not None]
        return sum(known) if known else None


def make(layout: DeviceLayout) -> Framework:
    """The framework over the devices of `layout`, for `paradnn.worker.frameworks.distributed`."""
    return DistributedJax(layout)
