"""An estimate with its confidence interval."""

from typing import NamedTuple

#: Coverage of confidence intervals.
LEVEL = 0.95


class Estimate(NamedTuple):
    """An estimate with its confidence interval.

    The ends of the interval are infinite or NaN if the sample is too small to determine them.
    """

    value: float
    low: float
    high: float
