"""Variances of least-squares coefficients whose rows share levels of crossed factors: models, batch sizes, points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

__all__ = ["Components", "Crossing"]

_SINGULAR = 1e-10  # of the largest eigenvalue: less is no direction that the rows settle
_NOTHING = 1e-9  # of the variance of a coefficient: less is no effect on it
_ALIKE = 0.02  # of the largest singular value: factors that are less apart than this are not told apart


class Components(NamedTuple):
    """Variances (k,) and their degrees of freedom (k,)."""

    variance: np.ndarray
    freedom: np.ndarray


@dataclass(frozen=True)
class Crossing:
    """How the variance of each of k coefficients follows from residuals, for one design and one set of factors.

    The estimate of one factor is its delete-one-level jackknife, V_f = (G - 1) / G x sum (coefficient without the level
    - coefficient)^2 (MacKinnon, Nielsen and Webb, J. Applied Econometrics 38, 2023). It holds some of the effects of
    the others: of a complete grid V_models holds the scatter of single points, as V_batches does, of an incomplete one
    effects of batch sizes too. So V = sum w_f V_f over factors and points, w such that V is unbiased where every factor
    and every point has a random effect of any size: V_models + V_batches - V_rest of a complete grid, and near V_models
    + V_batches - V_points (Cameron, Gelbach and Miller, J. Business and Economic Statistics 29, 2011) of one with many
    holes. V is at least V_points. Degrees of freedom of a part are those that its V would have with effects of
    this factor alone (Bell and McCaffrey, Survey Methodology 28, 2002; G - 1 of a mean over levels of one size), of V
    Satterthwaite's.

    `codes` (factors, n) are the levels of each row, the last one's the points; `influence` of each (n, k): what a
    residual moves the coefficients by when its level is left out.
    """

    codes: tuple[np.ndarray, ...]
    influence: tuple[np.ndarray, ...]
    weights: np.ndarray
    freedom: np.ndarray

    @classmethod
    def of(cls, design: np.ndarray, codes: Sequence[np.ndarray]) -> Crossing:
        """For a design (n, k) and the levels of its rows, (n,) each."""
        gram = design.T @ design
        inverse = np.linalg.pinv(gram, rcond=_SINGULAR, hermitian=True)
        effects = [inverse @ _summed(design, code).T for code in codes]
        influence = [_influence(design, gram, code) for code in codes]
        wanted = np.array([(effect**2).sum(axis=1) for effect in effects])
        held = np.array(
            [
                [_held(design, moved, code, other, effect) for other, effect in zip(codes, effects, strict=True)]
                for code, moved in zip(codes, influence, strict=True)
            ]
        )
        scale = np.array([1 - 1 / (code.max() + 1) for code in codes])
        weights, freedom = np.zeros(wanted.shape), np.ones(wanted.shape)
        for k in range(design.shape[1]):
            weights[:, k] = scale * _weights(wanted[:, k], scale[:, None] * held[:, :, k], _NOTHING * inverse[k, k])
            for number, code in enumerate(codes):
                freedom[number, k] = _freedom(design, influence[number][:, k], code, effects[number])
        return cls(tuple(codes), tuple(influence), weights, freedom)

    def components(self, residual: np.ndarray) -> Components:
        """The variances of the coefficients, from the residuals (n,) of the fit."""
        squares = [
            (_summed(moved * residual[:, None], code) ** 2).sum(axis=0)
            for code, moved in zip(self.codes, self.influence, strict=True)
        ]
        return self.combined(np.array(squares))

    def combined(self, squares: np.ndarray) -> Components:
        """The variances of k numbers from the sums, over the levels of each factor, of the squares of what leaving a
        level out changes (factors, k); of numbers that are no coefficients of this design, the variances to first
        order."""
        parts = self.weights * squares
        total = parts.sum(axis=0)
        points = squares[-1] * (1 - 1 / (self.codes[-1].max() + 1)) if len(self.codes) > 1 else np.zeros_like(total)
        below = np.maximum((parts**2 / self.freedom).sum(axis=0), 1e-300)
        freedom = np.where(total > points, total**2 / below, self.freedom[-1])
        return Components(np.maximum(total, points), freedom)


def _weights(wanted: np.ndarray, held: np.ndarray, nothing: float) -> np.ndarray:
    """w (f,) such that sum w_f held_fh = wanted_h for every component h; an alone factor without effect has 1."""
    if len(wanted) == 1:
        return np.where(held[0] > nothing, wanted / np.maximum(held[0], nothing), 1.0)
    unit = np.maximum(np.maximum(held.max(axis=0), wanted), nothing)
    found: np.ndarray = np.linalg.lstsq((held / unit).T, wanted / unit, rcond=_ALIKE)[0]
    return found


def _summed(rows: np.ndarray, code: np.ndarray) -> np.ndarray:
    """Sums (levels, k) of rows (n, k) by level."""
    return np.column_stack([np.bincount(code, column) for column in rows.T])


def _influence(design: np.ndarray, gram: np.ndarray, code: np.ndarray) -> np.ndarray:
    """What each row's residual (n, k) moves the coefficients by when its level is left out: X_g (X'X - X_g'X_g)^-1."""
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    products = design[order][:, :, None] * design[order][:, None, :]
    left = gram - np.add.reduceat(products, starts)
    inverses = np.linalg.pinv(left, rcond=_SINGULAR, hermitian=True)
    moved: np.ndarray = np.einsum("nk,nkj->nj", design, inverses[code])
    return moved


def _held(design: np.ndarray, moved: np.ndarray, code: np.ndarray, other: np.ndarray, effect: np.ndarray) -> np.ndarray:
    """How much of a unit variance of the effects of `other` the sum of squares of `code` holds, (k,).

    The change that a level g makes is a sum over levels l of `other` of effect_l x (c_gl - U_g Q_l), with c_gl the
    influence of the rows in both, U_g = sum of influence x row over g, Q = (X'X)^-1 X'Z (`effect`).
    """
    levels = int(other.max()) + 1
    pairs, place = np.unique(code * levels + other, return_inverse=True)
    own, others = pairs // levels, pairs % levels
    square = effect @ effect.T
    found = np.empty(design.shape[1])
    for k, column in enumerate(moved.T):
        both = np.bincount(place, column)
        fitted = _summed(column[:, None] * design, code)
        cross = np.einsum("pk,kp->p", fitted[own], effect[:, others])
        found[k] = (both**2).sum() - 2 * (both * cross).sum() + np.einsum("gi,ij,gj->", fitted, square, fitted)
    return found


def _freedom(design: np.ndarray, column: np.ndarray, code: np.ndarray, effect: np.ndarray) -> float:
    """Degrees of freedom of the jackknife of one factor: (trace C)^2 / trace C^2, C the covariance of its changes."""
    if int(code.max()) + 1 == len(code):
        return float(max(len(code) - design.shape[1], 1))
    moves = np.diag(np.bincount(code, column)) - _summed(column[:, None] * design, code) @ effect
    covariance = moves @ moves.T
    squared = float((covariance**2).sum())
    return (
        float(np.trace(covariance) ** 2 / squared)
        if np.abs(moves).max() > _SINGULAR * np.abs(column).max()
        else len(moves) - 1.0
    )
