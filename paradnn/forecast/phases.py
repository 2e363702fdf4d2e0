"""Forecast of the duration of points from their step times, phase by phase.

The durations of warm-up, measurement, latency and the profiled steps are computed from the step
time. They follow the rules of `paradnn.worker.measure`, `paradnn.worker.point` and
`paradnn.worker.profile.run`, and assume that all steps have the same duration.

Each other phase (build, compile, reading a profile, schedule, record) is predicted by a regression
on past runs. Its prior is a typical duration, which grows with layers and parameters. The number of
blocks until a point is steady is also learned from past runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paradnn.core.results import ResultDescription
from paradnn.core.workload import WORKLOADS
from paradnn.forecast.predict import overhead_columns
from paradnn.forecast.table import (
    IMPORT_SECONDS,
    MEASURE_KEYS,
    PHASES_PER_PROCESS,
    RunHistory,
    Table,
)
from paradnn.forecast.workload import PhaseForecast
from paradnn.statistics.robust_regression import (
    Array,
    Columns,
    Prediction,
    RobustRegression,
    one_thread,
)
from paradnn.worker.measure import LATENCY_SECONDS, LATENCY_STEPS, MAX_STEPS, WINDOW
from paradnn.worker.profile import run as profile

#: Settings of points in the group `measure` by name, each an array (points, 1) of seconds or block
#: counts.
_Settings = Mapping[str, Array]

#: Number of warm-up blocks before the first check for a steady state.
FIRST_VERDICT = 2 * WINDOW
#: Name for the time between two points that belongs to no phase: the end of the child process, and
#: the drawing of figures for the record.
_BETWEEN = "between"
#: Phases that do not count toward a point's time limit.
_UNLIMITED_PHASES = ("schedule", "record", _BETWEEN)
#: Phases whose duration is computed from the step time alone.
_ARITHMETIC = (
    "warmup",
    "measure",
    "latency",
    *(name for work in WORKLOADS.values() for name in work.role(ResultDescription).phases),
)


class _TypicalSeconds(NamedTuple):
    """Expected seconds of a phase of a measurement, such as "compile", without past runs.

    The seconds of the phases compile and profile exclude the time of the steps.

    Attributes:
        least: Seconds of a point without layers and parameters.
        per_layer: Additional seconds per layer.
        per_parameter: Additional seconds per parameter.
        profiled: Additional seconds of a profiled point, for which a figure is drawn.
    """

    least: float
    per_layer: float = 0.0
    per_parameter: float = 0.0
    profiled: float = 0.0


_TYPICAL = {
    "build": _TypicalSeconds(0.08, per_layer=0.012, per_parameter=1e-8),
    "compile": _TypicalSeconds(0.2, per_layer=0.045, per_parameter=1e-8),
    "profile": _TypicalSeconds(0.12, per_layer=0.01),
    "schedule": _TypicalSeconds(0.04),
    "start": _TypicalSeconds(0.02),
    "record": _TypicalSeconds(0.015),
    _BETWEEN: _TypicalSeconds(0.05, per_layer=0.002, profiled=0.4),
}
_OTHER_PHASE = _TypicalSeconds(0.05)
#: Factor of the typical compile time, by compile mode.
_COMPILE_FACTOR = {"eager": 0.15, "graph": 1.0, "xla": 2.5}
#: Additional factor for torch.compile, which compiles every kernel with a C++ compiler.
_TORCH_COMPILE = 30.0
#: Prior of the steady state, as a number of "steady" verdicts, and the number of blocks in which
#: they occurred. The third number is the maximum weight of past runs, in blocks. It is limited
#: because the load of the machine may change between sessions.
_STEADY = (1.8, 12.0, 60.0)


@dataclass(frozen=True)
class PointTimes:
    """Predicted times of configurations (points), as random draws.

    Every array has the shape (points, draws).

    Attributes:
        step: Seconds of one training or inference step.
        phases: Phase of a measurement, such as "compile" -> its seconds, summed over all processes
            of the point.
        seconds: Seconds of the whole point.
        timed_out: Whether the point reaches its time limit.
    """

    step: Array
    phases: Mapping[str, Array]
    seconds: Array
    timed_out: NDArray[np.bool_]


@one_thread()
def point_times(runs: RunHistory, points: Table, draws: int, steps: Prediction) -> PointTimes:
    """Predict how long planned configurations (points) take, as random draws.

    Args:
        runs: Past runs, from which the phases other than steps are learned.
        points: The planned points.
        draws: Number of random draws.
        steps: Joint distribution of the natural logarithms of the points' step times in seconds.
    """
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
    # `sum` adds one phase at a time to save memory: with thousands of points, each takes 10 MB.
    inside = sum(values for name, values in phases.items() if name not in _UNLIMITED_PHASES)
    # If only the profile would exceed the limit, the profile is skipped and the point succeeds.
    timed_out = np.asarray(inside - phases.get("profile", 0.0) > limit)
    # A point that times out starts no further processes.
    further = np.where(timed_out, 0.0, points.number("measure.processes")[:, None] - 1)
    again = sum(
        values
        for name, values in phases.items()
        if name in PHASES_PER_PROCESS and name not in _UNLIMITED_PHASES
    )
    phases = {
        name: values * (1 + further) if name in PHASES_PER_PROCESS else values
        for name, values in phases.items()
    }
    outside = sum(phases[name] for name in _UNLIMITED_PHASES)
    return PointTimes(
        step, phases, np.asarray(outside + np.minimum(inside, limit) + further * again), timed_out
    )


def _has_phase(name: str, runs: RunHistory, points: Table) -> bool:
    """Return whether planned points are expected to have a phase.

    The points have the phase "profile" if any point is profiled. They have all other phases with a
    known typical duration (`_TYPICAL`), and any further phase that most past runs had.
    """
    if name == "profile":
        return bool(points.profiled.any())
    return name in _TYPICAL or (len(runs) > 0 and bool(np.isfinite(runs.phases[name]).mean() > 0.5))


def _overhead(
    name: str, runs: RunHistory, points: Table, known: Columns, planned: Columns
) -> Prediction:
    """Predict the duration of a phase of planned points, without its steps.

    Args:
        name: Name of the phase.
        runs: Past runs.
        points: The planned points.
        known: Columns of the past runs for the regression (`overhead_columns`).
        planned: The same columns of the planned points.

    Returns:
        The joint distribution of the logarithm of the duration divided by the typical duration
        (`_typical`).
    """
    seconds, weight = _observed(name, runs)
    typical = _typical(name, runs.table)
    use = np.isfinite(seconds) & np.isfinite(weight)
    # Durations below a tenth of the typical one, or below a millisecond, are noise.
    logs = np.log(np.maximum(seconds, np.maximum(1e-3, 0.1 * typical)) / typical)
    chosen = {key: (column[use], prior) for key, (column, prior) in known.items()}
    return RobustRegression(chosen, logs[use], weight[use]).predict(planned, len(points))


def _observed(name: str, runs: RunHistory) -> tuple[Array, Array]:
    """Return the durations of a phase in past runs, without its steps.

    Args:
        name: Name of the phase.
        runs: Past runs.

    Returns:
        The durations (runs,) in seconds, NaN where unknown, and the weights (runs,) of these
        observations, from 0 to 1.
    """
    full = np.ones(len(runs))
    if name == _BETWEEN:
        # A gap contains the schedule phase of the next point instead of that of this point. Over
        # many points, both have the same mean.
        seconds = runs.gaps - np.sum(
            [np.nan_to_num(values) for values in runs.phases.values()], axis=0
        )
        usual = np.nanmedian(seconds) if np.isfinite(seconds).any() else 0.0
        was_pause = seconds > 10 * usual + 1.0
        return np.where((seconds < 0) | was_pause, np.nan, seconds), full
    seconds = runs.phases[name]
    if name == "start":  # the import is counted separately
        return np.where(seconds > IMPORT_SECONDS, np.nan, seconds), full
    if name == "compile":
        steps = runs.step
    elif name == "profile":
        steps = profile_seconds(runs.step, np.array(np.inf))
        seconds = np.where(runs.table.profiled, seconds, np.nan)
    else:
        return seconds, full
    # If the steps take most of the phase, the remainder is mainly noise, so its weight is low.
    return seconds - steps, np.clip(1 - steps / seconds, 0.0, 1.0) ** 2


def _typical(name: str, table: Table) -> Array:
    """Return the expected seconds (n,) of a phase of n points if no past runs are known.

    Args:
        name: Name of the phase, such as "compile".
        table: The points.
    """
    typical = _TYPICAL.get(name, _OTHER_PHASE)
    seconds = (
        typical.least
        + typical.per_layer * table.layers
        + typical.per_parameter * table.costs[:, 2]
        + typical.profiled * table.profiled
    )
    if name == "compile":
        compiles = table.text("compile")
        seconds = seconds * np.array([_COMPILE_FACTOR.get(mode, 1.0) for mode in compiles])
        seconds[(table.text("framework.name") == "torch") & (compiles == "graph")] *= _TORCH_COMPILE
    return np.asarray(seconds)


def _settings(table: Table) -> _Settings:
    return {name: table.number(f"measure.{name}")[:, None] for name in MEASURE_KEYS}


def _add_steps(phases: dict[str, Array], step: Array, points: Table, extra: Array) -> None:
    """Add the seconds of all steps to the seconds of the phases.

    Some phases consist only of steps. The phases compile and profile also contain steps.

    Args:
        phases: Seconds (points, draws) by phase. The mapping is modified.
        step: Seconds (points, draws) of a step.
        points: The planned points.
        extra: Number (points, draws) of warm-up blocks from the first check for a steady state
            until the point is steady.
    """
    settings = _settings(points)
    blocks = calibrate(step, settings)
    phases["compile"] = phases["compile"] + step
    phases["warmup"] = warmup_seconds(blocks, settings, extra)
    phases["measure"] = measure_seconds(blocks, settings)
    inference = (points.text("mode") != "train")[:, None]
    if inference.any():
        single = np.minimum(LATENCY_STEPS, np.ceil(LATENCY_SECONDS / step)) * step
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
    """Draw numbers (points, draws) of warm-up blocks after the first check for a steady state.

    A block is a number of steps that are timed together. The time limit of the warm-up is not
    applied yet.

    Args:
        runs: Past runs, from which the probability of a steady state is learned.
        shape: The shape (points, draws) of the result.
        random: Source of the draws.
    """
    blocks = calibrate(runs.step[:, None], _settings(runs.table))
    extra = extra_blocks(runs.warmup_blocks[:, None], blocks)[:, 0]
    # A warm-up that reached its time limit before the first check contains no information.
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
    """The result of the calibration, which determines how many steps are timed together.

    Steps that are timed together form a block. All arrays have the shape of the step times.

    Attributes:
        steps: Number of steps in a block.
        seconds: Seconds of a block.
        trials: Number of trial blocks.
        spent: Total seconds of the trial blocks.
    """

    steps: Array
    seconds: Array
    trials: Array
    spent: Array


def calibrate(step: Array, settings: _Settings) -> Blocks:
    """Predict how many steps are timed together as one block, and how long it takes to find out.

    A block lasts 1.1 times `block_seconds`, or one step if a step lasts at least `block_seconds`.
    Each trial has ten times the steps of the previous trial, until the number of steps of a block
    is known. Two further trials have that number.

    Args:
        step: Seconds (points, draws) of a step.
        settings: Settings in the group `measure` by name, each an array (points, 1). Only
            `block_seconds` is used.
    """
    block = settings["block_seconds"]
    steps = np.where(step >= block, 1.0, np.minimum(MAX_STEPS, np.ceil(1.1 * block / step)))
    grown = np.ceil(np.log10(steps) - 1e-9)
    return Blocks(steps, steps * step, grown + 2, ((10**grown - 1) / 9 + 2 * steps) * step)


def warmup_seconds(blocks: Blocks, settings: _Settings, extra: Array) -> Array:
    """Return the predicted seconds (points, draws) of calibration and warm-up.

    The time limit `warmup_seconds` is checked before every block, so the last block may exceed it.

    Args:
        blocks: The result of `calibrate`. A block is a number of steps that are timed together.
        settings: Settings in the group `measure` by name, each an array (points, 1). Only
            `warmup_seconds` is used.
        extra: Number (points, draws) of blocks from the first check for a steady state until the
            points are steady.
    """
    allowed = np.maximum(0.0, np.ceil((settings["warmup_seconds"] - blocks.spent) / blocks.seconds))
    return np.asarray(
        blocks.spent + np.minimum(FIRST_VERDICT - 1 + extra, allowed) * blocks.seconds
    )


def extra_blocks(warmup_blocks: Array, blocks: Blocks) -> Array:
    """Return the number of recorded warm-up blocks after the first check for a steady state.

    A block is a number of steps that are timed together. The result includes blocks that were
    discarded as unsteady and measured again.

    Args:
        warmup_blocks: Recorded number of blocks before the measured blocks, with the trial blocks
            of the calibration; an array of the shape of the step times.
        blocks: The expected result of the calibration.
    """
    return np.maximum(0.0, warmup_blocks + 1 - blocks.trials - FIRST_VERDICT)


def measure_seconds(blocks: Blocks, settings: _Settings) -> Array:
    """Return the predicted seconds (points, draws) of the measured blocks.

    The blocks are assumed to be steady. With `measure.relative_interval`, the measurement may take
    longer than this forecast.

    Args:
        blocks: The result of `calibrate`. A block is a number of steps that are timed together.
        settings: Settings in the group `measure` by name, each an array (points, 1). Only
            `min_seconds`, `max_seconds` and `min_blocks` are used.
    """
    enough = np.maximum(np.ceil(settings["min_seconds"] / blocks.seconds), settings["min_blocks"])
    longest = np.ceil(settings["max_seconds"] / blocks.seconds)
    return np.asarray(np.maximum(1.0, np.minimum(enough, longest)) * blocks.seconds)


def profile_seconds(step: Array, seconds_left: Array) -> Array:
    """Return the predicted seconds of the profiled steps, without the slowdown by the profiler.

    The result is 0 if the profile would be skipped because too little time is left. It excludes the
    start of the profiler and the reading of its trace.

    Args:
        step: Seconds of a step without the profiler, an array of any shape.
        seconds_left: Seconds until the time limit of the point, of the same shape or broadcast.
    """
    min_steps = np.where(step < profile.LONG_STEP_SECONDS, profile.MIN_STEPS, 1)
    steps = np.maximum(min_steps, np.ceil(profile.PROFILE_SECONDS / step))
    steps = np.minimum(profile.MAX_STEPS, steps)
    # One additional step runs first, which absorbs the start of the profiler.
    skipped = profile.ASSUMED_SLOWDOWN * (steps + 1) * step > seconds_left
    return np.asarray(np.where(skipped, 0.0, (steps + 1) * step))
