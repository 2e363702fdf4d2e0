"""An estimate with its confidence interval."""

from typing import NamedTuple

#: Coverage of confidence intervals.
LEVEL = 0.95


class Estimate(NamedTuple):
    """An estimated value with the lower and upper end of its confidence interval.

    Functions state the coverage of the interval, which is usually 95%. The ends are infinite or NaN
    if the sample is too small to determine them.
    """

    value: float
    low: float
    high: float
