"""An estimate with its confidence interval."""

from typing import NamedTuple

#: Coverage of confidence intervals.
LEVEL = 0.95


class Estimate(NamedTuple):
    """An estimate with its interval, whose ends are infinite or NaN if the sample is too small."""

    value: float
    low: float
    high: float
