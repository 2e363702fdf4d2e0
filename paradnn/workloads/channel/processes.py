"""The processes of `model=channel`, on this host and on other hosts.

- tcp, grpc and shared memory: the measured process begins each step, and the other process only
  answers.
- Parameter servers: all workers begin a step at the same time, and the servers answer.
- Transports of a framework: all processes run the same step at the same time. The step ends when
  all have finished. The result of a collective is checked before steps are timed.
"""

import contextlib
import datetime
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from socket import socket
from typing import Any

import numpy as np

from paradnn.core.channel import encode
from paradnn.core.errors import UnavailableError
from paradnn.core.words import counted
from paradnn.worker.affinity import bind_cores, device_layout, pin_to_cores
from paradnn.worker.frameworks import Step
from paradnn.worker.memory import keep_freed_memory
from paradnn.worker.process_group import (
    LOOPBACK,
    GroupStep,
    ProcessGroup,
    RankFailed,
    RemoteProcess,
    listen,
    processes_elsewhere,
    reply_timeout,
    serve_steps,
    with_port,
)
from paradnn.workloads.channel.shared_memory import SharedMemoryStep, SharedQueue, serve_queues
from paradnn.workloads.channel.transports import (
    GrpcStep,
    TcpStep,
    answer_bytes,
    serve_calls,
    serve_connections,
)

#: A message consists of this number of random bytes, repeated up to its length.
_NOISE_BYTES = 2**20
_FLOAT_BYTES = 4
#: Transports in which server processes answer the messages of other processes.
_SERVED = ("tcp", "grpc", "shared_memory")


class _Idle(Step):
    """A step that does nothing, for a server process that answers messages in other threads."""

    def run(self, steps: int) -> None:
        return None


class Processes(contextlib.AbstractContextManager["Processes"]):
    """Context manager that starts the processes that exchange the messages to measure.

    The calling process is one of these processes, and its steps are timed. The processes of this
    host run on the cores that `platform.cores` specifies. The other processes end when the
    context exits, or at the latest when the calling process ends.

    Args:
        point: Configuration to measure, as the driver sends it, with the options of its model and
            platform.

    Raises:
        UnavailableError: If a process cannot be reached, or lacks required software.
        RankFailed: If a process failed.
    """

    def __init__(self, point: Mapping[str, Any]) -> None:
        bind_cores(point["platform"])
        keep_freed_memory()
        self._participant = _Participant(point)
        count = _process_count(point)
        elsewhere = processes_elsewhere(point, count, point["model"]["port"])
        self._participant.publish_addresses(elsewhere)
        self.group = ProcessGroup(count, self._participant.serve, elsewhere)
        self._participant.close_socket()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.group.__exit__(kind, error, trace)

    def step(self) -> Any:
        """Return the step to time.

        If the only other process just answers messages, this is the step of the calling process.
        Otherwise, it is a step that several processes run together (`GroupStep`).

        Raises:
            RankFailed: If a trial of the collective operation gives a wrong result, or a process
                fails.
            UnavailableError: If a process cannot be reached, or lacks required software.
        """
        own = self._participant.step(0)
        if self._participant.is_served:
            return own
        return GroupStep(own, self.group)


def serve_elsewhere(
    point: Mapping[str, Any],
    rank: int,
    addresses: Sequence[str],
    own: socket,
    channel: Connection,
) -> None:
    """Run one message-exchanging process on this host, while another host measures.

    Returns when the measured process closes `channel`.

    Args:
        point: Configuration to measure, as the driver sends it; `point["model"]` has the options of
            the model.
        rank: Rank of this process; the measured process has rank 0.
        addresses: Addresses (host:port) of all processes, by rank.
        own: Socket on which this process listens for messages.
        channel: Connection to the measured process.

    Raises:
        RankFailed: If the process failed.
    """
    bind_cores(point["platform"])
    keep_freed_memory()
    participant = _Participant(point)
    participant.join(addresses, own)
    participant.serve(rank, channel)


def _process_count(point: Mapping[str, Any]) -> int:
    """Return the number of processes that exchange messages, including the measured process."""
    model = point["model"]
    if model["pattern"] == "parameter_server":
        return int(model["workers"]) + int(model["servers"])
    if model["pattern"] in ("all_reduce", "broadcast"):
        return int(model["processes"])
    return 2


class _Participant:
    """One of the processes that exchange messages; it connects to the others and runs its step.

    The measured process calls `publish_addresses` before it forks the other processes of its host.
    Each process on another host calls `join` instead.

    Attributes:
        is_served: Whether only process 0 runs a step, whose messages process 1 answers. If false,
            all processes run the same step. Parameter servers are an exception: `is_served` is
            false, but only the workers, which have the lowest ranks, run the step.
    """

    def __init__(self, point: Mapping[str, Any]) -> None:
        self._point = point
        self._transport = point["model"]["transport"]
        has_servers = point["model"]["pattern"] == "parameter_server"
        self._workers = int(point["model"]["workers"]) if has_servers else 0
        self.is_served = self._transport in _SERVED and not has_servers
        self._queues: list[SharedQueue] = []
        self._socket: socket | None = None
        self._addresses: Sequence[str] = ()

    def publish_addresses(self, remote_processes: Sequence[RemoteProcess]) -> None:
        """Choose addresses for this host's processes, and send all addresses to the other hosts.

        With shared memory, which needs no addresses, create the message queues.

        Args:
            remote_processes: The processes on other hosts; empty if all processes run on this host.
        """
        if self._transport == "shared_memory":
            sizes = (self._point["model"]["bytes"], answer_bytes(self._point))
            self._queues = [SharedQueue(size) for size in sizes]
            return
        port = self._point["model"]["port"]
        host = remote_processes[0].local if remote_processes else LOOPBACK
        # All sockets stay open until the last port is chosen, so that no port is chosen twice.
        with contextlib.ExitStack() as sockets:
            free = [
                sockets.enter_context(listen(port and port + number, host))
                for number in range(self._listener_count(remote_processes))
            ]
            local_addresses = [with_port(*listening.getsockname()[:2]) for listening in free]
            if self._transport == "tcp" and free:
                sockets.pop_all()
                self._socket = free[0]
        remote_addresses = [remote.address for remote in remote_processes]
        self._addresses = [*local_addresses, *remote_addresses]
        for remote in remote_processes:
            remote.channel.send_bytes(encode(self._addresses))

    def _listener_count(self, remote_processes: Sequence[RemoteProcess]) -> int:
        """Return the number of processes on this host that need a port to listen on.

        Args:
            remote_processes: The processes on other hosts.
        """
        if self._transport == "tensorflow" or self._workers:
            return _process_count(self._point) - len(remote_processes)
        if self.is_served and remote_processes:
            return 0
        return 1

    def join(self, addresses: Sequence[str], listening: socket) -> None:
        """Store the addresses of all processes and the listening socket of this process.

        Frameworks and gRPC open the port themselves. For them, the socket only reserved a free
        port, and this method closes it.

        Args:
            addresses: Addresses (host:port) of all processes, by rank.
            listening: Socket on which this process listens.
        """
        self._socket = listening
        if self.is_served:
            self._addresses = [with_port(*listening.getsockname()[:2])]
        else:
            self._addresses = addresses
        if self._transport != "tcp":
            self.close_socket()

    def close_socket(self) -> None:
        """Close the listening socket in this process; forked processes keep their copies open."""
        if self._socket:
            self._socket.close()

    def serve(self, rank: int, channel: Connection) -> None:
        """Run an unmeasured process, until the measured process closes the connection.

        Args:
            rank: Rank of the process, from 1.
            channel: Connection to the measured process.

        Raises:
            RankFailed: If the process failed.
        """
        try:
            self._serve(rank, channel)
        except RankFailed:
            raise
        except UnavailableError as error:
            raise RankFailed("unavailable", f"process {rank + 1}: {error}") from error
        except Exception as error:
            reason = f"process {rank + 1}: {type(error).__name__}: {error}"
            raise RankFailed("crash", reason) from error

    def _serve(self, rank: int, channel: Connection) -> None:
        if not self.is_served and (not self._workers or rank < self._workers):
            serve_steps(channel, self.step(rank))
            return
        server = None
        if self._transport == "grpc":
            address = self._addresses[rank if self._workers else 0]
            server = serve_calls(address, serialized=self._point["model"]["serialized"])
        elif self._transport == "shared_memory":
            _start_thread(serve_queues, self._point, *self._queues)
        else:
            _start_thread(serve_connections, self._socket, self._point)
        serve_steps(channel, _Idle())
        if server:
            server.stop(None)

    def step(self, rank: int) -> Any:
        """Return the step of a process: an object that sends and receives the messages.

        Args:
            rank: Rank of the process; the measured process has rank 0.

        Raises:
            RankFailed: If a trial of the collective operation gives a wrong result, or a process
                fails.
            UnavailableError: If a process cannot be reached, or lacks required software.
        """
        point = self._point
        model = point["model"]
        if self._transport in _SERVED:
            message = make_message(model["bytes"], point["seed"])
            patience = reply_timeout(point)
            if self._transport == "grpc":
                return GrpcStep(point, self._addresses[self._workers :], message, patience)
            if self._transport == "shared_memory":
                outgoing, incoming = self._queues
                return SharedMemoryStep(point, outgoing, incoming, message, patience)
            return TcpStep(point, self._addresses[0], message, patience)
        processes = _process_count(point)
        step: _TensorFlowStep | _TorchStep
        if self._transport == "tensorflow":
            step = _TensorFlowStep(point, rank, self._addresses)
        else:
            step = _TorchStep(point, rank, processes, self._addresses[0])
        _check_collective(step, model["pattern"], processes)
        return step


def _start_thread(target: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def _check_collective(step: Any, pattern: str, processes: int) -> None:
    """Check the result of a collective with known contributions.

    Every process contributes its rank + 1. An all-reduce must return the sum of all contributions.
    A broadcast must return the contribution of process 0. Other patterns are not checked.

    Args:
        step: The step, whose `trial_result` runs the collective.
        pattern: Value of `model.pattern`.
        processes: Number of processes that take part.

    Raises:
        RankFailed: If the result is wrong.
    """
    if pattern == "all_reduce":
        expected = processes * (processes + 1) / 2
    elif pattern == "broadcast":
        expected = 1.0
    else:
        return
    result = step.trial_result()
    if not np.allclose(result, expected):
        first = float(np.ravel(result)[0])
        reason = f"{pattern} of the values 1 .. {processes} returned {first}, not {expected}"
        raise RankFailed("crash", reason)


def make_message(size: int, seed: int) -> bytes:
    """Return the content of a message: random bytes that repeat every 1 MiB.

    Args:
        size: Number of bytes.
        seed: Seed of the random generator.
    """
    noise = random.Random(seed).randbytes(min(_NOISE_BYTES, size))
    repeats = -(-size // len(noise))
    return (noise * repeats)[:size]


class _TorchStep(Step):
    """A step of torch.distributed: an in-place collective, or messages between two processes."""

    def __init__(self, point: Mapping[str, Any], rank: int, processes: int, address: str) -> None:
        import torch
        from torch import distributed as dist

        model = point["model"]
        backend = model["transport"]
        local_processes = processes // int(point.get("hosts", 1))
        self._device = "cpu"
        if backend == "nccl":
            gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if gpus < local_processes:
                raise UnavailableError(
                    f"model.transport=nccl needs {counted(local_processes, 'GPU')} on this host, "
                    f"but PyTorch finds {gpus}; use fewer processes, or model.transport=gloo"
                )
            self._device = f"cuda:{rank % local_processes}"
            torch.cuda.set_device(rank % local_processes)
        self._torch = torch
        self._dist = dist
        self._rank = rank
        self._pattern = model["pattern"]
        dist.init_process_group(
            backend,
            init_method=f"tcp://{address}",
            rank=rank,
            world_size=processes,
            timeout=datetime.timedelta(seconds=reply_timeout(point)),
        )
        self._values = torch.zeros(model["bytes"] // _FLOAT_BYTES, device=self._device)
        self._answer = self._values
        self._window = 1
        if self._pattern == "bandwidth":
            self._window = model["window"]
            self._answer = torch.zeros(1, device=self._device)

    def trial_result(self) -> Any:
        """Run a collective in which each process contributes its rank + 1; return the result."""
        self._values.fill_(self._rank + 1.0)
        self.run(1)
        result = self._values.cpu().numpy().copy()
        self._values.zero_()
        return result

    def run(self, steps: int) -> None:
        """Run a number of steps. A step ends when this process has the result."""
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
        """Exchange the messages of one step between the processes of rank 0 and rank 1.

        Rank 0 sends a window of messages (`message_window`) and then receives one answer. Rank 1
        receives the messages and then sends the answer.

        Args:
            values: The message in the process with rank 0. In the process with rank 1, the tensor
                that each received message overwrites.
        """
        dist: Any = self._dist
        if self._rank == 0:
            transfer = dist.send
            transfer_answer = dist.recv
        else:
            transfer = dist.recv
            transfer_answer = dist.send
        peer = 1 - self._rank
        for _ in range(self._window):
            transfer(values, peer)
        transfer_answer(self._answer, peer)


class _TensorFlowStep(Step):
    """A step of TensorFlow: the all-reduce with which MultiWorkerMirroredStrategy sums gradients.

    The all-reduce uses ring collectives over gRPC.
    """

    def __init__(self, point: Mapping[str, Any], rank: int, addresses: Sequence[str]) -> None:
        import tensorflow as tf

        from paradnn.worker.frameworks.tf_cluster import connect

        platform = point["platform"]["name"]
        if platform != "cpu":
            raise UnavailableError(
                f"model.transport=tensorflow needs platform=cpu, not platform={platform}"
            )
        self._tf = tf
        self._count = point["model"]["bytes"] // _FLOAT_BYTES
        self._set_threads(point, rank, len(addresses))
        strategy = connect(rank, addresses, "RING")
        self._strategy = strategy
        self._values = self._replicated(0.0)

        def reduce(values: Any) -> Any:
            # all_reduce needs a value that is placed on a device. The argument has no device, but a
            # copy of it that is made in the replica has one.
            return tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, tf.identity(values)
            )

        self._step = tf.function(lambda values: strategy.run(reduce, args=(values,)))

    def _set_threads(self, point: Mapping[str, Any], rank: int, processes: int) -> None:
        """Pin this process to its share of the cores on this host, with one thread per core.

        Args:
            point: Configuration to measure, as the driver sends it.
            rank: Rank of this process, from 0.
            processes: Number of processes on all hosts.
        """
        local_processes = processes // int(point.get("hosts", 1))
        layout = device_layout(local_processes, point["platform"])
        first = rank % local_processes * layout.threads
        pin_to_cores(layout.cores[first : first + layout.threads])
        threading_config = self._tf.config.threading
        threading_config.set_intra_op_parallelism_threads(layout.threads)
        threading_config.set_inter_op_parallelism_threads(layout.threads)

    def _replicated(self, value: float) -> Any:
        """Return a distributed tensor whose elements are `value` x (rank of the process + 1).

        Args:
            value: The value of the elements in the process with rank 0.
        """

        def replica_value(context: Any) -> Any:
            rank = context.replica_id_in_sync_group
            return self._tf.fill([self._count], value * (rank + 1.0))

        return self._strategy.experimental_distribute_values_from_function(replica_value)

    def trial_result(self) -> Any:
        """Run an all-reduce in which each process contributes its rank + 1; return the result."""
        return self._reduced(self._replicated(1.0)).numpy()

    def _reduced(self, values: Any) -> Any:
        """Return the sum of a distributed tensor over all processes."""
        return self._strategy.experimental_local_results(self._step(values))[0]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            # Copy a single number to wait for the result: a copy of the whole result takes longer.
            self._reduced(self._values)[0].numpy()
