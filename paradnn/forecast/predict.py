"""From past runs and planned points to the time that each planned point takes, as draws.

A point's time is the sum of its phases. The step time comes from a regression on past runs about a roofline
(`paradnn.forecast.design`); warm-up, measurement, latency and the profiled stretch follow from it by arithmetic
(`paradnn.forecast.timing`); the rest are the phases of `paradnn.forecast.overheads`. A draw takes one set of
coefficients for all points, so what the points' errors have in common does not average out in their sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradnn.forecast.bayes import fit
from paradnn.forecast.design import Peaks, step_design
from paradnn.forecast.overheads import BETWEEN, Case, extra_draws, has_phase, overhead_draws
from paradnn.forecast.past_runs import Known
from paradnn.forecast.table import Table, together
from paradnn.forecast.timing import calibrate, latency_seconds, measure_seconds, profile_seconds, warmup_seconds
from paradnn.store.metrics import PHASES

__all__ = ["Forecast", "predict"]

Array = NDArray[np.float64]

#: Phases that follow from the step time alone.
_ARITHMETIC = ("warmup", "measure", "latency")
#: Phases that a point's time limit does not see.
_OUTSIDE = ("schedule", "record", BETWEEN)
#: Two processes that measure the same step differ by so much (log), before data; worth so many observations.
_BETWEEN_PROCESSES, _PROCESSES_WORTH = 0.08, 8.0
#: Of the spread about the line, at most this much is noise: the rest is peculiar to the step.
_MOST_NOISE = 0.7


@dataclass(frozen=True)
class Forecast:
    """Draws, (points, draws) each: the step's seconds, those of each phase, those of the whole point, and whether the
    time limit ends it."""

    step: Array
    phases: Mapping[str, Array]
    seconds: Array
    timed_out: NDArray[np.bool_]


def predict(known: Known, points: Table, peaks: Peaks, load: Array, draws: int, seed: int = 0) -> Forecast:
    """The time of every planned point; `peaks` and `load` hold the past runs and then the points."""
    runs, points = together(known.table, points)
    case = Case(known, runs, points, peaks, load, draws, np.random.default_rng(seed))
    step = _steps(case)
    names = [name for name in (*PHASES, BETWEEN) if name not in _ARITHMETIC and has_phase(name, case)]
    phases = {name: overhead_draws(name, case) for name in names}
    _add_steps(phases, step, case)
    limit = points.protocol.timeout
    inside = np.sum([values for name, values in phases.items() if name not in _OUTSIDE], axis=0)
    outside = np.sum([phases[name] for name in _OUTSIDE], axis=0)
    # What the profile alone would exceed costs the profile, not the point.
    timed_out = inside - phases.get("profile", 0.0) > limit
    return Forecast(step, phases, np.asarray(outside + np.minimum(inside, limit)), np.asarray(timed_out))


def _add_steps(phases: dict[str, Array], step: Array, case: Case) -> None:
    """What the steps themselves take, by arithmetic."""
    protocol, points = case.points.protocol, case.points
    blocks = calibrate(step, protocol)
    phases["compile"] = phases["compile"] + step
    phases["warmup"] = warmup_seconds(blocks, protocol, extra_draws(case))
    phases["measure"] = measure_seconds(blocks, protocol)
    inference = points.words["mode"] == "inference"
    if inference.any():
        phases["latency"] = np.where(inference[:, None], latency_seconds(step), 0.0)
    if "profile" in phases:
        spent = phases["build"] + phases["compile"] + phases["warmup"] + phases["measure"]
        stretch = profile_seconds(step, protocol.timeout - spent)
        phases["profile"] = np.where(points.profiled[:, None] & (stretch > 0), stretch + phases["profile"], 0.0)


def _steps(case: Case) -> Array:
    """(points, draws) of the step's seconds; a step that was measured before is nearly known."""
    design = step_design(case.runs, case.points, case.peaks, case.load)
    line = fit(design.runs, np.log(case.known.step) - design.runs_base, design.prior)
    logs = design.points_base[:, None] + line.lines(design.points, case.draws, case.random)
    groups: dict[tuple[str, str], list[int]] = {}
    for index, name in enumerate(zip(case.runs.environment, case.runs.steps, strict=True)):
        groups.setdefault(name, []).append(index)
    noise = min(_noise(line.residuals, list(groups.values())), _MOST_NOISE * line.spread)
    lasting = line.spread**2 - noise**2
    fresh = line.errors(len(case.points), case.draws, case.random) / line.spread
    own: dict[tuple[str, str], Array] = {}
    for index, name in enumerate(zip(case.points.environment, case.points.steps, strict=True)):
        if name not in own:  # what is peculiar to the step, shared by its replicates
            seen = line.residuals[groups[name]] if name in groups else np.zeros(1)
            kept = lasting / (lasting + noise**2 / len(seen)) if name in groups else 0.0
            own[name] = kept * seen.mean() + np.sqrt(lasting * (1 - kept)) * fresh[index]
        logs[index] += own[name]
    return np.asarray(np.exp(logs + noise * case.random.standard_normal(logs.shape)))


def _noise(residuals: Array, groups: list[list[int]]) -> float:
    """The spread between processes that measured the same step (log), pooled over the steps measured repeatedly."""
    square, freedom = _PROCESSES_WORTH * _BETWEEN_PROCESSES**2, _PROCESSES_WORTH
    for group in groups:
        if len(group) > 1:
            square += float(((residuals[group] - residuals[group].mean()) ** 2).sum())
            freedom += len(group) - 1
    return float(np.sqrt(square / freedom))
