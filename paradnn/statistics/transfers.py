"""Fits of message time over message size by one line or several.

The line is t = alpha + beta n for n bytes. alpha is a start-up time and 1 / beta a bandwidth
(Hockney, Parallel Computing 20, 1994). In the LogGP model (Alexandrov et al., SPAA 1995), beta = G
and alpha = L + 2o - G for one message. Libraries change the protocol between small, medium and
large messages. Then a line holds between two sizes, and the next line has another alpha.

Runs of one size, or of one session, are not independent measurements of a line. All runs of a size
share its deviation from the line, and a session shifts all sizes. So each size counts once, however
often it was measured. If several sessions measured the same sizes, their scatter is added to every
interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from paradnn.core.errors import InsufficientData
from paradnn.statistics.dependence import Component
from paradnn.statistics.estimate import Estimate
from paradnn.statistics.lazy import np, pd, stats

#: Minimum number of distinct sizes of a piece, for a line and its residual variance.
MIN_SIZES = 4
#: Maximum number of pieces (NCCL has three protocols and two algorithms), and of sizes that are
#: tried as a break.
_MAX_PIECES = 6
_MAX_BREAKS = 48
#: Significance level of a break, over all places and numbers of pieces that are tried.
_BREAK_LEVEL = 0.01
#: Number of rounds of reweighting by the fit.
_ROUNDS = 3
#: Squared relative errors below this value are rounding errors.
_EXACT = 1e-18


class _Shared(NamedTuple):
    """Variance that sessions add to every relative time.

    Attributes:
        variance: The variance of a mean over the sessions.
        within: The part of `variance` that the scatter within sessions explains.
        freedom: Degrees of freedom of `variance`.
    """

    variance: float = 0.0
    within: float = 0.0
    freedom: float = 1.0


class Piece(NamedTuple):
    """A line that holds for a range of message sizes.

    Intervals are 95%, over sizes, and over sessions if there are several.

    Attributes:
        first: Smallest size in bytes.
        last: Largest size in bytes.
        measurements: Number of measured times.
        start_up: The line at 0 bytes, in us; at least 0 for the first piece.
        per_byte: Slope in us/byte, at least 0.
    """

    first: float
    last: float
    measurements: int
    start_up: Estimate
    per_byte: Estimate

    @property
    def bandwidth(self) -> Estimate:
        """Bandwidth in bytes/s; infinite if the time does not grow with the size."""
        value, low, high = (1e6 / each if each > 0 else math.inf for each in self.per_byte)
        return Estimate(value, high, low)

    def at(self, sizes: np.typing.ArrayLike) -> np.ndarray:
        """Return the time in us of messages of the given sizes.

        Args:
            sizes: Sizes in bytes.
        """
        return np.asarray(
            self.start_up.value + self.per_byte.value * np.asarray(sizes, dtype="float64")
        )


@dataclass(frozen=True)
class TransferFit:
    """Fit of message times by pieces.

    Attributes:
        pieces: The pieces, in the order of sizes.
        line: The fit of a single line to all sizes.
        errors: (n,) |measured / fitted - 1| of the pieces.
        line_errors: (n,) the same for the single line.
    """

    pieces: tuple[Piece, ...]
    line: Piece
    errors: np.ndarray
    line_errors: np.ndarray

    @property
    def breaks(self) -> tuple[float, ...]:
        """Sizes in bytes at which the next line begins."""
        return tuple(piece.first for piece in self.pieces[1:])

    @property
    def latency(self) -> Estimate:
        """Time in us of the shortest messages, which is the start-up of the first piece."""
        return self.pieces[0].start_up

    @property
    def bandwidth(self) -> Estimate:
        """Bandwidth in bytes/s of the longest messages, which is that of the last piece."""
        return self.pieces[-1].bandwidth


def fit_transfers(
    sizes: np.typing.ArrayLike,
    times: np.typing.ArrayLike,
    sessions: np.typing.ArrayLike | None = None,
) -> TransferFit:
    """Fit lines through message times by least squares of the relative error.

    A further piece is accepted only if it explains more than chance would. The test is an F test of
    its three numbers (alpha, beta and the break) at 1%, over all places that were tried.

    Args:
        sizes: (n,) sizes in bytes.
        times: (n,) times in us.
        sessions: (n,) labels of sessions. Runs without a label share one session.

    Raises:
        InsufficientData: If there are fewer than four distinct sizes.
    """
    runs = pd.DataFrame({"size": np.asarray(sizes, float), "us": np.asarray(times, float)})
    runs["session"] = ""
    if sessions is not None:
        labels = pd.Series(np.asarray(sessions, dtype=object))
        runs["session"] = labels.fillna("").astype(str)
    runs = runs.assign(log=np.log(runs["us"])).sort_values("size", kind="stable")
    all_x = runs["size"].to_numpy()
    all_y = runs["us"].to_numpy()
    means = runs.groupby("size")["log"].mean()
    x = means.index.to_numpy(dtype=float)
    y = np.exp(means.to_numpy())
    if len(x) < MIN_SIZES:
        raise InsufficientData(f"{len(x)} sizes of messages; a fit takes {MIN_SIZES}")
    shared = _shared(runs)
    edges = _edges(x)

    def piece(part: slice) -> Piece:
        count = int(np.isin(all_x, x[part]).sum())
        return _piece(x[part], y[part], shared, is_first=part.start == 0, measurements=count)

    pieces = [
        piece(slice(edges[low], edges[high])) for low, high in _choose(_costs(x, y, edges), len(x))
    ]
    line = piece(slice(0, len(x)))
    errors = (np.abs(all_y / predicted_times(each, all_x) - 1) for each in (pieces, [line]))
    return TransferFit(tuple(pieces), line, *errors)


def predicted_times(pieces: Sequence[Piece], sizes: np.typing.ArrayLike) -> np.ndarray:
    """Return the predicted time in us of messages of the given sizes.

    Args:
        pieces: The pieces, in the order of sizes.
        sizes: Sizes in bytes.
    """
    given = np.asarray(sizes, dtype="float64")
    which = np.searchsorted([each.first for each in pieces[1:]], given, side="right")
    return np.asarray(np.choose(which, [each.at(given) for each in pieces]))


def _shared(runs: pd.DataFrame) -> _Shared:
    """Estimate the variance that sessions add, over the sizes that all sessions measured.

    It is 0 for a single session, or without such a size.
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
    """List the indices of the ordered sizes at which a piece may begin or end.

    If there are many sizes, the indices are spread evenly over the logarithm of the size.
    """
    chosen = np.arange(len(x))
    if len(x) > _MAX_BREAKS:
        wanted = np.geomspace(x[0] or 1.0, x[-1], _MAX_BREAKS)
        chosen = np.unique(np.searchsorted(x, wanted))
    return [*chosen.tolist(), len(x)]


def _costs(x: np.ndarray, y: np.ndarray, edges: list[int]) -> np.ndarray:
    """Return (edges, edges) sums of squared relative errors of a line from one edge to a later one.

    The sum is infinite if there are too few sizes between the edges.
    """
    costs = np.full((len(edges), len(edges)), np.inf)
    for low, begin in enumerate(edges):
        for high in range(low + 1, len(edges)):
            part = slice(begin, edges[high])
            if len(x[part]) >= MIN_SIZES:
                alpha, beta = _line(x[part], y[part], y[part], is_first=begin == 0)
                costs[low, high] = np.sum(((alpha + beta * x[part]) / y[part] - 1) ** 2)
    return costs


def _choose(costs: np.ndarray, count: int) -> list[tuple[int, int]]:
    """Choose the edges of the pieces; add a piece if it explains more than chance would.

    Args:
        costs: (edges, edges) the costs from `_costs`.
        count: Number of sizes.

    Returns:
        The first edge and the end edge of each piece.
    """
    last = len(costs) - 1
    chosen = 0
    # For each number of pieces: the least cost up to each edge, and the previous edge with which it
    # is reached.
    best = [costs[0]]
    before = []
    for _ in range(_MAX_PIECES - 1):
        ways = best[-1][:, None] + costs
        best.append(ways.min(axis=0))
        before.append(ways.argmin(axis=0))
    for number in range(1, _MAX_PIECES):
        freedom = count - 3 * number - 2
        more_numbers = 3 * (number - chosen)
        fewer = best[chosen][last]
        more = best[number][last]
        if freedom < 1 or not np.isfinite(more):
            break
        ratio = (fewer - more) / more_numbers / max(more / freedom, _EXACT)
        # A break may be at any edge, so the number of tests is the number of choices of edges.
        tried = math.comb(last, number) / math.comb(last, chosen)
        if stats.f.sf(ratio, more_numbers, freedom) * tried < _BREAK_LEVEL / (_MAX_PIECES - 1):
            chosen = number
    edges = [last]
    for back in reversed(before[:chosen]):
        edges.insert(0, int(back[edges[0]]))
    return list(pairwise([0, *edges]))


def _line(
    x: np.ndarray, y: np.ndarray, scale: np.ndarray, *, is_first: bool
) -> tuple[float, float]:
    """Fit alpha and beta by least squares of (y - alpha - beta x) / scale.

    beta is at least 0, and so is alpha of the first piece.
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
    x: np.ndarray, y: np.ndarray, shared: _Shared, *, is_first: bool, measurements: int
) -> Piece:
    """Fit a line and its intervals.

    The weights come from the fitted times. Weights from the measured times would favor times that
    were short by chance.
    """
    alpha, beta = _line(x, y, y, is_first=is_first)
    scale = y
    for _ in range(_ROUNDS):
        fitted = alpha + beta * x
        scale = fitted if (fitted > 0).all() else y
        alpha, beta = _line(x, y, scale, is_first=is_first)
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
    """Return the half width of a coefficient's 95% interval.

    Args:
        value: The coefficient.
        own: Its variance over sizes.
        freedom: Degrees of freedom of `own`.
        shared: Relative variance from sessions.
    """
    sessions = value**2 * shared.variance
    variance = max(own + sessions - value**2 * shared.within, own)
    if variance > own:
        freedom = variance**2 / (own**2 / freedom + sessions**2 / shared.freedom)
    return float(Component(variance, freedom).half_width)
