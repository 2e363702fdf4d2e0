"""What a point takes beside its steps: building, compiling, scheduling, recording; and the blocks until it is steady.

Each phase has a regression of its own, about a typical time that grows with layers and parameters. Of compiling and
profiling that is what lies beyond their steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradnn.forecast.bayes import fit
from paradnn.forecast.design import Peaks, overhead_design
from paradnn.forecast.past_runs import IMPORT_SECONDS, Known
from paradnn.forecast.table import Table
from paradnn.forecast.timing import calibrate, extra_blocks, profile_seconds

__all__ = ["BETWEEN", "Case", "extra_draws", "has_phase", "overhead_draws"]

Array = NDArray[np.float64]

#: What lies between two points and is in no phase: the child's end, figures of the record.
BETWEEN = "between"
#: Seconds of a phase where nothing is known: at least, a layer, a parameter; compile and profile beyond their steps.
_TYPICAL = {
    "build": (0.08, 0.012, 1e-8),
    "compile": (0.2, 0.045, 1e-8),
    "profile": (0.12, 0.01, 0.0),
    "schedule": (0.04, 0.0, 0.0),
    "start": (0.02, 0.0, 0.0),
    "record": (0.015, 0.0, 0.0),
    BETWEEN: (0.05, 0.002, 0.0),
}
_ANOTHER = (0.05, 0.0, 0.0)
#: How much longer compiling takes, by compile mode.
_COMPILE_FACTOR = {"eager": 0.15, "graph": 1.0, "xla": 2.5}
#: Drawing the figure of a profiled point.
_FIGURE_SECONDS = 0.4
#: Phases shorter than this are noise.
_LEAST = 1e-3
#: A gap of so many times the usual, and a second, was a pause.
_PAUSE = 10.0
#: The chance that a block ends the warm-up once a verdict is possible: its mean, and how many blocks that is worth.
_STEADY, _STEADY_WORTH = 0.15, 12.0
#: How it differs between sessions (log-odds), and how alike points are in it (weight of a beta distribution).
_STEADY_SPREAD, _STEADY_ALIKE = 0.45, 8.0
_FIRST_VERDICT = 8


@dataclass(frozen=True)
class Case:
    """What is predicted from what: `runs` and `points` have the same keys, `peaks` and `load` hold both in turn."""

    known: Known
    runs: Table
    points: Table
    peaks: Peaks
    load: Array
    draws: int
    random: np.random.Generator


def has_phase(name: str, case: Case) -> bool:
    """Whether planned points have the phase: the common ones always, another where past runs mostly had it."""
    if name == "profile":
        return bool(case.points.profiled.any())
    return name in _TYPICAL or (len(case.known) > 0 and bool(np.isfinite(case.known.phases[name]).mean() > 0.5))


def overhead_draws(name: str, case: Case) -> Array:
    """(points, draws) of a phase's seconds, less what arithmetic says of it."""
    spent, trust = _observed(name, case)
    where = np.flatnonzero(np.isfinite(spent) & np.isfinite(trust))
    base = np.concatenate([_typical(name, case.runs), _typical(name, case.points)])
    design = overhead_design(case.runs, case.points, base, case.peaks, case.load)
    values = np.log(np.maximum(spent[where], np.maximum(_LEAST, 0.1 * base[where])))
    line = fit(design.runs[where], values - design.runs_base[where], design.prior, trust[where])
    logs = design.points_base[:, None] + line.lines(design.points, case.draws, case.random)
    return np.asarray(np.exp(logs + line.errors(len(case.points), case.draws, case.random)))


def _observed(name: str, case: Case) -> tuple[Array, Array]:
    """(runs,) of what a phase took beside its steps, NaN where that is unknown; and how far it is to be trusted."""
    known, full = case.known, np.ones(len(case.known))
    if name == BETWEEN:
        # A gap holds the next point's schedule and not this one's; over many points they are the same.
        spent = known.gaps - np.sum([np.nan_to_num(values) for values in known.phases.values()], axis=0)
        usual = np.nanmedian(spent) if np.isfinite(spent).any() else 0.0
        return np.where((spent < 0) | (spent > _PAUSE * usual + 1.0), np.nan, spent), full
    spent = known.phases[name]
    if name == "start":  # the import is counted apart
        return np.where(spent > IMPORT_SECONDS, np.nan, spent), full
    if name not in ("compile", "profile"):
        return spent, full
    steps = known.step if name == "compile" else profile_seconds(known.step, np.array(np.inf))
    if name == "profile":
        spent = np.where(case.runs.profiled, spent, np.nan)
    # Where the steps are most of it, what is left is their noise.
    return spent - steps, np.clip(1 - steps / spent, 0.0, 1.0) ** 2


def _typical(name: str, table: Table) -> Array:
    """(points,) seconds of a phase where nothing is known."""
    least, layer, parameter = _TYPICAL.get(name, _ANOTHER)
    seconds = least + layer * table.layers + parameter * table.parameters
    if name == "compile":
        factors = [_COMPILE_FACTOR.get(str(word), 1.0) for word in table.words.get("compile", ())]
        seconds = seconds * np.array(factors, dtype=float)
    if name == BETWEEN:
        seconds = seconds + np.where(table.profiled, _FIGURE_SECONDS, 0.0)
    return np.asarray(seconds)


def extra_draws(case: Case) -> Array:
    """(points, draws) of blocks after the first that could have ended the warm-up, before its cap is looked at."""
    known = case.known
    ended, looked = _STEADY * _STEADY_WORTH, _STEADY_WORTH
    if len(known):
        blocks = calibrate(known.step[:, None], case.runs.protocol)
        extra = extra_blocks(known.warmup_blocks[:, None], blocks)[:, 0]
        # A warm-up that met its cap before any verdict was possible says nothing.
        judged = np.isfinite(known.steady) & (known.warmup_blocks + 1 - blocks.trials[:, 0] >= _FIRST_VERDICT)
        ended += float(known.steady[judged].sum())
        looked += float((extra[judged] + 1).sum())
    shape = (len(case.points), case.draws)
    chance = np.clip(case.random.beta(ended, max(looked - ended, 0.5), case.draws), 1e-3, 1 - 1e-3)
    odds = chance / (1 - chance) * np.exp(_STEADY_SPREAD * case.random.standard_normal(case.draws))
    chance = odds / (1 + odds)
    mine = case.random.beta(_STEADY_ALIKE * chance, _STEADY_ALIKE * (1 - chance), shape)
    return np.asarray(case.random.geometric(np.clip(mine, 0.01, 1.0)) - 1, dtype=float)
