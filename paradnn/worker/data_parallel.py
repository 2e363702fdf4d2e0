"""Training over several processes, on one host or on many (`hosts`, docs/how-to/clusters.md).

Every process has the same model and a share of the batch. The framework sums the gradients over
the processes: MultiWorkerMirroredStrategy, DistributedDataParallel or `jax.distributed`. The
process with rank 0 measures, and decides how many steps all processes run.

A block is a number of steps between two synchronizations: the unit of timing. A block begins with
an untimed step, whose gradient exchange synchronizes the processes. The other processes continue
with the timed steps without a further message, so a block contains only the framework's own
messages.

After the measurement, every process times steps on its share of the batch without communication.
All processes do this at the same time. A common step takes longer than a step without
communication. The difference is the communication time that does not overlap with computation.
"""

from __future__ import annotations

import contextlib
import statistics
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from socket import socket
from typing import Any, Self

from paradnn.core.channel import encode
from paradnn.core.errors import PointEnded
from paradnn.core.messages import Conversion
from paradnn.core.versions import versions
from paradnn.worker import frameworks
from paradnn.worker.affinity import bind_cores, device_layout
from paradnn.worker.contention import watch_cores
from paradnn.worker.frameworks import Framework, Member, Step
from paradnn.worker.measure import Protocol, SynchronizedRun, compile_steps, measure_steps
from paradnn.worker.memory import MemoryMeter
from paradnn.worker.point import OtherProcesses, PointRun, ProcessMemory
from paradnn.worker.process_group import (
    LOOPBACK,
    ProcessGroup,
    RankFailed,
    RemoteProcess,
    free_addresses,
    processes_elsewhere,
    receive_message,
    reply_timeout_error,
)
from paradnn.worker.profile.shapes import Cost
from paradnn.worker.step import prepare_step

#: Longest measurement of the steps without communication, in seconds.
_ALONE_SECONDS = 1.0
#: Seconds within which a process on another host must import the framework.
_IMPORT_SECONDS = 120.0


@dataclass(frozen=True)
class _Order:
    """Request of the measuring process (rank 0) to the other processes.

    Attributes:
        task: "run" runs steps. "begin_steps" resets the recorded memory peak. "memory" reports the
            memory of the process. "prepare_alone" compiles a step without communication, and
            "alone" times that step.
        steps: Number of steps to run if the task is "run".
    """

    task: str
    steps: int = 0


@dataclass(frozen=True)
class _Reply:
    """Reply of a process to an `_Order`. A field is None if the task of the order does not need it.

    Attributes:
        rank: Number of the process, from 1.
        loss: Loss of the last step on the process's share of the batch.
        memory: Peak memory of the process, and growth of its memory in the steps, in bytes; empty
            if they are unknown.
        step_seconds: Median seconds of a step without communication; None if it cannot be measured.
    """

    rank: int
    loss: float | None = None
    memory: list[int] | None = None
    step_seconds: float | None = None


def process_count(point: Mapping[str, Any], framework: Framework) -> int:
    """Return the number of processes, on all hosts together, that share each training step.

    Args:
        point: The configuration to measure, with the optional keys `hosts`, `devices` (per host)
            and `parallel`.
        framework: The framework, which determines the number of processes per host.
    """
    if point.get("parallel") == "model":
        return 1
    hosts = int(point.get("hosts", 1))
    return hosts * framework.processes_per_host(int(point.get("devices", 1)), hosts)


def _member(
    point: Mapping[str, Any],
    framework: Framework,
    rank: int,
    addresses: Sequence[str],
    *,
    shares_host: bool,
) -> Member:
    """Return the description of one of the processes that share each training step.

    The description includes the devices and cores of the process.

    Args:
        point: The configuration to measure, as nested mappings of plain values.
        framework: The framework, already imported.
        rank: Number of the process, from 0.
        addresses: Addresses (host:port) of all processes, in order of rank.
        shares_host: Whether all processes run on one host.
    """
    devices = int(point["devices"])
    hosts = int(point["hosts"])
    per_host = framework.processes_per_host(devices, hosts)
    hosts_here = hosts if shares_host else 1
    layout = device_layout(devices, point["platform"], hosts_here)
    watch_cores(layout.cores)
    local_rank = rank % (hosts_here * per_host)
    own_devices = devices // per_host
    core_count = own_devices * layout.threads
    first = local_rank * core_count
    own_layout = replace(
        layout, devices=own_devices, cores=layout.cores[first : first + core_count]
    )
    return Member(rank, local_rank, tuple(addresses), own_layout)


class _Process:
    """The model of this process, and its part of every step.

    Args:
        point: The configuration to measure, as nested mappings of plain values.
        framework: The framework, already imported.
        member: Rank, addresses and devices of this process.

    Attributes:
        framework: The framework for steps that all processes share, with its devices open.
    """

    def __init__(self, point: Mapping[str, Any], framework: Framework, member: Member) -> None:
        self._point = point
        self._member = member
        self._alone: Step | None = None
        self.framework = frameworks.grouped(framework, member)
        self.framework.open_device(point["platform"])

    def prepare_alone(self) -> None:
        """Build and compile a step on this process's share of the batch, without communication."""
        count = len(self._member.addresses)
        share = {
            **self._point,
            "batch_size": self._point["batch_size"] // count,
            "devices": self._member.layout.devices,
            "hosts": 1,
        }
        try:
            _, step = prepare_step(share, self.framework.alone())
            compile_steps(step)
        except Exception:  # the point is already measured; only its communication time is unknown
            traceback.print_exc()
        else:
            self._alone = step

    def time_alone(self) -> float | None:
        """Return the median seconds of a step without communication.

        Returns None if `prepare_alone` could not build or compile the step.
        """
        if self._alone is None:
            return None
        protocol = Protocol.from_settings(self._point["measure"])
        seconds = min(_ALONE_SECONDS, protocol.max_seconds)
        short_protocol = replace(
            protocol,
            min_seconds=seconds,
            max_seconds=seconds,
            warmup_seconds=min(seconds, protocol.warmup_seconds),
            relative_interval=None,
            reference=False,
        )
        timing = measure_steps(self._alone.run, short_protocol, lambda _: contextlib.nullcontext())
        return statistics.median(timing.step_times)


def _serve(
    point: Mapping[str, Any],
    framework: Framework,
    rank: int,
    addresses: Sequence[str],
    channel: Connection,
    *,
    shares_host: bool,
) -> None:
    """Carry out the orders of the measuring process in this process, until `channel` closes.

    Args:
        point: The configuration to measure, as nested mappings of plain values.
        framework: The framework, already imported.
        rank: Number of this process, from 1.
        addresses: Addresses (host:port) of all processes, in order of rank.
        channel: Connection to the measuring process.
        shares_host: Whether all processes run on one host.

    Raises:
        RankFailed: If this process fails.
    """
    try:
        meter = MemoryMeter()
        member = _member(point, framework, rank, addresses, shares_host=shares_host)
        channel.send_bytes(encode(versions(framework.name)))
        process = _Process(point, framework, member)
        _, step = prepare_step(point, process.framework)
        with contextlib.suppress(EOFError):
            while True:
                order = receive_message(channel, _Order)
                channel.send_bytes(encode(_obey(order, rank, process, step, meter)))
    except PointEnded as error:
        raise RankFailed(error.outcome, f"process {rank + 1}: {error}") from error
    except Exception as error:
        traceback.print_exc()
        outcome = framework.out_of_memory(error) or "crash"
        if isinstance(error, MemoryError):
            outcome = "oom_host"
        reason = f"process {rank + 1}: {type(error).__name__}: {error}"
        raise RankFailed(outcome, reason.splitlines()[0]) from error


def _obey(order: _Order, rank: int, process: _Process, step: Step, meter: MemoryMeter) -> _Reply:
    """Carry out an order of the measuring process, and return the reply.

    Args:
        order: The task to carry out, such as to run a number of steps.
        rank: Number of this process, from 1.
        process: This process's model and devices.
        step: This process's part of the step that all processes share.
        meter: Measures the memory of this process.
    """
    if order.task == "run":
        return _Reply(rank, loss=step.run(order.steps))
    if order.task == "memory":
        return _Reply(rank, memory=[count for count in meter.peak_bytes() if count is not None])
    if order.task == "alone":
        return _Reply(rank, step_seconds=process.time_alone())
    if order.task == "prepare_alone":
        process.prepare_alone()
    else:
        meter.begin_steps()
    return _Reply(rank)


def serve_elsewhere(
    point: Mapping[str, Any],
    rank: int,
    addresses: Sequence[str],
    own: socket,
    channel: Connection,
) -> None:
    """Take part in the training steps that a process on another host measures.

    Returns when the measuring process on the other host closes `channel`.

    Args:
        point: The configuration to measure, as nested mappings of plain values.
        rank: Number of this process, from 1; the measuring process has rank 0.
        addresses: Addresses (host:port) of all processes, in order of rank.
        own: Socket that reserved the port of this process. It is closed here, so that the framework
            can listen on the port.
        channel: Connection to the measuring process.

    Raises:
        RankFailed: If this process fails.
    """
    own.close()
    name = point["framework"]["name"]
    try:
        framework = frameworks.load(name)
    except Exception as error:
        reason = f"process {rank + 1}: {name} cannot be imported on its host: {error}"
        raise RankFailed("unavailable", reason) from error
    bind_cores(point["platform"])
    _serve(point, framework, rank, addresses, channel, shares_host=False)


class DataParallelGroup(OtherProcesses, contextlib.AbstractContextManager["DataParallelGroup"]):
    """Processes that train one model together; the calling process measures the steps.

    Entering the context starts the other processes and opens all devices. They end when the context
    exits, or when the calling process ends. Entering raises UnavailableError if another host cannot
    be reached or software is missing, and RankFailed if a process fails.

    Args:
        run: State of the measurement in the calling process. Entering the context replaces
            `run.framework` by the framework for steps that all processes share.
    """

    def __init__(self, run: PointRun) -> None:
        self._run = run
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._run.phases("build"), contextlib.ExitStack() as starting:
            self._start(starting)
            self._ending = starting.pop_all()
        self._run.others = self
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._run.others = None
        self._ending.__exit__(kind, error, trace)

    def _start(self, starting: contextlib.ExitStack) -> None:
        point = self._run.request
        framework = self._run.framework
        bind_cores(point["platform"])
        count = process_count(point, framework)
        self.count = count
        elsewhere = processes_elsewhere(point, count)
        host = elsewhere[0].local if elsewhere else LOOPBACK
        addresses = free_addresses(count - len(elsewhere), host)
        addresses += [remote.address for remote in elsewhere]
        for remote in elsewhere:
            remote.channel.send_bytes(encode(addresses))

        def member(rank: int) -> Member:
            return _member(point, framework, rank, addresses, shares_host=not elsewhere)

        # `member` raises UnavailableError if there are too few cores. Call it before the processes
        # start, since every process would report the same error.
        own_member = member(0)

        def serve(rank: int, channel: Connection) -> None:
            _serve(point, framework, rank, addresses, channel, shares_host=not elsewhere)

        self._elsewhere = {remote.rank for remote in elsewhere}
        self._processes = starting.enter_context(ProcessGroup(count, serve, elsewhere))
        _require_equal_versions(framework, elsewhere, self._processes)
        self._own = _Process(point, framework, own_member)
        self._run.framework = self._own.framework

    def common_step(self, own: Step) -> Step:
        """Return the training step that all processes run together.

        Args:
            own: The part of the step that this process runs on its share of the batch.
        """
        return _CommonStep(own, self._processes)

    def begin_steps(self) -> None:
        """Reset the recorded memory peaks of the other processes (`MemoryMeter.begin_steps`)."""
        self._ask(_Order("begin_steps"))

    def memory(self) -> list[ProcessMemory]:
        """Return the memory of each other process on this host whose memory is known."""
        replies = self._ask(_Order("memory"))
        return [
            ProcessMemory(*reply.memory)
            for reply in replies
            if reply.rank not in self._elsewhere and reply.memory
        ]

    def time_alone(self) -> list[float]:
        """Time steps that each process runs on its share of the batch without communication.

        All processes run these steps at the same time, so that processes of one host compete for
        its memory bandwidth as in a step that they share.

        Returns:
            The median seconds of a step for each process, in order of rank; empty if a process
            cannot measure its steps.
        """
        self._processes.send(_Order("prepare_alone"))
        self._own.prepare_alone()
        self._processes.receive(_Reply)
        self._processes.send(_Order("alone"))
        own = _Reply(0, step_seconds=self._own.time_alone())
        replies = sorted([own, *self._processes.receive(_Reply)], key=lambda reply: reply.rank)
        seconds = [reply.step_seconds for reply in replies if reply.step_seconds is not None]
        return seconds if len(seconds) == len(replies) else []

    def _ask(self, order: _Order) -> list[_Reply]:
        self._processes.send(order)
        return self._processes.receive(_Reply)


def _require_equal_versions(
    framework: Framework, elsewhere: Sequence[RemoteProcess], processes: ProcessGroup
) -> None:
    """Wait until all processes have imported the framework, and require the same versions.

    Args:
        framework: The framework of this process.
        elsewhere: The processes on other hosts.
        processes: All other processes, including those on other hosts.

    Raises:
        RankFailed: If a process failed, did not import the framework in time, or has different
            versions.
    """
    for remote in elsewhere:
        if not remote.channel.poll(_IMPORT_SECONDS):
            raise reply_timeout_error(
                f"process {remote.rank + 1} at {remote.address}", _IMPORT_SECONDS
            )
    own = versions(framework.name)
    # The first channels belong to processes on other hosts. The rest belong to forks of this
    # process, which have the same versions.
    for remote, theirs in zip(elsewhere, processes.receive(dict[str, str]), strict=False):
        differing = sorted(name for name in {*own, *theirs} if own.get(name) != theirs.get(name))
        if differing:
            name = differing[0]
            raise RankFailed(
                "unavailable",
                f"{name} is {own.get(name, 'not installed')} on this host, but "
                f"{theirs.get(name, 'not installed')} on the host at {remote.address}: "
                "install the same versions on all hosts",
            )


class _CommonStep(Step):
    """A training step of all processes. Its loss is the mean over their shares of the batch."""

    def __init__(self, own: Step, processes: ProcessGroup) -> None:
        self._own = own
        self._processes = processes
        self._variables = own._variables

    @property
    def block_run(self) -> SynchronizedRun:
        """Object that runs the steps of a timed block; `measure_steps` gets it as `run`."""
        return _Blocks(self._own, self._processes)

    def run(self, steps: int) -> float | None:
        self._processes.send(_Order("run", steps))
        return _mean_loss(self._own.run(steps), self._processes)

    def compilations(self) -> int:
        return self._own.compilations()

    def compile_note(self) -> str | None:
        return self._own.compile_note()

    def conversion(self) -> Conversion | None:
        return self._own.conversion()

    def products(self) -> Sequence[Cost]:
        return self._own.products()

    def kernel_cost(self, name: str, kind: str) -> Cost:
        return self._own.kernel_cost(name, kind)


class _Blocks(SynchronizedRun):
    """Runs timed blocks of a step that all processes share.

    An untimed step before each block synchronizes the processes.
    """

    def __init__(self, own: Step, processes: ProcessGroup) -> None:
        self._own = own
        self._processes = processes
        self._loss: float | None = None

    def begin(self, steps: int) -> None:
        self._processes.send(_Order("run", 1 + steps))
        self._own.run(1)

    def run(self, steps: int) -> None:
        self._loss = self._own.run(steps)

    def end(self) -> float | None:
        return _mean_loss(self._loss, self._processes)


def _mean_loss(own_loss: float | None, processes: ProcessGroup) -> float | None:
    """Receive the losses of the other processes, and return the mean loss of all processes.

    All shares of the batch have the same size, so the mean is not weighted.

    Args:
        own_loss: Loss of this process; None if the step has no loss.
        processes: The other processes.

    Returns:
        The mean loss; None if no process reports a loss.
    """
    losses = [own_loss, *(reply.loss for reply in processes.receive(_Reply))]
    known = [loss for loss in losses if loss is not None]
    return statistics.fmean(known) if known else None
