"""The time of a message as a line in its size, t = alpha + beta n, or as several where a protocol changes.

alpha is a start-up time and 1 / beta a bandwidth (Hockney, Parallel Computing 20, 1994). In the LogGP model (Alexandrov
et al., SPAA 1995) alpha = L + 2o - G and beta = G of one message. Libraries send small, middling and large messages by
other protocols: then a line holds between two sizes, and the next begins with another alpha.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from paradnn.errors import NotEnoughData
from paradnn.forecast.communication.repeats import LineError, Shared, by_size, shared_by_sessions
from paradnn.forecast.estimate import Estimate

__all__ = ["FEWEST", "Piece", "TransferFit", "fit_transfers"]

Array = NDArray[np.float64]
#: The least cost up to an edge, and the pieces that have it.
_Best = dict[int, tuple[float, tuple[tuple[int, int], ...]]]

#: Distinct sizes of a piece, at least: a line and what it does not explain.
FEWEST = 4
#: Pieces at most (NCCL has three protocols and two algorithms), and sizes that are tried as a break of many.
_MOST_PIECES, _MOST_BREAKS = 6, 48
#: How improbable any break must be by chance, over all places and numbers of pieces that are tried.
_LEVEL = 0.01
#: Rounds in which the weights follow the fit.
_ROUNDS = 3
#: Squared relative errors below which numbers agree but for their rounding.
_EXACT = 1e-18


@dataclass(frozen=True)
class Piece:
    """A line that holds for messages of `first` to `last` bytes.

    `start_up` in us: the line at 0 bytes, of the first piece no less than 0. `per_byte` in us, no less than 0, with
    95% intervals by `error`: over sizes, and over sessions where there are several.
    """

    first: float
    last: float
    measurements: int
    start_up: Estimate
    per_byte: Estimate
    error: LineError

    @property
    def bandwidth(self) -> Estimate:
        """Bytes a second; infinite where time does not grow with size."""
        value, low, high = (1e6 / each if each > 0 else math.inf for each in self.per_byte)
        return Estimate(value, high, low)

    def at(self, sizes: ArrayLike) -> Array:
        """us of messages of so many bytes."""
        return np.asarray(self.start_up.value + self.per_byte.value * np.asarray(sizes, dtype="float64"))

    def reach(self, size: float) -> float:
        """us from the line at a size to either end of its 95% interval."""
        return self.error.reach(1.0, size, float(self.at(size)))


@dataclass(frozen=True)
class TransferFit:
    """Pieces in the order of sizes, and the one line through all.

    `errors` (n,) of the runs in the order of their sizes are |measured / fitted - 1|, `line_errors` the same of the one
    line.
    """

    pieces: tuple[Piece, ...]
    line: Piece
    errors: Array
    line_errors: Array

    def at(self, sizes: ArrayLike) -> Array:
        """us of messages of so many bytes: between two pieces those below the next one's first size count as before."""
        given = np.asarray(sizes, dtype="float64")
        which = np.searchsorted([piece.first for piece in self.pieces[1:]], given, side="right")
        return np.choose(which, [piece.at(given) for piece in self.pieces])

    @property
    def breaks(self) -> tuple[float, ...]:
        """Bytes from which on another line holds."""
        return tuple(piece.first for piece in self.pieces[1:])

    @property
    def latency(self) -> Estimate:
        """us of the shortest messages: the first piece's start-up."""
        return self.pieces[0].start_up

    @property
    def bandwidth(self) -> Estimate:
        """Bytes a second of the longest messages: the last piece's."""
        return self.pieces[-1].bandwidth


def fit_transfers(sizes: ArrayLike, times: ArrayLike, sessions: ArrayLike | None = None) -> TransferFit:
    """Lines through `times` (n,) in us of messages of `sizes` (n,) in bytes, by least squares of the relative error.

    Sizes count alike, however often each was measured, and in which `sessions` (n labels): see `repeats`. Each further
    piece must explain more than chance would (an F test of its three numbers, alpha, beta and the break, over all
    places that were tried, 1%). NotEnoughData for fewer than four sizes.
    """
    order = np.argsort(sizes, kind="stable")
    all_x, all_y = (np.asarray(values, dtype="float64")[order] for values in (sizes, times))
    x, y = by_size(all_x, all_y)
    if len(x) < FEWEST:
        raise NotEnoughData(f"{len(x)} sizes of messages; a fit takes {FEWEST}")
    shared = shared_by_sessions(sizes, times, sessions)
    edges = _edges(x)
    costs = _costs(x, y, edges)
    chosen = _choose(costs, len(x))
    places = [(edges[low], edges[high]) for low, high in chosen]
    pieces = tuple(_piece(x[low:high], y[low:high], shared, low == 0, all_x) for low, high in places)
    line = _piece(x, y, shared, True, all_x)
    fit = TransferFit(pieces, line, np.empty(0), np.empty(0))
    return TransferFit(pieces, line, np.abs(all_y / fit.at(all_x) - 1), np.abs(all_y / line.at(all_x) - 1))


def _edges(x: Array) -> list[int]:
    """Where a piece may begin or end, as places in the ordered sizes: spread evenly over their logarithms."""
    distinct = np.unique(x)
    if len(distinct) > _MOST_BREAKS:
        wanted = np.geomspace(distinct[0] or 1.0, distinct[-1], _MOST_BREAKS)
        distinct = np.unique(distinct[np.minimum(np.searchsorted(distinct, wanted), len(distinct) - 1)])
    return [*np.unique(np.searchsorted(x, distinct)).tolist(), len(x)]


def _costs(x: Array, y: Array, edges: list[int]) -> Array:
    """(edges, edges) sums of squared relative errors of a line from one edge to a later one; infinite where none is."""
    costs = np.full((len(edges), len(edges)), np.inf)
    for low, begin in enumerate(edges):
        for high in range(low + 1, len(edges)):
            part = slice(begin, edges[high])
            if len(np.unique(x[part])) >= FEWEST:
                alpha, beta = _line(x[part], y[part], y[part], begin == 0)
                costs[low, high] = np.sum(((alpha + beta * x[part]) / y[part] - 1) ** 2)
    return costs


def _choose(costs: Array, count: int) -> list[tuple[int, int]]:
    """The edges of the pieces: one more as long as it explains more than chance would."""
    last = len(costs) - 1
    best: list[_Best] = [{place: (costs[0, place], ((0, place),)) for place in range(1, last + 1)}]
    for _ in range(_MOST_PIECES - 1):
        best.append(
            {
                place: min(
                    (before + costs[middle, place], (*pieces, (middle, place)))
                    for middle, (before, pieces) in best[-1].items()
                    if middle < place
                )
                for place in range(2, last + 1)
                if any(middle < place for middle in best[-1])
            }
        )
    chosen = 0
    for number in range(1, _MOST_PIECES):
        if last not in best[number]:
            break
        fewer, more = best[chosen][last][0], best[number][last][0]
        freedom, further = count - 3 * number - 2, 3 * (number - chosen)
        if freedom < 1 or not np.isfinite(more):
            break
        ratio = (fewer - more) / further / max(more / freedom, _EXACT)
        # A break may stand at any edge: so many tests.
        tried = math.comb(last, number) / math.comb(last, chosen)
        if stats.f.sf(ratio, further, freedom) * tried < _LEVEL / (_MOST_PIECES - 1):
            chosen = number
    return list(best[chosen][last][1])


def _line(x: Array, y: Array, scale: Array, is_first: bool) -> tuple[float, float]:
    """alpha and beta with the least squares of (y - alpha - beta x) / scale; neither below 0 where it cannot be."""
    unit = max(float(x.max()), 1.0)
    design = np.column_stack([1 / scale, x / unit / scale])
    (alpha, beta), *_ = np.linalg.lstsq(design, y / scale, rcond=None)
    if beta < 0:
        return float(np.sum(y / scale**2) / np.sum(1 / scale**2)), 0.0
    if alpha < 0 and is_first:
        return 0.0, float(np.sum(x * y / scale**2) / np.sum((x / scale) ** 2))
    return float(alpha), float(beta / unit)


def _piece(x: Array, y: Array, shared: Shared, is_first: bool, measured: Array) -> Piece:
    """The line with intervals; weights follow the fit, since those of measured times favour what was fast by chance.

    `measured` are the sizes of all runs.
    """
    alpha, beta = _line(x, y, y, is_first)
    scale = y
    for _ in range(_ROUNDS):
        fitted = alpha + beta * x
        scale = fitted if (fitted > 0).all() else y
        alpha, beta = _line(x, y, scale, is_first)
    unit = max(float(x.max()), 1.0)
    design = np.column_stack([1 / scale, x / unit / scale])
    freedom = max(len(x) - 2, 1)
    variance = np.sum(((y - alpha - beta * x) / scale) ** 2) / freedom
    error = LineError(unit, np.linalg.pinv(design.T @ design) * variance, freedom, shared)
    reach = error.reach(1.0, 0.0, alpha), error.reach(0.0, 1.0, beta)
    start_up = Estimate(alpha, alpha - reach[0], alpha + reach[0])
    if is_first:
        start_up = Estimate(alpha, max(0.0, start_up.low), start_up.high)
    per_byte = Estimate(beta, max(0.0, beta - reach[1]), beta + reach[1])
    runs = int(np.isin(measured, x).sum())
    return Piece(float(x[0]), float(x[-1]), runs, start_up, per_byte, error)
