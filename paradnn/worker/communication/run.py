"""A point whose step is communication: its processes are opened, and its steps measured as any other's.

Where one process alone decides when a step begins (latency, bandwidth), the other only answers.
Otherwise every process receives how many steps to run, and a step of the point ends when all have run them.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from socket import socket
from typing import Any

from paradnn.worker.affinity import bind_cores
from paradnn.worker.communication.payload import buffer_sizes, make_buffers
from paradnn.worker.communication.waiting import LOOPBACK, listen, patience_of
from paradnn.worker.compiling import compile_steps
from paradnn.worker.errors import Unavailable
from paradnn.worker.fork_server import Report
from paradnn.worker.frameworks import Framework
from paradnn.worker.latencies import single_latencies
from paradnn.worker.memory import MemoryMeter
from paradnn.worker.messages import Answer, Measurement
from paradnn.worker.point import PointRun
from paradnn.worker.process_group import GroupStep, ProcessGroup, RankFailed, serve_steps
from paradnn.worker.profile.shapes import Cost

__all__ = ["answer_communication", "communicates"]


def communicates(request: Mapping[str, Any]) -> bool:
    """Whether a request is of this kind."""
    return request.get("task") != "ceilings" and request["model"]["name"] == "channel"


def answer_communication(request: Mapping[str, Any], framework: Framework, report: Report) -> Answer:
    """As `paradnn.worker.point.answer_request`, of a point with model=channel."""
    return _CommunicationRun(request, framework, report).answer()


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


class _CommunicationRun(PointRun):
    """A request while it is served."""

    def _open(self) -> None:
        with self._phases("build"):
            bind_cores(self._request["platform"])
            processes = _Processes(self._request, self._framework)
            self._group = processes.group
            self._step = processes.step()

    def _measure(self) -> None:
        with self._phases("compile"):
            compilation, _ = compile_steps(self._step)
        self._memory.compiled()
        timing, meter, contention = self._time(self._step.run, self._step, self._phases)
        energy = meter.joules(), meter.source
        measurement = Measurement(0, compilation, {}, None, None, timing, *energy, contention)
        self._answer = replace(self._answer, measurement=measurement)
        if self._request["model"]["pattern"] == "latency" and not isinstance(self._step, GroupStep):
            with self._phases("latency"):
                longest = self._request["measure"]["max_seconds"]
                latencies = single_latencies(self._step.run, longest)
            self._answer = replace(self._answer, latencies=latencies)
        self._remember_memory(self._memory.taken())


class _Processes:
    """The processes of a point: this one, which is measured, and those that it starts."""

    def __init__(self, point: Mapping[str, Any], framework: Framework) -> None:
        self._point, self._framework, model = point, framework, point["model"]
        self._patience = patience_of(point)
        transport = model["transport"]
        kind = {"tcp": _Tcp, "grpc": _Grpc, "shared_memory": _SharedMemory}.get(transport, _Collective)
        self._means: Any = kind(point, framework, self._patience)
        self.group = ProcessGroup(self._means.processes, self._serve) if self._means.processes > 1 else None
        self._means.parted()

    def step(self) -> Any:
        """The step of this process, or of all that take turns with it."""
        own = _Step(self._means.step(0).run)
        return GroupStep(own, self.group) if self._means.together and self.group else own

    def _serve(self, rank: int, channel: Connection) -> None:
        try:
            self._means.serve(rank, channel)
        except RankFailed:
            raise
        except Unavailable as error:
            raise RankFailed("unavailable", f"process {rank + 1}: {error}") from error
        except Exception as error:
            raise RankFailed("crash", f"process {rank + 1}: {type(error).__name__}: {error}") from error


class _Means:
    """How the processes of a transport find each other; `processes` counts this one."""

    processes = 2
    together = False

    def __init__(self, point: Mapping[str, Any], framework: Framework, patience: float) -> None:
        self._point, self._framework, self._patience = point, framework, patience
        self._model = point["model"]

    def _buffers(self) -> list[bytes]:
        model = self._model
        return make_buffers(buffer_sizes(model["payload"], model["bytes"], model["buffers"]), self._point["seed"])

    def parted(self) -> None:
        """The other processes are started: let go of what they alone need."""

    def _run_when_told(self, channel: Connection, run: Callable[[int], None]) -> None:
        serve_steps(channel, _Step(run), MemoryMeter())


class _Servers(_Means, ABC):
    """Processes 1 to `servers` listen; this one and those after them send to all of these."""

    def __init__(self, point: Mapping[str, Any], framework: Framework, patience: float) -> None:
        super().__init__(point, framework, patience)
        model, peer = self._model, self._model["peer"]
        self._sockets: list[socket] = []
        self._servers = 0 if peer else int(model["servers"])
        self.processes = self._servers + int(model["workers"])
        self.together = model["workers"] > 1
        for number in range(self._servers):
            self._sockets.append(listen(model["port"] and model["port"] + number))
        self._addresses = [peer] if peer else [f"{LOOPBACK}:{each.getsockname()[1]}" for each in self._sockets]

    def parted(self) -> None:
        for each in self._sockets:
            each.close()

    def serve(self, rank: int, channel: Connection) -> None:
        """What process `rank` does."""
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

    @abstractmethod
    def step(self, rank: int) -> Any:
        """The step of a process that sends."""


class _Tcp(_Servers):
    def _listen(self, number: int, channel: Connection) -> None:
        import threading

        from paradnn.worker.communication.sockets import serve_connections

        threading.Thread(target=serve_connections, args=(self._sockets[number],), daemon=True).start()
        self._idle(channel)

    def step(self, rank: int) -> Any:
        from paradnn.worker.communication.sockets import TcpStep

        return TcpStep(self._point, self._addresses, self._buffers(), self._patience)


class _Grpc(_Servers):
    def __init__(self, point: Mapping[str, Any], framework: Framework, patience: float) -> None:
        super().__init__(point, framework, patience)
        self.parted()  # gRPC opens its own; these have shown that the ports are free

    def _listen(self, number: int, channel: Connection) -> None:
        from paradnn.worker.communication.rpc import serve_calls

        server = serve_calls(self._addresses[number])
        self._idle(channel)
        server.stop(None)

    def step(self, rank: int) -> Any:
        from paradnn.worker.communication.rpc import GrpcStep

        return GrpcStep(self._point, self._addresses, self._buffers(), self._patience)


class _SharedMemory(_Means):
    def __init__(self, point: Mapping[str, Any], framework: Framework, patience: float) -> None:
        from paradnn.worker.communication.shared_memory import open_rings

        super().__init__(point, framework, patience)
        self._rings = open_rings(point)

    def serve(self, rank: int, channel: Connection) -> None:
        """Echo or receive, whatever comes."""
        from paradnn.worker.communication.shared_memory import serve_ring

        serve_ring(self._point, self._rings)

    def step(self, rank: int) -> Any:
        """The step of the process that sends."""
        from paradnn.worker.communication.shared_memory import SharedMemoryStep

        return SharedMemoryStep(self._point, self._rings, self._buffers(), self._patience)


class _Collective(_Means):
    together = True

    def __init__(self, point: Mapping[str, Any], framework: Framework, patience: float) -> None:
        from paradnn.worker.communication.collectives import collective_layout, processes_of

        super().__init__(point, framework, patience)
        self.processes = processes_of(self._model)
        self._layout = collective_layout(point)
        with contextlib.closing(listen(self._model["port"])) as free:
            self._port = free.getsockname()[1]

    def serve(self, rank: int, channel: Connection) -> None:
        """Run as many steps as are asked for."""
        self._run_when_told(channel, self.step(rank).run)

    def step(self, rank: int) -> Any:
        """The step of any process."""
        from paradnn.worker.communication.collectives import open_collective

        return open_collective(self._point, self._framework, self._layout, rank, self._port, self._patience)
