"""From a table to the columns of a regression, each with the spread that its coefficient has before any data.

The step time is held against the roofline with a stated efficiency: FLOPs at half of the peak, bytes at 0.4 of the
bandwidth, and a dispatch time for every layer. Data correct that: how efficient a family is where arithmetic, memory
or dispatch is the limit, how it bends with size, how compile modes, frameworks, environments and sessions differ. The
spreads are such that without data a step is known to a factor of three or so (95%).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations_with_replacement

import numpy as np

from paradnn.forecast.regression import Array, Columns
from paradnn.forecast.table import Table

__all__ = ["overhead_columns", "step_columns"]

#: Shares of peak and bandwidth that a step reaches where nothing is known of it.
_FLOPS_EFFICIENCY, _BYTES_EFFICIENCY = 0.5, 0.4
#: Seconds of dispatch for each layer of a training step, by compile mode; a forward pass takes a third.
_DISPATCH = {"eager": 2e-3, "graph": 2e-4, "xla": 1.2e-4}
#: A host with more runnable threads than cores is slower by more than their ratio: operations wait for their slowest.
_LOAD_POWER = 1.6
#: Standard deviations of coefficients before data: of all families, and of what one has of its own. A share is that of
#: arithmetic, traffic or dispatch in the roofline's step; slopes and bends are for each decade of a size.
_SPREADS = {"share": (0.4, 0.3), "slope": (0.07, 0.08), "bend": (0.03, 0.05), "group": (0.22, 0.22), "load": (0.4, 0.4)}
#: Levels of a group beyond the commonest so many have no column.
_MOST_LEVELS = 24


def step_columns(table: Table) -> tuple[Array, Columns]:
    """The logarithm of the seconds of a step by the roofline (n,), and the columns that correct it."""
    # Devices of a CPU are cores of one machine, others are chips of their own.
    chips = np.where(table.text("platform.name") == "cpu", 1.0, table.number("devices"))
    work = (table.costs / table.peaks)[:, :2].T / chips / np.array([[_FLOPS_EFFICIENCY], [_BYTES_EFFICIENCY]])
    dispatch = np.array([_DISPATCH.get(name, _DISPATCH["graph"]) for name in table.text("compile")])
    dispatch = dispatch * (table.layers + 1) / np.where(table.text("mode") == "inference", 3.0, 1.0)
    parts = np.vstack([work, dispatch])
    total = parts.sum(axis=0)
    sizes = _sizes(table)
    terms = [("share", share) for share in parts / total] + [("slope", size) for size in sizes]
    terms += [("bend", one * other) for one, other in combinations_with_replacement(sizes, 2)]
    columns: dict[Hashable, tuple[Array, float]] = {}
    for index, (kind, term) in enumerate(terms):
        common, own = _SPREADS[kind]
        columns[kind, index] = term, common
        for family, on in _levels(table.families):
            columns[kind, index, family] = on * term, own
    return np.log(total) + _LOAD_POWER * _crowding(table), columns | _groups(table)


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
    for levels in (*words, variants, table.environments, table.sessions):
        for level, on in _levels(levels):
            columns["group", level] = on, _SPREADS["group"][0]
    return columns


def _levels(levels: Sequence[Hashable]) -> Iterator[tuple[Hashable, Array]]:
    """The commonest levels with the indicator of each; None is no level."""
    counts = Counter(level for level in levels if level is not None)
    codes = {level: code for code, level in enumerate(counts)}
    column = np.array([codes.get(level, -1) for level in levels])
    for level, _ in counts.most_common(_MOST_LEVELS):
        yield level, (column == codes[level]).astype(float)
