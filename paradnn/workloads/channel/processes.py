"""The processes of a point whose step is communication, on this host and on others, and how they find each other.

Where one process alone decides when a step begins (latency, bandwidth), the other only answers.
Otherwise every process receives how many steps to run, and a step of the point ends when all have run them.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from socket import socket
from typing import Any

from paradnn.worker.addresses import listen, with_port
from paradnn.worker.affinity import bind_cores
from paradnn.worker.device_layout import DeviceLayout, RemoteProcess
from paradnn.worker.errors import Unavailable
from paradnn.worker.frameworks import Framework, Step, load
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
from paradnn.workloads.channel.collectives import collective_layout, open_collective
from paradnn.workloads.channel.rpc import GrpcStep, serve_calls
from paradnn.workloads.channel.sockets import TcpStep, serve_connections

#: Noise is drawn once for so many bytes and then repeated.
_NOISE = 2**20


class _Step(Step):
    """A step that has no loss."""

    def __init__(self, run: Callable[[int], None]) -> None:
        self._run = run

    def run(self, steps: int) -> float | None:
        """So many steps."""
        self._run(steps)
        return None


class Processes:
    """The processes of a point, on its cores: this one, which is measured, and those that it starts.

    They end with this one, or when nothing refers to them. Raises Unavailable and RankFailed.
    """

    def __init__(self, point: Mapping[str, Any], framework: Framework) -> None:
        bind_cores(point["platform"])
        keep_freed()
        self._means, count = _means_of(point, framework), _count_of(point)
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


def _means_of(point: Mapping[str, Any], framework: Framework | None) -> _Served | _Collective:
    served = point["model"]["transport"] in ("tcp", "grpc")
    return _Served(point) if served else _Collective(point, framework)


def _count_of(point: Mapping[str, Any]) -> int:
    """How many processes take part: two where a message goes from one to the other."""
    model = point["model"]
    return int(model["processes"]) if model["pattern"] in ("all_reduce", "broadcast") else 2


def _serve(means: _Served | _Collective, rank: int, channel: Connection) -> None:
    try:
        means.serve(rank, channel)
    except RankFailed:
        raise
    except Unavailable as error:
        raise RankFailed("unavailable", f"process {rank + 1}: {error}") from error
    except Exception as error:
        raise RankFailed("crash", f"process {rank + 1}: {type(error).__name__}: {error}") from error


def _idle(channel: Connection) -> None:
    """A process that listens in threads has nothing to do for a step."""
    serve_steps(channel, _Step(lambda steps: None), MemoryMeter())


class _Served:
    """Over tcp and grpc: process 1 listens, this one sends to it, and alone decides when a step begins.

    Before those of this host are forked, and with those of other hosts, `meet` says where the server is; on another
    host the server does `join`.
    """

    together = False

    def __init__(self, point: Mapping[str, Any]) -> None:
        self._point = point
        self._is_grpc = point["model"]["transport"] == "grpc"
        self._socket: socket | None = None
        self._address = ""

    def meet(self, elsewhere: Sequence[RemoteProcess]) -> None:
        """Open what a process of this host listens on, and let all know the address."""
        if elsewhere:
            self._address = elsewhere[0].address
        else:
            self._listen_on(listen(self._point["model"]["port"], local_address(elsewhere)))
        for each in elsewhere:
            each.begin([self._address])

    def join(self, rank: int, addresses: Sequence[str], own: socket) -> None:
        """On another host: be the server, which listens on `own`."""
        self._listen_on(own)

    def _listen_on(self, own: socket) -> None:
        self._socket, self._address = own, with_port(*own.getsockname()[:2])
        if self._is_grpc:
            self.parted()  # gRPC opens its own; this one has shown that the port is free

    def parted(self) -> None:
        """The server is started: let go of what it alone needs."""
        if self._socket:
            self._socket.close()

    def serve(self, rank: int, channel: Connection) -> None:
        """Serve what comes, until the driver's side ends."""
        if self._is_grpc:
            server = serve_calls(self._address)
            _idle(channel)
            server.stop(None)
        else:
            threading.Thread(target=serve_connections, args=(self._socket, self._point), daemon=True).start()
            _idle(channel)

    def step(self, rank: int) -> Any:
        """The step of the process that sends."""
        message = make_message(self._point["model"]["bytes"], self._point["seed"])
        return (GrpcStep if self._is_grpc else TcpStep)(self._point, self._address, message, patience_of(self._point))


def make_message(size: int, seed: int) -> bytes:
    """So many bytes of noise."""
    noise = random.Random(seed).randbytes(min(_NOISE, size))
    return (noise * -(-size // len(noise)))[:size]


class _Collective:
    """A framework's processes, all of which do the same; as `_Served` otherwise."""

    together = True

    def __init__(self, point: Mapping[str, Any], framework: Framework | None) -> None:
        self._point, self._framework = point, framework
        self._layout: DeviceLayout | None = None
        self._address = ""

    def meet(self, elsewhere: Sequence[RemoteProcess]) -> None:
        """Find a port for all, and let those of other hosts know it."""
        if layout := collective_layout(self._point):  # which tells them
            self._layout = layout.with_others(elsewhere)
            return
        with contextlib.closing(listen(self._point["model"]["port"], local_address(elsewhere))) as free:
            self._address = with_port(*free.getsockname()[:2])
        for each in elsewhere:
            each.begin([self._address])

    def join(self, rank: int, addresses: Sequence[str], own: socket) -> None:
        """On another host: be process `rank`."""
        own.close()
        self._layout, self._address = collective_layout(self._point, addresses), addresses[0]

    def parted(self) -> None:
        """There is nothing to let go of."""

    def serve(self, rank: int, channel: Connection) -> None:
        """Run as many steps as are asked for."""
        serve_steps(channel, _Step(self.step(rank).run), MemoryMeter())

    def step(self, rank: int) -> Any:
        """The step of any process."""
        point, patience = self._point, patience_of(self._point)
        return open_collective(point, self._framework, self._layout, (rank, _count_of(point)), self._address, patience)
