"""Piecewise linear fits of message time over message size.

A line is t = alpha + beta n for n bytes. alpha is a start-up time, and 1 / beta is a bandwidth
(Hockney, Parallel Computing 20, 1994). In the LogGP model (Alexandrov et al., SPAA 1995), beta = G
and alpha = L + 2o - G for one message. Libraries use different protocols for small, medium and
large messages, so each range of sizes has a separate line.

Runs of one size, or of one session, are not independent measurements of a line. All runs of a size
share the deviation of this size from the line, and a session shifts all sizes. Each size therefore
counts once, however often it was measured. If several sessions measured the same sizes, the scatter
between sessions is added to every interval.
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

#: Minimum number of distinct sizes in a piece, which a line and its residual variance require.
MIN_SIZES = 4
#: Maximum number of pieces: NCCL has three protocols and two algorithms.
_MAX_PIECES = 6
#: Maximum number of sizes that are tried as a break, where the next piece begins.
_MAX_BREAKS = 48
#: Significance level of a break, corrected for all tried sizes and numbers of pieces.
_BREAK_LEVEL = 0.01
#: Number of iterations. Each iteration weights the sizes by the previous fit.
_ROUNDS = 3
#: Squared relative errors below this value are rounding errors.
_EXACT = 1e-18


class _SessionVariance(NamedTuple):
    """Relative variance that sessions (measurements taken in one go) add to message times.

    Attributes:
        variance: Variance of the mean log time over the sessions.
        within: The part of `variance` that the scatter within sessions explains.
        freedom: Degrees of freedom of `variance`.
    """

    variance: float = 0.0
    within: float = 0.0
    freedom: float = 1.0


class Piece(NamedTuple):
    """Linear fit of message time over message size, for a range of sizes.

    Intervals are 95%. They cover the scatter of sizes, and the scatter of sessions if there are
    several sessions.

    Attributes:
        first: Smallest size in bytes.
        last: Largest size in bytes.
        measurements: Number of measured times.
        start_up: Value of the line at 0 bytes, in us; at least 0 for the first piece.
        per_byte: Slope of the line in us/byte; at least 0.
    """

    first: float
    last: float
    measurements: int
    start_up: Estimate
    per_byte: Estimate

    @property
    def bandwidth(self) -> Estimate:
        """Bandwidth in bytes/s; infinite if the time does not increase with the size."""
        value, low, high = (1e6 / each if each > 0 else math.inf for each in self.per_byte)
        return Estimate(value, high, low)

    def at(self, sizes: np.typing.ArrayLike) -> np.ndarray:
        """Return the fitted times in us of messages of the given sizes.

        Args:
            sizes: Sizes in bytes.
        """
        return np.asarray(
            self.start_up.value + self.per_byte.value * np.asarray(sizes, dtype="float64")
        )


@dataclass(frozen=True)
class TransferFit:
    """Piecewise linear fit of n message times.

    Attributes:
        pieces: The pieces, in the order of sizes.
        line: The fit of a single line to all sizes.
        errors: (n,) |measured / fitted - 1| of each run under the pieces, in the order of sizes.
        line_errors: (n,) |measured / fitted - 1| of each run under the single line.
    """

    pieces: tuple[Piece, ...]
    line: Piece
    errors: np.ndarray
    line_errors: np.ndarray

    @property
    def breaks(self) -> tuple[float, ...]:
        """Sizes in bytes at which a further piece begins."""
        return tuple(piece.first for piece in self.pieces[1:])

    @property
    def latency(self) -> Estimate:
        """Latency in us: the start-up time of the piece with the shortest messages."""
        return self.pieces[0].start_up

    @property
    def bandwidth(self) -> Estimate:
        """Bandwidth in bytes/s of the piece with the longest messages."""
        return self.pieces[-1].bandwidth


def fit_transfers(
    sizes: np.typing.ArrayLike,
    times: np.typing.ArrayLike,
    sessions: np.typing.ArrayLike | None = None,
) -> TransferFit:
    """Fit a piecewise linear function to message times by least squares of the relative errors.

    A further piece is accepted only if an F test of its three parameters (alpha, beta and the
    break) is significant at 1%, corrected for all tried breaks.

    Args:
        sizes: (n,) sizes in bytes.
        times: (n,) times in us.
        sessions: (n,) label of each run's session. Runs without a label form one session. If None,
            all runs are from one session.

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
        raise InsufficientData(
            f"a fit needs at least {MIN_SIZES} message sizes, but the runs have only {len(x)}"
        )
    shared = _session_variance(runs)
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
    """Return the predicted times in us of messages of the given sizes.

    Args:
        pieces: The pieces, in the order of sizes.
        sizes: Sizes in bytes.
    """
    given = np.asarray(sizes, dtype="float64")
    which = np.searchsorted([each.first for each in pieces[1:]], given, side="right")
    return np.asarray(np.choose(which, [each.at(given) for each in pieces]))


def _session_variance(runs: pd.DataFrame) -> _SessionVariance:
    """Estimate the variance that sessions add, from the sizes that all sessions measured.

    The variance is 0 for a single session, or if no size was measured in all sessions.

    Args:
        runs: Runs with `size`, `session` and `log`, the logarithm of the time.
    """
    cells = runs.groupby(["size", "session"])["log"].mean().unstack("session").dropna().to_numpy()
    sizes, sessions = cells.shape
    if sessions < 2 or sizes < 1:
        return _SessionVariance()
    means = cells.mean(axis=0)
    residuals = cells - cells.mean(axis=1, keepdims=True) - means + means.mean()
    if sizes > 1:
        within = float((residuals**2).sum()) / ((sizes - 1) * (sessions - 1)) / sizes
    else:
        within = 0.0
    between = float(means.var(ddof=1))
    return _SessionVariance(between / sessions, within / sessions, sessions - 1.0)


def _edges(x: np.ndarray) -> list[int]:
    """Return the indices of sizes at which a piece of the fit may begin or end, ascending.

    The last index is the number of sizes. If there are more than _MAX_BREAKS sizes, the indices are
    spread evenly over the logarithm of the size.

    Args:
        x: Sorted message sizes in bytes. The indices refer to this array.
    """
    chosen = np.arange(len(x))
    if len(x) > _MAX_BREAKS:
        wanted = np.geomspace(x[0] or 1.0, x[-1], _MAX_BREAKS)
        chosen = np.unique(np.searchsorted(x, wanted))
    return [*chosen.tolist(), len(x)]


def _costs(x: np.ndarray, y: np.ndarray, edges: list[int]) -> np.ndarray:
    """Return the sum of squared relative errors of a line between each pair of edges.

    Args:
        x: (n,) sorted sizes in bytes.
        y: (n,) times in us.
        edges: Indices from `_edges`.

    Returns:
        (edges, edges) sums by first and last edge; infinite if fewer than MIN_SIZES sizes are
        between the edges.
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
    """Choose the pieces of the fit by dynamic programming, with an F test of further breaks.

    Args:
        costs: (edges, edges) sums of squared errors between pairs of edges (`_costs`).
        count: Number of distinct message sizes.

    Returns:
        The first and the last edge of each piece.
    """
    last = len(costs) - 1
    breaks = 0
    # least[b][e] is the smallest cost of b + 1 pieces up to edge e. The last of these pieces begins
    # at edge previous[b - 1][e].
    least = [costs[0]]
    previous = []
    for _ in range(_MAX_PIECES - 1):
        candidates = least[-1][:, None] + costs
        least.append(candidates.min(axis=0))
        previous.append(candidates.argmin(axis=0))
    for number in range(1, _MAX_PIECES):
        freedom = count - 3 * number - 2
        parameters = 3 * (number - breaks)
        fewer_pieces_cost = least[breaks][last]
        cost = least[number][last]
        if freedom < 1 or not np.isfinite(cost):
            break
        ratio = (fewer_pieces_cost - cost) / parameters / max(cost / freedom, _EXACT)
        # Breaks may be at any edges, so correct for the number of choices of `number` edges.
        tests = math.comb(last, number) / math.comb(last, breaks)
        if stats.f.sf(ratio, parameters, freedom) * tests < _BREAK_LEVEL / (_MAX_PIECES - 1):
            breaks = number
    edges = [last]
    for begins in reversed(previous[:breaks]):
        edges.insert(0, int(begins[edges[0]]))
    return list(pairwise([0, *edges]))


def _line(
    x: np.ndarray, y: np.ndarray, scale: np.ndarray, *, is_first: bool
) -> tuple[float, float]:
    """Fit alpha and beta by least squares of (y - alpha - beta x) / scale, and return both.

    beta is at least 0. alpha is at least 0 if the line is the first piece.

    Args:
        x: (n,) message sizes in bytes.
        y: (n,) times in us.
        scale: (n,) times in us by which the errors are divided.
        is_first: Whether the line covers the smallest sizes.

    Returns:
        alpha in us, and beta in us/byte.
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
    x: np.ndarray, y: np.ndarray, shared: _SessionVariance, *, is_first: bool, measurements: int
) -> Piece:
    """Fit the line of a piece (a range of message sizes), with intervals of its coefficients.

    Errors are relative to the fitted times. Errors relative to the measured times would favor times
    that were short by chance.

    Args:
        x: (n,) sizes in bytes.
        y: (n,) times in us.
        shared: Variance that sessions add to all times.
        is_first: Whether the piece contains the smallest sizes.
        measurements: Number of measured times in the range of the piece.
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
    half_widths = [
        _half_width(value, each, freedom, shared)
        for value, each in zip((alpha, beta), own, strict=True)
    ]
    low = max(0.0, alpha - half_widths[0]) if is_first else alpha - half_widths[0]
    start_up = Estimate(alpha, low, alpha + half_widths[0])
    per_byte = Estimate(beta, max(0.0, beta - half_widths[1]), beta + half_widths[1])
    return Piece(float(x[0]), float(x[-1]), measurements, start_up, per_byte)


def _half_width(
    value: float, size_variance: float, freedom: float, shared: _SessionVariance
) -> float:
    """Return the half width of a coefficient's 95% interval.

    Args:
        value: The coefficient.
        size_variance: Variance of the coefficient from the scatter of sizes.
        freedom: Degrees of freedom of `size_variance`.
        shared: Variance that sessions add, relative to the squared coefficient.
    """
    sessions = value**2 * shared.variance
    variance = max(size_variance + sessions - value**2 * shared.within, size_variance)
    if variance > size_variance:
        freedom = variance**2 / (size_variance**2 / freedom + sessions**2 / shared.freedom)
    return float(Component(variance, freedom).half_width)
