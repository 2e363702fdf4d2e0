"""A number that is known with an interval."""

from typing import NamedTuple

#: How often an interval is to cover the truth.
LEVEL = 0.95


class Estimate(NamedTuple):
    """A number with its interval; an end that the sample is too small for is infinite or NaN."""

    value: float
    low: float
    high: float
