"""Energy of a stretch of work, where the machine counts it: RAPL packages of a CPU, NVML for an NVIDIA GPU.

Counters belong to the whole package or board: on a shared machine the neighbours' work is in them. Where there is none,
or it may not be read, the reason is said and no number given.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["EnergyMeter", "open_meter", "visible_board"]

_POWERCAP = Path("/sys/class/powercap")


@dataclass
class EnergyMeter:
    """Joules since `start`. `source` is "rapl", "nvml", or "unavailable: why"."""

    source: str
    _read: Callable[[], list[tuple[float, float]]] | None = None
    _begin: list[tuple[float, float]] | None = None

    def start(self) -> None:
        """Remember the counters."""
        self._begin = self._read() if self._read else None

    def joules(self) -> float | None:
        """Energy since `start`, None where it is unavailable; a counter that wrapped round once is unwrapped."""
        if self._read is None or self._begin is None:
            return None
        total = 0.0
        for (before, _), (after, largest) in zip(self._begin, self._read(), strict=True):
            total += after - before if after >= before else after + largest - before
        return total


def open_meter(platform: str, index: int, root: Path = _POWERCAP) -> EnergyMeter:
    """The meter of a platform: "cpu" (every package of the host), or "gpu" number `index`."""
    if platform == "cpu":
        return _rapl(root)
    return _nvml(index) if platform == "gpu" else EnergyMeter(f"unavailable: no counter is known for {platform}")


def _rapl(root: Path) -> EnergyMeter:
    # intel-rapl:0 is a package, intel-rapl:0:0 a part of it. AMD's kernels since 5.8 use the same names. A zone named
    # psys counts the whole board, the packages once more.
    zones = sorted(path for path in root.glob("intel-rapl:*") if path.name.count(":") == 1)
    packages = [path for path in zones if _zone(path) != "psys"]
    if not packages:
        return EnergyMeter("unavailable: this host shows no RAPL counter")

    def read() -> list[tuple[float, float]]:
        values = []
        for package in packages:
            largest = int((package / "max_energy_range_uj").read_text())
            values.append((int((package / "energy_uj").read_text()) * 1e-6, largest * 1e-6))
        return values

    try:
        read()
    except OSError as error:
        return EnergyMeter(f"unavailable: {error.filename}: {error.strerror}")
    return EnergyMeter("rapl", read)


def visible_board(variable: str | None, index: int) -> int | str:
    """Number or UUID of the board that CUDA calls `index`, by CUDA_VISIBLE_DEVICES (None: not set)."""
    if variable is None:
        return index
    entries = [entry.strip() for entry in variable.split(",") if entry.strip()]
    if index >= len(entries):
        raise ValueError(f"CUDA_VISIBLE_DEVICES={variable} has no device {index}")
    return int(entries[index]) if entries[index].isdigit() else entries[index]


def _zone(path: Path) -> str:
    try:
        return (path / "name").read_text().strip()
    except OSError:
        return ""


def _nvml(index: int) -> EnergyMeter:
    try:
        import pynvml

        pynvml.nvmlInit()
        # NVML sees every board of the host, the framework those that CUDA_VISIBLE_DEVICES names, in its order.
        visible = visible_board(os.environ.get("CUDA_VISIBLE_DEVICES"), index)
        handle: Any = (
            pynvml.nvmlDeviceGetHandleByIndex(visible)
            if isinstance(visible, int)
            else pynvml.nvmlDeviceGetHandleByUUID(visible)
        )
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except ImportError:
        return EnergyMeter("unavailable: NVML needs the package nvidia-ml-py")
    except Exception as error:
        return EnergyMeter(f"unavailable: NVML: {error}")
    # Millijoules since the driver was loaded, in 64 bits.
    return EnergyMeter("nvml", lambda: [(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) * 1e-3, 0.0)])
