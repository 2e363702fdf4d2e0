"""Collectives and messages of the frameworks: PyTorch's process groups (gloo, NCCL), TensorFlow's.

Every process makes the same step at the same time. Before anything is timed the result of an all-reduce or a broadcast
is compared with what it must be.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paradnn.worker.addresses import LOOPBACK, listen
from paradnn.worker.device_layout import DeviceLayout, layout_of
from paradnn.worker.errors import Unavailable
from paradnn.worker.frameworks import Framework, distributed
from paradnn.worker.process_group import RankFailed

_FLOAT_BYTES = 4


def collective_layout(point: Mapping[str, Any], addresses: Sequence[str] = ()) -> DeviceLayout | None:
    """Which process has which cores and address, for a framework that asks for them; None where it finds out itself.

    `addresses`: those of the processes, if they are known. Raises Unavailable where a port is taken.
    """
    model = point["model"]
    if model["transport"] != "tensorflow":
        return None
    layout = layout_of({**point, "devices": model["processes"], "transport": "grpc"}, addresses)
    if layout is None or not model["port"] or addresses:
        return layout
    ports = range(model["port"], model["port"] + model["processes"])
    for port in ports:
        listen(port).close()
    return replace(layout, addresses=tuple(f"{LOOPBACK}:{port}" for port in ports))


def open_collective(
    point: Mapping[str, Any],
    framework: Framework | None,
    layout: DeviceLayout | None,
    place: tuple[int, int],
    address: str,
    patience: float,
) -> Any:
    """The step of a process, joined with the others at `address`, host:port. Raises Unavailable.

    place: its number and how many there are. `framework` and `layout` are for transport=tensorflow.
    """
    (rank, processes), model = place, point["model"]
    count = model["bytes"] // _FLOAT_BYTES
    if model["transport"] == "tensorflow":
        assert framework is not None
        assert layout is not None
        step: Any = _TensorFlowStep(point, distributed(framework, layout.of_rank(rank)), count)
    else:
        step = _TorchStep(point, rank, processes, address, count, patience)
    _check(step, model["pattern"], processes)
    return step


def _check(step: Any, pattern: str, processes: int) -> None:
    """Every process begins with its rank + 1: their sum, or the first one's."""
    wanted = {"all_reduce": processes * (processes + 1) / 2, "broadcast": 1.0}.get(pattern)
    if wanted is None:
        return
    found = step.checked()
    if not np.allclose(found, wanted):
        raise RankFailed("crash", f"{pattern} of 1 .. {processes} gave {float(np.ravel(found)[0])}, not {wanted}")


class _TorchStep:
    """All-reduce or broadcast of a tensor, or messages between two processes, in place."""

    def __init__(
        self, point: Mapping[str, Any], rank: int, processes: int, address: str, count: int, patience: float
    ) -> None:
        import torch
        from torch import distributed as dist

        model, here = point["model"], processes // int(point.get("hosts", 1))
        backend, self._device = model["transport"], "cpu"
        if backend == "nccl":
            if not torch.cuda.is_available() or torch.cuda.device_count() < here:
                there = torch.cuda.device_count() if torch.cuda.is_available() else 0
                raise Unavailable(f"model.transport=nccl needs {here} GPUs, PyTorch sees {there}")
            self._device = f"cuda:{rank % here}"
            torch.cuda.set_device(rank % here)
        self._torch, self._dist, self._rank, self._pattern = torch, dist, rank, model["pattern"]
        self._window = model["window"] if self._pattern == "bandwidth" else 1
        limit = datetime.timedelta(seconds=patience)
        dist.init_process_group(backend, init_method=f"tcp://{address}", rank=rank, world_size=processes, timeout=limit)
        self._values = torch.zeros(count, device=self._device)
        self._answer = torch.zeros(1, device=self._device)

    def checked(self) -> Any:
        """What comes of rank + 1."""
        self._values.fill_(self._rank + 1.0)
        self.run(1)
        result = self._values.cpu().numpy().copy()
        self._values.zero_()
        return result

    def run(self, steps: int) -> None:
        """So many steps; each ends when this process has its result."""
        step = {
            "all_reduce": lambda: self._dist.all_reduce(self._values),
            "broadcast": lambda: self._dist.broadcast(self._values, 0),
            "latency": self._there_and_back,
            "bandwidth": self._send_window,
        }[self._pattern]
        for _ in range(steps):
            step()
            if self._device != "cpu":
                self._torch.cuda.synchronize()

    def _there_and_back(self) -> None:
        if self._rank == 0:
            self._dist.send(self._values, 1)
            self._dist.recv(self._values, 1)
        else:
            self._dist.recv(self._values, 0)
            self._dist.send(self._values, 0)

    def _send_window(self) -> None:
        if self._rank == 0:
            for _ in range(self._window):
                self._dist.send(self._values, 1)
            self._dist.recv(self._answer, 1)
        else:
            for _ in range(self._window):
                self._dist.recv(self._values, 0)
            self._dist.send(self._answer, 0)


class _TensorFlowStep:
    """All-reduce as a MultiWorkerMirroredStrategy does of gradients: ring collectives over gRPC."""

    def __init__(self, point: Mapping[str, Any], framework: Framework, count: int) -> None:
        import tensorflow as tf

        framework.open_device(point["platform"])
        with framework.scope():
            strategy = tf.distribute.get_strategy()
        self._strategy, self._tf, self._count = strategy, tf, count
        self._values = self._spread(0.0)

        def reduce(values: Any) -> Any:
            # An argument has no device, which an all-reduce asks for; what is made in the replica has its own.
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(values))

        self._step = tf.function(lambda values: strategy.run(reduce, args=(values,)))

    def _spread(self, value: float) -> Any:
        def own(context: Any) -> Any:
            return self._tf.fill([self._count], value * (context.replica_id_in_sync_group + 1.0))

        return self._strategy.experimental_distribute_values_from_function(own)

    def checked(self) -> Any:
        """What comes of rank + 1."""
        return self._local(self._step(self._spread(1.0))).numpy()

    def _local(self, result: Any) -> Any:
        return self._strategy.experimental_local_results(result)[0]

    def run(self, steps: int) -> None:
        """So many steps; each ends when this process has its result."""
        for _ in range(steps):
            # A number that depends on the result: to copy all of it would be timed too.
            self._local(self._step(self._values))[0].numpy()
