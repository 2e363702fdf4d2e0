"""What messages cost by their size: a line, t = alpha + beta n, or several where a protocol
changes.

alpha is a start-up time and 1 / beta a bandwidth (Hockney, Parallel Computing 20, 1994). In the
LogGP model (Alexandrov et al., SPAA 1995) alpha = L + 2o - G and beta = G of one message. Libraries
send small, middling and large messages by other protocols: then a line holds between two sizes, and
the next begins with another alpha.

Runs of one size, and of one session, are no independent measurements of a line: what a size has of
its own all runs of it have, and a session shifts all sizes. So a size counts once, however often it
was measured, and the scatter of sessions is added to every interval where several measured the same
sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from paradnn.core.errors import NotEnoughData
from paradnn.statistics.dependence import Component
from paradnn.statistics.estimate import Estimate
from paradnn.statistics.lazy import np, pd, stats

#: Distinct sizes of a piece, at least: a line and what it does not explain.
FEWEST = 4
#: Pieces at most (NCCL has three protocols and two algorithms), and sizes that are tried as a break
#: of many.
_MOST_PIECES = 6
_MOST_BREAKS = 48
#: How improbable any break must be by chance, over all places and numbers of pieces that are tried.
_BREAK_LEVEL = 0.01
#: Rounds in which the weights follow the fit.
_ROUNDS = 3
#: Squared relative errors below which numbers agree but for their rounding.
_EXACT = 1e-18


class _Shared(NamedTuple):
    """What sessions add to the relative variance of every time, and its degrees of freedom;
    `within`, the part of it that the scatter within sessions explains.
    """

    variance: float = 0.0
    within: float = 0.0
    freedom: float = 1.0


class Piece(NamedTuple):
    """A line that holds for messages of `first` to `last` bytes.

    `start_up` in us: the line at 0 bytes, of the first piece no less than 0. `per_byte` in us, no
    less than 0, with 95% intervals: over sizes, and over sessions where there are several.
    """

    first: float
    last: float
    measurements: int
    start_up: Estimate
    per_byte: Estimate

    @property
    def bandwidth(self) -> Estimate:
        """Bytes a second; infinite where time does not grow with size."""
        value, low, high = (1e6 / each if each > 0 else math.inf for each in self.per_byte)
        return Estimate(value, high, low)

    def at(self, sizes: np.typing.ArrayLike) -> np.ndarray:
        """us of messages of so many bytes."""
        return np.asarray(
            self.start_up.value + self.per_byte.value * np.asarray(sizes, dtype="float64")
        )


@dataclass(frozen=True)
class TransferFit:
    """Pieces in the order of sizes. `errors` (n,) are |measured / fitted - 1|, `line_errors` those
    of a single line.
    """

    pieces: tuple[Piece, ...]
    line: Piece
    errors: np.ndarray
    line_errors: np.ndarray

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


def fit_transfers(
    sizes: np.typing.ArrayLike,
    times: np.typing.ArrayLike,
    sessions: np.typing.ArrayLike | None = None,
) -> TransferFit:
    """Lines through `times` (n,) in us of messages of `sizes` (n,) in bytes, by least squares of
    the relative error.

    Each further piece must explain more than chance would (an F test of its three numbers, alpha,
    beta and the break, over all places that were tried, 1%). `sessions`: n labels. NotEnoughData
    for fewer than four sizes.
    """
    runs = pd.DataFrame({"size": np.asarray(sizes, float), "us": np.asarray(times, float)})
    # Runs without a session are of one together.
    runs["session"] = (
        ""
        if sessions is None
        else pd.Series(np.asarray(sessions, dtype=object)).fillna("").astype(str)
    )
    runs = runs.assign(log=np.log(runs["us"])).sort_values("size", kind="stable")
    all_x = runs["size"].to_numpy()
    all_y = runs["us"].to_numpy()
    means = runs.groupby("size")["log"].mean()
    x = means.index.to_numpy(dtype=float)
    y = np.exp(means.to_numpy())
    if len(x) < FEWEST:
        raise NotEnoughData(f"{len(x)} sizes of messages; a fit takes {FEWEST}")
    shared = _shared(runs)
    edges = _edges(x)

    def piece(part: slice) -> Piece:
        count = int(np.isin(all_x, x[part]).sum())
        return _piece(x[part], y[part], shared, part.start == 0, count)

    pieces = [
        piece(slice(edges[low], edges[high])) for low, high in _choose(_costs(x, y, edges), len(x))
    ]
    line = piece(slice(0, len(x)))
    errors = (np.abs(all_y / fitted(each, all_x) - 1) for each in (pieces, [line]))
    return TransferFit(tuple(pieces), line, *errors)


def fitted(pieces: Sequence[Piece], sizes: np.typing.ArrayLike) -> np.ndarray:
    """us of messages of so many bytes."""
    given = np.asarray(sizes, dtype="float64")
    which = np.searchsorted([each.first for each in pieces[1:]], given, side="right")
    return np.asarray(np.choose(which, [each.at(given) for each in pieces]))


def _shared(runs: pd.DataFrame) -> _Shared:
    """What sessions have in common, over the sizes that all measured; nothing of one alone, or
    without such a size.
    """
    cells = runs.groupby(["size", "session"])["log"].mean().unstack("session").dropna().to_numpy()
    count, several = cells.shape
    if several < 2 or count < 1:
        return _Shared()
    means = cells.mean(axis=0)
    left = cells - cells.mean(axis=1, keepdims=True) - means + means.mean()
    if count > 1:
        within = float((left**2).sum()) / ((count - 1) * (several - 1)) / count
    else:
        within = 0.0
    return _Shared(float(means.var(ddof=1)) / several, within / several, several - 1.0)


def _edges(x: np.ndarray) -> list[int]:
    """Where a piece may begin or end, as places in the ordered sizes: spread evenly over their
    logarithms.
    """
    chosen = np.arange(len(x))
    if len(x) > _MOST_BREAKS:
        wanted = np.geomspace(x[0] or 1.0, x[-1], _MOST_BREAKS)
        chosen = np.unique(np.minimum(np.searchsorted(x, wanted), len(x) - 1))
    return [*chosen.tolist(), len(x)]


def _costs(x: np.ndarray, y: np.ndarray, edges: list[int]) -> np.ndarray:
    """(edges, edges) sums of squared relative errors of a line from one edge to a later one;
    infinite where none is.
    """
    costs = np.full((len(edges), len(edges)), np.inf)
    for low, begin in enumerate(edges):
        for high in range(low + 1, len(edges)):
            part = slice(begin, edges[high])
            if len(x[part]) >= FEWEST:
                alpha, beta = _line(x[part], y[part], y[part], begin == 0)
                costs[low, high] = np.sum(((alpha + beta * x[part]) / y[part] - 1) ** 2)
    return costs


def _choose(costs: np.ndarray, count: int) -> list[tuple[int, int]]:
    """The edges of the pieces: one more as long as it explains more than chance would."""
    last = len(costs) - 1
    chosen = 0
    # Of each number of pieces the least cost up to an edge, and the edge before, for which it is
    # the least.
    best = [costs[0]]
    before = []
    for _ in range(_MOST_PIECES - 1):
        ways = best[-1][:, None] + costs
        best.append(ways.min(axis=0))
        before.append(ways.argmin(axis=0))
    for number in range(1, _MOST_PIECES):
        freedom = count - 3 * number - 2
        more_numbers = 3 * (number - chosen)
        fewer = best[chosen][last]
        more = best[number][last]
        if freedom < 1 or not np.isfinite(more):
            break
        ratio = (fewer - more) / more_numbers / max(more / freedom, _EXACT)
        # A break may stand at any edge: so many tests.
        tried = math.comb(last, number) / math.comb(last, chosen)
        if stats.f.sf(ratio, more_numbers, freedom) * tried < _BREAK_LEVEL / (_MOST_PIECES - 1):
            chosen = number
    edges = [last]
    for back in reversed(before[:chosen]):
        edges.insert(0, int(back[edges[0]]))
    return list(pairwise([0, *edges]))


def _line(x: np.ndarray, y: np.ndarray, scale: np.ndarray, is_first: bool) -> tuple[float, float]:
    """alpha and beta with the least squares of (y - alpha - beta x) / scale; neither below 0 where
    it cannot be.
    """
    unit = max(float(x.max()), 1.0)
    design = np.column_stack([1 / scale, x / unit / scale])
    (alpha, beta), *_ = np.linalg.lstsq(design, y / scale, rcond=None)
    if beta < 0:
        return float(np.sum(y / scale**2) / np.sum(1 / scale**2)), 0.0
    if alpha < 0 and is_first:
        return 0.0, float(np.sum(x * y / scale**2) / np.sum((x / scale) ** 2))
    return float(alpha), float(beta / unit)


def _piece(
    x: np.ndarray, y: np.ndarray, shared: _Shared, is_first: bool, measurements: int
) -> Piece:
    """The line with intervals; weights follow the fit, since those of measured times favour what
    was fast by chance.
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
    own = np.diag(np.linalg.pinv(design.T @ design)) * variance / (1.0, unit**2)
    reaches = [
        _reach(value, each, freedom, shared) for value, each in zip((alpha, beta), own, strict=True)
    ]
    low = max(0.0, alpha - reaches[0]) if is_first else alpha - reaches[0]
    start_up = Estimate(alpha, low, alpha + reaches[0])
    per_byte = Estimate(beta, max(0.0, beta - reaches[1]), beta + reaches[1])
    return Piece(float(x[0]), float(x[-1]), measurements, start_up, per_byte)


def _reach(value: float, own: float, freedom: float, shared: _Shared) -> float:
    """From a coefficient to either end of its 95% interval; `own` is its variance over sizes."""
    sessions = value**2 * shared.variance
    variance = max(own + sessions - value**2 * shared.within, own)
    if variance > own:
        freedom = variance**2 / (own**2 / freedom + sessions**2 / shared.freedom)
    return float(Component(variance, freedom).half_width)
