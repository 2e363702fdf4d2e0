"""A model of the step time of points: a roofline that is corrected by past runs.

Without past runs, the prediction is the roofline with a wide interval. Points that share an effect
(of a family, an environment or the planned session) also share its error. The model includes these
correlations, so the interval of a sum over points has the correct width.
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

#: Coefficients of the linearized roofline, by name.
Line = Mapping[Hashable, float]

#: Shares of the FLOP/s peak and of the bandwidth that a step is expected to reach without data.
_FLOPS_EFFICIENCY = 0.5
_BYTES_EFFICIENCY = 0.4
#: Dispatch time per layer of a training step in seconds, by compile mode.
_DISPATCH = {"eager": 2e-3, "graph": 2e-4, "xla": 1.2e-4}
#: The dispatch of a forward pass is that of a training step, divided by this number.
_FORWARD_DIVISOR = 3.0
#: Prior standard deviations of the coefficients. Shares are logarithms of factors: common to all
#: families ("share"), or of a part of the roofline in one family ("own share"). Slopes are per
#: decade of a size: common to all families ("slope"), or of one family ("own slope").
_SPREADS = {
    "share": 0.4,
    "own share": 0.3,
    "slope": 0.07,
    "own slope": 0.08,
    "group": 0.22,
    "session": 0.15,
    "load": 0.4,
}
#: Prior standard deviations of the logarithms of the factors of the roofline's parts, which all
#: families share, in the order of `_parts`.
_PART_SPREADS = (0.4, 0.4, 1.0, 1.0, 1.0, 1.0, 1.0)
#: Expected exponent p with which the parts are combined. With p = 1, the parts do not overlap; with
#: a large p, the longest part hides the others.
_POWER = 2.0
#: Prior standard deviation of the logarithm of that exponent.
_POWER_SPREAD = 0.5
#: Minimum duration of a part in seconds, to keep its logarithm finite.
_MIN_PART_SECONDS = 1e-12
#: Expected rate at which batches are transferred from the host, in B/s.
_FEED = 3e9
#: Bytes of one number in a batch.
_NUMBER_BYTES = 4
#: Bytes that an update moves per weight, including the optimizer's variables.
_UPDATE_BYTES = 24
#: Length scale of the smooth part, in decades of a size. The distance of two different texts is 1.
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
#: Maximum number of levels of a group that have a column. The most common levels are selected.
_MAX_LEVELS = 24
#: Load of a host while a sweep is its only work, in runnable threads per core.
_LOAD_OF_SWEEP = 1.25
#: Decimal logarithms of a typical model's FLOPs, bytes, parameters, layers and batch size.
_TYPICAL_SIZES = (9, 8, 6, 1, 2)


def step_inputs(table: Table) -> Callable[[Line], Inputs]:
    """Return a function that linearizes the roofline model of step times, for `fit_line`.

    Args:
        table: The planned points or past runs whose steps are modeled.

    Returns:
        The function. Its argument is a mapping from the names of coefficients to their values. It
        returns the inputs of a Gaussian process that predicts the logarithm of the step time in
        seconds. In these inputs, the roofline is linearized at the coefficients.
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
    """Return the expected seconds (7, n) of the parts of each of n steps.

    The parts are arithmetic, memory traffic, dispatch of layers, dispatch of the step, transfer of
    inputs, transfer of targets, and update of the weights.
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
    """Linearize the roofline model of step times at given coefficients.

    The parts of a step overlap, so its time t is their p-norm:
    t = (sum_k (factor_k part_k)^p)^(1/p).

    Args:
        parts: Expected seconds (k, n) of the k parts of n steps.
        families: Model family of each step.
        line: Coefficients by name. ("part", k, family) is the logarithm of the factor of part k,
            for one family, or for all families if the family is None. "power" is the logarithm of p
            relative to its expected value. A missing coefficient is 0.
        priors: Prior standard deviations (k,) of the logarithms of the factors that all families
            share.

    Returns:
        The base (n,) and the columns by name. The base is log t at the coefficients, minus the sum
        of columns times coefficients. Columns are the derivatives (n,) of log t with respect to the
        coefficients, each with the prior standard deviation of the coefficient.
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
    """Return the coordinates of the smooth part of the Gaussian process, by name.

    They are decimal logarithms of sizes, and texts of settings. The sizes are costs, batch size,
    input size and model options.
    """
    names = ("flops", "bytes", "parameters", "layers", "batch")
    sizes: dict[Hashable, Array] = dict(zip(names, _sizes(table), strict=True))
    sizes["input"] = np.log10(table.count("batch_size") * np.maximum(table.examples[:, 0], 1.0)) - 5
    for key in table.model_keys:
        number = table.number(key)
        # A family without this option gets the typical value.
        sizes[key] = np.log10(np.where(number > 0, number, 100.0)) - 2
    return {
        **sizes,
        "environment": np.array(table.environments, dtype=str),
        **{key: table.text(key) for key in _TEXT_KEYS},
    }


def overhead_columns(table: Table) -> Columns:
    """Return columns for a regression of the log duration of a phase without steps.

    Such a phase, for example "compile", depends on the model and its settings.

    Args:
        table: Planned points or past runs, n rows.

    Returns:
        Name -> column (n,), with the prior standard deviation of its coefficient.
    """
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
    """Return decimal logarithms (n,) of costs, layers and batch size, relative to a typical model.

    Sizes count as at least 1, because a kernel has no parameters.
    """
    sizes = (*table.costs.T, table.layers, table.count("batch_size"))
    return [
        np.log10(np.maximum(size, 1)) - typical
        for size, typical in zip(sizes, _TYPICAL_SIZES, strict=True)
    ]


def _groups(table: Table) -> dict[Hashable, tuple[Array, float]]:
    """Return regression columns for the load of the host, and for effects that groups share.

    The groups are: rows with the same value of a setting, rows of a model family with the same
    settings, rows of an environment, and rows of a session.

    Returns:
        Name -> column (n,), with the prior standard deviation of its coefficient.
    """
    settings: Sequence[Sequence[Hashable]] = [
        [pair if pair in row else None for row in table.settings]
        for pair in sorted(set().union(*table.settings))
    ]
    variants = [
        (family, row) if row else None
        for family, row in zip(table.families, table.settings, strict=True)
    ]
    # Load of the host relative to a sweep that runs alone: at least 1, and 1 where it is unknown.
    crowding = np.log(np.fmax(1.0, table.load / (_LOAD_OF_SWEEP * table.peaks[:, 2])))
    columns: dict[Hashable, tuple[Array, float]] = {"load": (crowding, _SPREADS["load"])}
    for levels in (*settings, variants, table.environments):
        for level, indicator in _levels(levels):
            columns["group", level] = (indicator, _SPREADS["group"])
    for session, indicator in _levels(table.sessions):
        columns["session", session] = (indicator, _SPREADS["session"])
    return columns


def _levels(levels: Sequence[Hashable]) -> Iterator[tuple[Hashable, Array]]:
    """Yield the most common levels of a factor, each with its indicator column.

    Args:
        levels: Level of each of n rows; None for a row without a level.

    Yields:
        The level, and its indicator (n,): 1 for rows of the level, else 0.
    """
    counts = Counter(level for level in levels if level is not None)
    codes = {level: code for code, level in enumerate(counts)}
    column = np.array([codes.get(level, -1) for level in levels])
    for level, _ in counts.most_common(_MAX_LEVELS):
        yield level, (column == codes[level]).astype(float)


#: Prior standard deviation of log step times between processes that measure the same step.
_NOISE = 0.02
#: Weight of this prior, as a number of observations.
_NOISE_WORTH = 8.0
#: Weight of the interval that a run recorded, as a number of observations. It is low because the
#: interval is based on a few processes.
_STATED_WORTH = 4.0
#: Number of iterations that find the coefficients of the roofline.
_ROUNDS = 10
#: The fraction of a Gauss-Newton step that an iteration takes.
_STEP_FRACTION = 0.7


@dataclass(frozen=True)
class StepTimeModel:
    """Model of step times: a roofline, and a Gaussian process for the deviations from it.

    Attributes:
        line: Coefficients by name, at which the roofline is linearized.
        process: The Gaussian process, fitted to logarithms of step times in seconds.
    """

    line: Line
    process: Process

    @classmethod
    def fit(cls, runs: Table, seconds: Array, noise: Array) -> StepTimeModel:
        """Fit the model to n past runs.

        Args:
            runs: The configurations, environments and costs of the runs.
            seconds: Step times (n,) in seconds.
            noise: Standard deviations (n,) of the logarithms of the step times, NaN where unknown.
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
        """Predict the step times of planned points.

        If the step of a point was measured before, its time is known up to the noise of these runs.

        Args:
            points: The planned points; one row per configuration.

        Returns:
            The joint distribution of the natural logarithms of the step times in seconds.
        """
        return self.process.predict(step_inputs(points)(self.line))

    @property
    def leave_one_out(self) -> LeaveOneOutErrors:
        """Error of each measured step if it is predicted from the other steps.

        The errors are differences of natural logarithms of step times.
        """
        return self.process.leave_one_out


@one_thread()
def fit_line(inputs_at: Callable[[Line], Inputs], values: Array) -> tuple[Line, Inputs]:
    """Find the most probable coefficients of a nonlinear function with damped Gauss-Newton steps.

    Args:
        inputs_at: Returns the function linearized at given coefficients, which are a mapping from
            name to value. A missing coefficient is 0.
        values: Observed values (n,) of the function.

    Returns:
        The coefficients by name, and the function linearized at them.
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
    """Estimate the noise of n runs from their replicates and from the intervals they recorded.

    Replicates are runs of the same step: same model, settings and environment.

    Args:
        logs: Logarithms (n,) of the step times.
        steps: Index (n,) of the step of each run, as `number_groups` returns it. Replicates have
            the same index.
        stated: Standard deviations (n,) of `logs` from the recorded intervals, NaN where unknown.

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
