"""From step times to the time of whole points, phase by phase.

Warm-up, measurement, latency and the profiled stretch follow from the step by arithmetic: by the
rules of `paradnn.worker.measure`, `paradnn.worker.point` and `paradnn.worker.profile.run`, for
steps that all last the same. What a point takes beside its steps (building, compiling, reading a
profile, scheduling, recording) has a regression for each phase, about a typical time that grows
with layers and parameters; so have the blocks until a point is steady.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradnn.core.results import ResultDescription
from paradnn.core.workload import WORKLOADS
from paradnn.forecast.predict import overhead_columns
from paradnn.forecast.table import EACH_PROCESS, IMPORT_SECONDS, MEASURE_KEYS, RunHistory, Table
from paradnn.forecast.workload import PhaseForecast
from paradnn.statistics.robust_regression import (
    Array,
    Columns,
    Prediction,
    RobustRegression,
    one_thread,
)
from paradnn.worker.measure import MAX_STEPS, WINDOW

#: The `measure` settings of some points, (points, 1) each: seconds, or counts of blocks.
_Settings = Mapping[str, Array]

#: Blocks before the first verdict on steadiness.
FIRST_VERDICT = 2 * WINDOW
#: `paradnn.worker.point`: synchronised steps of the latency quantiles.
_LATENCY_STEPS = 200
_LATENCY_SECONDS = 10.0
#: `paradnn.worker.profile.run`: the profiled stretch.
_PROFILE_SECONDS = 0.25
_FEWEST = 3
_MOST = 60
_LONG_STEP = 5.0
_SLOWDOWN = 2.0

#: What lies between two points and is in no phase: the child's end, figures of the record.
_BETWEEN = "between"
#: Phases that a point's time limit does not see.
_OUTSIDE = ("schedule", "record", _BETWEEN)
#: Phases that follow from the step time alone.
_ARITHMETIC = (
    "warmup",
    "measure",
    "latency",
    *(name for work in WORKLOADS.values() for name in work.role(ResultDescription).phases),
)
#: Seconds of a phase where nothing is known: at least, a layer, a parameter, where the point is
#: profiled (drawing the figure); compile and profile beyond their steps.
_TYPICAL = {
    "build": (0.08, 0.012, 1e-8, 0.0),
    "compile": (0.2, 0.045, 1e-8, 0.0),
    "profile": (0.12, 0.01, 0.0, 0.0),
    "schedule": (0.04, 0.0, 0.0, 0.0),
    "start": (0.02, 0.0, 0.0, 0.0),
    "record": (0.015, 0.0, 0.0, 0.0),
    _BETWEEN: (0.05, 0.002, 0.0, 0.4),
}
#: How much longer compiling takes, by compile mode; and by torch.compile, whose C++ compiler makes
#: every kernel.
_COMPILE_FACTOR = {"eager": 0.15, "graph": 1.0, "xla": 2.5}
_TORCH_COMPILE = 30.0
#: Verdicts "steady" and the blocks that they took, where nothing is known; and the most blocks that
#: past runs may add, since the next session's machine may be more or less at rest.
_STEADY = (1.8, 12.0, 60.0)


@dataclass(frozen=True)
class PointTimes:
    """Draws, (points, draws): seconds of step, each phase in all processes and point; whether its
    limit ends it.
    """

    step: Array
    phases: Mapping[str, Array]
    seconds: Array
    timed_out: NDArray[np.bool_]


@one_thread()
def point_times(runs: RunHistory, points: Table, draws: int, steps: Prediction) -> PointTimes:
    """The time of every planned point, from past runs; `steps` is what they say of its step."""
    random = np.random.default_rng(0)
    step = np.exp(steps.draws(draws, random))
    known = overhead_columns(runs.table)
    planned = overhead_columns(points)
    phases = {}
    for name in (*runs.phases, _BETWEEN):
        if name not in _ARITHMETIC and _has_phase(name, runs, points):
            logs = _overhead(name, runs, points, known, planned).draws(draws, random)
            phases[name] = np.exp(logs) * _typical(name, points)[:, None]
    _add_steps(phases, step, points, _extra_blocks(runs, step.shape, random))
    limit = points.number("measure.timeout")[:, None]
    # Summed one by one: of thousands of points each phase takes ten megabytes.
    inside = sum(values for name, values in phases.items() if name not in _OUTSIDE)
    # What the profile alone would exceed costs the profile, not the point.
    timed_out = np.asarray(inside - phases.get("profile", 0.0) > limit)
    # A point that its limit ends has one process.
    further = np.where(timed_out, 0.0, points.number("measure.processes")[:, None] - 1)
    again = sum(
        values for name, values in phases.items() if name in EACH_PROCESS and name not in _OUTSIDE
    )
    phases = {
        name: values * (1 + further) if name in EACH_PROCESS else values
        for name, values in phases.items()
    }
    outside = sum(phases[name] for name in _OUTSIDE)
    return PointTimes(
        step, phases, np.asarray(outside + np.minimum(inside, limit) + further * again), timed_out
    )


def _has_phase(name: str, runs: RunHistory, points: Table) -> bool:
    """Whether planned points have the phase: the common ones always, another where past runs mostly
    had it.
    """
    if name == "profile":
        return bool(points.profiled.any())
    return name in _TYPICAL or (len(runs) > 0 and bool(np.isfinite(runs.phases[name]).mean() > 0.5))


def _overhead(
    name: str, runs: RunHistory, points: Table, known: Columns, planned: Columns
) -> Prediction:
    """The logarithm of a phase's seconds beyond what arithmetic says of it, over the typical ones."""
    seconds, weight = _observed(name, runs)
    typical = _typical(name, runs.table)
    use = np.isfinite(seconds) & np.isfinite(weight)
    # Shorter than a tenth of the usual, and than a millisecond, is noise.
    logs = np.log(np.maximum(seconds, np.maximum(1e-3, 0.1 * typical)) / typical)
    chosen = {key: (column[use], prior) for key, (column, prior) in known.items()}
    return RobustRegression(chosen, logs[use], weight[use]).predict(planned, len(points))


def _observed(name: str, runs: RunHistory) -> tuple[Array, Array]:
    """(runs,) of what a phase took beside its steps, NaN where that is unknown; and how far it is
    to be trusted.
    """
    full = np.ones(len(runs))
    if name == _BETWEEN:
        # A gap holds the next point's schedule and not this one's; over many points they are the
        # same.
        seconds = runs.gaps - np.sum(
            [np.nan_to_num(values) for values in runs.phases.values()], axis=0
        )
        usual = np.nanmedian(seconds) if np.isfinite(seconds).any() else 0.0
        was_pause = seconds > 10 * usual + 1.0
        return np.where((seconds < 0) | was_pause, np.nan, seconds), full
    seconds = runs.phases[name]
    if name == "start":  # the import is counted apart
        return np.where(seconds > IMPORT_SECONDS, np.nan, seconds), full
    if name not in ("compile", "profile"):
        return seconds, full
    if name == "compile":
        steps = runs.step
    else:
        steps = profile_seconds(runs.step, np.array(np.inf))
    if name == "profile":
        seconds = np.where(runs.table.profiled, seconds, np.nan)
    # Where the steps are most of it, what is left is their noise.
    return seconds - steps, np.clip(1 - steps / seconds, 0.0, 1.0) ** 2


def _typical(name: str, table: Table) -> Array:
    """(points,) seconds of a phase where nothing is known."""
    least, layer, parameter, profiled = _TYPICAL.get(name, (0.05, 0.0, 0.0, 0.0))
    seconds = (
        least + layer * table.layers + parameter * table.costs[:, 2] + profiled * table.profiled
    )
    if name == "compile":
        compiles = table.text("compile")
        seconds = seconds * np.array([_COMPILE_FACTOR.get(mode, 1.0) for mode in compiles])
        seconds[(table.text("framework.name") == "torch") & (compiles == "graph")] *= _TORCH_COMPILE
    return np.asarray(seconds)


def _settings(table: Table) -> _Settings:
    return {name: table.number(f"measure.{name}")[:, None] for name in MEASURE_KEYS}


def _add_steps(phases: dict[str, Array], step: Array, points: Table, extra: Array) -> None:
    """What the steps themselves take, by arithmetic; `extra` blocks pass before a point is steady."""
    settings = _settings(points)
    blocks = calibrate(step, settings)
    phases["compile"] = phases["compile"] + step
    phases["warmup"] = warmup_seconds(blocks, settings, extra)
    phases["measure"] = measure_seconds(blocks, settings)
    inference = (points.text("mode") != "train")[:, None]
    if inference.any():
        single = np.minimum(_LATENCY_STEPS, np.ceil(_LATENCY_SECONDS / step)) * step
        phases["latency"] = np.where(inference, single, 0.0)
    for work in WORKLOADS.values():
        phases |= work.role(PhaseForecast).forecast_phases(points, step, phases)
    if "profile" in phases:
        spent = phases["build"] + phases["compile"] + phases["warmup"] + phases["measure"]
        stretch = profile_seconds(step, settings["timeout"] - spent)
        phases["profile"] = np.where(
            points.profiled[:, None] & (stretch > 0), stretch + phases["profile"], 0.0
        )


def _extra_blocks(runs: RunHistory, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """(points, draws) of blocks after the first that could have ended the warm-up, before its cap
    is looked at.
    """
    blocks = calibrate(runs.step[:, None], _settings(runs.table))
    extra = extra_blocks(runs.warmup_blocks[:, None], blocks)[:, 0]
    # A warm-up that met its cap before any verdict was possible says nothing.
    judged = np.isfinite(runs.steady) & (
        runs.warmup_blocks + 1 - blocks.trials[:, 0] >= FIRST_VERDICT
    )
    looked = float((extra[judged] + 1).sum())
    verdicts, blocks_before, most = _STEADY
    share = min(1.0, most / max(looked, 1.0))
    verdicts += share * float(runs.steady[judged].sum())
    chance = random.beta(verdicts, max(blocks_before + share * looked - verdicts, 0.5), shape[1])
    return np.asarray(random.geometric(np.clip(chance, 0.01, 1.0), shape) - 1, dtype=float)


@dataclass(frozen=True)
class Blocks:
    """What calibration finds: steps of a block and its seconds, the number of trials and their
    seconds.
    """

    steps: Array
    seconds: Array
    trials: Array
    spent: Array


def calibrate(step: Array, settings: _Settings) -> Blocks:
    """The block of a step that lasts `step` seconds: trials are ten times longer each until a tenth
    more than a block is known to be enough, which is tried twice.
    """
    block = settings["block_seconds"]
    steps = np.where(step >= block, 1.0, np.minimum(MAX_STEPS, np.ceil(1.1 * block / step)))
    grown = np.ceil(np.log10(steps) - 1e-9)
    return Blocks(steps, steps * step, grown + 2, ((10**grown - 1) / 9 + 2 * steps) * step)


def warmup_seconds(blocks: Blocks, settings: _Settings, extra: Array) -> Array:
    """Seconds of calibration and warm-up where the verdict comes `extra` blocks after the first it
    can.

    The cap is looked at before every block, so the last one may end after it.
    """
    allowed = np.maximum(0.0, np.ceil((settings["warmup_seconds"] - blocks.spent) / blocks.seconds))
    return np.asarray(
        blocks.spent + np.minimum(FIRST_VERDICT - 1 + extra, allowed) * blocks.seconds
    )


def extra_blocks(warmup_blocks: Array, blocks: Blocks) -> Array:
    """From the recorded number of blocks before the measured ones, how many came after the first
    possible verdict.

    Blocks that were not steady and were measured again are among them.
    """
    return np.maximum(0.0, warmup_blocks + 1 - blocks.trials - FIRST_VERDICT)


def measure_seconds(blocks: Blocks, settings: _Settings) -> Array:
    """Seconds of the measured blocks, steady at once and without `measure.relative_interval`: else
    it takes longer.
    """
    enough = np.maximum(np.ceil(settings["min_seconds"] / blocks.seconds), settings["min_blocks"])
    longest = np.ceil(settings["max_seconds"] / blocks.seconds)
    return np.asarray(np.maximum(1.0, np.minimum(enough, longest)) * blocks.seconds)


def profile_seconds(step: Array, seconds_left: Array) -> Array:
    """Seconds of the steps under the profiler at full speed; 0 where the time that is left lets it
    be skipped.

    Starting the profiler and reading its trace come on top.
    """
    fewest = np.where(step < _LONG_STEP, _FEWEST, 1)
    steps = np.minimum(_MOST, np.maximum(fewest, np.ceil(_PROFILE_SECONDS / step)))
    # Before the stretch comes one step that pays for the profiler's start.
    skipped = _SLOWDOWN * (steps + 1) * step > seconds_left
    return np.asarray(np.where(skipped, 0.0, (steps + 1) * step))
