"""The step time of points, predicted from past runs about a roofline: the one model of step time.

Without past runs the roofline comes back, with a wide interval. What points have in common (a
family, an environment, the session to come) they err in together: a sum over points is as uncertain
as it must be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from paradnn.forecast.process import Coordinates, Inputs, LeaveOneOutErrors, Process, number_groups
from paradnn.forecast.table import Table
from paradnn.statistics.robust_regression import (
    Array,
    Columns,
    Prediction,
    RobustRegression,
    one_thread,
)

#: Coefficients of the line, by name.
Line = Mapping[Hashable, float]

#: Shares of peak and bandwidth that a step reaches where nothing is known of it.
_FLOPS_EFFICIENCY = 0.5
_BYTES_EFFICIENCY = 0.4
#: Seconds of dispatch for each layer of a training step, by compile mode; a forward pass takes a
#: third.
_DISPATCH = {"eager": 2e-3, "graph": 2e-4, "xla": 1.2e-4}
#: Standard deviations of coefficients before data. A share is that of arithmetic, traffic or
#: dispatch in the roofline's step, of all families and what one has of its own; slopes are for each
#: decade of a size.
_SPREADS = {
    "share": 0.4,
    "own share": 0.3,
    "slope": 0.07,
    "own slope": 0.08,
    "group": 0.22,
    "session": 0.15,
    "load": 0.4,
}
#: Standard deviations of the logarithms of the roofline's factors, of parts as `_parts` has them.
_PARTS = (0.4, 0.4, 1.0, 1.0, 1.0, 1.0, 1.0)
#: How parts overlap: 1 where one follows the other, much where the longest hides the others; how
#: far off (log).
_POWER = 2.0
_POWER_SPREAD = 0.5
#: Seconds below which no part matters.
_LEAST = 1e-12
#: B/s of batches from the host; bytes of a number in them, and those moved for a weight and its
#: variables in an update.
_FEED = 3e9
_NUMBER_BYTES = 4
_UPDATE_BYTES = 24
#: The distance at which steps have little in common but the line: a decade of a size, another word.
_REACH = 1.0
_WORDS = (
    "model.name",
    "precision",
    "compile",
    "framework.name",
    "mode",
    "optimizer.name",
    "devices",
    "data.name",
)
#: Levels of a group beyond the commonest so many have no column.
_MOST_LEVELS = 24


def step_inputs(table: Table) -> Callable[[Line], Inputs]:
    """What a prediction of the logarithm of a step's seconds sees of points, for a line as
    `roofline` takes it.
    """
    parts = _parts(table)
    groups = _groups(table)
    coordinates = _coordinates(table)
    steps = list(zip(table.environments, table.steps, strict=True))

    def inputs_at(line: Line) -> Inputs:
        base, columns = roofline(parts, table.families, line)
        return Inputs(base, columns | groups, coordinates, steps, _REACH)

    return inputs_at


def _parts(table: Table) -> Array:
    """(7, n) seconds of arithmetic, traffic, dispatch by layer and by step, inputs, targets, update
    of the weights.
    """
    # Devices of a CPU are cores of one machine, others are chips of their own.
    chips = np.where(table.text("platform.name") == "cpu", 1.0, table.count("devices"))
    work = (
        (table.costs / table.peaks)[:, :2].T
        / chips
        / np.array([[_FLOPS_EFFICIENCY], [_BYTES_EFFICIENCY]])
    )
    dispatch = np.array([_DISPATCH.get(name, _DISPATCH["graph"]) for name in table.text("compile")])
    dispatch = dispatch / np.where(table.text("mode") == "train", 1.0, 3.0)
    # Batches come from the host, unless one synthetic batch stays on the device.
    feed = np.where(table.text("data.name") == "synthetic", table.peaks[:, 1], _FEED)
    batch = table.count("batch_size") * table.examples.T * _NUMBER_BYTES / feed
    update = table.costs[:, 2] * _UPDATE_BYTES / table.peaks[:, 1]
    return np.asarray(
        np.fmax(np.vstack([work, dispatch * table.layers, dispatch, batch, update]), _LEAST)
    )


def roofline(
    parts: Array, families: Sequence[str], line: Line, priors: Sequence[float] = _PARTS
) -> tuple[Array, dict[Hashable, tuple[Array, float]]]:
    """Parts (k, n) of a step's seconds as a power mean, since they overlap: t = (sum_k (factor_k
    part_k)^p)^(1/p).

    The columns are the derivatives of log t by the logarithms of factors, in all and of a family,
    and of p, taken at the coefficients in `line`, none at first; the base (n,) is what is left of
    log t when these are given back. priors: (k,) standard deviations of the logarithms of factors
    before data.
    """
    power = _POWER * np.exp(line.get("power", 0.0))
    indicators = [(None, np.ones(parts.shape[1])), *_levels(families)]
    factors = np.log(parts)
    for index in range(len(parts)):
        for family, on in indicators:
            factors[index] += on * line.get(("part", index, family), 0.0)
    total = logsumexp(power * factors, axis=0)
    shares = np.exp(power * factors - total)
    columns: dict[Hashable, tuple[Array, float]] = {}
    for index, share in enumerate(shares):
        for family, on in indicators:
            columns["part", index, family] = (
                on * share,
                priors[index] if family is None else _SPREADS["own share"],
            )
    columns["power"] = ((shares * factors).sum(axis=0) - total / power, _POWER_SPREAD)
    known = sum(
        (column * line.get(name, 0.0) for name, (column, _) in columns.items()),
        start=np.zeros(len(total)),
    )
    return total / power - known, columns


def _coordinates(table: Table) -> Coordinates:
    """Logarithms of sizes, costs and the model's own numbers; words that may change a step."""
    names = ("flops", "bytes", "parameters", "layers", "batch")
    sizes: dict[Hashable, Array] = dict(zip(names, _sizes(table), strict=True))
    sizes["input"] = np.log10(table.count("batch_size") * np.maximum(table.examples[:, 0], 1.0)) - 5
    for key in table.model_keys:
        number = table.number(key)
        sizes[key] = (
            np.log10(np.where(number > 0, number, 100.0)) - 2
        )  # what a family lacks is typical
    return {
        **sizes,
        "environment": np.array(table.environments, dtype=str),
        **{key: table.text(key) for key in _WORDS},
    }


def overhead_columns(table: Table) -> Columns:
    """The columns of the logarithm of a phase that grows with the model and not with the step."""
    columns: dict[Hashable, tuple[Array, float]] = {"all": (np.ones(len(table)), _SPREADS["share"])}
    columns |= {
        ("slope", index): (size, _SPREADS["slope"]) for index, size in enumerate(_sizes(table))
    }
    for family, on in _levels(table.families):
        columns["family", family] = on, _SPREADS["group"]
        columns["layers", family] = on * np.log10(table.layers), _SPREADS["own slope"]
    columns["profiled"] = table.profiled.astype(float), _SPREADS["group"]
    return columns | _groups(table)


def _sizes(table: Table) -> list[Array]:
    """Decimal logarithms of sizes about a typical model's; a kernel has no parameters."""
    typical = zip(
        (*table.costs.T, table.layers, table.count("batch_size")), (9, 8, 6, 1, 2), strict=True
    )
    return [np.log10(np.maximum(size, 1)) - centre for size, centre in typical]


def _groups(table: Table) -> dict[Hashable, tuple[Array, float]]:
    """What differs between groups: each word, all words with the family together, environments,
    sessions, crowds.
    """
    words: Sequence[Sequence[Hashable]]
    words = [
        [pair if pair in row else None for row in table.words]
        for pair in sorted(set().union(*table.words))
    ]
    variants = [
        (family, row) if row else None
        for family, row in zip(table.families, table.words, strict=True)
    ]
    # How many times more threads than cores wanted to run on the host, 1 where that is unknown. A
    # sweep alone on its host shows a load of its cores and a little more.
    crowding = np.log(np.fmax(1.0, table.load / (1.25 * table.peaks[:, 2])))
    columns: dict[Hashable, tuple[Array, float]] = {"load": (crowding, _SPREADS["load"])}
    for levels in (*words, variants, table.environments):
        columns |= {("group", level): (on, _SPREADS["group"]) for level, on in _levels(levels)}
    return columns | {
        ("session", session): (on, _SPREADS["session"]) for session, on in _levels(table.sessions)
    }


def _levels(levels: Sequence[Hashable]) -> Iterator[tuple[Hashable, Array]]:
    """The commonest levels with the indicator of each; None is no level."""
    counts = Counter(level for level in levels if level is not None)
    codes = {level: code for code, level in enumerate(counts)}
    column = np.array([codes.get(level, -1) for level in levels])
    for level, _ in counts.most_common(_MOST_LEVELS):
        yield level, (column == codes[level]).astype(float)


#: Processes that measure the same step differ by so much (log), before data; worth so many
#: observations.
_NOISE = 0.02
_NOISE_WORTH = 8.0
#: What a run's own interval says of its noise is worth so many: it is the spread of a few
#: processes.
_STATED_WORTH = 4.0
#: Rounds in which the roofline's factors are found, and how far each goes towards the next.
_ROUNDS = 10
_STRIDE = 0.7


@dataclass(frozen=True)
class StepTimeModel:
    """A roofline, and a Gaussian process about it. line: the coefficients about which the roofline
    is linear.
    """

    line: Line
    process: Process

    @classmethod
    def fit(cls, runs: Table, seconds: Array, noise: Array) -> StepTimeModel:
        """The model of past runs (n): seconds of a step, and standard deviations of their
        logarithms or NaN.
        """
        logs = np.log(seconds)
        line, inputs = fit_line(step_inputs(runs), logs)
        noise = replicate_noise(logs, number_groups(inputs.steps), noise)
        run = float(np.sqrt(np.median(noise**2))) if len(runs) else _NOISE
        return cls(line, Process.fit(inputs, logs, noise, run))

    def predict(self, points: Table) -> Prediction:
        """The logarithm of the seconds of each point's step; one that was measured before is nearly
        known.
        """
        return self.process.predict(step_inputs(points)(self.line))

    @property
    def leave_one_out(self) -> LeaveOneOutErrors:
        """Every measured step, predicted from the others."""
        return self.process.leave_one_out


@one_thread()
def fit_line(inputs_at: Callable[[Line], Inputs], values: Array) -> tuple[Line, Inputs]:
    """The most probable coefficients of what is not linear in them, by the regression of its
    derivatives again and again (Gauss and Newton), and the inputs about these.
    """
    line: dict[Hashable, float] = {}
    for _ in range(_ROUNDS if len(values) else 0):
        inputs = inputs_at(line)
        found = RobustRegression(inputs.columns, values - inputs.base).coefficients
        line = {
            name: line.get(name, 0.0) + _STRIDE * (to - line.get(name, 0.0))
            for name, to in found.items()
        }
    return line, inputs_at(line)


def replicate_noise(logs: Array, steps: NDArray[np.intp], stated: Array) -> Array:
    """(n,) standard deviations of runs of the same step: what replicates say, and what each run
    says of itself.
    """
    count = np.bincount(steps)
    spread = logs - (np.bincount(steps, logs) / np.maximum(count, 1))[steps]
    freedom = float(np.maximum(count - 1, 0).sum())
    common = (_NOISE_WORTH * _NOISE**2 + spread @ spread) / (_NOISE_WORTH + freedom)
    own = np.where(np.isfinite(stated), stated, np.sqrt(common))
    return np.asarray(
        np.sqrt((_STATED_WORTH * own**2 + _NOISE_WORTH * common) / (_STATED_WORTH + _NOISE_WORTH))
    )
