"""The processes of a point whose step is communication, on this host and on others, and how they find each other.

Where one process alone decides when a step begins (latency, bandwidth), the other only answers.
Otherwise every process receives how many steps to run, and a step of the point ends when all have run them.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from socket import socket
from typing import Any

from paradnn.worker.addresses import listen, with_port
from paradnn.worker.affinity import bind_cores
from paradnn.worker.device_layout import DeviceLayout, RemoteProcess
from paradnn.worker.errors import Unavailable
from paradnn.worker.frameworks import Framework, load
from paradnn.worker.meters import MemoryMeter, keep_freed
from paradnn.worker.process_group import (
    GroupStep,
    ProcessGroup,
    RankFailed,
    local_address,
    patience_of,
    processes_elsewhere,
    serve_steps,
)
from paradnn.worker.profile.shapes import Cost
from paradnn.workloads.channel.payload import buffer_sizes, make_buffers


class _Step:
    """What measuring asks of a step: it compiles nothing and has no loss."""

    def __init__(self, run: Callable[[int], None]) -> None:
        self._run = run

    def run(self, steps: int) -> float | None:
        """So many steps."""
        self._run(steps)
        return None

    def compilations(self) -> int:
        """None."""
        return 0

    def compile_note(self) -> str | None:
        """There is nothing to note."""
        return None

    def product_flops(self) -> dict[str, float]:
        """There are no products."""
        return {}

    def kernel_cost(self, name: str, kind: str) -> Cost:
        """There are no kernels."""
        raise KeyError(name)


class Processes:
    """The processes of a point, on its cores: this one, which is measured, and those that it starts.

    They end with this one, or when nothing refers to them. Raises Unavailable and RankFailed.
    """

    def __init__(self, point: Mapping[str, Any], framework: Framework) -> None:
        bind_cores(point["platform"])
        keep_freed()
        self._means = _means_of(point, framework)
        count = self._means.processes
        elsewhere = processes_elsewhere(point, count, point["model"]["port"])
        self._means.meet(elsewhere)
        self.group = ProcessGroup(count, self._serve, elsewhere) if count > 1 else None
        self._means.parted()

    def step(self) -> Any:
        """The step of this process, or of all that take turns with it."""
        own = _Step(self._means.step(0).run)
        return GroupStep(own, self.group) if self._means.together and self.group else own

    def _serve(self, rank: int, channel: Connection) -> None:
        _serve(self._means, rank, channel)


def serve_elsewhere(
    point: Mapping[str, Any], rank: int, addresses: Sequence[str], own: socket, channel: Connection
) -> None:
    """Be process `rank` of a point that another host measures, and listen on `own`. Raises RankFailed."""
    bind_cores(point["platform"])
    keep_freed()
    needs = point["model"]["transport"] == "tensorflow"
    means = _means_of(point, load("tensorflow") if needs else None)
    means.join(rank, addresses, own)
    _serve(means, rank, channel)


def _means_of(point: Mapping[str, Any], framework: Framework | None) -> _Means:
    kinds: dict[str, Callable[..., _Means]] = {"tcp": _Tcp, "grpc": _Grpc, "shared_memory": _SharedMemory}
    return kinds.get(point["model"]["transport"], _Collective)(point, framework, patience_of(point))


def _serve(means: _Means, rank: int, channel: Connection) -> None:
    try:
        means.serve(rank, channel)
    except RankFailed:
        raise
    except Unavailable as error:
        raise RankFailed("unavailable", f"process {rank + 1}: {error}") from error
    except Exception as error:
        raise RankFailed("crash", f"process {rank + 1}: {type(error).__name__}: {error}") from error


class _Means(ABC):
    """How the processes of a transport find each other; `processes` counts this one.

    Before the others of this host are forked they `meet` those of other hosts, each of which will `join`.
    """

    processes = 2
    together = False

    def __init__(self, point: Mapping[str, Any], framework: Framework | None, patience: float) -> None:
        self._point, self._framework, self._patience = point, framework, patience
        self._model = point["model"]

    def meet(self, elsewhere: Sequence[RemoteProcess]) -> None:  # noqa: B027 - some need nothing
        """Open what processes of this host listen on, and let all know the addresses."""

    def join(self, rank: int, addresses: Sequence[str], own: socket) -> None:  # noqa: B027 - some need nothing
        """On another host: be process `rank`, which may listen on `own`; `addresses` are those of `meet`."""

    @abstractmethod
    def serve(self, rank: int, channel: Connection) -> None:
        """What process `rank` does."""

    @abstractmethod
    def step(self, rank: int) -> Any:
        """The step of a process that sends."""

    def _buffers(self) -> list[bytes]:
        model = self._model
        return make_buffers(buffer_sizes(model["payload"], model["bytes"], model["buffers"]), self._point["seed"])

    def parted(self) -> None:  # noqa: B027 - some need nothing
        """The other processes are started: let go of what they alone need."""

    def _run_when_told(self, channel: Connection, run: Callable[[int], None]) -> None:
        serve_steps(channel, _Step(run), MemoryMeter())


class _Servers(_Means):
    """Processes 1 to `servers` listen; this one and those after them send to all of these."""

    def __init__(self, point: Mapping[str, Any], framework: Framework | None, patience: float) -> None:
        super().__init__(point, framework, patience)
        model, peer = self._model, self._model["peer"]
        self._sockets: dict[int, socket] = {}  # by the number of the server, from 0
        self._servers = 0 if peer else int(model["servers"])
        self.processes = self._servers + int(model["workers"])
        self.together = model["workers"] > 1
        self._addresses = [peer] if peer else []

    def meet(self, elsewhere: Sequence[RemoteProcess]) -> None:
        port, host = self._model["port"], local_address(elsewhere)
        there = {each.rank - 1: each.address for each in elsewhere}
        for number in range(self._servers):
            if number not in there:
                self._sockets[number] = listen(port and port + number, host)
        own = {number: with_port(host, each.getsockname()[1]) for number, each in self._sockets.items()}
        self._addresses += [(own | there)[number] for number in range(self._servers)]
        for each in elsewhere:
            each.begin(self._addresses)

    def join(self, rank: int, addresses: Sequence[str], own: socket) -> None:
        self._addresses = list(addresses)
        if rank <= self._servers:
            self._sockets[rank - 1] = own
        else:
            own.close()

    def parted(self) -> None:
        for each in self._sockets.values():
            each.close()

    def serve(self, rank: int, channel: Connection) -> None:
        if rank <= self._servers:
            self._listen(rank - 1, channel)
        else:
            self._run_when_told(channel, self.step(rank).run)

    def _idle(self, channel: Connection) -> None:
        """A process that listens in threads has nothing to do for a step."""
        self._run_when_told(channel, lambda steps: None)

    @abstractmethod
    def _listen(self, number: int, channel: Connection) -> None:
        """Serve what comes to the server of this number, until the driver's side ends."""


class _Tcp(_Servers):
    def _listen(self, number: int, channel: Connection) -> None:
        import threading

        from paradnn.workloads.channel.sockets import serve_connections

        threading.Thread(target=serve_connections, args=(self._sockets[number],), daemon=True).start()
        self._idle(channel)

    def step(self, rank: int) -> Any:
        from paradnn.workloads.channel.sockets import TcpStep

        return TcpStep(self._point, self._addresses, self._buffers(), self._patience)


class _Grpc(_Servers):
    def meet(self, elsewhere: Sequence[RemoteProcess]) -> None:
        super().meet(elsewhere)
        self.parted()  # gRPC opens its own; these have shown that the ports are free

    def join(self, rank: int, addresses: Sequence[str], own: socket) -> None:
        super().join(rank, addresses, own)
        self.parted()

    def _listen(self, number: int, channel: Connection) -> None:
        from paradnn.workloads.channel.rpc import serve_calls

        server = serve_calls(self._addresses[number])
        self._idle(channel)
        server.stop(None)

    def step(self, rank: int) -> Any:
        from paradnn.workloads.channel.rpc import GrpcStep

        return GrpcStep(self._point, self._addresses, self._buffers(), self._patience)


class _SharedMemory(_Means):
    def __init__(self, point: Mapping[str, Any], framework: Framework | None, patience: float) -> None:
        from paradnn.workloads.channel.shared_memory import open_rings

        super().__init__(point, framework, patience)
        self._rings = open_rings(point)

    def serve(self, rank: int, channel: Connection) -> None:
        """Echo or receive, whatever comes."""
        from paradnn.workloads.channel.shared_memory import serve_ring

        serve_ring(self._point, self._rings)

    def step(self, rank: int) -> Any:
        """The step of the process that sends."""
        from paradnn.workloads.channel.shared_memory import SharedMemoryStep

        return SharedMemoryStep(self._point, self._rings, self._buffers(), self._patience)


class _Collective(_Means):
    together = True

    def __init__(self, point: Mapping[str, Any], framework: Framework | None, patience: float) -> None:
        from paradnn.workloads.channel.collectives import processes_of

        super().__init__(point, framework, patience)
        self.processes = processes_of(self._model)
        self._layout: DeviceLayout | None = None
        self._address = ""

    def meet(self, elsewhere: Sequence[RemoteProcess]) -> None:
        from paradnn.workloads.channel.collectives import collective_layout

        if layout := collective_layout(self._point):  # which tells them
            self._layout = layout.with_others(elsewhere)
            return
        with contextlib.closing(listen(self._model["port"], local_address(elsewhere))) as free:
            self._address = with_port(*free.getsockname()[:2])
        for each in elsewhere:
            each.begin([self._address])

    def join(self, rank: int, addresses: Sequence[str], own: socket) -> None:
        from paradnn.workloads.channel.collectives import collective_layout

        own.close()
        self._layout, self._address = collective_layout(self._point, addresses), addresses[0]

    def serve(self, rank: int, channel: Connection) -> None:
        """Run as many steps as are asked for."""
        self._run_when_told(channel, self.step(rank).run)

    def step(self, rank: int) -> Any:
        """The step of any process."""
        from paradnn.workloads.channel.collectives import open_collective

        return open_collective(self._point, self._framework, self._layout, rank, self._address, self._patience)
