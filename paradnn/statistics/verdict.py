"""The verdict on two sides, from paired rounds or from recorded runs."""

from enum import StrEnum


class Verdict(StrEnum):
    """Whether A, the first of two compared settings, is faster or slower than B, or equal to B."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal"
    UNDECIDED = "undecided"
