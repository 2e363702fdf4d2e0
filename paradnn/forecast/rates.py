"""What devices can do at most, those of runs and of points: measured ceilings, else the specification, else a guess."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paradnn.forecast.design import Peaks
from paradnn.forecast.status import Survey
from paradnn.forecast.table import Table
from paradnn.hardware.specifications import find_hardware
from paradnn.session.hardware_peaks import Ceilings

__all__ = ["Rates"]

#: FLOP/s and B/s where nothing is known: of a CPU's core, of another device.
_UNKNOWN = {"cpu": (5e10, 1e10), "gpu": (1e13, 5e11), "tpu": (5e13, 6e11)}


class Rates:
    """Rates by device, framework and precision, as a survey knows them."""

    def __init__(self, survey: Survey) -> None:
        self._measured: dict[tuple[str, str], Ceilings] = {}
        self._kinds: dict[str, tuple[str, int]] = {}
        self._cache: dict[tuple[str, str, str], tuple[float, float, float]] = {}
        places: dict[str, tuple[str, str]] = {}
        for point, environment in zip(survey.points, survey.environments, strict=True):
            self._kinds[environment.device] = (point.platform.name, int(environment.hardware["cores"]))
            places[environment.environment_id] = (environment.device, point.framework.name)
        for identity, ceilings in survey.ceilings.items():
            if ceilings:
                device, framework = places[identity.environment_id]
                self._measured.setdefault((device, framework), ceilings)
                self._measured.setdefault((device, ""), ceilings)

    def peaks(self, *sides: tuple[Table, Sequence[str]]) -> Peaks:
        """Of the rows of tables, one after the other, each with the devices of its rows."""
        rows = [
            self._of(device, str(framework), str(precision))
            for table, devices in sides
            if len(table)
            for device, framework, precision in zip(
                devices, table.words["framework.name"], table.words["precision"], strict=True
            )
        ]
        return Peaks(*np.array(rows, dtype=float).reshape(-1, 3).T)

    def _of(self, device: str, framework: str, precision: str) -> tuple[float, float, float]:
        key = (device, framework, precision)
        if key not in self._cache:
            self._cache[key] = self._look_up(*key)
        return self._cache[key]

    def _look_up(self, device: str, framework: str, precision: str) -> tuple[float, float, float]:
        """FLOP/s, B/s, and cores of the host."""
        kind, cores = self._kinds.get(device, ("cpu", 1))
        flops, traffic = (rate * (cores if kind == "cpu" else 1) for rate in _UNKNOWN[kind])
        if hardware := find_hardware(device):
            flops = hardware.peak_flops.get(precision) or hardware.peak_flops.get("float32") or flops
            traffic = hardware.bandwidth or traffic
        if measured := self._measured.get((device, framework)) or self._measured.get((device, "")):
            flops = measured.flops_per_second.get(precision) or flops
            traffic = measured.bytes_per_second or traffic
        return flops, traffic, float(cores)
