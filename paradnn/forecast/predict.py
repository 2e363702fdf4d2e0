"""The step time of points, predicted from past runs about a roofline: the one model of step time.

    model = StepTimeModel.fit(runs)     # past runs; none at all gives the roofline back, with a wide interval
    times = model.predict(points)       # a joint normal distribution of log seconds: mean, covariance, draws

What points have in common (a family, an environment, the session to come) they err in together, which `covariance` and
`draws` say; so a sum over points is as uncertain as it must be, and what measuring one point tells of another is known.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradnn.forecast.features import Line, step_inputs
from paradnn.forecast.inputs import Inputs, places
from paradnn.forecast.past_runs import PastRuns
from paradnn.forecast.process import LeftOut, Process
from paradnn.forecast.regression import Array, Prediction, Regression
from paradnn.forecast.table import Table
from paradnn.forecast.threads import one_thread

__all__ = ["StepTimeModel", "fit_line", "replicate_noise"]

#: Processes that measure the same step differ by so much (log), before data; worth so many observations.
_NOISE, _NOISE_WORTH = 0.02, 8.0
#: What a run's own interval says of its noise is worth so many: it is the spread of a few processes.
_STATED_WORTH = 4.0
#: Rounds in which the roofline's factors are found, and how far each goes towards the next.
_ROUNDS, _STRIDE = 10, 0.7


@dataclass(frozen=True)
class StepTimeModel:
    """A roofline, and a Gaussian process about it. line: the coefficients about which the roofline is linear."""

    line: Line
    process: Process

    @classmethod
    @one_thread()
    def fit(cls, runs: PastRuns) -> StepTimeModel:
        """The model of past runs."""
        logs = np.log(runs.step)
        line, inputs = fit_line(step_inputs(runs.table), logs)
        noise = replicate_noise(logs, places(inputs.steps), runs.noise)
        run = float(np.sqrt(np.median(noise**2))) if len(runs) else _NOISE
        return cls(line, Process.fit(inputs, logs, noise, run))

    @one_thread()
    def predict(self, points: Table) -> Prediction:
        """The logarithm of the seconds of each point's step; one that was measured before is nearly known."""
        return self.process.predict(step_inputs(points)(self.line))

    @property
    @one_thread()
    def left_out(self) -> LeftOut:
        """Every measured step, predicted from the others."""
        return self.process.left_out


def fit_line(inputs_at: Callable[[Line], Inputs], values: Array) -> tuple[Line, Inputs]:
    """The most probable coefficients of what is not linear in them, by the regression of its derivatives again and
    again (Gauss and Newton), and the inputs about these."""
    line: dict[Hashable, float] = {}
    for _ in range(_ROUNDS if len(values) else 0):
        inputs = inputs_at(line)
        found = Regression(inputs.columns, values - inputs.base).coefficients
        line = {name: line.get(name, 0.0) + _STRIDE * (to - line.get(name, 0.0)) for name, to in found.items()}
    return line, inputs_at(line)


def replicate_noise(logs: Array, steps: NDArray[np.intp], stated: Array) -> Array:
    """(n,) standard deviations of runs of the same step: what replicates say, and what each run says of itself."""
    count = np.bincount(steps)
    spread = logs - (np.bincount(steps, logs) / np.maximum(count, 1))[steps]
    freedom = float(np.maximum(count - 1, 0).sum())
    common = (_NOISE_WORTH * _NOISE**2 + spread @ spread) / (_NOISE_WORTH + freedom)
    own = np.where(np.isfinite(stated), stated, np.sqrt(common))
    return np.asarray(np.sqrt((_STATED_WORTH * own**2 + _NOISE_WORTH * common) / (_STATED_WORTH + _NOISE_WORTH)))
