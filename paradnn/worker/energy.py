"""Energy of a measurement, from the counters of the machine.

RAPL counts the energy of CPU packages, NVML the energy of an NVIDIA GPU. A counter covers a whole
package or board. On a shared machine, it therefore includes the energy of other processes.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paradnn.core.messages import IdlePower
from paradnn.worker.contention import ContentionMonitor

_POWERCAP = Path("/sys/class/powercap")
#: Seconds without work before idle power is measured, so that threads stop spinning and clock
#: rates fall.
_SETTLE_SECONDS = 1.0
#: Seconds over which idle power is measured. NVML updates its counter about every 0.1 s.
_IDLE_SECONDS = 2.0


#: The value of `EnergyMeter.source` if the counter stays constant, as in virtual machines that
#: emulate RAPL.
STOPPED_COUNTER = "unavailable: the counter does not advance"


@dataclass(frozen=True)
class Reading:
    """Reading of one energy counter.

    Attributes:
        joules: The value of the counter in joules.
        range_joules: The value in joules at which the counter wraps around to 0; 0 if it never
            does.
    """

    joules: float
    range_joules: float


@dataclass
class EnergyMeter:
    """Measures the energy that CPU packages or a GPU board consume.

    Attributes:
        source: The energy counter, "rapl" or "nvml". If the energy is unavailable, "unavailable: "
            followed by the reason.
    """

    source: str
    _read: Callable[[], list[Reading]] | None = None
    _begin: list[Reading] | None = None

    @property
    def is_available(self) -> bool:
        """Whether the machine has an energy counter that can be read."""
        return self._read is not None

    def start(self) -> None:
        """Begin to measure the energy."""
        self._begin = self._readings()

    def joules(self) -> float | None:
        """Return the energy since `start`, in joules; None if it is unavailable.

        The result is correct if each counter wrapped around at most once.
        """
        begin = self._begin
        end = self._readings()
        if begin is None or end is None:
            return None
        total = 0.0
        for before, after in zip(begin, end, strict=True):
            total += after.joules - before.joules
            if after.joules < before.joules:
                total += after.range_joules
        return total

    def _readings(self) -> list[Reading] | None:
        """Read the counters; return None if they are unavailable.

        After a failed reading, they stay unavailable.
        """
        if self._read is None:
            return None
        try:
            return self._read()
        except Exception as error:  # NVML has its own types; keep the point's measurement
            self._read = None
            self.source = f"unavailable: the counter failed: {error}"
            return None


def open_energy_meter(platform: str, index: int, root: Path = _POWERCAP) -> EnergyMeter:
    """Return an energy meter for the CPU packages of this host or for one of its GPUs.

    Args:
        platform: "cpu" for all CPU packages together, or "gpu". Other platforms have no counter.
        index: The number of the GPU, as the framework counts the devices; ignored for CPUs.
        root: The folder in which Linux lists the RAPL counters of the CPU packages.

    Returns:
        The meter. If no counter can be read, its `source` is the reason.
    """
    if platform == "cpu":
        return _rapl_meter(root)
    if platform == "gpu":
        return _nvml_meter(index)
    return EnergyMeter(f"unavailable: no counter is known for {platform}")


def measure_idle_power(
    meter: EnergyMeter,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> IdlePower:
    """Measure the idle power: the power while the framework is loaded and has nothing to do.

    The measurement takes three seconds if the meter is available, and no time otherwise.

    Args:
        meter: Measures the energy of the CPU packages or the GPU.
        sleep: Function that waits a number of seconds.
        clock: Function that returns the time in seconds.

    Returns:
        The power in watts. If it is unavailable, the power is None, and the source is the reason.
    """
    if not meter.is_available:
        return IdlePower(None, meter.source)
    sleep(_SETTLE_SECONDS)
    monitor = ContentionMonitor()
    monitor.start()
    begin = clock()
    meter.start()
    sleep(_IDLE_SECONDS)
    joules = meter.joules()
    seconds = clock() - begin
    contention = monitor.stop()
    if joules is None:
        return IdlePower(None, meter.source)
    if joules == 0:
        return IdlePower(None, STOPPED_COUNTER)
    disturbed = contention.reason if contention else None
    return IdlePower(joules / seconds, meter.source, disturbed)


def _rapl_meter(root: Path) -> EnergyMeter:
    def read_joules(path: Path) -> float:
        return int(path.read_text()) * 1e-6

    def read() -> list[Reading]:
        return [
            Reading(
                read_joules(package / "energy_uj"), read_joules(package / "max_energy_range_uj")
            )
            for package in packages
        ]

    try:
        # The zone intel-rapl:0 is a package, and intel-rapl:0:0 a part of the package. Linux uses
        # the same names on AMD processors. A zone with the name psys counts the whole board, which
        # includes the packages.
        zones = sorted(path for path in root.glob("intel-rapl:*") if path.name.count(":") == 1)
        packages = [path for path in zones if (path / "name").read_text().strip() != "psys"]
        read()
    except OSError as error:
        return EnergyMeter(f"unavailable: {error.filename}: {error.strerror}")
    if packages:
        return EnergyMeter("rapl", read)
    return EnergyMeter("unavailable: this host has no RAPL counter")


def _nvml_meter(index: int) -> EnergyMeter:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        import pynvml

        pynvml.nvmlInit()
        board = _board_name(visible, index)
        if board.isdigit():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(board))
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(board)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except ImportError:
        return EnergyMeter("unavailable: NVML needs the package nvidia-ml-py")
    except IndexError:
        return EnergyMeter(f"unavailable: CUDA_VISIBLE_DEVICES={visible} has no device {index}")
    except Exception as error:
        return EnergyMeter(f"unavailable: NVML: {error}")

    def read() -> list[Reading]:
        # The counter is in millijoules since the driver was loaded. It has 64 bits, so it never
        # wraps around.
        return [Reading(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) * 1e-3, 0.0)]

    return EnergyMeter("nvml", read)


def _board_name(visible: str | None, index: int) -> str:
    """Return the identifier of a GPU board in NVML: its number or its UUID.

    NVML numbers every board of the host. A framework numbers only the boards that
    CUDA_VISIBLE_DEVICES lists, in the order of the list.

    Args:
        visible: The value of CUDA_VISIBLE_DEVICES; None if it is not set.
        index: The number of the device in the framework.

    Raises:
        IndexError: If the list has no such device.
    """
    if visible is None:
        return str(index)
    boards = [entry.strip() for entry in visible.split(",") if entry.strip()]
    return boards[index]
