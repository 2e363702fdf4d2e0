"""Logistic regression that has an answer where outcomes are separated perfectly, as memory's mostly are."""

from __future__ import annotations

from analysis.lazy import np, optimize, special, stats

_STEPS = 200
_CLOSE = 1e-7  # of a coefficient
_LONGEST = 5.0  # a step of a coefficient, in log-odds
_FARTHEST = 2.0**14  # first steps from the estimate at which an end of an interval is looked for


def firth(
    design: np.ndarray, hits: np.ndarray, start: np.ndarray | None = None, held: int | None = None
) -> tuple[np.ndarray, float]:
    """(coefficients (k,) of the log-odds of `hits` (n,) on a design (n, k) with a column of ones, log likelihood).

    The likelihood is penalised by the square root of the information's determinant (Firth, Biometrika 80, 1993), which
    removes the bias of few points and keeps coefficients finite under perfect separation (Heinze and Schemper,
    Statistics in Medicine 21, 2002). Newton's steps on the penalised score, halved while they lead downhill. The
    coefficient `held` stays as it is in `start`.
    """
    y = np.asarray(hits, dtype="float64")
    found = np.zeros(design.shape[1]) if start is None else np.array(start, dtype="float64")
    free = np.arange(design.shape[1]) != (-1 if held is None else held)
    height = _penalised(design, y, found)
    for _ in range(_STEPS):
        step = np.zeros_like(found)
        step[free] = _newton(design, y, found, free)
        step *= min(1.0, _LONGEST / max(np.abs(step).max(), 1e-300))
        risen = _penalised(design, y, found + step)
        while risen < height - 1e-12 and np.abs(step).max() > _CLOSE:
            step = step / 2
            risen = _penalised(design, y, found + step)
        if risen < height:
            break
        found, height = found + step, risen
        if np.abs(step).max() < _CLOSE:
            break
    return found, height


def profile_interval(
    design: np.ndarray, hits: np.ndarray, found: np.ndarray, height: float, place: int, level: float = 0.95
) -> tuple[float, float]:
    """The values of one coefficient at which the penalised log likelihood, the others chosen best, is no further below
    its maximum `height` than chance allows (Heinze and Schemper 2002, section 2.3); an end that is nowhere is infinite.
    """
    room = stats.chi2.ppf(level, 1) / 2
    scale = max(abs(float(found[place])), 0.1) / 4

    def excess(value: float) -> float:
        start = found.copy()
        # In perfect separation all coefficients grow together.
        start *= np.clip(value / found[place], 0.2, 5.0) if value * found[place] > 0 else 1.0
        start[place] = value
        return height - float(room) - firth(design, hits, start, place)[1]

    ends = []
    for sign in (-1.0, 1.0):
        reach = scale
        while excess(found[place] + sign * reach) < 0 and reach < scale * _FARTHEST:
            reach *= 2
        if reach >= scale * _FARTHEST:
            ends.append(sign * np.inf)
            continue
        inner, outer = found[place] + sign * (reach / 2 if reach > scale else 0.0), found[place] + sign * reach
        ends.append(float(optimize.brentq(excess, inner, outer, xtol=1e-3 * scale)))
    return ends[0], ends[1]


def _newton(design: np.ndarray, y: np.ndarray, found: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Newton's step of the free coefficients, with the penalised score and the likelihood's information."""
    chance = special.expit(design @ found)
    weight = chance * special.expit(-(design @ found))
    information = design.T @ (weight[:, None] * design)
    inverse = np.linalg.pinv(information, rcond=1e-14, hermitian=True)
    leverage = weight * np.einsum("ni,ij,nj->n", design, inverse, design)
    score = design[:, free].T @ (y - chance + leverage * (0.5 - chance))
    step: np.ndarray = np.linalg.lstsq(information[np.ix_(free, free)], score, rcond=1e-14)[0]
    return step


def _penalised(design: np.ndarray, y: np.ndarray, found: np.ndarray) -> float:
    odds = design @ found
    information = design.T @ ((special.expit(odds) * special.expit(-odds))[:, None] * design)
    return float((y * odds - np.logaddexp(0, odds)).sum() + 0.5 * np.linalg.slogdet(information)[1])
