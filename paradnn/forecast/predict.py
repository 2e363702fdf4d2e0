"""The step time of points, predicted from past runs about a roofline: the one model of step time.

    model = StepTimeModel.fit(runs)     # past runs; none at all gives the roofline back, with a wide interval
    times = model.predict(points)       # a joint normal distribution of log seconds: mean, covariance, draws

What points have in common (a family, an environment, the session to come) they err in together, which `covariance` and
`draws` say; so a sum over points is as uncertain as it must be, and what measuring one point tells of another is known.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paradnn.forecast.features import step_columns
from paradnn.forecast.past_runs import PastRuns
from paradnn.forecast.regression import Prediction, Regression
from paradnn.forecast.table import Table

__all__ = ["StepTimeModel"]

#: Processes that measure the same step differ by so much (log), before data; worth so many observations.
_NOISE, _NOISE_WORTH = 0.08, 8.0


@dataclass(frozen=True)
class StepTimeModel:
    """A regression on the roofline's columns, and beside it what is peculiar to every step that was measured.

    peculiar: (environment, step) -> mean residual and the number of its runs. noise: standard deviation of the
    logarithm between processes that measure the same step.
    """

    regression: Regression
    peculiar: Mapping[Hashable, tuple[float, int]]
    noise: float

    @classmethod
    def fit(cls, runs: PastRuns) -> StepTimeModel:
        """The model of past runs."""
        base, columns = step_columns(runs.table)
        regression = Regression(columns, np.log(runs.step) - base)
        groups: dict[Hashable, list[float]] = {}
        for key, residual in zip(_keys(runs.table), regression.residuals, strict=True):
            groups.setdefault(key, []).append(float(residual))
        square = sum(float(np.var(group)) * len(group) for group in groups.values())
        freedom = sum(len(group) - 1 for group in groups.values())
        noise = np.sqrt((_NOISE_WORTH * _NOISE**2 + square) / (_NOISE_WORTH + freedom))
        # Some of the spread about the line is peculiar to a step, however little its runs differ.
        noise = float(min(noise, 0.7 * regression.spread))
        return cls(regression, {key: (float(np.mean(group)), len(group)) for key, group in groups.items()}, noise)

    def predict(self, points: Table) -> Prediction:
        """The logarithm of the seconds of each point's step; one that was measured before is nearly known."""
        base, columns = step_columns(points)
        line = self.regression.predict(columns, len(points))
        keys = _keys(points)
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        lasting = self.regression.spread**2 - self.noise**2
        seen = [self.peculiar.get(key, (0.0, 0)) for key in keys]
        mean, count = np.array(seen, dtype=float).reshape(-1, 2).T
        kept = lasting * count / (lasting * count + self.noise**2)
        return replace(
            line,
            mean=base + line.mean + kept * mean,
            own=lasting * (1 - kept),
            group=np.array([numbers[key] for key in keys], dtype=np.intp),
            noise=self.noise,
        )


def _keys(table: Table) -> Sequence[Hashable]:
    return list(zip(table.environments, table.steps, strict=True))
