"""From a table to the columns of a regression, each with the spread that its coefficient has before any data.

The step time is held against the roofline with a stated efficiency: FLOPs at half of the peak, bytes at 0.4 of the
bandwidth, and a dispatch time for every layer. Data correct that: how efficient a family is where arithmetic, memory
or dispatch is the limit, how it bends with size, how compile modes, frameworks, environments and sessions differ. The
spreads are such that without data a step is known to a factor of three or so (95%).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import numpy as np
from scipy.special import logsumexp

from paradnn.forecast.inputs import Coordinate, Inputs
from paradnn.forecast.regression import Array, Columns
from paradnn.forecast.table import Table

__all__ = ["Line", "overhead_columns", "roofline", "step_inputs"]

#: Coefficients of the line, by name.
Line = Mapping[Hashable, float]

#: Shares of peak and bandwidth that a step reaches where nothing is known of it.
_FLOPS_EFFICIENCY, _BYTES_EFFICIENCY = 0.5, 0.4
#: Seconds of dispatch for each layer of a training step, by compile mode; a forward pass takes a third.
_DISPATCH = {"eager": 2e-3, "graph": 2e-4, "xla": 1.2e-4}
#: A host with more runnable threads than cores is slower by more than their ratio: operations wait for their slowest.
_LOAD_POWER = 1.6
#: Standard deviations of coefficients before data: of all families, and of what one has of its own. A share is that of
#: arithmetic, traffic or dispatch in the roofline's step; slopes and bends are for each decade of a size.
_SPREADS = {
    "share": (0.4, 0.3),
    "slope": (0.07, 0.08),
    "group": (0.22, 0.22),
    "session": (0.15, 0.15),
    "load": (0.4, 0.4),
}
#: Standard deviations of the logarithms of the roofline's factors, of parts as `_parts` has them.
_PARTS = (0.4, 0.4, 1.0, 1.0, 1.0, 1.0, 1.0)
#: How parts overlap: 1 where one follows the other, much where the longest hides the others; how far off (log).
_POWER, _POWER_SPREAD = 2.0, 0.5
#: Seconds below which no part matters.
_LEAST = 1e-12
#: B/s of batches from the host; bytes of a number in them, and those moved for a weight and its variables in an update.
_FEED, _NUMBER_BYTES, _UPDATE_BYTES = 3e9, 4, 24
#: The distance at which steps have little in common but the line: a decade of a size, another word.
_REACH = 1.0
_WORDS = ("model.name", "precision", "compile", "framework.name", "mode", "optimizer.name", "devices", "data.name")
#: Levels of a group beyond the commonest so many have no column.
_MOST_LEVELS = 24


def step_inputs(table: Table) -> Callable[[Line], Inputs]:
    """What a prediction of the logarithm of a step's seconds sees of points, for a line as `roofline` takes it."""
    parts, groups, coordinates = _parts(table), _groups(table), _coordinates(table)
    steps = list(zip(table.environments, table.steps, strict=True))

    def inputs_at(line: Line) -> Inputs:
        base, columns = roofline(parts, table.families, line)
        return Inputs(base, columns | groups, coordinates, steps)

    return inputs_at


def _parts(table: Table) -> Array:
    """(7, n) seconds of arithmetic, traffic, dispatch by layer and by step, inputs, targets, update of the weights."""
    # Devices of a CPU are cores of one machine, others are chips of their own.
    chips = np.where(table.text("platform.name") == "cpu", 1.0, table.number("devices"))
    work = (table.costs / table.peaks)[:, :2].T / chips / np.array([[_FLOPS_EFFICIENCY], [_BYTES_EFFICIENCY]])
    dispatch = np.array([_DISPATCH.get(name, _DISPATCH["graph"]) for name in table.text("compile")])
    dispatch = dispatch / np.where(table.text("mode") == "train", 1.0, 3.0)
    # Batches come from the host, unless one synthetic batch stays on the device.
    feed = np.where(table.text("data.name") == "synthetic", table.peaks[:, 1], _FEED)
    batch = table.number("batch_size") * table.examples.T * _NUMBER_BYTES / feed
    update = table.costs[:, 2] * _UPDATE_BYTES / table.peaks[:, 1]
    return np.asarray(np.fmax(np.vstack([work, dispatch * table.layers, dispatch, batch, update]), _LEAST))


def roofline(
    parts: Array, families: Sequence[str], line: Line, priors: Sequence[float] = _PARTS
) -> tuple[Array, dict[Hashable, tuple[Array, float]]]:
    """Parts (k, n) of a step's seconds as a power mean, since they overlap: t = (sum_k (factor_k part_k)^p)^(1/p).

    The columns are the derivatives of log t by the logarithms of factors, in all and of a family, and of p, taken at
    the coefficients in `line`, none at first; the base (n,) is what is left of log t when these are given back.
    priors: (k,) standard deviations of the logarithms of factors before data.
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
            columns["part", index, family] = on * share, priors[index] if family is None else _SPREADS["share"][1]
    columns["power"] = ((shares * factors).sum(axis=0) - total / power, _POWER_SPREAD)
    known = sum((column * line.get(name, 0.0) for name, (column, _) in columns.items()), start=np.zeros(len(total)))
    return total / power - known, columns


def _coordinates(table: Table) -> dict[Hashable, Coordinate]:
    """Logarithms of sizes, costs and the model's own numbers; words that may change a step."""
    names = ("flops", "bytes", "parameters", "layers", "batch")
    sizes: dict[Hashable, Array] = dict(zip(names, _sizes(table), strict=True))
    sizes["input"] = np.log10(table.number("batch_size") * np.maximum(table.examples[:, 0], 1.0)) - 5
    for key in table.model_keys:
        number = table.number(key)
        sizes[key] = np.log10(np.where(number > 0, number, 100.0)) - 2  # what a family lacks is typical
    words = {"environment": np.array(table.environments, dtype=str)} | {key: table.text(key) for key in _WORDS}
    return {name: Coordinate(values, _REACH) for name, values in (sizes | words).items()}


def overhead_columns(table: Table) -> Columns:
    """The columns of the logarithm of a phase that grows with the model and not with the step."""
    one = np.ones(len(table))
    columns: dict[Hashable, tuple[Array, float]] = {"all": (one, _SPREADS["share"][0])}
    for index, size in enumerate(_sizes(table)):
        columns["slope", index] = size, _SPREADS["slope"][0]
    for family, on in _levels(table.families):
        columns["family", family] = on, _SPREADS["group"][1]
        columns["layers", family] = on * np.log10(table.layers), _SPREADS["slope"][1]
    columns["profiled"] = one * table.profiled, _SPREADS["group"][0]
    return columns | _groups(table)


def _sizes(table: Table) -> list[Array]:
    """Decimal logarithms of sizes about a typical model's; a kernel has no parameters."""
    typical = zip((*table.costs.T, table.layers, table.number("batch_size")), (9, 8, 6, 1, 2), strict=True)
    return [np.log10(np.maximum(size, 1)) - centre for size, centre in typical]


def _crowding(table: Table) -> Array:
    """Logarithm of how many times more threads than cores wanted to run on the host; 0 where that is unknown.

    A sweep alone on its host shows a load of its cores and a little more.
    """
    return np.asarray(np.log(np.fmax(1.0, table.load / (1.25 * table.peaks[:, 2]))))


def _groups(table: Table) -> dict[Hashable, tuple[Array, float]]:
    """What differs between groups: each word, all words with the family together, environments, sessions, crowds."""
    words: Sequence[Sequence[Hashable]]
    words = [[pair if pair in row else None for row in table.words] for pair in set().union(*table.words)]
    variants = [(family, row) if row else None for family, row in zip(table.families, table.words, strict=True)]
    columns: dict[Hashable, tuple[Array, float]] = {"load": (_crowding(table), _SPREADS["load"][0])}
    for levels in (*words, variants, table.environments):
        for level, on in _levels(levels):
            columns["group", level] = on, _SPREADS["group"][0]
    for session, on in _levels(table.sessions):
        columns["session", session] = on, _SPREADS["session"][0]
    return columns


def _levels(levels: Sequence[Hashable]) -> Iterator[tuple[Hashable, Array]]:
    """The commonest levels with the indicator of each; None is no level."""
    counts = Counter(level for level in levels if level is not None)
    codes = {level: code for code, level in enumerate(counts)}
    column = np.array([codes.get(level, -1) for level in levels])
    for level, _ in counts.most_common(_MOST_LEVELS):
        yield level, (column == codes[level]).astype(float)
