"""A number with its interval."""

from typing import NamedTuple

#: Coverage of an interval.
LEVEL = 0.95


class Estimate(NamedTuple):
    """A number with its interval; an end is infinite or NaN if the sample is too small for it."""

    value: float
    low: float
    high: float
