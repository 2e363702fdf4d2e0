"""The role of a kind of work that predicts the duration of its phases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from paradnn.forecast.table import Table

    Seconds = npt.NDArray[np.float64]


class PhaseForecast:
    """The role of a kind of work whose phases can be predicted (`Workload.role`)."""

    def require_predictable(self) -> None:
        """Raise ConfigError if the duration is unknown before the point is measured."""

    def forecast_phases(
        self, points: Table, step: Seconds, known: Mapping[str, Seconds]
    ) -> dict[str, Seconds]:
        """Return the seconds of the phases that this kind has in planned points.

        Arrays have one row per point and one column per draw (or one column).

        Args:
            points: The planned points of all kinds of work.
            step: Seconds of a step.
            known: Seconds of the other phases.

        Returns:
            Seconds by phase, 0 for points of other kinds of work.
        """
        return {}
