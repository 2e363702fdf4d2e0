"""The processes of a point whose step is communication, on this host and on others, and how they
find each other.

Over tcp and grpc one process alone decides when a step begins, and the other only answers. Of a
framework's transports every process makes the same step at the same time, and the step ends when
all have; before anything is timed the result of an all-reduce or a broadcast is compared with what
it must be.
"""

import contextlib
import datetime
import os
import random
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from socket import socket
from typing import Any

import numpy as np

from paradnn.core.channel import encode
from paradnn.core.errors import UnavailableError
from paradnn.worker.affinity import bind, bind_cores, layout_of
from paradnn.worker.frameworks import Step
from paradnn.worker.meters import keep_freed
from paradnn.worker.process_group import (
    LOOPBACK,
    GroupStep,
    ProcessGroup,
    RankFailed,
    RemoteProcess,
    host_and_port,
    listen,
    processes_elsewhere,
    reply_timeout,
    serve_steps,
    with_port,
)
from paradnn.workloads.channel.transports import GrpcStep, TcpStep, serve_calls, serve_connections

#: Noise is drawn once for so many bytes and then repeated.
_NOISE = 2**20
_FLOAT_BYTES = 4


class _Idle(Step):
    """Of a process that serves in threads: a step asks for nothing."""

    def run(self, steps: int) -> None:
        return None


class Processes(contextlib.AbstractContextManager["Processes"]):
    """The processes of a point, on its cores: this one, which is measured, and those that it
    starts. They end with the `with` that it is entered by, at the latest with this one. Raises
    UnavailableError and RankFailed.
    """

    def __init__(self, point: Mapping[str, Any]) -> None:
        bind_cores(point["platform"])
        keep_freed()
        self._means = _Means(point)
        count = _count_of(point)
        elsewhere = processes_elsewhere(point, count, point["model"]["port"])
        self._means.meet(elsewhere)
        self.group = ProcessGroup(count, self._means.serve, elsewhere)
        self._means.parted()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # One process that fails takes the others with it: the first says why, unless memory ended
        # here.
        failed = isinstance(error, Exception) and not isinstance(error, MemoryError)
        other = self.group.failure() if failed else None
        self.group.close()
        if other:
            raise other from error

    def step(self) -> Any:
        """The step of this process, or of all that take turns with it."""
        own = self._means.step(0)
        return own if self._means.is_served else GroupStep(own, self.group)


def serve_elsewhere(
    point: Mapping[str, Any], rank: int, addresses: Sequence[str], own: socket, channel: Connection
) -> None:
    """Be process `rank` of a point that another host measures, and listen on `own`. Raises
    RankFailed.
    """
    bind_cores(point["platform"])
    keep_freed()
    means = _Means(point)
    means.join(addresses, own)
    means.serve(rank, channel)


def _count_of(point: Mapping[str, Any]) -> int:
    """How many processes take part: two where a message goes from one to the other."""
    model = point["model"]
    if model["pattern"] in ("all_reduce", "broadcast"):
        return int(model["processes"])
    return 2


class _Means:
    """How the processes of a point find each other, and what each of them does. is_served: over tcp
    and grpc process 1 listens, and this one sends to it. The processes of a framework all do the
    same. Before those of this host are forked, and with those of other hosts, `meet` says where
    they are; on another host each does `join`.
    """

    def __init__(self, point: Mapping[str, Any]) -> None:
        self._point = point
        self._transport = point["model"]["transport"]
        self.is_served = self._transport in ("tcp", "grpc")
        self._socket: socket | None = None
        self._addresses: Sequence[str] = ()

    def meet(self, elsewhere: Sequence[RemoteProcess]) -> None:
        """Find ports for those of this host, of TensorFlow for each, else for one, and let all know
        the addresses.
        """
        port = self._point["model"]["port"]
        host = elsewhere[0].local if elsewhere else LOOPBACK
        if self._transport == "tensorflow":
            here = _count_of(self._point) - len(elsewhere)
        else:
            here = 1
        here = 0 if self.is_served and elsewhere else here  # the server is there
        with contextlib.ExitStack() as held:  # until the last is chosen, so that none comes twice
            free = [held.enter_context(listen(port and port + n, host)) for n in range(here)]
            own = [with_port(*each.getsockname()[:2]) for each in free]
            if self._transport == "tcp" and free:
                held.pop_all()
                self._socket = free[0]
        self._addresses = [*own, *(each.address for each in elsewhere)]
        for each in elsewhere:
            each.channel.send_bytes(encode(self._addresses))

    def join(self, addresses: Sequence[str], own: socket) -> None:
        """Listen on `own`; frameworks, and gRPC, open their own: it has shown that the port is
        free.
        """
        self._socket, self._addresses = (
            own,
            [with_port(*own.getsockname()[:2])] if self.is_served else addresses,
        )
        if self._transport != "tcp":
            self.parted()

    def parted(self) -> None:
        """The other processes are started: let go of what they alone need."""
        if self._socket:
            self._socket.close()

    def serve(self, rank: int, channel: Connection) -> None:
        """Be process `rank`, not the one that is measured. Raises RankFailed."""
        try:
            if not self.is_served:
                return serve_steps(channel, self.step(rank))
            if self._transport == "grpc":
                server = serve_calls(self._addresses[0])
            else:
                server = None
            if not server:
                threading.Thread(
                    target=serve_connections, args=(self._socket, self._point), daemon=True
                ).start()
            serve_steps(channel, _Idle())
            if server:
                server.stop(None)
        except RankFailed:
            raise
        except UnavailableError as error:
            raise RankFailed("unavailable", f"process {rank + 1}: {error}") from error
        except Exception as error:
            raise RankFailed(
                "crash", f"process {rank + 1}: {type(error).__name__}: {error}"
            ) from error

    def step(self, rank: int) -> Any:
        """The step of process `rank`; that of a collective has been seen to give what it must."""
        point = self._point
        addresses = self._addresses
        model = self._point["model"]
        if self.is_served:
            message = make_message(model["bytes"], point["seed"])
            kind = GrpcStep if self._transport == "grpc" else TcpStep
            return kind(point, addresses[0], message, reply_timeout(point))
        processes = _count_of(point)
        pattern = model["pattern"]
        step: Any
        if self._transport == "tensorflow":
            step = _TensorFlowStep(point, rank, addresses)
        else:
            step = _TorchStep(point, rank, processes, addresses[0])
        # Every process begins with its rank + 1: their sum, or the first one's.
        wanted = {"all_reduce": processes * (processes + 1) / 2, "broadcast": 1.0}.get(pattern)
        if wanted is not None and not np.allclose(found := step.checked(), wanted):
            raise RankFailed(
                "crash",
                f"{pattern} of 1 .. {processes} gave {float(np.ravel(found)[0])}, not {wanted}",
            )
        return step


def make_message(size: int, seed: int) -> bytes:
    """So many bytes of noise."""
    noise = random.Random(seed).randbytes(min(_NOISE, size))
    return (noise * -(-size // len(noise)))[:size]


class _TorchStep(Step):
    """All-reduce or broadcast of a tensor, or messages between two processes, in place."""

    def __init__(self, point: Mapping[str, Any], rank: int, processes: int, address: str) -> None:
        import torch
        from torch import distributed as dist

        model = point["model"]
        here = processes // int(point.get("hosts", 1))
        backend = model["transport"]
        self._device = "cpu"
        if backend == "nccl":
            if not torch.cuda.is_available() or torch.cuda.device_count() < here:
                there = torch.cuda.device_count() if torch.cuda.is_available() else 0
                raise UnavailableError(
                    f"model.transport=nccl needs {here} GPUs, PyTorch sees {there}"
                )
            self._device = f"cuda:{rank % here}"
            torch.cuda.set_device(rank % here)
        self._torch = torch
        self._dist = dist
        self._rank = rank
        self._pattern = model["pattern"]
        limit = datetime.timedelta(seconds=reply_timeout(point))
        dist.init_process_group(
            backend, init_method=f"tcp://{address}", rank=rank, world_size=processes, timeout=limit
        )
        self._values = self._answer = torch.zeros(
            model["bytes"] // _FLOAT_BYTES, device=self._device
        )
        self._window = 1
        if self._pattern == "bandwidth":
            self._window, self._answer = model["window"], torch.zeros(1, device=self._device)

    def checked(self) -> Any:
        self._values.fill_(self._rank + 1.0)
        self.run(1)
        result = self._values.cpu().numpy().copy()
        self._values.zero_()
        return result

    def run(self, steps: int) -> None:
        """So many steps; each ends when this process has its result."""
        collectives = {
            "all_reduce": self._dist.all_reduce,
            "broadcast": lambda values: self._dist.broadcast(values, 0),
        }
        step = collectives.get(self._pattern, self._exchange)
        for _ in range(steps):
            step(self._values)
            if self._device != "cpu":
                self._torch.cuda.synchronize()

    def _exchange(self, values: Any) -> None:
        """A window of messages to the other process, and its answer."""
        dist: Any = self._dist
        give, take = (dist.send, dist.recv) if self._rank == 0 else (dist.recv, dist.send)
        for _ in range(self._window):
            give(values, 1 - self._rank)
        take(self._answer, 1 - self._rank)


class _TensorFlowStep(Step):
    """All-reduce as a MultiWorkerMirroredStrategy does of gradients: ring collectives over gRPC."""

    def __init__(self, point: Mapping[str, Any], rank: int, addresses: Sequence[str]) -> None:
        import tensorflow as tf

        kind = point["platform"]["name"]
        if kind != "cpu":
            raise UnavailableError(f"model.transport=tensorflow is for platform=cpu, not {kind}")
        # Each process has its own cores, as if it were a host of that many.
        here = len(addresses) // int(point.get("hosts", 1))
        layout = layout_of(here, point["platform"])
        bind(layout.cores[rank % here * layout.threads :][: layout.threads])
        tf.config.threading.set_intra_op_parallelism_threads(layout.threads)
        tf.config.threading.set_inter_op_parallelism_threads(layout.threads)
        # A proxy of the environment is not for these hosts.
        hosts = dict.fromkeys(host_and_port(address)[0] for address in addresses)
        os.environ["no_grpc_proxy"] = ",".join(hosts)  # noqa: SIM112 - gRPC reads it in lower case
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": list(addresses)}),
            task_type="worker",
            task_id=rank,
            rpc_layer="grpc",
        )
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        # It returns when all are there.
        self._strategy = strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
        self._tf = tf
        self._count = point["model"]["bytes"] // _FLOAT_BYTES
        self._values = self._spread(0.0)

        def reduce(values: Any) -> Any:
            # An argument has no device, which an all-reduce asks for; what is made in the replica
            # has its own.
            return tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, tf.identity(values)
            )

        self._step = tf.function(lambda values: strategy.run(reduce, args=(values,)))

    def _spread(self, value: float) -> Any:
        def own(context: Any) -> Any:
            return self._tf.fill([self._count], value * (context.replica_id_in_sync_group + 1.0))

        return self._strategy.experimental_distribute_values_from_function(own)

    def checked(self) -> Any:
        return self._local(self._spread(1.0)).numpy()

    def _local(self, values: Any) -> Any:
        """The sum of all processes' values."""
        return self._strategy.experimental_local_results(self._step(values))[0]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            # A number that depends on the result: to copy all of it would be timed too.
            self._local(self._values)[0].numpy()
