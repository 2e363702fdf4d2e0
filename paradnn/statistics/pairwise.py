"""Test of all pairs of several estimates for differences, at a common error rate.

Bonferroni's test divides the error rate by the number of all pairs. However, once the test has
shown that a and b differ, no third estimate can equal both, so fewer pairs can be equal at the same
time. Each step therefore divides the error rate of a pair by the number of pairs that can be equal
if this pair is equal (Shaffer, Journal of the American Statistical Association 81, 1986). Steps are
repeated until no further pair differs. The probability of any false difference is the same as in
Bonferroni's test, and every difference that Bonferroni's test finds is found.
"""

from __future__ import annotations

from collections.abc import Sequence

from paradnn.statistics.dependence import Component
from paradnn.statistics.estimate import LEVEL
from paradnn.statistics.lazy import np, stats


def find_differences(
    differences: np.ndarray, errors: Sequence[Component], rate: float = 1 - LEVEL
) -> np.ndarray:
    """Return which pairs of estimates differ.

    Args:
        differences: (n, n) differences of n estimates: estimate i (row) minus estimate j (column).
        errors: Independent variances of the differences with their degrees of freedom, as arrays
            (n, n). If empty, the differences are exact.
        rate: Permitted probability that any pair is falsely reported as different.

    Returns:
        (n, n) booleans, symmetric: whether estimates i and j differ.
    """
    count = len(differences)
    first, second = np.triu_indices(count, k=1)
    distances = np.abs(differences[first, second])
    parts = [
        Component(
            np.broadcast_to(error.variance, differences.shape)[first, second],
            np.broadcast_to(error.freedom, differences.shape)[first, second],
        )
        for error in errors
    ]
    may_be_equal = ~np.eye(count, dtype=bool)
    while True:
        open_pairs = np.flatnonzero(may_be_equal[first, second])
        pairs = count_equal_pairs(may_be_equal)[first[open_pairs], second[open_pairs]]
        squares = np.zeros(len(open_pairs))
        for part in parts:
            quantiles = stats.t.isf(rate / pairs / 2, part.freedom[open_pairs])
            squares += quantiles**2 * part.variance[open_pairs]
        found = open_pairs[distances[open_pairs] > np.sqrt(squares)]
        if not len(found):
            break
        may_be_equal[first[found], second[found]] = False
        may_be_equal[second[found], first[found]] = False
    np.fill_diagonal(may_be_equal, True)
    return ~may_be_equal


def count_equal_pairs(may_be_equal: np.ndarray) -> np.ndarray:
    """Bound the number of pairs of estimates that can be equal if a given pair is equal.

    Equality is transitive: if a = b, a third estimate c equals both or neither. The bound therefore
    counts the pair (a, b), two pairs for each c that may equal both, and all pairs of the remaining
    estimates that may be equal.

    Args:
        may_be_equal: (n, n) booleans, symmetric with a false diagonal: whether estimates i and j
            may be equal.

    Returns:
        (n, n) upper bound for each pair, including the pair itself.
    """
    graph = may_be_equal.astype("int64")
    pairs = int(graph.sum()) // 2
    degrees = graph.sum(axis=0)
    elsewhere = pairs - degrees[:, None] - degrees[None, :] + graph
    return np.asarray(1 + 2 * (graph @ graph) + elsewhere)
