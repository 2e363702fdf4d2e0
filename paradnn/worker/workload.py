"""Base class for the part of a workload, such as a training step, that runs in the worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paradnn.worker.point import PointRun


class WorkerSide:
    """The part of a workload that runs in the worker process and measures configurations.

    A workload is a kind of work with a model, such as a training step or an inference scenario. Its
    class inherits from `Workload`. It also inherits from this class if it overrides methods of this
    class (see `Workload.role`).
    """

    def open_devices(self, run: PointRun) -> None:
        """Open the devices that the steps use, in every process that has devices.

        Args:
            run: The state of the measurement, with the requested configuration.
        """
        run.open_devices()

    def measure(self, run: PointRun) -> None:
        """Measure the requested configuration: build, compile, warm up, and measure.

        Store every result in `run` as soon as it is known, so that it survives a later failure.

        Args:
            run: The state of the measurement, with the requested configuration.
        """
        raise NotImplementedError

    def remote_process_server(self) -> Callable[..., None] | None:
        """Return the function that runs an additional process of a measurement on another host.

        `paradnn.worker.host` calls the function with five arguments: the configuration, the rank of
        the process, the addresses of all processes in order of rank, the socket on which the
        process listens, and the connection to the measuring process.

        Returns:
            The function; None if all processes must run on one host.
        """
        return None
