"""A point whose step is communication: its processes are opened, and its steps measured as any other's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paradnn.worker.communication.run import Processes
from paradnn.worker.compiling import compile_steps
from paradnn.worker.fork_server import Report
from paradnn.worker.frameworks import Framework
from paradnn.worker.latencies import single_latencies
from paradnn.worker.messages import Answer, Measurement
from paradnn.worker.point import PointRun
from paradnn.worker.process_group import GroupStep

__all__ = ["answer_communication", "communicates"]


def communicates(request: Mapping[str, Any]) -> bool:
    """Whether a request is of this kind."""
    return request.get("task") != "ceilings" and request["model"]["name"] == "channel"


def answer_communication(request: Mapping[str, Any], framework: Framework, report: Report) -> Answer:
    """As `paradnn.worker.point.answer_request`, of a point with model=channel."""
    return _CommunicationRun(request, framework, report).answer()


class _CommunicationRun(PointRun):
    """A request while it is served."""

    def _open(self) -> None:
        with self._phases("build"):
            processes = Processes(self._request, self._framework)
            self._group = processes.group
            self._step = processes.step()

    def _measure(self) -> None:
        with self._phases("compile"):
            compilation, _ = compile_steps(self._step)
        self._memory.compiled()
        timing, energy, contention = self._time(self._step.run, self._step, self._phases)
        measurement = Measurement(0, compilation, {}, None, None, timing, *energy, contention)
        self._answer = replace(self._answer, measurement=measurement)
        if self._request["model"]["pattern"] == "latency" and not isinstance(self._step, GroupStep):
            with self._phases("latency"):
                longest = self._request["measure"]["max_seconds"]
                latencies, disturbed = single_latencies(self._step.run, longest)
            self._note_contention("latency", disturbed)
            self._answer = replace(self._answer, latencies=latencies)
        self._remember_memory(self._memory.taken())
