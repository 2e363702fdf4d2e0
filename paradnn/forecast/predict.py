"""A model of the step time of points: a roofline, corrected by past runs.

Without past runs, the prediction is the roofline with a wide interval. Effects that points share (a
family, an environment, the coming session) have common errors. The interval of a sum over points
therefore has the right width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from paradnn.forecast.process import (
    Coordinates,
    Inputs,
    LeaveOneOutErrors,
    Process,
    number_groups,
)
from paradnn.forecast.table import Table
from paradnn.statistics.robust_regression import (
    Array,
    Columns,
    Prediction,
    RobustRegression,
    one_thread,
)

#: Coefficients of the linear part, by name.
Line = Mapping[Hashable, float]

#: Shares of peak and bandwidth that a step is assumed to reach without data.
_FLOPS_EFFICIENCY = 0.5
_BYTES_EFFICIENCY = 0.4
#: Seconds of dispatch per layer of a training step, by compile mode.
_DISPATCH = {"eager": 2e-3, "graph": 2e-4, "xla": 1.2e-4}
#: The dispatch of a forward pass is that of a training step, divided by this number.
_FORWARD_DIVISOR = 3.0
#: Prior standard deviations of the coefficients. A share is the factor of one part of the roofline:
#: "share" is common to all families, "own share" belongs to one family. Slopes are per decade of a
#: size.
_SPREADS = {
    "share": 0.4,
    "own share": 0.3,
    "slope": 0.07,
    "own slope": 0.08,
    "group": 0.22,
    "session": 0.15,
    "load": 0.4,
}
#: Prior standard deviations of the logarithms of the roofline's factors, in the order of `_parts`.
_PART_SPREADS = (0.4, 0.4, 1.0, 1.0, 1.0, 1.0, 1.0)
#: Expected exponent of the power mean of the parts. An exponent of 1 means that the parts follow
#: each other; with a large one the longest part hides the others.
_POWER = 2.0
#: Prior standard deviation of the logarithm of that exponent.
_POWER_SPREAD = 0.5
#: Smallest duration of a part, in seconds. It keeps the logarithm finite.
_MIN_PART_SECONDS = 1e-12
#: B/s of batches from the host.
_FEED = 3e9
#: Bytes of a number in a batch.
_NUMBER_BYTES = 4
#: Bytes moved per weight by an update, including the optimizer's variables.
_UPDATE_BYTES = 24
#: Length scale of the smooth part, in decades of a size. Two different texts have distance 1.
_LENGTH_SCALE = 1.0
#: Keys whose texts are coordinates of the smooth part.
_TEXT_KEYS = (
    "model.name",
    "precision",
    "compile",
    "framework.name",
    "mode",
    "optimizer.name",
    "devices",
    "parallel",
    "data.name",
)
#: Only the most common levels of a group, up to this number, have a column.
_MAX_LEVELS = 24
#: Load of a host, in runnable threads per core, if a sweep is its only work.
_LOAD_OF_SWEEP = 1.25
#: Decimal logarithms of a typical model's FLOPs, bytes, parameters, layers and batch size.
_TYPICAL_SIZES = (9, 8, 6, 1, 2)


def step_inputs(table: Table) -> Callable[[Line], Inputs]:
    """Return a function from coefficients to the inputs of the process.

    The inputs are those of a Gaussian process that predicts the logarithm of the seconds of a step.
    The roofline is linearized at the coefficients, as `roofline` describes.
    """
    parts = _parts(table)
    groups = _groups(table)
    coordinates = _coordinates(table)
    steps = list(zip(table.environments, table.steps, strict=True))

    def inputs_at(line: Line) -> Inputs:
        base, columns = roofline(parts, table.families, line)
        return Inputs(
            base=base,
            columns=columns | groups,
            coordinates=coordinates,
            steps=steps,
            reach=_LENGTH_SCALE,
        )

    return inputs_at


def _parts(table: Table) -> Array:
    """Return the parts (7, n) of a step in seconds.

    They are arithmetic, memory traffic, dispatch per layer, dispatch per step, transfer of inputs,
    transfer of targets, and update of the weights.
    """
    # The devices of a CPU are cores of one machine. Other devices are separate chips.
    chips = np.where(table.text("platform.name") == "cpu", 1.0, table.count("devices"))
    efficiency = np.array([[_FLOPS_EFFICIENCY], [_BYTES_EFFICIENCY]])
    work = (table.costs / table.peaks)[:, :2].T / chips / efficiency
    dispatch = np.array([_DISPATCH.get(name, _DISPATCH["graph"]) for name in table.text("compile")])
    dispatch = dispatch / np.where(table.text("mode") == "train", 1.0, _FORWARD_DIVISOR)
    # Batches come from the host, except a synthetic batch, which stays on the device.
    feed = np.where(table.text("data.name") == "synthetic", table.peaks[:, 1], _FEED)
    batch = table.count("batch_size") * table.examples.T * _NUMBER_BYTES / feed
    update = table.costs[:, 2] * _UPDATE_BYTES / table.peaks[:, 1]
    parts = np.vstack([work, dispatch * table.layers, dispatch, batch, update])
    return np.asarray(np.fmax(parts, _MIN_PART_SECONDS))


def roofline(
    parts: Array,
    families: Sequence[str],
    line: Line,
    priors: Sequence[float] = _PART_SPREADS,
) -> tuple[Array, dict[Hashable, tuple[Array, float]]]:
    """Linearize the roofline of steps at some coefficients.

    The parts of a step overlap, so its time is their power mean:
    t = (sum_k (factor_k part_k)^p)^(1/p).

    Args:
        parts: Seconds (k, n) of the parts of n steps.
        families: The family of each step.
        line: The coefficients: logarithms of the factors (of all families and of each family) and
            of p. A missing coefficient is 0.
        priors: Prior standard deviations (k,) of the logarithms of the factors.

    Returns:
        The base (n,): log t at the coefficients, minus the sum of columns times coefficients. And
        the columns: the derivatives (n,) of log t by the coefficients, with their priors.
    """
    power = _POWER * np.exp(line.get("power", 0.0))
    indicators = [(None, np.ones(parts.shape[1])), *_levels(families)]
    logs = np.log(parts)
    for index in range(len(parts)):
        for family, indicator in indicators:
            logs[index] += indicator * line.get(("part", index, family), 0.0)
    total = logsumexp(power * logs, axis=0)
    shares = np.exp(power * logs - total)
    columns: dict[Hashable, tuple[Array, float]] = {}
    for index, share in enumerate(shares):
        for family, indicator in indicators:
            spread = priors[index] if family is None else _SPREADS["own share"]
            columns["part", index, family] = (indicator * share, spread)
    columns["power"] = ((shares * logs).sum(axis=0) - total / power, _POWER_SPREAD)
    linear = sum(
        (column * line.get(name, 0.0) for name, (column, _) in columns.items()),
        start=np.zeros(len(total)),
    )
    return total / power - linear, columns


def _coordinates(table: Table) -> Coordinates:
    """Return logarithms of sizes, costs and model options, and the texts that may change a step."""
    names = ("flops", "bytes", "parameters", "layers", "batch")
    sizes: dict[Hashable, Array] = dict(zip(names, _sizes(table), strict=True))
    sizes["input"] = np.log10(table.count("batch_size") * np.maximum(table.examples[:, 0], 1.0)) - 5
    for key in table.model_keys:
        number = table.number(key)
        # A family without the option counts as typical.
        sizes[key] = np.log10(np.where(number > 0, number, 100.0)) - 2
    return {
        **sizes,
        "environment": np.array(table.environments, dtype=str),
        **{key: table.text(key) for key in _TEXT_KEYS},
    }


def overhead_columns(table: Table) -> Columns:
    """Return columns for the logarithm of a phase that depends on the model but not on the step."""
    columns: dict[Hashable, tuple[Array, float]] = {"all": (np.ones(len(table)), _SPREADS["share"])}
    columns |= {
        ("slope", index): (size, _SPREADS["slope"]) for index, size in enumerate(_sizes(table))
    }
    for family, indicator in _levels(table.families):
        columns["family", family] = (indicator, _SPREADS["group"])
        columns["layers", family] = (indicator * np.log10(table.layers), _SPREADS["own slope"])
    columns["profiled"] = (table.profiled.astype(float), _SPREADS["group"])
    return columns | _groups(table)


def _sizes(table: Table) -> list[Array]:
    """Return decimal logarithms (n,) of sizes, relative to a typical model.

    A kernel has no parameters, so sizes count as at least 1.
    """
    sizes = (*table.costs.T, table.layers, table.count("batch_size"))
    return [
        np.log10(np.maximum(size, 1)) - typical
        for size, typical in zip(sizes, _TYPICAL_SIZES, strict=True)
    ]


def _groups(table: Table) -> dict[Hashable, tuple[Array, float]]:
    """Return the columns of effects that groups of points share.

    The groups are: the points with one setting, the points of one family with the same settings,
    environments, sessions, and the load of the host.
    """
    settings: Sequence[Sequence[Hashable]] = [
        [pair if pair in row else None for row in table.settings]
        for pair in sorted(set().union(*table.settings))
    ]
    variants = [
        (family, row) if row else None
        for family, row in zip(table.families, table.settings, strict=True)
    ]
    # The ratio of runnable threads to cores on the host, 1 where it is unknown.
    crowding = np.log(np.fmax(1.0, table.load / (_LOAD_OF_SWEEP * table.peaks[:, 2])))
    columns: dict[Hashable, tuple[Array, float]] = {"load": (crowding, _SPREADS["load"])}
    for levels in (*settings, variants, table.environments):
        for level, indicator in _levels(levels):
            columns["group", level] = (indicator, _SPREADS["group"])
    for session, indicator in _levels(table.sessions):
        columns["session", session] = (indicator, _SPREADS["session"])
    return columns


def _levels(levels: Sequence[Hashable]) -> Iterator[tuple[Hashable, Array]]:
    """Yield the most common levels with their indicators (n,). None is not a level."""
    counts = Counter(level for level in levels if level is not None)
    codes = {level: code for code, level in enumerate(counts)}
    column = np.array([codes.get(level, -1) for level in levels])
    for level, _ in counts.most_common(_MAX_LEVELS):
        yield level, (column == codes[level]).astype(float)


#: Prior standard deviation of log step times between processes that measure the same step.
_NOISE = 0.02
#: Number of observations that this prior counts as.
_NOISE_WORTH = 8.0
#: Number of observations that a run's own interval counts as: it is from a few processes.
_STATED_WORTH = 4.0
#: Iterations that find the coefficients of the roofline.
_ROUNDS = 10
#: The fraction of a Gauss-Newton step that an iteration takes.
_STEP_FRACTION = 0.7


@dataclass(frozen=True)
class StepTimeModel:
    """A roofline with a Gaussian process for the deviations from it.

    Attributes:
        line: The coefficients at which the roofline is linearized.
        process: The Gaussian process.
    """

    line: Line
    process: Process

    @classmethod
    def fit(cls, runs: Table, seconds: Array, noise: Array) -> StepTimeModel:
        """Fit the model to n past runs.

        Args:
            runs: The runs.
            seconds: Seconds (n,) of a step.
            noise: Standard deviations (n,) of the logarithms of the seconds, NaN where unknown.
        """
        logs = np.log(seconds)
        line, inputs = fit_line(step_inputs(runs), logs)
        noise = replicate_noise(logs, number_groups(inputs.steps), noise)
        if len(runs):
            run_noise = float(np.sqrt(np.median(noise**2)))
        else:
            run_noise = _NOISE
        return cls(line, Process.fit(inputs, logs, noise, run_noise))

    def predict(self, points: Table) -> Prediction:
        """Return the joint distribution of the logarithms of the seconds of the points' steps.

        The step of a point that was measured before is known up to the noise of its runs.
        """
        return self.process.predict(step_inputs(points)(self.line))

    @property
    def leave_one_out(self) -> LeaveOneOutErrors:
        """The error of every measured step when it is predicted from the others."""
        return self.process.leave_one_out


@one_thread()
def fit_line(inputs_at: Callable[[Line], Inputs], values: Array) -> tuple[Line, Inputs]:
    """Find the most probable coefficients of a nonlinear function with damped Gauss-Newton steps.

    Args:
        inputs_at: Linearizes the function at some coefficients.
        values: The observed values (n,).

    Returns:
        The coefficients, and the inputs linearized at them.
    """
    line: dict[Hashable, float] = {}
    rounds = _ROUNDS if len(values) else 0
    for _ in range(rounds):
        inputs = inputs_at(line)
        solved = RobustRegression(inputs.columns, values - inputs.base).coefficients
        line = {
            name: line.get(name, 0.0) + _STEP_FRACTION * (value - line.get(name, 0.0))
            for name, value in solved.items()
        }
    return line, inputs_at(line)


def replicate_noise(logs: Array, steps: NDArray[np.intp], stated: Array) -> Array:
    """Estimate the noise of runs from their replicates and from their own intervals.

    Args:
        logs: Logarithms (n,) of the step times.
        steps: The number (n,) of the step of each run.
        stated: Standard deviations (n,) from the runs' intervals, NaN where unknown.

    Returns:
        Standard deviations (n,) of runs about the mean of their step.
    """
    count = np.bincount(steps)
    deviations = logs - (np.bincount(steps, logs) / np.maximum(count, 1))[steps]
    freedom = float(np.maximum(count - 1, 0).sum())
    common = (_NOISE_WORTH * _NOISE**2 + deviations @ deviations) / (_NOISE_WORTH + freedom)
    own = np.where(np.isfinite(stated), stated, np.sqrt(common))
    variance = (_STATED_WORTH * own**2 + _NOISE_WORTH * common) / (_STATED_WORTH + _NOISE_WORTH)
    return np.asarray(np.sqrt(variance))
