"""Prediction of the phases of a measurement that a kind of work, such as serving, adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from paradnn.forecast.table import Table

    Seconds = npt.NDArray[np.float64]


class PhaseForecast:
    """Role of a workload that predicts the duration of the phases of its measurements.

    A workload is a kind of work, such as training or serving. `Workload.role` returns its roles.
    """

    def require_predictable(self) -> None:
        """Raise ConfigError if the duration of a measurement cannot be predicted.

        By default, it can be predicted.
        """

    def forecast_phases(
        self, points: Table, step: Seconds, known: Mapping[str, Seconds]
    ) -> dict[str, Seconds]:
        """Predict the seconds of the phases that this kind of work adds or changes.

        The default is no phase. Arrays have one row per point, that is, per configuration. They
        have one column, or one column per random draw.

        Args:
            points: The planned points, of all kinds of work.
            step: Seconds of a step.
            known: Seconds of the phases that are predicted so far, by name.

        Returns:
            Seconds by phase. Points of other kinds of work keep their seconds in `known`, or 0.
        """
        return {}
