"""Whether trainings at a batch size converge faster than reference points over batch sizes allow.

What a larger batch or another platform gains in examples a second is no gain where it needs more epochs, and a training
that needs fewer than others of its kind is another training, or luck. MLPerf Training asks so of every submission: its
reference convergence points (RCP) are epochs of repeated trainings at some batch sizes (github.com/mlcommons/logging,
rcp_checker). This is its test, from its definition:

- A point is the mean epochs without the fastest and the slowest run, and the standard deviation s of all.
- Only points on the fast side count: those below the batch size of the fastest one are left out, then in one pass each
  that is slower than a line between its neighbours.
- Between two batch sizes mean and deviation are interpolated; below the smallest, the smallest decides; above the
  largest there is no reference.
- N trainings pass unless a one-sided t-test with a deviation of s on both sides says, at 5%, that their mean (without
  the fastest and slowest) is below the reference: the least that passes is mean - t s sqrt(1 / n + 1 / (N - 2)), t
  being Student's 95% quantile with n + N - 4 degrees of freedom, n the runs behind the reference's mean.
- What passes with fewer epochs than the reference is given no credit for it: its time is multiplied by `factor`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import t

__all__ = ["Convergence", "Verdict", "convergence", "judge", "prune"]

_LEVEL = 0.95


class Convergence(NamedTuple):
    """Epochs at a batch size: their mean over `kept` of `runs` trainings, and the standard deviation of all."""

    batch_size: float
    mean: float
    deviation: float
    kept: int
    runs: int

    def least(self, submitted: int) -> float:
        """The fewest epochs that the mean of so many trainings may have; NaN for fewer than three."""
        if submitted < 3 or self.kept < 1 or submitted + self.kept < 5:
            return math.nan
        error = self.deviation * math.sqrt(1 / self.kept + 1 / (submitted - 2))
        return max(0.0, self.mean - float(t.ppf(_LEVEL, self.kept + submitted - 4)) * error)


class Verdict(NamedTuple):
    """`mean` epochs of the trainings beside the `expected` ones of the reference, and the `least` that pass.

    basis: found, interpolated, smallest (below it), beyond (above the largest: nothing to compare with, it fails),
    unfinished (too many trainings that did not converge) or few (fewer than three trainings: nothing is tested).
    """

    basis: str
    passes: bool
    mean: float
    expected: float = math.nan
    least: float = math.nan

    @property
    def factor(self) -> float:
        """What the time of a training that passes is multiplied by: at least 1."""
        return max(1.0, self.expected / self.mean) if self.passes else math.nan


def convergence(batch_size: float, epochs: Sequence[float], dropped: int = 1) -> Convergence:
    """The point of trainings that took so many `epochs`, `dropped` being left out at either end (of fewer: none)."""
    ordered = sorted(epochs)
    kept = ordered[dropped:-dropped] if len(ordered) > 2 * dropped else ordered
    finite = [value for value in ordered if math.isfinite(value)]
    return Convergence(batch_size, math.fsum(kept) / len(kept), float(np.std(finite)), len(kept), len(ordered))


def prune(points: Iterable[Convergence]) -> list[Convergence]:
    """The points on the fast side, by batch size; of several at one batch size the first."""
    ordered = list({point.batch_size: point for point in reversed(list(points))}.values())
    ordered.sort(key=lambda point: point.batch_size)
    fastest = min(ordered, key=lambda point: point.mean).batch_size
    kept = [point for point in ordered if point.batch_size >= fastest]
    place = 1
    while place < len(kept) - 1:
        if kept[place].mean > _between(kept[place].batch_size, kept[place - 1], kept[place + 1]).mean:
            del kept[place]
        else:
            place += 1
    return kept


def judge(
    reference: Sequence[Convergence],
    batch_size: float,
    epochs: Sequence[float],
    dropped: int = 1,
    reference_runs: int | None = None,
) -> Verdict:
    """Whether trainings at a batch size, which took so many `epochs` (infinite: did not converge), pass `reference`.

    `reference` is what `prune` gave. An interpolated point stands for `reference_runs` trainings (in MLPerf twice as
    many as are submitted); None: as many as its neighbours have.
    """
    own = convergence(batch_size, epochs, dropped)
    if not math.isfinite(own.mean):
        return Verdict("unfinished", False, own.mean)
    if own.runs < 3:
        return Verdict("few", True, own.mean)
    sizes = [point.batch_size for point in reference]
    place = bisect.bisect_left(sizes, batch_size)
    if place == len(sizes):
        return Verdict("beyond", False, own.mean)
    if sizes[place] == batch_size:
        basis, point = "found", reference[place]
    elif place == 0:
        basis, point = "smallest", reference[0]
    else:
        basis, point = "interpolated", _between(batch_size, reference[place - 1], reference[place], reference_runs)
    least = point.least(own.runs)
    # Rounding decides nothing where all trainings took the same.
    return Verdict(basis, not own.mean < least * (1 - 1e-9), own.mean, point.mean, least)


def _between(batch_size: float, low: Convergence, high: Convergence, runs: int | None = None) -> Convergence:
    """The point on the line between two others; nothing is left out of the runs that it stands for."""
    sizes = (low.batch_size, high.batch_size)
    mean, deviation = (
        float(np.interp(batch_size, sizes, pair)) for pair in ((low.mean, high.mean), (low.deviation, high.deviation))
    )
    count = min(low.runs, high.runs) if runs is None else runs
    return Convergence(batch_size, mean, deviation, count, count)
