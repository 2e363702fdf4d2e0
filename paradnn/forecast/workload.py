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
        """Raise ConfigError if the duration of a point cannot be predicted (default: it can)."""

    def forecast_phases(
        self, points: Table, step: Seconds, known: Mapping[str, Seconds]
    ) -> dict[str, Seconds]:
        """Return the seconds of the phases that this kind of work adds or changes; default: none.

        Arrays have one row per point, and one column or one column per random draw.

        Args:
            points: The planned points, of all kinds of work.
            step: Seconds of a step.
            known: Seconds of the phases that are predicted so far.

        Returns:
            Seconds by phase. Points of other kinds of work keep their seconds in `known`, or 0.
        """
        return {}
