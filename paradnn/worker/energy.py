"""The energy of a stretch of work, if the machine counts it.

RAPL counts the packages of a CPU, and NVML an NVIDIA GPU. A counter belongs to the whole package or
board, so on a shared machine it includes the work of others.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Reading:
    """One counter at one moment.

    Attributes:
        joules: Its value.
        range_joules: The value at which it restarts from 0; 0 if it never does.
    """

    joules: float
    range_joules: float


@dataclass
class EnergyMeter:
    """Counts the joules since `start`.

    Attributes:
        source: "rapl", "nvml", or "unavailable: " and the reason.
    """

    source: str
    _read: Callable[[], list[Reading]] | None = None
    _begin: list[Reading] | None = None

    def start(self) -> None:
        """Begin to count."""
        self._begin = self._read() if self._read else None

    def joules(self) -> float | None:
        """Return the energy since `start`; None if it is unavailable.

        A counter may have restarted once in the meantime.
        """
        if self._read is None or self._begin is None:
            return None
        total = 0.0
        for before, after in zip(self._begin, self._read(), strict=True):
            total += after.joules - before.joules
            if after.joules < before.joules:
                total += after.range_joules
        return total


def open_energy_meter(platform: str, index: int, root: Path = _POWERCAP) -> EnergyMeter:
    """Return the meter of a platform.

    Args:
        platform: "cpu" for every package of the host, or "gpu".
        index: The number of the GPU.
        root: The folder of the RAPL counters.
    """
    if platform == "cpu":
        return _rapl_meter(root)
    if platform == "gpu":
        return _nvml_meter(index)
    return EnergyMeter(f"unavailable: no counter is known for {platform}")


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
        # intel-rapl:0 is a package and intel-rapl:0:0 a part of it. Kernels on AMD use these names,
        # too. A zone named psys counts the whole board, which includes the packages.
        zones = sorted(path for path in root.glob("intel-rapl:*") if path.name.count(":") == 1)
        packages = [path for path in zones if (path / "name").read_text().strip() != "psys"]
        read()
    except OSError as error:
        return EnergyMeter(f"unavailable: {error.filename}: {error.strerror}")
    if packages:
        return EnergyMeter("rapl", read)
    return EnergyMeter("unavailable: this host shows no RAPL counter")


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
        # Millijoules since the driver was loaded, in 64 bits, which never restart.
        return [Reading(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) * 1e-3, 0.0)]

    return EnergyMeter("nvml", read)


def _board_name(visible: str | None, index: int) -> str:
    """Return the number or the UUID of a board in NVML.

    NVML sees every board of the host. A framework sees those that CUDA_VISIBLE_DEVICES lists, in
    that order.

    Args:
        visible: The value of CUDA_VISIBLE_DEVICES; None if it is not set.
        index: The number of the device in the framework.

    Raises:
        IndexError: The list has no such device.
    """
    if visible is None:
        return str(index)
    boards = [entry.strip() for entry in visible.split(",") if entry.strip()]
    return boards[index]
