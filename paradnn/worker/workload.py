"""The part of a kind of work that runs in the worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paradnn.worker.point import PointRun


class WorkerSide:
    """The part of a kind of work that measures its points in the worker (see `Workload.role`)."""

    def open_devices(self, run: PointRun) -> None:
        """Open the devices of the point, in every process of the point that has devices."""
        run.open_devices()

    def measure(self, run: PointRun) -> None:
        """Measure the point: build, compile, warm up, and measure.

        Notes every result in `run` as soon as it is known, so that it survives a later failure.
        """
        raise NotImplementedError

    def remote_process_server(self) -> Callable[..., None] | None:
        """Return the function that runs a process of the point on another host.

        `paradnn.worker.host` calls it. Returns None if all processes must run on one host.
        """
        return None
