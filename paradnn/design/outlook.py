"""What measuring further points would leave unknown: variances of a joint normal need no measured values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular

from paradnn.design.choose import choose
from paradnn.design.stop import median_error
from paradnn.forecast.regression import Array, Prediction

__all__ = ["Outlook", "deviations", "outlook", "with_measured"]


@dataclass(frozen=True)
class Outlook:
    """Further points, the most useful first, and what is expected after some of them.

    order: indices of candidates. counts: numbers of further points, from 0. errors: expected median error after each
    count. seconds: expected seconds of measuring them.
    """

    order: Sequence[int]
    counts: Sequence[int]
    errors: Sequence[float]
    seconds: Sequence[float]

    def needed(self, error: float, known: int) -> int:
        """How many further points it takes until the error is that small, where `known` are measured.

        Beyond these points errors fall by the power of the number of points by which they fell last.
        """
        last = zip(self.counts[-2:], self.errors[-2:], strict=True)
        for count, found in zip(self.counts, self.errors, strict=True):
            if found <= error:
                return count
        (one, high), *rest = [(known + count, found) for count, found in last]
        power = np.log(high / rest[0][1]) / np.log(rest[0][0] / one) if rest and one else 0.5
        end, found = self.counts[-1] + known, self.errors[-1]
        return int(end * (found / error) ** (1 / max(power, 0.1))) - known


def deviations(prediction: Prediction, measured: Sequence[int] = ()) -> Array:
    """(n,) standard deviations of the logarithm of each point's step, without the noise of measuring it, once the
    points with the indices `measured` are measured too."""
    root, chosen = prediction.root, list(measured)
    variance, own = (root**2).sum(axis=1), prediction.own
    if chosen:
        rows = _observed(prediction, chosen)
        lower = cholesky(np.eye(len(chosen)) + rows @ rows.T, lower=True)
        variance = variance - (solve_triangular(lower, rows @ root.T, lower=True) ** 2).sum(axis=0)
        own = _own_after(prediction, chosen)
    return np.asarray(np.sqrt(np.maximum(variance, 0.0) + own))


def with_measured(prediction: Prediction, indices: Sequence[int]) -> Prediction:
    """The prediction once these points are measured too, but for its mean, which their values would decide.

    Latent normals w, of which a point's log seconds are root @ w, get the precision I + sum(r r' / (own + noise^2)).
    """
    chosen = list(indices)
    if not chosen:
        return prediction
    root, rows = prediction.root, _observed(prediction, chosen)
    values, vectors = np.linalg.eigh(np.eye(root.shape[1]) + rows.T @ rows)
    return replace(prediction, root=np.asarray(root @ (vectors / np.sqrt(values))), own=_own_after(prediction, chosen))


def _observed(prediction: Prediction, chosen: Sequence[int]) -> Array:
    """(m, k) rows of points in units of what measuring them does not tell of the others."""
    scale = np.sqrt(prediction.own[chosen] + prediction.noise**2)
    return np.asarray(prediction.root[chosen] / scale[:, None])


def _own_after(prediction: Prediction, chosen: Sequence[int]) -> Array:
    """(n,) variances of what is peculiar to a point, once these are measured: their replicates share it."""
    left = prediction.own.copy()
    for index in chosen:
        kin = prediction.group == prediction.group[index]
        left[kin] *= prediction.noise**2 / (left[index] + prediction.noise**2 + 1e-300)
    return left


def outlook(
    prediction: Prediction,
    seconds: Array,
    weights: Array,
    allowed: NDArray[np.bool_],
    most: int,
    looks: int,
    first: Sequence[int] = (),
) -> Outlook:
    """What up to `most` further points would leave unknown of candidates: `first`, and then as `choose` chooses them.

    seconds: (n,) expected of measuring each. weights: (n,), 0 for what is not to be predicted. allowed: (n,) what may
    be measured. `looks`: at how many numbers of points.
    """
    others = allowed & ~np.isin(np.arange(len(allowed)), first)
    order = [*first, *choose(with_measured(prediction, first), seconds, most - len(first), weights, others)]
    counts = sorted(
        {0, *(round(mark) for mark in np.geomspace(max(1, len(first)), max(len(order), 1), looks) if order)}
    )
    errors = []
    for count in counts:
        left = allowed & (weights > 0)
        left[order[:count]] = False
        errors.append(median_error(deviations(prediction, order[:count])[left]))
    spent = np.concatenate([[0.0], np.cumsum(seconds[order])])
    return Outlook(order, counts, errors, [float(spent[count]) for count in counts])
