"""From tables to the columns of a regression, each with the spread that its coefficient has before any data.

The step time is held against the roofline with a stated efficiency: FLOPs at half of the peak, bytes at 0.4 of the
bandwidth, and a dispatch time for every layer. Data correct that: how efficient a family is where arithmetic, memory
or dispatch is the limit, how it bends with size, how compile modes, frameworks, environments and sessions differ. The
spreads are such that without data a step is known to a factor of three or so (95%).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradnn.forecast.table import PLANNED, Table

__all__ = ["Peaks", "overhead_design", "step_design"]

Array = NDArray[np.float64]
Words = NDArray[np.object_]

#: Shares of peak and bandwidth that a step reaches where nothing is known of it.
FLOPS_EFFICIENCY, BYTES_EFFICIENCY = 0.5, 0.4
#: Seconds of dispatch for each layer of a training step, by compile mode; a forward pass takes a third.
DISPATCH = {"eager": 2e-3, "graph": 2e-4, "xla": 1.2e-4}
_FORWARD_SHARE = 0.35
#: A host with more runnable threads than cores is slower by more than their ratio: operations wait for their slowest.
LOAD_POWER, _OVERHEAD_LOAD_POWER = 1.6, 0.6
#: A sweep alone on its host shows a load of its cores and a little more.
_OWN_LOAD = 1.25
_SPREADS = {
    "share": 0.4,
    "slope": 0.07,
    "bend": 0.03,
    "family share": 0.3,
    "family slope": 0.08,
    "family bend": 0.05,
    "key": 0.15,
    "family": 0.25,
    "word": 0.25,
    "cell": 0.2,
    "environment": 0.2,
    "session": 0.22,
    "load": 0.4,
}
#: The sizes' logarithms are taken about a typical model.
_TYPICAL = {"flops": 9.0, "bytes": 8.0, "parameters": 6.0, "layers": 1.0, "batch": 2.0}
#: Levels of a key beyond the commonest so many share one.
_MOST_LEVELS = 24


@dataclass(frozen=True)
class Peaks:
    """What the platform of each point can do at most, in FLOP/s and B/s, and its cores."""

    flops: Array
    bytes: Array
    cores: Array


@dataclass(frozen=True)
class Design:
    """What a regression needs: columns (points, m) of runs and of points, spreads (m,), and where to start from."""

    runs: Array
    points: Array
    prior: Array
    runs_base: Array
    points_base: Array


class _Columns:
    """Columns of two tables at once, so that a coefficient means the same in both."""

    def __init__(self, runs: Table, points: Table) -> None:
        self._cut = len(runs)
        self._columns: list[Array] = []
        self._prior: list[float] = []

    def add(self, column: Array, kind: str) -> None:
        """One column; what is all zero says nothing."""
        if np.any(column):
            self._columns.append(column)
            self._prior.append(_SPREADS[kind])

    def levels(self, words: Words, kind: str) -> None:
        """A column for each level, where there are several."""
        for on in _levels(words):
            self.add(on, kind)

    def design(self, base: Array) -> Design:
        matrix = np.stack(self._columns, axis=1) if self._columns else np.zeros((len(base), 0))
        cut = self._cut
        return Design(matrix[:cut], matrix[cut:], np.array(self._prior), base[:cut], base[cut:])


def step_design(runs: Table, points: Table, peaks: Peaks, load: Array) -> Design:
    """The design of the logarithm of the step's seconds; `peaks` and `load` hold runs and points in this order."""
    columns = _Columns(runs, points)
    parts = _parts(runs, points, peaks)
    total = sum(parts)
    shares = [part / total for part in parts]
    crowded = _crowded(load, peaks)
    families = _both(runs, points, "family")
    sizes = _sizes(runs, points)
    for share in shares:
        columns.add(share, "share")
    for size in sizes:
        columns.add(size, "slope")
    bends = [one * other for one, other in combinations_with_replacement(sizes, 2)]
    for bend in bends:
        columns.add(bend, "bend")
    for family in dict.fromkeys(families):
        on = (families == family).astype(float)
        for share in shares:
            columns.add(on * share, "family share")
        for size in sizes:
            columns.add(on * size, "family slope")
        for bend in bends:
            columns.add(on * bend, "family bend")
        for key in runs.numbers:
            columns.add(on * _centred(np.concatenate([runs.numbers[key], points.numbers[key]])), "key")
    columns.add(crowded, "load")
    _groups(columns, runs, points)
    return columns.design(np.log(total) + LOAD_POWER * crowded)


def overhead_design(runs: Table, points: Table, base: Array, peaks: Peaks, load: Array) -> Design:
    """The design of the logarithm of a phase that grows with the model and not with the step, from a `base`."""
    columns = _Columns(runs, points)
    sizes = _sizes(runs, points)
    columns.add(np.ones(len(base)), "share")
    for size in sizes:
        columns.add(size, "slope")
    families = _both(runs, points, "family")
    for on in _levels(families):
        columns.add(on, "family")
        columns.add(on * sizes[3], "key")  # with its layers
    columns.levels(np.concatenate([runs.profiled, points.profiled]).astype(str).astype(object), "word")
    crowded = _crowded(load, peaks)
    columns.add(crowded, "load")
    _groups(columns, runs, points)
    return columns.design(np.log(base) + _OVERHEAD_LOAD_POWER * crowded)


def _crowded(load: Array, peaks: Peaks) -> Array:
    """The logarithm of how many more threads than cores want to run; 0 where the load is unknown."""
    return np.asarray(np.log(np.fmax(1.0, load / (_OWN_LOAD * peaks.cores))))


def _parts(runs: Table, points: Table, peaks: Peaks) -> tuple[Array, Array, Array]:
    """Seconds of arithmetic, of traffic and of dispatch."""
    compile, mode = _word(runs, points, "compile"), _word(runs, points, "mode")
    dispatch = np.array([DISPATCH.get(str(name), DISPATCH["graph"]) for name in compile], dtype=float)
    dispatch *= np.where(mode == "inference", _FORWARD_SHARE, 1.0) * (_both(runs, points, "layers") + 1)
    return (
        _both(runs, points, "flops") / (FLOPS_EFFICIENCY * peaks.flops),
        _both(runs, points, "bytes") / (BYTES_EFFICIENCY * peaks.bytes),
        dispatch,
    )


def _groups(columns: _Columns, runs: Table, points: Table) -> None:
    """What differs between groups of points: each word, all words with the family together, environment, session."""
    words = {key: np.concatenate([runs.words[key], points.words[key]]) for key in runs.words}
    varying = {key: column for key, column in words.items() if len(set(column)) > 1}
    for column in varying.values():
        columns.levels(column, "word")
    cells = np.empty(len(runs) + len(points), dtype=object)
    cells[:] = list(zip(_both(runs, points, "family"), *varying.values(), strict=True))
    columns.levels(cells, "cell")
    columns.levels(_both(runs, points, "environment"), "environment")
    sessions = _both(runs, points, "session")
    planned = sessions == PLANNED
    sessions[planned] = None
    columns.levels(sessions, "session")
    columns.add(planned.astype(float), "session")


def _levels(words: Words) -> list[Array]:
    """Indicators of the levels, the rare ones of very many as one; of a single level none is needed."""
    counts = Counter(word for word in words if word is not None)
    if len(counts) < (1 if None in set(words) else 2):
        return []
    ordered = [word for word, _ in counts.most_common()]
    numbers = {word: min(index, _MOST_LEVELS) for index, word in enumerate(ordered)}
    codes = np.array([numbers.get(word, -1) for word in words])
    return [(codes == number).astype(float) for number in range(codes.max() + 1)]


def _sizes(runs: Table, points: Table) -> list[Array]:
    return [np.log10(_both(runs, points, name)) - typical for name, typical in _TYPICAL.items()]


def _centred(values: Array) -> Array:
    """Decimal logarithms of sizes about their mean; 0 where there is none."""
    logs = np.log10(np.where(values > 0, values, np.nan))
    known = np.isfinite(logs)
    return np.where(known, logs - logs[known].mean(), 0.0) if known.any() else np.zeros(len(values))


def _word(runs: Table, points: Table, key: str) -> Words:
    empty = np.empty(0, dtype=object)
    return np.concatenate([runs.words.get(key, empty), points.words.get(key, empty)])


def _both(runs: Table, points: Table, name: str) -> NDArray[Any]:
    return np.concatenate([getattr(runs, name), getattr(points, name)])
