"""The processes of a point over several devices: each builds the same step over its own, and serves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from socket import socket
from typing import Any

from paradnn.worker.device_layout import DeviceLayout, layout_of
from paradnn.worker.errors import Unavailable, ending_of
from paradnn.worker.frameworks import Framework, distributed, load
from paradnn.worker.memory import MemoryMeter
from paradnn.worker.phases import Phases
from paradnn.worker.process_group import ProcessGroup, RankFailed, serve_steps
from paradnn.worker.remote import processes_elsewhere
from paradnn.worker.step import prepare_step

__all__ = ["serve_elsewhere", "start_ranks"]


def start_ranks(
    request: Mapping[str, Any], framework: Framework, layout: DeviceLayout
) -> tuple[ProcessGroup, DeviceLayout]:
    """The other processes of a point, and the layout with where all are: each builds the same step over its own
    devices, and serves it."""
    distributed(framework, layout)  # raises Unavailable before any is started
    elsewhere = processes_elsewhere(request, layout.processes)
    layout = layout.with_others(elsewhere)

    def serve(rank: int, channel: Connection) -> None:
        _serve_rank(request, framework, layout.of_rank(rank), channel)

    return ProcessGroup(layout.processes, serve, elsewhere), layout


def serve_elsewhere(
    point: Mapping[str, Any], rank: int, addresses: Sequence[str], own: socket, channel: Connection
) -> None:
    """Be process `rank` of a point of another host; TensorFlow listens where `own` did. Raises RankFailed."""
    own.close()
    try:
        layout = layout_of(point, addresses)
        assert layout
    except Unavailable as error:
        raise RankFailed("unavailable", f"process {rank + 1}: {error}") from error
    _serve_rank(point, load(point["framework"]["name"]), layout.of_rank(rank), channel)


def _serve_rank(request: Mapping[str, Any], framework: Framework, layout: DeviceLayout, channel: Connection) -> None:
    phases, own = Phases(lambda *_: None), distributed(framework, layout)
    meter = MemoryMeter()
    try:
        with phases("build"):
            own.open_device(request["platform"])
            _, step = prepare_step(request, own)
        phases.current = "run"
        serve_steps(channel, step, meter)
    except Exception as error:
        outcome, reason = ending_of(error, own, phases.current)
        raise RankFailed(outcome, f"process {layout.rank + 1} of {layout.processes}: {reason}") from error
