"""The role of a kind of work in the worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paradnn.worker.point import PointRun


class WorkerSide:
    """The role of a kind of work that measures points in the worker (`Workload.role`)."""

    def open_devices(self, run: PointRun) -> None:
        """Open the devices of the point. Every process of the point that has devices calls this."""
        run.open_devices()

    def measure(self, run: PointRun) -> None:
        """Build, compile, warm up and measure.

        Results are noted in `run` as soon as they are known, so that they survive a later failure.
        """
        raise NotImplementedError

    def remote_process_server(self) -> Callable[..., None] | None:
        """Return the function that runs a process of the point on another host.

        `paradnn.worker.host` calls it. Returns None if all processes must run on one host.
        """
        return None
